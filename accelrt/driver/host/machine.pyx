"""The parts of the host device: memory, what several processes share, streams as queues, and the threads that serve them.

**Memory** is one sparse memory file a device, mapped wherever it is asked for, and the addresses in use: what is mapped,
and what is reserved for mappings, is a range of addresses.  An offset of the file is used once, so that what was mapped
there before can never be seen again; its pages go back to the system when a hole is punched.  Pages that are never touched
cost nothing.

**Events of several processes** are a page of a memory file that each of them maps.  A handle names the file by process and
descriptor; whoever opens it does so in /proc, where the system asks whether the one process may look into the other.  A
record takes the next number, and the thread that reaches it writes that it is done and wakes who sleeps.  A process that
dies with a record under way never writes it: waiters look after it now and then.

**Streams** are queues, each served by a thread of its own while it has work.  One lock guards every queue, and no work runs
under it.  A worker sleeps on its stream's condition and ends when nothing came for a while, so that idle streams cost no
thread.

**The crew** are threads that share the blocks of a kernel with the thread that serves its stream.  That thread begins
alone, and asks for help when it has been at work for as long as waking others takes: small kernels run in the order of
their blocks, on one thread.  Then whoever is free takes some of the blocks that are left, fewer the fewer there are.
The threads are started when they are first needed, serve all streams, and last as long as the process.  A lock of their
own guards what is left of each kernel; no block runs under it.
"""
from libc.errno cimport errno
from libc.stdint cimport uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, memmove, memset

from accelrt.core.descriptors cimport close_kept, keep_number, KeptFile, lift, number_of
from accelrt.core.handle_map cimport AddressMap, map_find, map_insert, map_remove, map_reserve
from accelrt.core.host_pages cimport empty_part
from accelrt.core.locks cimport (
    load_count, pthread_mutex_init, pthread_mutex_lock, pthread_mutex_t, pthread_mutex_unlock, store_count,
)
from accelrt.core.threads cimport (
    now, pthread_cond_broadcast, pthread_cond_init, pthread_cond_signal, pthread_cond_t, pthread_cond_wait, sleep_ns,
    start, wait_on,
)
from accelrt.driver.host.work cimport (
    BRANCH, CALL, COPY, COPY_3D, DST_KNOWN, FILL, KERNEL, MANAGE, RECORD, REPLAY, SET, SRC_KNOWN, WAIT, Block, Capture,
    Condition, EventWords, HostModule, HostStream, Launch, Operation, Plan, SharedEvent, Ticket, Work, begin_work,
    clear_frontier, CHILD, Allocation, place_of,
)
from accelrt.driver.node_params cimport CONDITION_IF, CONDITION_WHILE
from accelrt.driver.table cimport STREAM_BLOCKING
from accelrt.driver.guard cimport INTERRUPTED, is_interruptible, pause_on
from accelrt.status cimport (
    ILLEGAL_ADDRESS, INVALID_CONTEXT, INVALID_DEVICE, INVALID_HANDLE, LAUNCH_FAILED, NOT_PERMITTED, NOT_SUPPORTED,
    NO_HOST_MEMORY, OPERATING_SYSTEM, OUT_OF_MEMORY,
)

# --- memory: files, and what is mapped of them ------------------------------------------------------------------

cdef extern from *:
    """
    #ifndef _GNU_SOURCE
    #define _GNU_SOURCE
    #endif
    #include <errno.h>
    #include <fcntl.h>
    #include <sys/mman.h>
    #include <sys/syscall.h>
    #include <unistd.h>
    static __thread int accelrt_lacks_addresses;  /* why the thread's last refusal for want of memory was one */
    """
    int memfd_create(const char* name, unsigned int flags) noexcept nogil
    int ftruncate(int file, long size) noexcept nogil
    int close_file "close" (int file) noexcept nogil
    int lacks_addresses "accelrt_lacks_addresses"  # 0, 1 or LACKS_FILE
    void* mmap(void* address, size_t size, int protection, int flags, int file, long offset) noexcept nogil
    int munmap(void* address, size_t size) noexcept nogil
    int madvise(void* address, size_t size, int advice) noexcept nogil
    enum:
        MADV_DONTNEED
        MFD_CLOEXEC
        PROT_NONE
        PROT_READ
        PROT_WRITE
        MAP_SHARED
        MAP_PRIVATE
        MAP_FIXED
        MAP_ANONYMOUS
        MAP_NORESERVE
    void* MAP_FAILED

cdef struct Device:
    KeptFile file
    size_t capacity
    size_t used
    long next_offset
    size_t lent           # bytes that managed pages take, until something else needs them
    ManagedPage* oldest   # of these
    ManagedPage* latest

cdef pthread_mutex_t memory_mutex
cdef Device[MAX_HOST_DEVICES] devices
cdef int device_total = 0
cdef int open_errno = 0
cdef Range* memory = NULL
cdef Range* reservations = NULL
cdef uint32_t weight_seed = 0x2545F491


cdef int make_file(const char* name, long size) noexcept nogil:
    cdef int file = lift(memfd_create(name, MFD_CLOEXEC))
    cdef int error
    if file >= 0 and ftruncate(file, size) == 0:
        return file
    error = errno
    if file >= 0:
        close_file(file)
    return -error


cdef int memory_open(int count, size_t capacity) noexcept nogil:
    global device_total, open_errno
    cdef int device
    for device in range(count):
        devices[device].file = keep_number(make_file("accelrt", <long>1 << 60))
        devices[device].capacity = capacity
        if devices[device].file < 0:
            open_errno = <int>-devices[device].file
            close_files(device)
            return NOT_SUPPORTED
    device_total = count
    return 0


cdef void close_files(int count) noexcept nogil:
    cdef int device
    for device in range(count):
        close_kept(devices[device].file)


cdef int take_lack_of_addresses() noexcept nogil:
    global lacks_addresses
    cdef int lacked = lacks_addresses
    lacks_addresses = False
    return lacked


cdef void lock_memory() noexcept nogil:
    pthread_mutex_lock(&memory_mutex)


cdef void unlock_memory() noexcept nogil:
    pthread_mutex_unlock(&memory_mutex)


cdef Range* last_before(Range* ranges, uintptr_t end) noexcept nogil:
    cdef Range* last = NULL
    while ranges != NULL:
        if ranges.start < end:
            last = ranges
            ranges = ranges.right
        else:
            ranges = ranges.left
    return last


cdef Range* containing(Range* ranges, uintptr_t address) noexcept nogil:
    cdef Range* last = last_before(ranges, address + 1)
    return last if last != NULL and address - last.start < last.size else NULL


cdef uint32_t next_weight() noexcept nogil:
    # xorshift32 (Marsaglia, 2003)
    global weight_seed
    weight_seed ^= weight_seed << 13
    weight_seed ^= weight_seed >> 17
    weight_seed ^= weight_seed << 5
    return weight_seed


cdef int add_range(Range** ranges, const Range* added) noexcept nogil:
    cdef Range* inserted = <Range*>malloc(sizeof(Range))
    cdef Range** low
    cdef Range** high
    cdef Range* rest
    if inserted == NULL:
        return NO_HOST_MEMORY
    inserted[0] = added[0]
    inserted.weight = next_weight()
    while ranges[0] != NULL and ranges[0].weight >= inserted.weight:
        ranges = &ranges[0].left if inserted.start < ranges[0].start else &ranges[0].right
    rest = ranges[0]
    ranges[0] = inserted
    low, high = &inserted.left, &inserted.right
    while rest != NULL:  # split what hung here into what starts below the range and what starts above it
        if rest.start < inserted.start:
            low[0] = rest
            low = &rest.right
            rest = rest.right
        else:
            high[0] = rest
            high = &rest.left
            rest = rest.left
    low[0] = high[0] = NULL
    alive[added.kind] += 1
    return 0


cdef void drop_range(Range** ranges, Range* dropped) noexcept nogil:
    cdef Range* low = dropped.left
    cdef Range* high = dropped.right
    while ranges[0] != dropped:
        ranges = &ranges[0].left if dropped.start < ranges[0].start else &ranges[0].right
    while low != NULL and high != NULL:  # join the two halves
        if low.weight >= high.weight:
            ranges[0] = low
            ranges = &low.right
            low = low.right
        else:
            ranges[0] = high
            ranges = &high.left
            high = high.left
    ranges[0] = low if low != NULL else high
    alive[dropped.kind] -= 1
    free(dropped)


cdef int owner_of(uintptr_t address, size_t size) noexcept nogil:
    return owner_with_access(address, size, False)


cdef int owner_to_write(uintptr_t address, size_t size) noexcept nogil:
    return owner_with_access(address, size, True)


cdef int owner_with_access(uintptr_t address, size_t size, bint written) noexcept nogil:
    cdef Range* part
    cdef uintptr_t end = address + size
    cdef int owner = UNKNOWN_MEMORY
    lock_memory()
    part = containing(memory, address)
    if part != NULL:
        owner = part.device
    while part != NULL and owner != UNKNOWN_MEMORY:
        if not part.open or part.device != owner or (written and not part.writable):
            owner = UNKNOWN_MEMORY
        elif part.start + part.size >= end:
            break
        else:
            part = containing(memory, part.start + part.size)
            if part == NULL:
                owner = UNKNOWN_MEMORY
    unlock_memory()
    return owner


cdef bint is_open_to(uintptr_t address, size_t size, int device) noexcept nogil:
    cdef const Range* part
    cdef uintptr_t end = address + size
    cdef bint is_open = True
    lock_memory()
    while is_open and address < end:
        part = containing(memory, address)
        is_open = part != NULL and (part.kind != MAPPED or part.device == device or part.open_to >> device & 1)
        address = part.start + part.size if is_open else end
    unlock_memory()
    return is_open


cdef int device_of(uintptr_t address) noexcept nogil:
    cdef Range* part
    cdef int owner
    lock_memory()
    part = containing(memory, address)
    owner = part.device if part != NULL else UNKNOWN_MEMORY
    unlock_memory()
    return owner


cdef bint is_reserved(uintptr_t address) noexcept nogil:
    cdef bint reserved
    lock_memory()
    reserved = containing(reservations, address) != NULL
    unlock_memory()
    return reserved


cdef void memory_counts(size_t* counts) noexcept nogil:
    cdef int device
    lock_memory()
    counts[0] = alive[PLAIN] + alive[IMPORTED] + alive[MANAGED] + alive[POOLED]
    counts[1] = 0
    for device in range(device_total):
        counts[1] += devices[device].used + devices[device].lent
    counts[2] = alive[RESERVED]
    counts[3] = alive[PINNED] + alive[REGISTERED]
    unlock_memory()


cdef int known_device(int device) noexcept nogil:
    return device >= 0 and device < device_total


cdef int file_of(int device) noexcept nogil:
    return number_of(devices[device].file)


cdef int memory_figures(int device, size_t* out_free, size_t* out_total) noexcept nogil:
    if device < 0 or device >= device_total:
        return INVALID_DEVICE
    lock_memory()
    out_free[0] = devices[device].capacity - devices[device].used - devices[device].lent
    out_total[0] = devices[device].capacity
    unlock_memory()
    return 0


cdef size_t rounded(size_t size, size_t unit) noexcept nogil:
    return (size + unit - 1) & ~(unit - 1)


cdef int take_bytes(int device, size_t size, long* out_offset) noexcept nogil:
    global lacks_addresses
    if size > devices[device].capacity - devices[device].used:
        lacks_addresses = False
        return OUT_OF_MEMORY
    make_room(device, size)
    devices[device].used += size
    out_offset[0] = devices[device].next_offset
    devices[device].next_offset += size
    return 0


cdef void give_bytes(int device, long offset, size_t size) noexcept nogil:
    empty_part(file_of(device), offset, size)
    uncharge(device, size)


cdef void uncharge(int device, size_t size) noexcept nogil:
    devices[device].used -= size


cdef void* find_room(size_t size, size_t alignment, uintptr_t at) noexcept nogil:
    # Addresses without access, aligned: what is too much at either end goes back.
    cdef size_t padded = size if at else size + alignment
    cdef char* mapped = <char*>mmap(<void*>at, padded, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)
    cdef char* aligned
    global lacks_addresses
    if <void*>mapped == MAP_FAILED:
        lacks_addresses = True
        return NULL
    if at and <uintptr_t>mapped != at:
        munmap(mapped, size)
        return find_room(size, alignment, 0)
    aligned = <char*>rounded(<size_t>mapped, alignment)
    if aligned > mapped:
        munmap(mapped, aligned - mapped)
    if mapped + padded > aligned + size:
        munmap(aligned + size, mapped + padded - aligned - size)
    return aligned


cdef bint show(void* address, size_t size, int file, long offset, int protection) noexcept nogil:
    global lacks_addresses
    cdef bint shown = mmap(address, size, protection, MAP_SHARED | MAP_FIXED | MAP_NORESERVE, file, offset) != MAP_FAILED
    if not shown:
        lacks_addresses = LACKS_FILE if file < 0 else 1
    return shown


cdef void hide(void* address, size_t size) noexcept nogil:
    mmap(address, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0)


cdef void drop_room(void* address, size_t size) noexcept nogil:
    munmap(address, size)


cdef void* take_pages(size_t size) noexcept nogil:
    global lacks_addresses
    cdef void* pages = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
    if pages == MAP_FAILED:
        lacks_addresses = True
        return NULL
    return pages


cdef void unlink_page(ManagedPage* page) noexcept nogil:
    cdef Device* holder = &devices[page.holder]
    holder.lent -= MANAGED_PAGE
    if page.before == NULL:
        holder.oldest = page.after
    else:
        page.before.after = page.after
    if page.after == NULL:
        holder.latest = page.before
    else:
        page.after.before = page.before
    page.before = page.after = NULL
    page.holder = HOST_MEMORY


cdef void make_room(int device, size_t size) noexcept nogil:
    # Managed pages go to the host, those first that came first.  The size is at most what the rest of the memory leaves.
    while devices[device].capacity - devices[device].used - devices[device].lent < size:
        unlink_page(devices[device].oldest)


cdef void place_page(ManagedPage* page, int holder) noexcept nogil:
    # A page for which a device has no room is the host's.
    cdef Device* taker
    if page.holder != HOST_MEMORY:
        unlink_page(page)
    if holder == HOST_MEMORY or devices[holder].capacity - devices[holder].used < MANAGED_PAGE:
        return
    make_room(holder, MANAGED_PAGE)
    taker = &devices[holder]
    taker.lent += MANAGED_PAGE
    page.holder = holder
    page.before = taker.latest
    if taker.latest == NULL:
        taker.oldest = page
    else:
        taker.latest.after = page
    taker.latest = page


cdef void manage(const Work* work) noexcept nogil:
    # Contents are let go of by whole pages of the system's within the range, a holder's memory by whole managed pages.
    cdef Range* range_
    cdef size_t first, last, index
    cdef uintptr_t low = (work.dst + 4095) & ~<uintptr_t>4095, high = (work.dst + work.size) & ~<uintptr_t>4095
    lock_memory()
    range_ = containing(memory, work.dst)
    if range_ != NULL and range_.kind == MANAGED:
        first = (work.dst - range_.start) // MANAGED_PAGE
        last = (min(work.dst + work.size, range_.start + range_.size) - 1 - range_.start) // MANAGED_PAGE
        if work.discards and high > low:
            madvise(<void*>low, high - low, MADV_DONTNEED)
        for index in range(first, last + 1):
            if work.moves:
                place_page(&range_.pages[index], work.place)
            elif range_.pages[index].holder != HOST_MEMORY \
                    and range_.start + index * MANAGED_PAGE >= work.dst \
                    and range_.start + (index + 1) * MANAGED_PAGE <= work.dst + work.size:
                unlink_page(&range_.pages[index])
    unlock_memory()


pthread_mutex_init(&memory_mutex, NULL)


# --- what processes share: files, and events on a page of one --------------------------------------------------

cdef extern from *:
    """
    #include <limits.h>
    #include <linux/futex.h>
    #include <poll.h>
    #include <signal.h>
    #include <stdint.h>
    #include <stdio.h>
    #include <sys/stat.h>
    #include <time.h>
    #define accelrt_load(place) __atomic_load_n(place, __ATOMIC_SEQ_CST)
    #define accelrt_store(place, value) __atomic_store_n(place, value, __ATOMIC_SEQ_CST)
    #define accelrt_next(place) __atomic_add_fetch(place, 1, __ATOMIC_SEQ_CST)
    static void accelrt_raise(uint64_t *place, uint64_t value) {
        uint64_t before = __atomic_load_n(place, __ATOMIC_SEQ_CST);
        while (before < value
               && !__atomic_compare_exchange_n(place, &before, value, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {}
    }
    static int accelrt_open_file_of(int process, int file) {  /* or -errno */
        char path[64];
        int opened;
        snprintf(path, sizeof path, "/proc/%d/fd/%d", process, file);
        opened = accelrt_lift(open(path, O_RDWR | O_CLOEXEC));
        return opened < 0 ? -errno : opened;
    }
    static uint64_t accelrt_inode(int file) {
        struct stat found;
        return fstat(file, &found) ? 0 : (uint64_t)found.st_ino ^ ((uint64_t)found.st_dev << 40);
    }
    static int accelrt_is_gone(int process) {  /* ended, whether or not its parent has asked */
        struct pollfd asked = {-1, POLLIN, 0};
        int gone;
        asked.fd = (int)syscall(434 /* pidfd_open */, process, 0);
        if (asked.fd < 0) return errno == ESRCH || (errno == ENOSYS && kill(process, 0) && errno == ESRCH);
        gone = poll(&asked, 1, 0) > 0;
        close(asked.fd);
        return gone;
    }
    static void accelrt_futex_sleep(uint32_t *word, uint32_t seen) {  /* for 20 ms at most */
        struct timespec most = {0, 20000000};
        syscall(SYS_futex, word, FUTEX_WAIT, seen, &most, NULL, 0);
    }
    static void accelrt_futex_wake(uint32_t *word) { syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0); }
    """
    uint64_t load_number "accelrt_load" (uint64_t* place) noexcept nogil
    uint32_t load_word "accelrt_load" (uint32_t* place) noexcept nogil
    int load_int "accelrt_load" (int* place) noexcept nogil
    void store_int "accelrt_store" (int* place, int value) noexcept nogil
    uint64_t next_number "accelrt_next" (uint64_t* place) noexcept nogil
    uint32_t next_word "accelrt_next" (uint32_t* place) noexcept nogil
    void raise_to "accelrt_raise" (uint64_t* place, uint64_t value) noexcept nogil
    int open_file_of "accelrt_open_file_of" (int process, int file) noexcept nogil
    uint64_t inode_of "accelrt_inode" (int file) noexcept nogil
    bint is_gone "accelrt_is_gone" (int process) noexcept nogil
    void futex_sleep "accelrt_futex_sleep" (uint32_t* word, uint32_t seen) noexcept nogil
    void futex_wake "accelrt_futex_wake" (uint32_t* word) noexcept nogil
    int getpid() noexcept nogil
    enum:
        EACCES
        EPERM
        EMFILE
        ENFILE

cdef uint64_t EVENT_FILE = 0x6C65766574726C61
cdef uint64_t MEMORY_FILE = 0x6C656D6574726C61


cdef int name_file(int file, uint64_t purpose, long offset, size_t size, char* out_ipc) noexcept nogil:
    cdef FileName name
    memset(&name, 0, sizeof(name))
    name.purpose = purpose
    name.process = getpid()
    name.file = file
    name.inode = inode_of(file)
    name.offset = offset
    name.size = size
    memset(out_ipc, 0, IPC_BYTES)
    memcpy(out_ipc, &name, sizeof(name))
    return 0


cdef int open_named(const char* handle, uint64_t purpose, FileName* out_name, int* out_file) noexcept nogil:
    cdef int file
    memcpy(out_name, handle, sizeof(FileName))
    if out_name.purpose != purpose:
        return INVALID_HANDLE
    if out_name.process == getpid():
        return INVALID_CONTEXT
    file = open_file_of(out_name.process, out_name.file)
    if file < 0:
        if file == -EACCES or file == -EPERM:
            return NOT_PERMITTED
        return OPERATING_SYSTEM if file == -EMFILE or file == -ENFILE else INVALID_HANDLE
    if inode_of(file) != out_name.inode:  # the number was given to another file since
        close_file(file)
        return INVALID_HANDLE
    out_file[0] = file
    return 0


cdef SharedEvent* shared_on(int file) noexcept nogil:
    # Takes the file, also where it answers NULL.
    cdef SharedEvent* event = <SharedEvent*>calloc(1, sizeof(SharedEvent))
    cdef void* words = mmap(NULL, sizeof(EventWords), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0)
    if event == NULL or words == MAP_FAILED:
        if words != MAP_FAILED:
            munmap(words, sizeof(EventWords))
        free(event)
        close_file(file)
        return NULL
    event.words = <EventWords*>words
    event.file = keep_number(file)
    event.holders = 1
    return event


cdef SharedEvent* make_shared_event() noexcept nogil:
    cdef int file = make_file("accelrt-event", 4096)
    return shared_on(file) if file >= 0 else NULL


cdef int open_shared_event(const char* handle, SharedEvent** out_event) noexcept nogil:
    cdef FileName name
    cdef int file = -1
    cdef int code = open_named(handle, EVENT_FILE, &name, &file)
    if code:
        return code
    out_event[0] = shared_on(file)
    return 0 if out_event[0] != NULL else OUT_OF_MEMORY


cdef void drop_shared_event(SharedEvent* event) noexcept nogil:
    if event == NULL:
        return
    event.holders -= 1
    if event.holders:
        return
    munmap(event.words, sizeof(EventWords))
    close_kept(event.file)
    free(event)


cdef uint64_t begin_record(SharedEvent* event) noexcept nogil:
    store_int(&event.words.recorder, getpid())
    return next_number(&event.words.recorded)


cdef void complete_record(SharedEvent* event, uint64_t number) noexcept nogil:
    raise_to(&event.words.completed, number)
    next_word(&event.words.wakeups)
    futex_wake(&event.words.wakeups)


cdef uint64_t last_record(SharedEvent* event) noexcept nogil:
    return load_number(&event.words.recorded)


cdef bint is_record_done(SharedEvent* event, uint64_t number) noexcept nogil:
    cdef int recorder
    if load_number(&event.words.completed) >= number:
        return True
    recorder = load_int(&event.words.recorder)
    return recorder != getpid() and is_gone(recorder)


cdef void sleep_on(SharedEvent* event, uint64_t number) noexcept nogil:
    cdef uint32_t wakeups = load_word(&event.words.wakeups)
    while not is_record_done(event, number):
        futex_sleep(&event.words.wakeups, wakeups)
        wakeups = load_word(&event.words.wakeups)


# --- streams: the lock of all of them ---------------------------------------------------------------------------

cdef extern from *:
    """
    #include <pthread.h>
    #include <sched.h>
    static __thread void* accelrt_per_thread[64];
    static pthread_key_t accelrt_thread_end;  /* has a value on threads that have such streams */
    static void accelrt_at_thread_end(void (*end)(void*)) { pthread_key_create(&accelrt_thread_end, end); }
    static void accelrt_note_thread(void) { pthread_setspecific(accelrt_thread_end, accelrt_per_thread); }
    static int accelrt_processors(void) {
        cpu_set_t set;
        return sched_getaffinity(0, sizeof set, &set) ? 1 : CPU_COUNT(&set);
    }
    """
    void** per_thread "accelrt_per_thread"
    void at_thread_end "accelrt_at_thread_end" (void (*end)(void*) noexcept nogil) noexcept nogil
    void note_thread "accelrt_note_thread" () noexcept nogil
    int processors "accelrt_processors"() noexcept nogil

cdef enum:
    AUTO_POLICY = 1     # CUsynchronizationPolicy
    LINGER_NS = 50_000_000  # how long a worker waits for more
    LEGACY = 1          # handles that CUDA reserves
    PER_THREAD = 2
    FIRST_HANDLE = 0x10000
    HANDLE_STEP = 16
    SHARED_ALIGNMENT = 64  # of a block's shared memory
    MOST_SPARE = 1024      # operations that are kept to be used again, some 250 bytes each

cdef pthread_mutex_t mutex
cdef pthread_cond_t done            # a ticket was marked, or a queue drained
cdef HostStream* working = NULL
cdef AddressMap by_handle           # streams that are not dropped
cdef HostStream* legacy[MAX_HOST_DEVICES]
cdef int legacy_count = 0
cdef uintptr_t last_handle = FIRST_HANDLE  # never reused, so that a stale handle is refused
cdef size_t gone_calls = 0  # under the lock
cdef size_t calls_beside_ends = 0   # under the lock: of streams whose capture another thread was ending
cdef long delay = 0                 # microseconds before each operation
cdef long end_delay = 0             # microseconds within capture_end
cdef long holding_ends = 0          # whether capture_end goes on only when it is 0 again
cdef size_t held_ends = 0
cdef size_t operations = 0
cdef Operation* spare_operations = NULL  # to be used again; under the lock
cdef int spare_count = 0
cdef Allocation* allocations = NULL  # of all graphs; under the lock

# The crew, under its own lock.  A part_fn does count parts of a task from first on; False: no more of them are to be done.
# On any thread, under no lock.
ctypedef bint (*part_fn)(const void* task, unsigned long long first, unsigned long long count) noexcept nogil

cdef enum:
    ALONE_NS = 50000  # that a thread works alone for
    TURNS = 4         # a thread takes its part of the rest in so many turns

cdef struct Job:      # what is left of a kernel; on the stack of the thread that serves its stream
    part_fn run
    const void* task
    unsigned long long next
    unsigned long long count
    int helpers       # that are at work on it
    bint over         # a part said no
    Job* following

cdef pthread_mutex_t crew_mutex
cdef pthread_cond_t offered  # a job was added
cdef pthread_cond_t left     # a helper has left a job
cdef Job* jobs = NULL        # with parts that nobody has taken
cdef int threads = 1         # that may work on one kernel; written at open
cdef int helpers = 0         # that were started


cdef void queue_open(long delay_us, long end_delay_us) noexcept nogil:
    global delay
    store_count(&end_delay, end_delay_us)
    pthread_cond_init(&done, NULL)
    at_thread_end(drop_per_thread)
    delay = delay_us


cdef void lock() noexcept nogil:
    pthread_mutex_lock(&mutex)


cdef void unlock() noexcept nogil:
    pthread_mutex_unlock(&mutex)


cdef uintptr_t new_handle() noexcept nogil:
    global last_handle
    last_handle += HANDLE_STEP
    return last_handle


# --- plans --------------------------------------------------------------------------------------------------

cdef void drop_plan(Plan* plan) noexcept nogil:
    cdef int index
    if plan == NULL:
        return
    plan.holders -= 1
    if plan.holders:
        return
    for index in range(plan.count):
        clear_frontier(&plan.nodes[index].after)
        drop_work(&plan.nodes[index].work)
        drop_plan(plan.nodes[index].work.plan)
    drop_plan(plan.sibling)
    free(plan.order)
    free(plan.nodes)
    free(plan)


cdef void drop_work(const Work* work) noexcept nogil:
    drop_condition(work.condition)
    drop_launch(work.launch)
    drop_allocation(work.allocation)


cdef void drop_condition(Condition* condition) noexcept nogil:
    if condition == NULL:
        return
    condition.holders -= 1
    if condition.holders == 0:
        free(condition)


cdef void link_allocation(Allocation* allocation) noexcept nogil:
    global allocations
    allocation.after = allocations
    if allocations != NULL:
        allocations.before = allocation
    allocations = allocation


cdef void drop_allocation(Allocation* allocation) noexcept nogil:
    global allocations
    if allocation == NULL:
        return
    allocation.holders -= 1
    if allocation.holders:
        return
    if allocation.before != NULL:
        allocation.before.after = allocation.after
    else:
        allocations = allocation.after
    if allocation.after != NULL:
        allocation.after.before = allocation.before
    lock_memory()
    if allocation.backed:
        give_bytes(allocation.device, allocation.offset, allocation.size)
    drop_room(<void*>allocation.address, allocation.size)
    drop_range(&memory, containing(memory, allocation.address))
    unlock_memory()
    free(allocation)


cdef void count_running(const Plan* plan, int change) noexcept nogil:
    # A launch of it comes into a queue, or is done.
    cdef int index
    cdef const Work* work
    for index in range(plan.count if plan.allocates else 0):
        work = &plan.nodes[index].work
        if work.allocation != NULL:
            work.allocation.running += change
        elif work.kind == CHILD:
            count_running(work.plan, change)


# --- launches and modules ----------------------------------------------------------------------------------

cdef HostModule* unused = NULL  # modules that nothing holds; closed without the lock, by who takes them


cdef void drop_launch(Launch* launch) noexcept nogil:
    if launch == NULL:
        return
    launch.holders -= 1
    if launch.holders == 0:
        drop_module(launch.function.module)
        free(launch)


cdef void drop_module(HostModule* module) noexcept nogil:
    global unused
    module.holders -= 1
    if module.holders == 0:
        module.next = unused
        unused = module


cdef HostModule* take_unused_modules() noexcept nogil:
    global unused
    cdef HostModule* modules = unused
    unused = NULL
    return modules


# --- streams -----------------------------------------------------------------------------------------------

cdef HostStream* add_stream(int device, unsigned int flags, int priority) noexcept nogil:
    cdef HostStream* stream = NULL
    if map_reserve(&by_handle) == 0:
        stream = <HostStream*>calloc(1, sizeof(HostStream))
    if stream == NULL:
        return NULL
    stream.handle = new_handle()
    stream.device = device
    stream.flags = flags
    stream.priority = priority
    stream.sync_policy = AUTO_POLICY
    pthread_cond_init(&stream.wake, NULL)
    map_insert(&by_handle, stream.handle, stream)
    return stream


cdef HostStream* legacy_of(int device) noexcept nogil:
    global legacy_count
    if legacy[device] == NULL:
        legacy[device] = add_stream(device, STREAM_BLOCKING, 0)
        legacy_count += legacy[device] != NULL
    return legacy[device]


cdef HostStream* per_thread_of(int device) noexcept nogil:
    if per_thread[device] == NULL:
        per_thread[device] = add_stream(device, STREAM_BLOCKING, 0)
        note_thread()
    return <HostStream*>per_thread[device]


cdef void drop_per_thread(void* streams_) noexcept nogil:
    # At a thread's end.
    cdef HostStream** streams = <HostStream**>streams_
    cdef int device
    lock()
    for device in range(MAX_HOST_DEVICES):
        if streams[device] != NULL and streams[device].capture == NULL:  # a capture that was never ended names it
            drop_stream(streams[device])
            streams[device] = NULL
    unlock()


cdef HostStream* find_of_any_device(int device, uintptr_t stream) noexcept nogil:
    cdef HostStream* named = look_up(device, stream)
    if named != NULL:
        note_beside_end(named.capture)
    return named


cdef HostStream* look_up(int device, uintptr_t stream) noexcept nogil:
    if stream == 0 or stream == LEGACY:
        return legacy_of(device)
    if stream == PER_THREAD:
        return per_thread_of(device)
    return made_stream(stream)


cdef HostStream* made_stream(uintptr_t stream) noexcept nogil:
    # Counts the calls that name a destroyed one, on which a GPU's driver may crash.
    global gone_calls
    cdef HostStream* live = <HostStream*>map_find(&by_handle, stream)
    if live == NULL and FIRST_HANDLE < stream <= last_handle and stream % HANDLE_STEP == 0:
        gone_calls += 1
    return live


cdef void note_beside_end(const Capture* capture) noexcept nogil:
    # Counts the calls about a capture that another thread is ending, on which a GPU's driver crashes.
    global calls_beside_ends
    if capture != NULL and capture.ending:
        calls_beside_ends += 1


cdef bint hold_end_open(HostStream* stream) noexcept nogil:
    cdef Capture* capture = stream.capture
    cdef int device = stream.device
    cdef uintptr_t handle = stream.handle
    cdef long microseconds = load_count(&end_delay)
    global held_ends
    if (microseconds == 0 and not load_count(&holding_ends)) or capture == NULL or capture.origin != stream:
        return False
    capture.ending = True
    held_ends += 1
    unlock()
    sleep_ns(microseconds * 1000)
    while load_count(&holding_ends):
        sleep_ns(100_000)
    lock()
    held_ends -= 1
    stream = look_up(device, handle)
    if stream != NULL and stream.capture == capture:  # else the stream was destroyed, and its capture with it
        capture.ending = False
    return True


cdef void delay_ends(long delay_us, bint hold) noexcept nogil:
    store_count(&end_delay, delay_us)
    store_count(&holding_ends, hold)


cdef HostStream* peek_stream(int device, uintptr_t stream) noexcept nogil:
    cdef HostStream* named = look_up(device, stream)
    return named if named != NULL and named.device == device else NULL


cdef HostStream* find_stream(int device, uintptr_t stream) noexcept nogil:
    cdef HostStream* named = find_of_any_device(device, stream)
    return named if named != NULL and named.device == device else NULL


cdef bint is_legacy(const HostStream* stream) noexcept nogil:
    return stream == legacy[stream.device]


cdef void free_stream(HostStream* stream) noexcept nogil:
    clear_frontier(&stream.frontier)
    free(stream)


cdef void drop_stream(HostStream* stream) noexcept nogil:
    map_remove(&by_handle, stream.handle)
    stream.dropped = True
    if not stream.busy:
        free_stream(stream)
    else:
        pthread_cond_signal(&stream.wake)


cdef size_t count_streams() noexcept nogil:
    # Those that were made and not destroyed.
    return by_handle.count - legacy_count


# --- putting work in ---------------------------------------------------------------------------------------

cdef void link_working(HostStream* stream) noexcept nogil:
    global working
    stream.before = NULL
    stream.after = working
    if working != NULL:
        working.before = stream
    working = stream


cdef void unlink_working(HostStream* stream) noexcept nogil:
    global working
    if stream.before == NULL:
        working = stream.after
    else:
        stream.before.after = stream.after
    if stream.after != NULL:
        stream.after.before = stream.before


cdef Operation* take_operation() noexcept nogil:
    # The thread that does the work gives back what another takes, which malloc's caches of threads would not pass on.
    global spare_operations, spare_count
    cdef Operation* spare = spare_operations
    if spare == NULL:
        return <Operation*>malloc(sizeof(Operation))
    spare_operations = spare.next
    spare_count -= 1
    return spare


cdef void give_operation(Operation* operation) noexcept nogil:
    global spare_operations, spare_count
    if spare_count == MOST_SPARE:
        free(operation)
        return
    operation.next = spare_operations
    spare_operations = operation
    spare_count += 1


cdef int enqueue(HostStream* stream, const Work* work, Ticket* ticket, void* staged) noexcept nogil:
    cdef Operation* operation = take_operation()
    if operation == NULL:
        return NO_HOST_MEMORY
    operation.work = work[0]
    return append(stream, operation, ticket, staged)


cdef int enqueue_point(HostStream* stream, int kind, Ticket* ticket) noexcept nogil:
    cdef Operation* operation = take_operation()
    if operation == NULL:
        return NO_HOST_MEMORY
    begin_work(&operation.work, kind)
    return append(stream, operation, ticket, NULL)


cdef int append(HostStream* stream, Operation* operation, Ticket* ticket, void* staged) noexcept nogil:
    global operations
    if not stream.busy:
        if start(serve, stream):
            give_operation(operation)
            return NO_HOST_MEMORY
        stream.busy = True
    operation.ticket = hold_ticket(ticket)
    operation.staged = staged
    operation.next = NULL
    if operation.work.plan != NULL:
        operation.work.plan.holders += 1
        count_running(operation.work.plan, 1)
    if operation.work.launch != NULL:
        operation.work.launch.holders += 1
    if stream.head == NULL:
        stream.head = operation
        link_working(stream)
    else:
        stream.tail.next = operation
    stream.tail = operation
    operations += 1
    pthread_cond_signal(&stream.wake)
    return 0


cdef Ticket* mark(HostStream* stream, int* out_code) noexcept nogil:
    cdef Ticket* ticket
    out_code[0] = 0
    if stream.head == NULL:
        return NULL
    ticket = new_ticket()
    if ticket == NULL:
        out_code[0] = NO_HOST_MEMORY
        return NULL
    out_code[0] = enqueue_point(stream, RECORD, ticket)
    if out_code[0]:
        drop_ticket(ticket)
        return NULL
    return ticket


cdef int let_follow(HostStream* stream, HostStream* earlier) noexcept nogil:
    cdef int code
    cdef Ticket* ticket = mark(earlier, &code)
    if ticket == NULL:
        return code
    code = enqueue_point(stream, WAIT, ticket)
    drop_ticket(ticket)
    return code


cdef int follow_legacy_order(HostStream* stream) noexcept nogil:
    # Work of the legacy stream follows all earlier work of the device's blocking streams, and theirs its own.
    cdef HostStream* other = working
    cdef int code = 0
    if stream.flags != STREAM_BLOCKING:
        return 0
    if not is_legacy(stream):
        return let_follow(stream, legacy_of(stream.device))
    while other != NULL and code == 0:
        if other != stream and other.device == stream.device and other.flags == STREAM_BLOCKING:
            code = let_follow(stream, other)
        other = other.after
    return code


cdef int wait_for(Ticket* ticket) noexcept nogil:
    cdef bint interruptible = is_interruptible()
    while not ticket.done:
        if not interruptible:
            pthread_cond_wait(&done, &mutex)
        elif pause_on(&done, &mutex) and not ticket.done:
            return INTERRUPTED
    return 0


cdef void* watch_shared(void* ticket_) noexcept nogil:
    # A thread: only its own end of the ticket is its to drop.
    cdef Ticket* ticket = <Ticket*>ticket_
    sleep_on(ticket.shared, ticket.number)
    lock()
    ticket.time_ms = now() / 1e6
    ticket.done = True
    pthread_cond_broadcast(&done)
    drop_ticket(ticket)
    unlock()
    return NULL


cdef Ticket* follow_shared(SharedEvent* event, uint64_t number) noexcept nogil:
    cdef Ticket* ticket = new_ticket()
    if ticket == NULL:
        return NULL
    event.holders += 1
    ticket.shared = event
    ticket.number = number
    ticket.holders = 2  # the caller and the thread
    if start(watch_shared, ticket):
        ticket.holders = 1
        drop_ticket(ticket)
        return NULL
    return ticket


cdef HostStream* busy_stream(int device) noexcept nogil:
    cdef HostStream* stream = working
    while stream != NULL and device >= 0 and stream.device != device:
        stream = stream.after
    return stream


cdef int collect_tickets(int device, Ticket*** out_tickets, int* out_count) noexcept nogil:
    cdef HostStream* stream = working
    cdef Ticket** tickets = <Ticket**>calloc(operations + 1, sizeof(void*))
    cdef int code = 0
    out_count[0] = 0
    out_tickets[0] = tickets
    if tickets == NULL:
        return NO_HOST_MEMORY
    while stream != NULL and code == 0:
        if device < 0 or stream.device == device:
            tickets[out_count[0]] = mark(stream, &code)
            out_count[0] += code == 0
        stream = stream.after
    return code


cdef int drain_device(int device) noexcept nogil:
    # Waits for what is queued now: work that comes while it waits is not its concern.
    cdef Ticket** tickets
    cdef int count, index
    cdef int code
    if busy_stream(device) == NULL:
        return 0
    code = collect_tickets(device, &tickets, &count)
    for index in range(count):
        if code != INTERRUPTED:
            code = wait_for(tickets[index]) or code
        drop_ticket(tickets[index])
    free(tickets)
    return code


# --- doing it ----------------------------------------------------------------------------------------------

cdef void pass_point(int kind, Ticket* ticket) noexcept nogil:
    # A node of a replay that records an event, or waits for one; what the event had then may be nothing.
    lock()
    if ticket != NULL and kind == WAIT:
        wait_for(ticket)
    elif ticket != NULL:
        ticket.time_ms = now() / 1e6
        ticket.done = True
        pthread_cond_broadcast(&done)
    unlock()


cdef int replay(const Plan* plan, Ticket** tickets, int next_point, int device) noexcept nogil:
    # Answers the number of the point that comes next.
    cdef int step
    cdef const Work* work
    for step in range(plan.count):
        work = &plan.nodes[place_of(plan, step)].work
        if work.kind == RECORD or work.kind == WAIT:
            pass_point(work.kind, tickets[next_point])
            next_point += 1
        elif work.kind == CHILD:
            next_point = replay(work.plan, tickets, next_point, device)
        elif not work.disabled:
            perform(work, NULL, device)
    return next_point


cdef void finish(HostStream* stream) noexcept nogil:
    # Under the lock: takes the head off its queue.
    global operations
    cdef Operation* head = stream.head
    if head.ticket != NULL and head.work.kind != WAIT:
        head.ticket.time_ms = now() / 1e6
        head.ticket.done = True
        if head.ticket.shared != NULL:
            complete_record(head.ticket.shared, head.ticket.number)
    stream.head = head.next
    if stream.head == NULL:
        unlink_working(stream)
    operations -= 1
    drop_ticket(head.ticket)
    if head.work.plan != NULL:
        count_running(head.work.plan, -1)
        if head.staged != NULL:
            drop_tickets(<Ticket**>head.staged, head.work.plan.points)
    drop_plan(head.work.plan)
    drop_launch(head.work.launch)
    free(head.staged)
    give_operation(head)
    pthread_cond_broadcast(&done)


cdef void* serve(void* data) noexcept nogil:
    cdef HostStream* stream = <HostStream*>data
    cdef Operation* head
    lock()
    while True:
        if stream.head == NULL:
            if stream.dropped or (wait_on(&stream.wake, &mutex, LINGER_NS) and stream.head == NULL):
                break
            continue
        head = stream.head
        if head.work.kind == WAIT:
            wait_for(head.ticket)
        else:
            unlock()
            if delay:
                sleep_ns(delay * 1000)
            if head.work.kind == REPLAY:
                clear_conditions(head.work.plan)
                replay(head.work.plan, <Ticket**>head.staged, 0, stream.device)
            else:
                perform(&head.work, head.staged, stream.device)
            lock()
        finish(stream)
    stream.busy = False
    if stream.dropped:
        free_stream(stream)
    unlock()
    return NULL


pthread_mutex_init(&mutex, NULL)


# --- what the host device's work does when its turn comes: on the thread that serves its stream, under no lock

cdef extern from *:
    """
    static __thread int accelrt_in_callback;
    static int accelrt_lost;  /* read by every row, so atomic */
    #define read_lost() __atomic_load_n(&accelrt_lost, __ATOMIC_ACQUIRE)
    #define write_lost(value) __atomic_store_n(&accelrt_lost, value, __ATOMIC_RELEASE)
    static int accelrt_lost_code;  /* written before accelrt_lost is, by several threads at once where blocks fail */
    #define read_lost_code() __atomic_load_n(&accelrt_lost_code, __ATOMIC_RELAXED)
    #define write_lost_code(value) __atomic_store_n(&accelrt_lost_code, value, __ATOMIC_RELAXED)
    """
    int callback_depth "accelrt_in_callback"
    int read_lost() noexcept nogil
    void write_lost(int value) noexcept nogil
    int read_lost_code() noexcept nogil
    void write_lost_code(int value) noexcept nogil
    void* aligned_alloc(size_t alignment, size_t size) noexcept nogil


cdef int lost_device() noexcept nogil:
    return read_lost()


cdef int lost_code() noexcept nogil:
    return read_lost_code()


cdef void lose(int device, int code) noexcept nogil:
    write_lost_code(code)
    write_lost(device + 1)


cdef bint in_callback() noexcept nogil:
    return callback_depth > 0


cdef void clear_conditions(const Plan* plan) noexcept nogil:
    # Every condition has its first value when a launch begins.
    cdef int index
    cdef const Work* work
    cdef const Plan* body
    for index in range(plan.count):
        work = &plan.nodes[index].work
        if work.kind == BRANCH and not work.condition.kept:
            work.condition.value = work.condition.initial
        body = work.plan
        while body != NULL:
            clear_conditions(body)
            body = body.sibling


cdef void run_branch(const Work* work, int device) noexcept nogil:
    # A lost device is out of every loop.  Bodies hold no points.
    cdef unsigned int value = work.condition.value
    cdef const Plan* body = work.plan
    if work.flow == CONDITION_WHILE:
        while work.condition.value and not read_lost():
            replay(body, NULL, 0, device)
        return
    if work.flow == CONDITION_IF:
        value = value == 0
    while body != NULL and value:
        body = body.sibling
        value -= 1
    if body != NULL and not read_lost():
        replay(body, NULL, 0, device)


cdef bint run_blocks(const void* launch_, unsigned long long first, unsigned long long count) noexcept nogil:
    # In the order of their numbers, x first; none after one that failed.
    global callback_depth
    cdef const Launch* launch = <const Launch*>launch_
    cdef unsigned long long number, row = launch.grid[0], slice_ = row * launch.grid[1]
    cdef int failed = 0
    cdef Block where
    memset(&where, 0, sizeof(Block))
    where.failed = &failed
    where.grid = launch.grid
    where.block = launch.block
    where.shared_bytes = launch.shared_bytes
    if launch.shared_bytes:
        where.shared = aligned_alloc(SHARED_ALIGNMENT, (launch.shared_bytes + SHARED_ALIGNMENT - 1) & -SHARED_ALIGNMENT)
        failed = where.shared == NULL
    callback_depth += 1
    for number in range(first, first + count):
        if failed:
            break
        where.index[0] = <unsigned int>(number % row)
        where.index[1] = <unsigned int>(number % slice_ // row)
        where.index[2] = <unsigned int>(number // slice_)
        launch.function.fn(&where, launch.arguments)
    callback_depth -= 1
    free(where.shared)
    if failed:
        lose(launch.function.module.device, LAUNCH_FAILED)
    return not failed


cdef void run_kernel(const Launch* launch, int device) noexcept nogil:
    if read_lost() != device + 1:
        share(run_blocks, launch, <unsigned long long>launch.grid[0] * launch.grid[1] * launch.grid[2])


cdef void copy_rows(const Work* work) noexcept nogil:
    cdef size_t slice_, row
    for slice_ in range(work.depth):
        for row in range(work.height):
            memmove(<void*>(work.dst + (slice_ * work.to.lines + row) * work.to.pitch),
                    <const void*>(work.src + (slice_ * work.origin.lines + row) * work.origin.pitch), work.size)


cdef void fill_bytes(const Work* work) noexcept nogil:
    # A height of 0 is one row too.
    cdef size_t row
    for row in range(max(work.height, <size_t>1)):
        fill_row(work, work.dst + row * work.to.pitch)


cdef void fill_row(const Work* work, uintptr_t dst) noexcept nogil:
    cdef size_t index
    if work.width == 1:
        memset(<void*>dst, work.value, work.size)
    elif work.width == 2:
        for index in range(work.size):
            (<unsigned short*>dst)[index] = work.value
    else:
        for index in range(work.size):
            (<unsigned int*>dst)[index] = work.value


cdef bint touches_nothing(const Work* work) noexcept nogil:
    # A replay may come when the memory that was captured is gone.
    cdef size_t size = work.size * work.width if work.kind == FILL else work.size
    cdef bint pitched = work.kind == COPY_3D or work.height > 1
    if work.known & DST_KNOWN and owner_to_write(work.dst, work.to.span if pitched else size) == UNKNOWN_MEMORY:
        return True
    return work.known & SRC_KNOWN and owner_of(work.src, work.origin.span if pitched else size) == UNKNOWN_MEMORY


cdef void perform(const Work* work, const void* staged, int device) noexcept nogil:
    global callback_depth
    if work.known and touches_nothing(work):
        lose(device, ILLEGAL_ADDRESS)
    elif work.kind == COPY:
        memmove(<void*>work.dst, staged if staged != NULL else <const void*>work.src, work.size)
    elif work.kind == COPY_3D:
        copy_rows(work)
    elif work.kind == FILL:
        fill_bytes(work)
    elif work.kind == MANAGE:
        manage(work)
    elif work.kind == CALL:
        callback_depth += 1
        work.fn(work.data)
        callback_depth -= 1
    elif work.kind == KERNEL:
        run_kernel(work.launch, device)
    elif work.kind == SET:
        work.condition.value = (<const unsigned int*>work.src)[0]
    elif work.kind == BRANCH:
        run_branch(work, device)


# --- the crew ----------------------------------------------------------------------------------------------

cdef void crew_open(int wanted) noexcept nogil:
    global threads
    threads = min(wanted if wanted else processors(), MOST_CREW)


cdef void take_part(Job* job) noexcept nogil:
    # Under the lock, which it opens.
    cdef unsigned long long first, count
    cdef bint on
    while job.next < job.count and not job.over:
        first, count = job.next, max((job.count - job.next) // (TURNS * threads), 1ULL)
        job.next += count
        pthread_mutex_unlock(&crew_mutex)
        on = job.run(job.task, first, count)
        pthread_mutex_lock(&crew_mutex)
        if not on:
            job.over = True


cdef Job* find_job() noexcept nogil:
    cdef Job* job = jobs
    while job != NULL and (job.over or job.next >= job.count):
        job = job.following
    return job


cdef void* help_out(void* unused) noexcept nogil:
    cdef Job* job
    pthread_mutex_lock(&crew_mutex)
    while True:
        job = find_job()
        if job == NULL:
            pthread_cond_wait(&offered, &crew_mutex)
            continue
        job.helpers += 1
        take_part(job)
        job.helpers -= 1
        pthread_cond_broadcast(&left)


cdef void add_job(Job* job) noexcept nogil:
    global jobs, helpers
    while helpers < threads - 1 and start(help_out, NULL) == 0:
        helpers += 1
    job.following = jobs
    jobs = job
    pthread_cond_broadcast(&offered)


cdef void remove_job(Job* job) noexcept nogil:
    global jobs
    cdef Job** link = &jobs
    while link[0] != job:
        link = &link[0].following
    link[0] = job.following


# Returns when all parts are done, or one said no and those under way are.
cdef void share(part_fn run, const void* task, unsigned long long count) noexcept nogil:
    cdef Job job
    cdef unsigned long long done = 0, step = 1
    cdef long long began
    if threads == 1 or count == 1:
        run(task, 0, count)
        return
    began = now()
    while now() - began < ALONE_NS:
        step = min(step, count - done)
        if not run(task, done, step):
            return
        done += step
        step *= 2
        if done == count:
            return
    job.run, job.task, job.next, job.count, job.helpers, job.over = run, task, done, count, 0, False
    pthread_mutex_lock(&crew_mutex)
    add_job(&job)
    take_part(&job)
    remove_job(&job)
    while job.helpers:
        pthread_cond_wait(&left, &crew_mutex)
    pthread_mutex_unlock(&crew_mutex)


pthread_mutex_init(&crew_mutex, NULL)
pthread_cond_init(&offered, NULL)
pthread_cond_init(&left, NULL)
