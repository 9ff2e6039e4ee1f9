"""The host device's streams: queues, each served by a thread of its own while it has work.

One lock guards every queue, and no work runs under it.  A worker sleeps on its stream's condition and
ends when nothing came for a while, so that idle streams cost no thread.

The crew are threads that share the blocks of a kernel with the thread that serves its stream.  That thread begins
alone, and asks for help when it has been at work for as long as waking others takes: small kernels run in the order of
their blocks, on one thread.  Then whoever is free takes some of the blocks that are left, fewer the fewer there are.
The threads are started when they are first needed, serve all streams, and last as long as the process.  A lock of their
own guards what is left of each kernel; no block runs under it.
"""
from libc.stdint cimport uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memmove, memset

from accelrt.core.handle_map cimport AddressMap, map_find, map_insert, map_remove, map_reserve
from accelrt.core.locks cimport (
    load_count, pthread_mutex_init, pthread_mutex_lock, pthread_mutex_t, pthread_mutex_unlock, store_count,
)
from accelrt.driver.host.frontier cimport clear_frontier
from accelrt.driver.host.ranges cimport MAX_HOST_DEVICES
from accelrt.driver.host.shared_event cimport complete_record, sleep_on
from accelrt.driver.table cimport STREAM_BLOCKING
from accelrt.driver.guard cimport INTERRUPTED, is_interruptible, pause_on, pthread_cond_t
from accelrt.status cimport ILLEGAL_ADDRESS, LAUNCH_FAILED, NO_HOST_MEMORY

cdef extern from *:
    """
    #ifndef _GNU_SOURCE
    #define _GNU_SOURCE
    #endif
    #include <errno.h>
    #include <pthread.h>
    #include <sched.h>
    #include <stdint.h>
    #include <time.h>
    static __thread void* accelrt_per_thread[64];
    static pthread_key_t accelrt_thread_end;  /* has a value on threads that have such streams */
    static void accelrt_at_thread_end(void (*end)(void*)) { pthread_key_create(&accelrt_thread_end, end); }
    static void accelrt_note_thread(void) { pthread_setspecific(accelrt_thread_end, accelrt_per_thread); }
    static double accelrt_now_ms(void) {
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        return now.tv_sec * 1e3 + now.tv_nsec / 1e6;
    }
    static void accelrt_sleep_us(long us) {
        struct timespec rest = {us / 1000000, (us % 1000000) * 1000};
        while (nanosleep(&rest, &rest) == -1 && errno == EINTR) {}
    }
    /* Waits for at most so long; nonzero where nothing came. */
    static int accelrt_linger(pthread_cond_t* wake, pthread_mutex_t* mutex, long ms) {
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += ms * 1000000;
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        return pthread_cond_timedwait(wake, mutex, &until);
    }
    static int accelrt_start(void* (*serve)(void*), void* stream) {
        pthread_t thread;
        pthread_attr_t attributes;
        int code;
        pthread_attr_init(&attributes);
        pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
        code = pthread_create(&thread, &attributes, serve, stream);
        pthread_attr_destroy(&attributes);
        return code;
    }
    static long long accelrt_now_ns(void) {
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        return now.tv_sec * 1000000000LL + now.tv_nsec;
    }
    static int accelrt_processors(void) {
        cpu_set_t set;
        return sched_getaffinity(0, sizeof set, &set) ? 1 : CPU_COUNT(&set);
    }
    """
    void** per_thread "accelrt_per_thread"
    void at_thread_end "accelrt_at_thread_end" (void (*end)(void*) noexcept nogil) noexcept nogil
    void note_thread "accelrt_note_thread" () noexcept nogil
    double now_ms "accelrt_now_ms"() noexcept nogil
    void sleep_us "accelrt_sleep_us"(long us) noexcept nogil
    int linger "accelrt_linger"(pthread_cond_t* wake, pthread_mutex_t* mutex, long ms) noexcept nogil
    long long now_ns "accelrt_now_ns"() noexcept nogil
    int processors "accelrt_processors"() noexcept nogil
    int start "accelrt_start"(void* (*serve)(void*) noexcept nogil, void* stream) noexcept nogil
    int pthread_cond_init(pthread_cond_t* condition, void* attributes) noexcept nogil
    int pthread_cond_wait(pthread_cond_t* condition, pthread_mutex_t* mutex) noexcept nogil
    int pthread_cond_signal(pthread_cond_t* condition) noexcept nogil
    int pthread_cond_broadcast(pthread_cond_t* condition) noexcept nogil

cdef enum:
    LINGER_MS = 50      # how long a worker waits for more
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
cdef int held_ends = 0              # calls of capture_end that are held open; under the lock
cdef size_t operations = 0
cdef Operation* spare_operations = NULL  # to be used again; under the lock
cdef int spare_count = 0

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
        drop_condition(plan.nodes[index].work.condition)
        drop_launch(plan.nodes[index].work.launch)
        drop_plan(plan.nodes[index].work.plan)
    free(plan.nodes)
    free(plan)


cdef void drop_condition(Condition* condition) noexcept nogil:
    if condition == NULL:
        return
    condition.holders -= 1
    if condition.holders == 0:
        free(condition)


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
    cdef HostModule* taken = unused
    unused = NULL
    return taken


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
    cdef HostStream** mine = <HostStream**>streams_
    cdef int device
    lock()
    for device in range(MAX_HOST_DEVICES):
        if mine[device] != NULL and mine[device].capture == NULL:  # a capture that was never ended names it
            drop_stream(mine[device])
            mine[device] = NULL
    unlock()


cdef HostStream* find_of_any_device(int device, uintptr_t stream) noexcept nogil:
    cdef HostStream* found = look_up(device, stream)
    if found != NULL:
        note_beside_end(found.capture)
    return found


cdef HostStream* look_up(int device, uintptr_t stream) noexcept nogil:
    if stream == 0 or stream == LEGACY:
        return legacy_of(device)
    if stream == PER_THREAD:
        return per_thread_of(device)
    return made_stream(stream)


cdef HostStream* made_stream(uintptr_t stream) noexcept nogil:
    # Counts the calls that name a destroyed one, on which a GPU's driver may crash.
    global gone_calls
    cdef HostStream* found = <HostStream*>map_find(&by_handle, stream)
    if found == NULL and FIRST_HANDLE < stream <= last_handle and stream % HANDLE_STEP == 0:
        gone_calls += 1
    return found


cdef size_t count_gone_calls() noexcept nogil:
    return gone_calls


cdef void note_beside_end(const Capture* capture) noexcept nogil:
    # Counts the calls about a capture that another thread is ending, on which a GPU's driver crashes.
    global calls_beside_ends
    if capture != NULL and capture.ending:
        calls_beside_ends += 1


cdef size_t count_calls_beside_ends() noexcept nogil:
    return calls_beside_ends


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
    sleep_us(microseconds)
    while load_count(&holding_ends):
        sleep_us(100)
    lock()
    held_ends -= 1
    stream = look_up(device, handle)
    if stream != NULL and stream.capture == capture:  # else the stream was destroyed, and its capture with it
        capture.ending = False
    return True


cdef void delay_ends(long delay_us, bint hold) noexcept nogil:
    store_count(&end_delay, delay_us)
    store_count(&holding_ends, hold)


cdef int count_held_ends() noexcept nogil:
    return held_ends


cdef HostStream* peek_stream(int device, uintptr_t stream) noexcept nogil:
    cdef HostStream* found = look_up(device, stream)
    return found if found != NULL and found.device == device else NULL


cdef HostStream* find_stream(int device, uintptr_t stream) noexcept nogil:
    cdef HostStream* found = find_of_any_device(device, stream)
    return found if found != NULL and found.device == device else NULL


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


cdef size_t count_operations() noexcept nogil:
    return operations


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
    global operations
    cdef Operation* made = take_operation()  # all of it is written below
    if made == NULL:
        return NO_HOST_MEMORY
    if not stream.busy:
        if start(serve, stream):
            give_operation(made)
            return NO_HOST_MEMORY
        stream.busy = True
    made.work = work[0]
    made.ticket = hold_ticket(ticket)
    made.staged = staged
    made.next = NULL
    if work.plan != NULL:
        work.plan.holders += 1
    if work.launch != NULL:
        work.launch.holders += 1
    if stream.head == NULL:
        stream.head = made
        link_working(stream)
    else:
        stream.tail.next = made
    stream.tail = made
    operations += 1
    pthread_cond_signal(&stream.wake)
    return 0


cdef Ticket* mark(HostStream* stream, int* out_code) noexcept nogil:
    cdef Work work
    cdef Ticket* ticket
    out_code[0] = 0
    if stream.head == NULL:
        return NULL
    ticket = new_ticket()
    if ticket == NULL:
        out_code[0] = NO_HOST_MEMORY
        return NULL
    memset(&work, 0, sizeof(Work))
    work.kind = RECORD
    out_code[0] = enqueue(stream, &work, ticket, NULL)
    if out_code[0]:
        drop_ticket(ticket)
        return NULL
    return ticket


cdef int let_follow(HostStream* stream, HostStream* earlier) noexcept nogil:
    cdef Work work
    cdef int code
    cdef Ticket* ticket = mark(earlier, &code)
    if ticket == NULL:
        return code
    memset(&work, 0, sizeof(Work))
    work.kind = WAIT
    code = enqueue(stream, &work, ticket, NULL)
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
    ticket.time_ms = now_ms()
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
        ticket.time_ms = now_ms()
        ticket.done = True
        pthread_cond_broadcast(&done)
    unlock()


cdef void replay(const Plan* plan, Ticket** tickets, int device) noexcept nogil:
    cdef int index
    cdef const Work* work
    clear_conditions(plan)
    for index in range(plan.count):
        work = &plan.nodes[index].work
        if work.kind == RECORD or work.kind == WAIT:
            pass_point(work.kind, tickets[index])
        else:
            perform(work, NULL, device)


cdef void finish(HostStream* stream) noexcept nogil:
    # Under the lock: takes the head off its queue.
    global operations
    cdef Operation* head = stream.head
    if head.work.kind == RECORD:
        head.ticket.time_ms = now_ms()
        head.ticket.done = True
        if head.ticket.shared != NULL:
            complete_record(head.ticket.shared, head.ticket.number)
    stream.head = head.next
    if stream.head == NULL:
        unlink_working(stream)
    operations -= 1
    drop_ticket(head.ticket)
    if head.work.plan != NULL and head.staged != NULL:
        drop_tickets(<Ticket**>head.staged, head.work.plan.count)
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
            if stream.dropped or (linger(&stream.wake, &mutex, LINGER_MS) and stream.head == NULL):
                break
            continue
        head = stream.head
        if head.work.kind == WAIT:
            wait_for(head.ticket)
        else:
            unlock()
            if delay:
                sleep_us(delay)
            if head.work.kind == REPLAY:
                replay(head.work.plan, <Ticket**>head.staged, stream.device)
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
    # Every condition is 0 when a launch begins.
    cdef int index
    cdef const Work* work
    for index in range(plan.count):
        work = &plan.nodes[index].work
        if work.kind == BRANCH:
            work.condition.value = 0
            clear_conditions(work.plan)


cdef void run_plan(const Plan* plan, int device) noexcept nogil:
    cdef int index
    for index in range(plan.count):
        perform(&plan.nodes[index].work, NULL, device)


cdef void run_branch(const Work* work, int device) noexcept nogil:
    # A lost device is out of every loop.
    while work.condition.value and not read_lost():
        run_plan(work.plan, device)
        if not work.repeats:
            return


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


cdef void perform(const Work* work, const void* staged, int device) noexcept nogil:
    global callback_depth
    if work.known and touches_nothing(work):
        lose(device, ILLEGAL_ADDRESS)
    elif work.kind == COPY:
        memmove(<void*>work.dst, staged if staged != NULL else <const void*>work.src, work.size)
    elif work.kind == COPY_3D:
        copy_rows(work)
    elif work.kind == FILL:
        fill_memory(work)
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
    cdef Job** place = &jobs
    while place[0] != job:
        place = &place[0].following
    place[0] = job.following


# Returns when all parts are done, or one said no and those under way are.
cdef void share(part_fn run, const void* task, unsigned long long count) noexcept nogil:
    cdef Job job
    cdef unsigned long long done = 0, step = 1
    cdef long long began
    if threads == 1 or count == 1:
        run(task, 0, count)
        return
    began = now_ns()
    while now_ns() - began < ALONE_NS:
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
