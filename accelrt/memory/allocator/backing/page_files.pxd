# The file descriptors of pages that other processes map, kept while the page lives: to make one can take a driver half a
# millisecond.  A descriptor keeps the page's memory, so it is closed before the page is released.  By the driver's handle of
# the page; any thread, under any lock but this module's own.
from libc.stdint cimport uintptr_t

cdef int kept_file(uintptr_t handle) noexcept nogil  # -1: none is kept; the page may not be released meanwhile
# False: there is no room, or another thread was faster; the descriptor stays the caller's.
cdef bint keep_file(uintptr_t handle, int file) noexcept nogil
cdef void close_file(uintptr_t handle) noexcept nogil  # before the page is released
