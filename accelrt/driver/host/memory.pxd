# The host device's memory.  Every function of the first group takes and leaves its own lock.
from libc.stdint cimport uint32_t, uintptr_t

cdef enum:
    MAX_HOST_DEVICES = 64
    PAGE = 2 << 20     # granularity of physical memory

cdef enum:  # what an address belongs to
    UNKNOWN_MEMORY = -2
    HOST_MEMORY = -1   # page-locked; device memory answers its device

cdef int memory_open(int devices, size_t capacity) noexcept nogil
cdef int memory_open_errno() noexcept nogil  # why memory_open failed
cdef bint take_lack_of_addresses() noexcept nogil  # whether the thread's last refusal was for addresses, told once
cdef void memory_lock() noexcept nogil    # around a fork; after the streams' lock where both are taken
cdef void memory_unlock() noexcept nogil
cdef int memory_figures(int device, size_t* out_free, size_t* out_total) noexcept nogil
# Which memory [address, address + size) lies in, whole and readable; UNKNOWN_MEMORY where it does not.
cdef int owner_of(uintptr_t address, size_t size) noexcept nogil
cdef bint is_known(uintptr_t address) noexcept nogil  # allocated, mapped or page-locked, with access or not
cdef int device_of(uintptr_t address) noexcept nogil  # the owner of a known address, with access or not
cdef void memory_counts(size_t* counts) noexcept nogil  # allocations, bytes, reservations, host allocations

cdef int plain_alloc(int device, size_t size, uintptr_t* out_address) noexcept nogil
cdef int plain_free(int device, uintptr_t address) noexcept nogil
cdef int pinned_alloc(size_t size, uintptr_t* out_address) noexcept nogil
cdef int pinned_free(uintptr_t address) noexcept nogil
cdef int pinned_register(uintptr_t address, size_t size) noexcept nogil
cdef int pinned_unregister(uintptr_t address) noexcept nogil

cdef enum:  # Range.kind
    PLAIN = 0       # plain_alloc: a mapping of its own
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
    uint32_t weight      # of the tree that it is in
    Range* left
    Range* right

# Disjoint ranges by start: a treap, heaviest on top.
cdef Range* memory  # every mapping; reservations are kept apart

cdef void lock_memory() noexcept nogil
cdef void unlock_memory() noexcept nogil
cdef int known_device(int device) noexcept nogil
cdef int file_of(int device) noexcept nogil
cdef Range* last_before(Range* ranges, uintptr_t end) noexcept nogil  # the last that starts below end; NULL
cdef Range* containing(Range* ranges, uintptr_t address) noexcept nogil
cdef int add_range(Range** ranges, const Range* added) noexcept nogil  # a copy of it
cdef void drop_range(Range** ranges, Range* dropped) noexcept nogil
cdef int take_bytes(int device, size_t size, long* out_offset) noexcept nogil
cdef void give_bytes(int device, long offset, size_t size) noexcept nogil
cdef void* find_room(size_t size, size_t alignment) noexcept nogil  # addresses without access
cdef void drop_room(void* address, size_t size) noexcept nogil
cdef bint show(void* address, size_t size, int file, long offset, int protection) noexcept nogil
cdef void hide(void* address, size_t size) noexcept nogil

# Virtual memory.  Every function takes and leaves the lock.
cdef size_t count_physicals() noexcept nogil  # handles that are alive
cdef bint is_reserved(uintptr_t address) noexcept nogil
cdef int reserve(size_t size, size_t alignment, uintptr_t* out_address) noexcept nogil
cdef int unreserve(uintptr_t address, size_t size) noexcept nogil
cdef int create(int device, size_t size, bint shared, uintptr_t* out_handle) noexcept nogil
cdef int export_file(uintptr_t handle, int* out_file) noexcept nogil  # a new descriptor
cdef int import_file(int device, int file, uintptr_t* out_handle) noexcept nogil  # keeps a descriptor of its own

# Plain memory of other processes.
cdef int name_plain(int device, uintptr_t address, char* out_ipc) noexcept nogil
cdef int open_plain(int device, const char* handle, uintptr_t* out_address) noexcept nogil
cdef int close_plain(int device, uintptr_t address) noexcept nogil
cdef int release(uintptr_t handle) noexcept nogil
cdef int map_pages(uintptr_t address, size_t size, uintptr_t handle) noexcept nogil
cdef int open_pages(uintptr_t address, size_t size, int device) noexcept nogil
cdef int unmap_pages(uintptr_t address, size_t size) noexcept nogil
