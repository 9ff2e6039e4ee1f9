# The host device's virtual memory.  Every function takes and leaves the lock of memory.pyx.
from libc.stdint cimport uintptr_t

cdef size_t count_physicals() noexcept nogil  # handles that are alive
cdef bint is_reserved(uintptr_t address) noexcept nogil
cdef int reserve(size_t size, size_t alignment, uintptr_t* out_address) noexcept nogil
cdef int unreserve(uintptr_t address, size_t size) noexcept nogil
cdef int create(int device, size_t size, uintptr_t* out_handle) noexcept nogil
cdef int release(uintptr_t handle) noexcept nogil
cdef int map_pages(uintptr_t address, size_t size, uintptr_t handle) noexcept nogil
cdef int open_pages(uintptr_t address, size_t size, int device) noexcept nogil
cdef int unmap_pages(uintptr_t address, size_t size) noexcept nogil
