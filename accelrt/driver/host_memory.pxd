# The host device's memory.  Every function takes and leaves its own lock; it calls nothing else.
from libc.stdint cimport uintptr_t

cdef enum:
    MAX_HOST_DEVICES = 64
    PAGE = 2 << 20     # granularity of physical memory

cdef enum:  # what an address belongs to
    UNKNOWN_MEMORY = -2
    HOST_MEMORY = -1   # page-locked; device memory answers its device

cdef int memory_open(int devices, size_t capacity) noexcept nogil
cdef void memory_forget() noexcept nogil  # in a forked child: the lock may be held by a thread that is gone
cdef int memory_figures(int device, size_t* out_free, size_t* out_total) noexcept nogil
# Which memory [address, address + size) lies in, whole and readable; UNKNOWN_MEMORY where it does not.
cdef int owner_of(uintptr_t address, size_t size) noexcept nogil
cdef void memory_counts(size_t* counts) noexcept nogil  # allocations, bytes, reservations, physical, host allocations

cdef int plain_alloc(int device, size_t size, uintptr_t* out_address) noexcept nogil
cdef int plain_free(int device, uintptr_t address) noexcept nogil
cdef int reserve(size_t size, size_t alignment, uintptr_t* out_address) noexcept nogil
cdef int unreserve(uintptr_t address, size_t size) noexcept nogil
cdef int create(int device, size_t size, uintptr_t* out_handle) noexcept nogil
cdef int release(uintptr_t handle) noexcept nogil
cdef int map_pages(uintptr_t address, size_t size, uintptr_t handle) noexcept nogil
cdef int open_pages(uintptr_t address, size_t size, int device) noexcept nogil
cdef int unmap_pages(uintptr_t address, size_t size) noexcept nogil
cdef int pinned_alloc(size_t size, uintptr_t* out_address) noexcept nogil
cdef int pinned_free(uintptr_t address) noexcept nogil
cdef int pinned_register(uintptr_t address, size_t size) noexcept nogil
cdef int pinned_unregister(uintptr_t address) noexcept nogil
