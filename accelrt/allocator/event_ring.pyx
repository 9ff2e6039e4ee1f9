"""A device's history: the newest events, in a ring of fixed size, and the figures of each tag.

An event is noted under the lock under which it happens, so events of one block are in their order.  What a thread is
doing (its tag, the stack of its operation) is the thread's own, and needs no lock.
"""
from libc.stdint cimport int64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, memset

from accelrt.core.locks cimport spin_lock, spin_unlock
from accelrt.core.process cimport FORK_POOLS, at_fork
from accelrt.allocator.history_types cimport (
    ALLOCATED, ARRAY_MADE, CLAIMED, CONTEXT_ALL, CONTEXT_ALLOC, CONTEXT_STATE, FREE_COMPLETED, FREE_REQUESTED, MAX_TAGS,
    POOL_ALLOCATED, REFUSED, SEGMENT_ALLOCATED, SEGMENT_MAPPED, STITCHED_TOGETHER,
)
from accelrt.status cimport NO_HOST_MEMORY

cdef extern from *:
    """
    #include <sys/syscall.h>
    #include <time.h>
    #include <unistd.h>
    static __thread uint32_t accelrt_tag;     /* of what the thread allocates */
    static __thread uint32_t accelrt_stack;   /* of the operation that it is in; 0: not taken */
    static __thread uint32_t accelrt_thread;  /* the system's number of it; 0: not asked yet */
    static uint32_t accelrt_thread_number(void) {
        if (!accelrt_thread) accelrt_thread = (uint32_t)syscall(SYS_gettid);
        return accelrt_thread;
    }
    static void accelrt_forget_thread(void) { accelrt_thread = 0; }
    static uint64_t accelrt_now_ns(void) {
        struct timespec now;
        clock_gettime(CLOCK_REALTIME, &now);
        return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
    }
    #define load_context(history) __atomic_load_n(&(history)->context, __ATOMIC_RELAXED)
    #define load_history(place) __atomic_load_n(place, __ATOMIC_ACQUIRE)
    #define store_history(place, history) __atomic_store_n(place, history, __ATOMIC_RELEASE)
    """
    uint32_t tag "accelrt_tag"
    uint32_t stack "accelrt_stack"
    uint32_t thread_number "accelrt_thread_number" () noexcept nogil
    void forget_thread "accelrt_forget_thread" () noexcept nogil
    uint64_t now_ns "accelrt_now_ns" () noexcept nogil
    int load_context(const History* history) noexcept nogil
    const History* load_history(History* const* place) noexcept nogil
    void store_history(History** place, History* history) noexcept nogil

cdef Capture capture = NULL
cdef Follower follower = NULL


# A tag within others counts for each: these are the numbers of the innermost and of the rest; 0 and 0 of a tag by itself.
cdef uint32_t[MAX_TAGS] inner_tags
cdef uint32_t[MAX_TAGS] outer_tags


# --- the stack and the tag of the calling thread -----------------------------------------------------------------

cdef void set_capture(Capture function) noexcept nogil:
    global capture
    capture = function


cdef void set_follower(Follower function) noexcept nogil:
    global follower
    follower = function


cdef void take_stack(const Pool* pool, int level, const char* entry) noexcept nogil:
    global stack
    cdef const History* history = load_history(&pool.history)
    if history != NULL and load_context(history) >= level and capture != NULL:
        stack = capture(entry, stack)


cdef void take_first_stack(int context) noexcept nogil:
    global stack
    if context >= CONTEXT_STATE and capture != NULL:
        stack = capture(NULL, stack)


cdef void take_host_stack() noexcept nogil:
    global stack
    if load_context(&host_history) >= CONTEXT_ALLOC and capture != NULL:
        stack = capture(NULL, stack)


cdef uint32_t drop_stack() noexcept nogil:
    global stack
    cdef uint32_t dropped = stack
    stack = 0
    return dropped


cdef uint32_t stack_of_block(const Pool* pool) noexcept nogil:
    return stack if pool.history != NULL and load_context(pool.history) >= CONTEXT_STATE else 0


cdef uint32_t exchange_tag(uint32_t new_tag) noexcept nogil:
    global tag
    cdef uint32_t before = tag
    tag = new_tag
    return before


# --- writing -----------------------------------------------------------------------------------------------------

cdef inline bint keeps_stack(int context, int action) noexcept nogil:
    # Whether events of this kind keep their stack.
    if action in (
        ALLOCATED, SEGMENT_ALLOCATED, SEGMENT_MAPPED, STITCHED_TOGETHER, CLAIMED, REFUSED, ARRAY_MADE, POOL_ALLOCATED,
    ):
        return context >= CONTEXT_ALLOC
    return context >= CONTEXT_ALL


cdef inline void push(History* history, Event* event) noexcept nogil:
    # Under the history's lock.  The time is read under it, so that it rises.
    if not history.records or history.skipped >> event.action & 1:
        return
    event.time_ns = now_ns()
    event.thread = thread_number()
    event.stack = stack if stack and keeps_stack(history.context, event.action) else 0
    history.events[history.place] = event[0]
    history.place = history.place + 1 if history.place + 1 < history.capacity else 0
    history.next += 1
    if history.next - history.first > history.capacity:
        history.first = history.next - history.capacity


cdef inline bint is_noted(const History* history) noexcept nogil:
    return history != NULL and (history.records or history.followed)


cdef inline void tell(const History* history, Event* event, int action) noexcept nogil:
    # Without the history's lock: the follower may take its time.
    if history.followed and follower != NULL:
        event.action = action
        follower(event)


cdef inline void name_pool(Event* event, const PrivatePool* owner) noexcept nogil:
    event.pool[0] = owner.id[0] if owner != NULL else 0
    event.pool[1] = owner.id[1] if owner != NULL else 0


cdef void record_event(
    Pool* pool, int action, uintptr_t address, size_t size, uintptr_t stream, const PrivatePool* owner,
) noexcept nogil:
    cdef History* history = pool.history
    cdef Event event
    if not is_noted(history):
        return
    event.address = address
    event.size = size
    event.stream = stream
    name_pool(&event, owner)
    event.tag = tag
    event.action = action
    event.device = pool.device
    spin_lock(&history.lock)
    push(history, &event)
    spin_unlock(&history.lock)
    tell(history, &event, action)


cdef void record_host(int action, uintptr_t address, size_t size) noexcept nogil:
    cdef Event event
    if not host_history.records:
        return
    memset(&event, 0, sizeof(Event))
    event.address, event.size, event.action, event.tag = address, size, action, tag
    spin_lock(&host_history.lock)
    push(&host_history, &event)
    spin_unlock(&host_history.lock)


cdef void nest_tag(uint32_t number, uint32_t inner, uint32_t outer) noexcept nogil:
    # Before the number is any thread's.
    inner_tags[number] = inner
    outer_tags[number] = outer


cdef inline void add_tagged(History* history, uint32_t number, int64_t size, int64_t requested) noexcept nogil:
    # Under the history's lock.  Both below 0: the block is freed.
    add_to(&history.tags[0], size, requested)
    while number:
        add_to(&history.tags[inner_tags[number] if inner_tags[number] else number], size, requested)
        number = outer_tags[number]


cdef inline void add_to(TagFigures* figures, int64_t size, int64_t requested) noexcept nogil:
    cdef int64_t blocks = 1 if size >= 0 else -1
    figures.bytes_ += size
    figures.requested += requested
    figures.blocks += blocks
    if size >= 0:
        figures.allocated_bytes += size
        figures.allocated_requested += requested
        figures.allocated_blocks += 1
        figures.peak_requested = max(figures.peak_requested, figures.requested)
        figures.peak_bytes = max(figures.peak_bytes, figures.bytes_)
        figures.peak_blocks = max(figures.peak_blocks, figures.blocks)


cdef void record_allocation(Pool* pool, Block* block, bint claimed) noexcept nogil:
    cdef History* history = pool.history
    cdef Event event
    if history == NULL:
        return
    block.tag = tag
    block.stack = stack_of_block(pool)
    if not is_noted(history) and tag == 0:
        return
    event.address = block.address
    event.size = block.requested
    event.stream = block.heap.stream
    name_pool(&event, block.heap.owner)
    event.tag = tag
    event.device = pool.device
    spin_lock(&history.lock)
    if tag:
        add_tagged(history, tag, block.size, block.requested)
    if history.records:
        if claimed:
            event.action = CLAIMED
            push(history, &event)
        event.action = ALLOCATED
        push(history, &event)
    spin_unlock(&history.lock)
    tell(history, &event, ALLOCATED)


cdef Freed describe(const Block* block) noexcept nogil:
    cdef Freed freed
    cdef const PrivatePool* owner = block.heap.owner
    freed.size = block.size
    freed.requested = block.requested
    freed.stream = block.heap.stream
    freed.pool[0] = owner.id[0] if owner != NULL else 0
    freed.pool[1] = owner.id[1] if owner != NULL else 0
    freed.tag = block.tag
    return freed


cdef inline void fill(Event* event, const Pool* pool, uintptr_t address, const Freed* freed) noexcept nogil:
    event.address = address
    event.size = freed.requested
    event.stream = freed.stream
    event.pool[0] = freed.pool[0]
    event.pool[1] = freed.pool[1]
    event.tag = freed.tag
    event.device = pool.device


cdef void record_free(Pool* pool, uintptr_t address, const Freed* freed, bint completed) noexcept nogil:
    cdef History* history = pool.history
    cdef Event event
    if history == NULL or not is_noted(history) and freed.tag == 0:
        return
    fill(&event, pool, address, freed)
    spin_lock(&history.lock)
    if freed.tag:
        add_tagged(history, freed.tag, -<int64_t>freed.size, -<int64_t>freed.requested)
    if history.records:
        event.action = FREE_REQUESTED
        push(history, &event)
        if completed:
            event.action = FREE_COMPLETED
            push(history, &event)
    spin_unlock(&history.lock)
    tell(history, &event, FREE_REQUESTED)
    if completed:
        tell(history, &event, FREE_COMPLETED)


cdef void record_free_requested(Pool* pool, const Block* block) noexcept nogil:
    cdef Freed freed
    if pool.history == NULL:
        return
    freed = describe(block)
    record_free(pool, block.address, &freed, False)


cdef void record_free_completed(Pool* pool, const Block* block) noexcept nogil:
    cdef History* history = pool.history
    cdef Freed freed
    cdef Event event
    if not is_noted(history):
        return
    freed = describe(block)
    fill(&event, pool, block.address, &freed)
    event.action = FREE_COMPLETED
    spin_lock(&history.lock)
    push(history, &event)
    spin_unlock(&history.lock)
    tell(history, &event, FREE_COMPLETED)


cdef void record_annotation(Pool* pool, int action, uint32_t number) noexcept nogil:
    cdef Event event
    if pool.history == NULL or not pool.history.records:
        return
    event.address = event.size = event.stream = event.pool[0] = event.pool[1] = 0
    event.tag = number
    event.action = action
    event.device = pool.device
    spin_lock(&pool.history.lock)
    push(pool.history, &event)
    spin_unlock(&pool.history.lock)


# --- making and reading ------------------------------------------------------------------------------------------

cdef int ensure_history(Pool* pool) noexcept nogil:
    cdef History* history
    if pool.history != NULL:
        return 0
    history = <History*>calloc(1, sizeof(History))
    if history != NULL:
        history.tags = <TagFigures*>calloc(MAX_TAGS, sizeof(TagFigures))
    if history == NULL or history.tags == NULL:
        return NO_HOST_MEMORY
    store_history(&pool.history, history)
    return 0


cdef Event* new_ring(size_t capacity) noexcept nogil:
    # Pages of it that no event reached take no memory.
    return <Event*>malloc(capacity * sizeof(Event))


cdef Event* replace_ring(History* history, Event* ring, size_t capacity) noexcept nogil:
    # The newest events move along.
    cdef Event* before
    cdef uint64_t number
    cdef size_t kept
    spin_lock(&history.lock)
    before = history.events
    kept = min(history.next - history.first, <uint64_t>capacity)
    for number in range(kept):
        ring[number] = before[(history.place + history.capacity - kept + number) % history.capacity]
    history.events = ring
    history.capacity = capacity
    history.place = kept % capacity
    history.first = history.next - kept
    spin_unlock(&history.lock)
    return before


cdef int set_host_history(bint records, int context, size_t capacity) noexcept nogil:
    # What was recorded stays where it goes on, or ends.
    cdef Event* ring
    if records and capacity != host_history.capacity:
        ring = new_ring(capacity)
        if ring == NULL:
            return NO_HOST_MEMORY
        free(replace_ring(&host_history, ring, capacity))
    spin_lock(&host_history.lock)
    host_history.records = records
    host_history.context = context if records else 0
    spin_unlock(&host_history.lock)
    return 0


cdef void forget_in_child() noexcept nogil:
    # Another thread may have held the lock.
    forget_thread()
    host_history.lock = 0


cdef void clear_ring(History* history) noexcept nogil:
    spin_lock(&history.lock)
    history.first = history.begin = history.next
    spin_unlock(&history.lock)


cdef uint64_t first_event(History* history, uint64_t* out_next, uint64_t* out_begin) noexcept nogil:
    cdef uint64_t first
    spin_lock(&history.lock)
    first = history.first
    out_next[0] = history.next
    out_begin[0] = history.begin
    spin_unlock(&history.lock)
    return first


cdef uint64_t copy_some(History* history, uint64_t start, size_t most, Event* out_events, size_t* out_count) noexcept nogil:
    # Those overwritten, and those to come, are left out.
    cdef size_t count, place, part
    spin_lock(&history.lock)
    start = min(max(start, history.first), history.next)
    count = min(<uint64_t>most, history.next - start)
    if count:
        place = (history.place + history.capacity - (history.next - start)) % history.capacity
        part = min(count, history.capacity - place)
        memcpy(out_events, history.events + place, part * sizeof(Event))
        memcpy(out_events + part, history.events, (count - part) * sizeof(Event))
    spin_unlock(&history.lock)
    out_count[0] = count
    return start


cdef TagFigures read_tag(History* history, uint32_t number) noexcept nogil:
    cdef TagFigures figures
    spin_lock(&history.lock)
    figures = history.tags[number]
    spin_unlock(&history.lock)
    return figures


cdef void reset_tag_peaks(History* history) noexcept nogil:
    cdef int number
    spin_lock(&history.lock)
    for number in range(MAX_TAGS):
        history.tags[number].peak_bytes = history.tags[number].bytes_
        history.tags[number].peak_requested = history.tags[number].requested
        history.tags[number].peak_blocks = history.tags[number].blocks
    spin_unlock(&history.lock)


at_fork("allocator.event_ring", FORK_POOLS, NULL, NULL, &forget_in_child)
