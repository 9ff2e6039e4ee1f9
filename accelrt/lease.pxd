# The pool of driver streams.  Under the GIL.
from libc.stdint cimport uintptr_t

cdef uintptr_t lease(int ordinal, int priority) except? 0  # an idle driver stream that nobody else has
cdef void give_back(int ordinal, int priority, uintptr_t handle) noexcept  # its work may still run
