"""Uses of memory by streams, the pool of driver events, and queues of events that streams have to reach.

An event that was captured belongs to the graph: a driver crashed when such an event was recorded anew while the graph was
destroyed.  Python's graphs keep the Events that they captured.  What nogil code captured is destroyed when it is returned.
"""
from libc.stdlib cimport free, realloc
from libc.string cimport memset

from accelrt.core.handle_map cimport map_find, map_insert, map_remove, map_reserve
from accelrt.core.locks cimport spin_lock, spin_unlock
from accelrt.core.process cimport FORK_POOLS, at_fork
from accelrt.driver.guard cimport (
    DONE, FAILED, GONE, as_refusal, go_relaxed, is_captured_event, is_device_lost, meaning_of, record_behind,
    restore_mode,
)
from accelrt.driver.table cimport EVENT_DISABLE_TIMING
from accelrt.status cimport NOT_READY

cdef extern from *:
    int lowest_bit "__builtin_ctzll"(unsigned long long word) noexcept nogil

cdef enum:
    KINDS = 4  # EVENT_BLOCKING_SYNC and EVENT_DISABLE_TIMING, in every combination

cdef PooledEvent* spare[MAX_DEVICES][KINDS]  # the one returned last first; under the lock
cdef int lock = 0


# --- driver events -------------------------------------------------------------------------------------------

cdef void forget_events() noexcept nogil:
    # In a forked child: the parent's events, and a lock that another of its threads may have held.
    global lock
    lock = 0
    memset(spare, 0, sizeof(spare))


cdef PooledEvent* take_spare(int device, unsigned int flags) noexcept nogil:
    cdef PooledEvent* event
    if flags >= KINDS:
        return NULL
    spin_lock(&lock)
    event = spare[device][flags]
    if event != NULL:
        spare[device][flags] = event.next
    spin_unlock(&lock)
    return event


cdef int make_event(Table* table, int device, unsigned int flags, PooledEvent** out_event) noexcept nogil:
    cdef PooledEvent* event = <PooledEvent*>calloc(1, sizeof(PooledEvent))
    cdef int code
    out_event[0] = NULL
    if event == NULL:
        return NO_HOST_MEMORY
    event.device = device
    event.flags = flags
    code = table.event_create(device, flags, &event.handle)
    if code:
        free(event)
        return code
    out_event[0] = event
    return 0


cdef int take_event(Table* table, int device, unsigned int flags, PooledEvent** out_event) noexcept nogil:
    out_event[0] = take_spare(device, flags)
    return 0 if out_event[0] != NULL else make_event(table, device, flags, out_event)


cdef void return_event(PooledEvent* event) noexcept nogil:
    event.captured = False
    event.block = NULL
    spin_lock(&lock)
    event.next = spare[event.device][event.flags]
    spare[event.device][event.flags] = event
    spin_unlock(&lock)


cdef void release_event(Table* table, PooledEvent* event) noexcept nogil:
    if event.captured:
        table.event_destroy(event.device, event.handle)
        free(event)
    else:
        return_event(event)


cdef int destroy_spare(Table* table, int device) noexcept nogil:
    cdef PooledEvent* event = take_spare(device, EVENT_DISABLE_TIMING)
    cdef int code
    while event != NULL:
        code = table.event_destroy(device, event.handle)
        if code:
            return_event(event)
            return code
        free(event)
        event = take_spare(device, EVENT_DISABLE_TIMING)
    return 0


cdef int mark_behind(Table* table, int device, uintptr_t stream, PooledEvent** out_event) noexcept nogil:
    cdef int code = as_refusal(take_event(table, device, EVENT_DISABLE_TIMING, out_event))
    if code == 0:
        code = record_behind(table, device, out_event[0].handle, stream)
        if code:
            return_event(out_event[0])
            out_event[0] = NULL
    return code


cdef int ask_event(Table* table, const PooledEvent* event, bint wait) noexcept nogil:
    # A query breaks a global-mode capture of any thread, unless the thread that asks is in relaxed mode.
    cdef int mode
    cdef int code = go_relaxed(table, &mode)
    if code == 0:
        code = (table.event_synchronize if wait else table.event_query)(event.device, event.handle)
        restore_mode(table, mode)
    return code


# --- uses ----------------------------------------------------------------------------------------------------

cdef void hand_on(UseStore* store, Use** uses, int device, uintptr_t stream, uintptr_t heir) noexcept nogil:
    cdef Use** link = uses
    cdef const Use* use = uses[0]
    cdef bint known = heir == 0
    while use != NULL:
        known = known or (use.stream == heir and use.device == device and use.event == NULL)
        use = use.next
    while link[0] != NULL:
        if link[0].stream != stream or link[0].device != device or link[0].event != NULL:
            link = &link[0].next
        elif known:
            drop_use(store, link)
        else:
            known = True
            link[0].stream = heir
            link = &link[0].next


cdef int mark_use(Table* table, Use* use) noexcept nogil:
    return 0 if use.event != NULL else mark_behind(table, use.device, use.stream, &use.event)


cdef void unmark_use(Table* table, Use* use) noexcept nogil:
    if use.event != NULL:
        release_event(table, use.event)
        use.event = NULL


cdef int ask_use(Table* table, Use* use, bint wait) noexcept nogil:
    cdef int code = ask_event(table, use.event, wait)
    if code == 0 or is_device_lost(code):
        unmark_use(table, use)
    elif is_captured_event(code) or meaning_of(code) == GONE:
        use.event.captured = True
        unmark_use(table, use)
        return NOT_READY
    return code


# --- queues --------------------------------------------------------------------------------------------------

cdef inline uintptr_t queue_key(int device, uintptr_t stream) noexcept nogil:
    return stream ^ <uintptr_t>device << 56


cdef Queue* queue_of(Queues* queues, int device, uintptr_t stream) noexcept nogil:
    cdef Queue* queue = <Queue*>map_find(&queues.index, queue_key(device, stream))
    while queue != NULL and not (queue.stream == stream and queue.device == device):
        queue = queue.same_key
    return queue if queue != NULL else make_queue(queues, device, stream)


cdef int ensure_capacity(Queues* queues) noexcept nogil:
    # Makes place for one more queue, in the array and in the bits; 0 or NO_HOST_MEMORY.
    cdef size_t capacity = 2 * queues.capacity + 64, word
    cdef Queue** all_
    cdef uint64_t* filled
    if queues.count < queues.capacity:
        return 0
    all_ = <Queue**>realloc(queues.all, capacity * sizeof(Queue*))
    if all_ == NULL:
        return NO_HOST_MEMORY
    queues.all = all_
    filled = <uint64_t*>realloc(queues.filled, capacity // 64 * sizeof(uint64_t))
    if filled == NULL:
        return NO_HOST_MEMORY
    for word in range(queues.capacity // 64, capacity // 64):
        filled[word] = 0
    queues.filled = filled
    queues.capacity = capacity
    return 0


cdef Queue* make_queue(Queues* queues, int device, uintptr_t stream) noexcept nogil:
    # Adds an empty queue for a stream; NULL where the host has no memory.
    cdef Queue* queue
    cdef uintptr_t key = queue_key(device, stream)
    if map_reserve(&queues.index) or ensure_capacity(queues):
        return NULL
    queue = <Queue*>calloc(1, sizeof(Queue))
    if queue == NULL:
        return NULL
    queue.device = device
    queue.stream = stream
    queue.number = queues.count
    queue.same_key = <Queue*>map_remove(&queues.index, key)
    map_insert(&queues.index, key, queue)
    queues.all[queues.count] = queue
    queues.count += 1
    return queue


cdef Queue* next_filled(const Queues* queues, size_t number) noexcept nogil:
    cdef size_t word = number // 64
    cdef uint64_t bits
    if number >= queues.count:
        return NULL
    bits = queues.filled[word] & (~<uint64_t>0 << (number % 64))
    while bits == 0:
        word += 1
        if word * 64 >= queues.count:
            return NULL
        bits = queues.filled[word]
    return queues.all[word * 64 + lowest_bit(bits)]


cdef Queue* busy_queue(const Queues* queues) noexcept nogil:
    cdef Queue* queue = next_filled(queues, 0)
    while queue != NULL and queue.head.captured:
        queue = next_filled(queues, queue.number + 1)
    return queue


cdef void put_back(Queues* queues, Queue* queue, PooledEvent* event) noexcept nogil:
    event.next = queue.head
    if queue.head == NULL:
        queue.tail = event
        queues.filled[queue.number // 64] |= <uint64_t>1 << (queue.number % 64)
    queue.head = event
    queues.pending += 1


cdef void push(Queues* queues, Queue* queue, PooledEvent* event, void* block) noexcept nogil:
    event.block = block
    if queue.head == NULL:
        put_back(queues, queue, event)
        return
    event.next = NULL
    queue.tail.next = event
    queue.tail = event
    queues.pending += 1


cdef PooledEvent* take_oldest(Queues* queues, Queue* queue) noexcept nogil:
    cdef PooledEvent* event = queue.head
    queue.head = event.next
    if queue.head == NULL:
        queues.filled[queue.number // 64] &= ~(<uint64_t>1 << (queue.number % 64))
    queues.pending -= 1
    return event


cdef PooledEvent* take_of(Queues* queues, Queue* queue, const void* block) noexcept nogil:
    cdef PooledEvent* before = queue.head
    cdef PooledEvent* event
    if before.block == block:
        return take_oldest(queues, queue)
    while before.next.block != block:
        before = before.next
    event = before.next
    before.next = event.next
    if queue.tail == event:
        queue.tail = before
    queues.pending -= 1
    return event


cdef int queue_use(
    Table* table, Queues* queues, UseStore* store, Use** link, void* block, uint32_t* events
) noexcept nogil:
    cdef Queue* queue = queue_of(queues, link[0].device, link[0].stream)
    cdef PooledEvent* event
    cdef int code
    if queue == NULL:
        return NO_HOST_MEMORY
    code = mark_behind(table, queue.device, queue.stream, &event)
    if code == 0:
        push(queues, queue, event, block)
        events[0] += 1
    elif meaning_of(code) != GONE:
        return code
    drop_use(store, link)
    return 0


cdef int query_event(Table* table, const Queue* queue, PooledEvent* event) noexcept nogil:
    # The answer for a captured event means nothing, nor does a refusal, so it is recorded again: the block then waits also
    # for work enqueued since.
    cdef int code
    if not event.captured:
        code = table.event_query(queue.device, event.handle)
        if is_device_lost(code) or not (is_captured_event(code) or meaning_of(code) == GONE):
            return code
        event.captured = True
    code = record_behind(table, queue.device, event.handle, queue.stream)
    if code:
        return code
    event.captured = False
    return NOT_READY


cdef int poll_queue(Table* table, Queues* queues, Queue* queue, completing complete, void* owner) noexcept nogil:
    # A destroyed stream counts as complete.
    cdef int code, meaning
    while queue.head != NULL:
        code = query_event(table, queue, queue.head)
        meaning = meaning_of(code)
        if meaning != DONE and meaning != GONE:
            return code if meaning == FAILED else 0
        complete(queue, take_oldest(queues, queue), owner)
    return 0


cdef int poll_queues(Table* table, Queues* queues, completing complete, void* owner) noexcept nogil:
    # In relaxed mode, as ask_event.
    cdef Queue* queue = next_filled(queues, 0)
    cdef int mode
    cdef int code = go_relaxed(table, &mode)
    if code:
        return code
    while queue != NULL and code == 0:
        code = poll_queue(table, queues, queue, complete, owner)
        queue = next_filled(queues, queue.number + 1)
    restore_mode(table, mode)
    return code


forget_events()
at_fork("uses.events", FORK_POOLS, NULL, NULL, &forget_events)
