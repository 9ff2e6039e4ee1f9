# Memory of other processes that this one has mapped, and the streams that use it: no pool has it.  Any thread, under no
# lock or any lock but this module's own.
from libc.stdint cimport uintptr_t

cdef struct StreamUse:
    int device
    uintptr_t stream
    StreamUse* next

cdef int add_imported(uintptr_t address, size_t size) noexcept nogil  # 0 or NO_HOST_MEMORY
cdef void drop_imported(uintptr_t address) noexcept nogil
cdef int use_imported(uintptr_t address, int device, uintptr_t stream) noexcept nogil  # NOT_ALLOCATED: it is none of these
# The recorded uses, which the caller frees one by one; 0 or NO_HOST_MEMORY, with some of them.
cdef int copy_uses(uintptr_t address, StreamUse** out_uses) noexcept nogil
