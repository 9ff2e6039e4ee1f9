# The host device's memory.  Every function of the first group takes and leaves its own lock.
from libc.stdint cimport uint32_t, uint64_t, uintptr_t

cdef enum:
    MAX_HOST_DEVICES = 64
    PAGE = 2 << 20     # granularity of physical memory

cdef enum:  # what an address belongs to
    UNKNOWN_MEMORY = -2
    HOST_MEMORY = -1   # page-locked; device memory answers its device

cdef int memory_open(int devices, size_t capacity) noexcept nogil
cdef int memory_open_errno() noexcept nogil  # why memory_open failed
cdef bint take_lack_of_addresses() noexcept nogil  # whether the thread's last refusal was for addresses, told once
cdef void lock_memory() noexcept nogil    # around a fork too; after the streams' lock where both are taken
cdef void unlock_memory() noexcept nogil
cdef int memory_figures(int device, size_t* out_free, size_t* out_total) noexcept nogil
# Which memory [address, address + size) lies in, whole and readable; UNKNOWN_MEMORY where it does not.
cdef int owner_of(uintptr_t address, size_t size) noexcept nogil
cdef bint is_known(uintptr_t address) noexcept nogil  # allocated, mapped or page-locked, with access or not
cdef int device_of(uintptr_t address) noexcept nogil  # the owner of a known address, with access or not
cdef bint is_reserved(uintptr_t address) noexcept nogil
cdef void memory_counts(size_t* counts) noexcept nogil  # allocations, bytes, reservations, host allocations

cdef enum:  # Range.kind
    PLAIN = 0       # memory_alloc: a mapping of its own
    MAPPED = 1      # a physical handle in a reservation
    RESERVED = 2    # addresses alone; MAPPED ranges lie inside
    PINNED = 3
    REGISTERED = 4
    IMPORTED = 5    # another process's plain memory
    KINDS = 6

# Bytes of a device's file, or of a file of their own that other processes may have too, held while the handle is alive or
# mapped.
cdef struct Physical:
    int device
    size_t size
    long offset
    int own        # the file of their own; -1: they are in the device's
    bint charged   # to the device's capacity, since this process made them
    int mappings
    bint alive

cdef struct Range:
    uintptr_t start
    size_t size
    size_t charged       # bytes of capacity (PLAIN)
    long offset          # in the file (PLAIN)
    Physical* physical   # (MAPPED)
    int device           # whose memory; -1 for host memory
    int kind
    bint open            # readable and writable
    uint64_t open_to     # devices that memory_access named, a bit each (MAPPED)
    uint32_t weight      # of the tree that it is in
    Range* left
    Range* right

# Disjoint ranges by start: treaps, heaviest on top.  The second group of functions uses them, under the lock.
cdef Range* memory        # everything but reservations
cdef Range* reservations

cdef int known_device(int device) noexcept nogil
cdef int file_of(int device) noexcept nogil
cdef Range* last_before(Range* ranges, uintptr_t end) noexcept nogil  # the last that starts below end; NULL
cdef Range* containing(Range* ranges, uintptr_t address) noexcept nogil
cdef int add_range(Range** ranges, const Range* added) noexcept nogil  # a copy of it
cdef void drop_range(Range** ranges, Range* dropped) noexcept nogil
cdef int take_bytes(int device, size_t size, long* out_offset) noexcept nogil
cdef void give_bytes(int device, long offset, size_t size) noexcept nogil
cdef void uncharge(int device, size_t size) noexcept nogil  # bytes that are in no device's file
cdef void* find_room(size_t size, size_t alignment) noexcept nogil  # addresses without access
cdef size_t rounded(size_t size, size_t unit) noexcept nogil
cdef void* take_pages(size_t size) noexcept nogil    # of the host's, not of a device's file
cdef void drop_room(void* address, size_t size) noexcept nogil
cdef bint show(void* address, size_t size, int file, long offset, int protection) noexcept nogil
cdef void hide(void* address, size_t size) noexcept nogil
