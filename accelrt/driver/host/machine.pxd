# What the host device is made of, below its rows: memory, what processes share, streams and the threads that serve them.
from libc.stdint cimport uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport free, malloc
from libc.string cimport memset

from accelrt.core.descriptors cimport KeptFile
from accelrt.driver.host.work cimport (
    Allocation, Capture, Condition, HostModule, HostStream, Launch, Plan, SharedEvent, Ticket, Work,
)

# Memory.  Every function of the first group takes and leaves its own lock.

cdef enum:
    MAX_HOST_DEVICES = 64
    LACKS_FILE = 2     # other code of this process closed the memory's file
    PAGE = 2 << 20     # granularity of physical memory
    MANAGED_PAGE = 64 << 10  # managed memory is where it is by so many bytes

cdef enum:  # what an address belongs to
    UNKNOWN_MEMORY = -2
    HOST_MEMORY = -1   # page-locked; device memory answers its device

cdef int memory_open(int devices, size_t capacity) noexcept nogil
cdef int open_errno  # why memory_open failed
cdef int take_lack_of_addresses() noexcept nogil  # whether the thread's last refusal was for these, or LACKS_FILE; told once
cdef void lock_memory() noexcept nogil    # around a fork too; after the streams' lock where both are taken
cdef void unlock_memory() noexcept nogil
cdef int memory_figures(int device, size_t* out_free, size_t* out_total) noexcept nogil
# Which memory [address, address + size) lies in, whole and readable; UNKNOWN_MEMORY where it does not.
cdef int owner_of(uintptr_t address, size_t size) noexcept nogil
cdef bint is_open_to(uintptr_t address, size_t size, int device) noexcept nogil  # mapped pages, as memory_access said
cdef int owner_to_write(uintptr_t address, size_t size) noexcept nogil  # the same, but for memory that is read-only
cdef int device_of(uintptr_t address) noexcept nogil  # of known memory, with access or not; else UNKNOWN_MEMORY
cdef bint is_reserved(uintptr_t address) noexcept nogil
cdef void memory_counts(size_t* counts) noexcept nogil  # allocations, bytes, reservations, host allocations

cdef enum:  # Range.kind
    PLAIN = 0       # memory_alloc: a mapping of its own
    MAPPED = 1      # a physical handle in a reservation
    RESERVED = 2    # addresses alone; MAPPED ranges lie inside
    PINNED = 3
    REGISTERED = 4
    IMPORTED = 5    # another process's plain memory
    MANAGED = 6
    OF_GRAPHS = 7   # of an Allocation; without access until a launch has it
    POOLED = 8      # of a pool that other processes may have: a part of its file, mapped by itself
    OF_ARRAYS = 9   # reached by handles alone
    OF_MODULES = 10  # a variable of a module's that was asked for
    KINDS = 11

# Bytes of a device's file, or of a file of their own that other processes may have too, held while the handle is alive or
# mapped.
cdef struct Physical:
    int device
    size_t size
    long offset
    KeptFile own   # the file of their own; -1: they are in the device's
    bint charged   # to the device's capacity, since this process made them
    int mappings
    bint alive

# Where a page of managed memory is, and what was said of it.
cdef struct ManagedPage:
    int holder             # the device whose memory it takes, or HOST_MEMORY
    ManagedPage* before    # of those that the device holds, by when they came
    ManagedPage* after
    bint read_mostly
    bint used_by_host      # advised, as is
    uint64_t used_by       # devices, a bit each
    int preferred_kind     # LOCATION_ numbers; LOCATION_NONE: none was said
    int preferred
    int prefetched_kind
    int prefetched

cdef struct Range:
    uintptr_t start
    size_t size
    size_t charged       # bytes of capacity (PLAIN)
    long offset          # in the file (PLAIN)
    Physical* physical   # (MAPPED)
    int device           # whose memory; -1 for host memory
    int kind
    bint open            # readable
    bint writable        # open, and not for reading alone
    uint64_t open_to     # devices that memory_access named, a bit each (MAPPED)
    ManagedPage* pages   # (MANAGED)
    const void* module   # (OF_MODULES)
    uint32_t weight      # of the tree that it is in
    Range* left
    Range* right

# Disjoint ranges by start: treaps, heaviest on top.  The second group of functions uses them, under the lock.
cdef Range* memory        # everything but reservations
cdef size_t[KINDS] alive  # ranges, by kind
cdef Range* reservations

cdef int known_device(int device) noexcept nogil
cdef int file_of(int device) noexcept nogil  # -1: other code of this process closed it
cdef Range* last_before(Range* ranges, uintptr_t end) noexcept nogil  # the last that starts below end; NULL
cdef Range* containing(Range* ranges, uintptr_t address) noexcept nogil
cdef int add_range(Range** ranges, const Range* added) noexcept nogil  # a copy of it
cdef void drop_range(Range** ranges, Range* dropped) noexcept nogil
cdef int take_bytes(int device, size_t size, long* out_offset) noexcept nogil
cdef void give_bytes(int device, long offset, size_t size) noexcept nogil
cdef void uncharge(int device, size_t size) noexcept nogil  # bytes that are in no device's file
cdef void* find_room(size_t size, size_t alignment, uintptr_t at) noexcept nogil  # addresses without access, there if at all
cdef size_t rounded(size_t size, size_t unit) noexcept nogil
cdef void* take_pages(size_t size) noexcept nogil    # of the host's, not of a device's file
cdef void place_page(ManagedPage* page, int holder) noexcept nogil  # it makes room on the device, from what came first
cdef void drop_room(void* address, size_t size) noexcept nogil
cdef bint show(void* address, size_t size, int file, long offset, int protection) noexcept nogil
cdef void hide(void* address, size_t size) noexcept nogil
cdef int make_file(const char* name, long size) noexcept nogil  # of memory; its descriptor, or -errno


# What processes share: files of memory, by handles of 64 bytes, and in such files the state of events.

cdef enum:
    IPC_BYTES = 64

# What a handle says: the file that a process holds open, and what of it is meant.
cdef struct FileName:
    uint64_t purpose   # EVENT_FILE or MEMORY_FILE
    int process
    int file           # in that process
    uint64_t inode     # which tells whether it is still the same file
    long offset
    size_t size

cdef uint64_t EVENT_FILE
cdef uint64_t MEMORY_FILE

cdef int name_file(int file, uint64_t purpose, long offset, size_t size, char* out_ipc) noexcept nogil
# Opens the file of another process; the caller closes it.  INVALID_HANDLE where that process, or its file, is gone.
cdef int open_named(const char* handle, uint64_t purpose, FileName* out_name, int* out_file) noexcept nogil

cdef SharedEvent* make_shared_event() noexcept nogil  # NULL: no memory
cdef int open_shared_event(const char* handle, SharedEvent** out_event) noexcept nogil
cdef void drop_shared_event(SharedEvent* event) noexcept nogil
cdef uint64_t begin_record(SharedEvent* event) noexcept nogil  # the record's number
cdef void complete_record(SharedEvent* event, uint64_t number) noexcept nogil
# Whether the record is done, or will never be, for the process that made it has ended.
cdef bint is_record_done(SharedEvent* event, uint64_t number) noexcept nogil
cdef uint64_t last_record(SharedEvent* event) noexcept nogil


# Streams, and what is put into them; the lock of all of it.

cdef HostStream* working  # the first of those that have operations, dropped ones too; guarded by the lock
# Under the lock, for tests.
cdef size_t operations         # that are queued
cdef size_t gone_calls         # that named a destroyed stream
cdef size_t calls_beside_ends  # about a capture that another thread was ending
cdef size_t held_ends           # calls of capture_end that are held open

cdef void queue_open(long delay_us, long end_delay_us) noexcept nogil
cdef void lock() noexcept nogil
cdef void unlock() noexcept nogil

# All of the following under the lock.
cdef uintptr_t new_handle() noexcept nogil
cdef HostStream* add_stream(int device, unsigned int flags, int priority) noexcept nogil
cdef HostStream* find_stream(int device, uintptr_t stream) noexcept nogil  # NULL where it is none of the device's
cdef HostStream* find_of_any_device(int device, uintptr_t stream) noexcept nogil  # a default stream: of device
cdef void drop_stream(HostStream* stream) noexcept nogil
cdef bint is_legacy(const HostStream* stream) noexcept nogil
cdef size_t count_streams() noexcept nogil
cdef HostStream* peek_stream(int device, uintptr_t stream) noexcept nogil  # for what may be asked while a capture ends
cdef void note_beside_end(const Capture* capture) noexcept nogil  # a call is about it, or an event of it; or NULL
cdef bint hold_end_open(HostStream* stream) noexcept nogil  # opens the lock while it waits; whether it did
cdef void delay_ends(long delay_us, bint hold) noexcept nogil  # hold: until it is called again
cdef int enqueue(HostStream* stream, const Work* work, Ticket* ticket, void* staged) noexcept nogil
cdef int enqueue_point(HostStream* stream, int kind, Ticket* ticket) noexcept nogil  # a RECORD or a WAIT
cdef Ticket* mark(HostStream* stream, int* out_code) noexcept nogil  # NULL where nothing is left to do
cdef int follow_legacy_order(HostStream* stream) noexcept nogil
# A ticket that is marked when a record of another process is done: a thread of its own sleeps on that.  NULL: no memory.
cdef Ticket* follow_shared(SharedEvent* event, uint64_t number) noexcept nogil
cdef int wait_for(Ticket* ticket) noexcept nogil  # 0 or INTERRUPTED; opens the lock while it waits
cdef int drain_device(int device) noexcept nogil   # -1 is all; opens the lock while it waits
cdef void drop_plan(Plan* plan) noexcept nogil
cdef void drop_condition(Condition* condition) noexcept nogil
cdef void drop_work(const Work* work) noexcept nogil  # what a node's work shares with others
cdef void drop_allocation(Allocation* allocation) noexcept nogil
cdef void link_allocation(Allocation* allocation) noexcept nogil
cdef Allocation* allocations  # of all graphs
cdef void drop_launch(Launch* launch) noexcept nogil
cdef void drop_module(HostModule* module) noexcept nogil
cdef HostModule* take_unused_modules() noexcept nogil  # for the caller to close, without the lock


cdef inline Ticket* new_ticket() noexcept nogil:
    # With one holder; NULL where there is no memory.  Not by calloc, which takes no block from the thread's own cache.
    cdef Ticket* ticket = <Ticket*>malloc(sizeof(Ticket))
    if ticket != NULL:
        memset(ticket, 0, sizeof(Ticket))
        ticket.holders = 1
    return ticket


cdef inline Ticket* hold_ticket(Ticket* ticket) noexcept nogil:
    if ticket != NULL:
        ticket.holders += 1
    return ticket


cdef inline void drop_ticket(Ticket* ticket) noexcept nogil:
    if ticket == NULL:
        return
    ticket.holders -= 1
    if ticket.holders == 0:
        drop_shared_event(ticket.shared)
        free(ticket)


cdef inline void drop_tickets(Ticket** tickets, int count) noexcept nogil:
    cdef int index
    for index in range(count):
        drop_ticket(tickets[index])


# What the host device's work does when its turn comes.

cdef int lost_device() noexcept nogil    # 0, or 1 + the device whose work touched memory that is gone, or failed
cdef int lost_code() noexcept nogil      # what it answers from then on
cdef bint in_callback() noexcept nogil   # the calling thread runs a host function

# Threads that help with kernels.
cdef enum:
    MOST_CREW = 64

cdef void crew_open(int wanted) noexcept nogil  # 0: as many as the process may use processors
