"""Queues of events that streams have to reach before freed memory can be used again: device memory and page-locked.

Every function needs the lock of the queues' owner: a pool's exclusive section, or the page-locked cache's lock.
"""
from libc.stdlib cimport calloc, free, realloc

from accelrt.core.handle_map cimport map_find, map_insert, map_remove, map_reserve
from accelrt.driver.guard cimport (
    DONE, FAILED, GONE, as_refusal, is_captured_event, is_device_lost, meaning_of, record_behind,
)
from accelrt.driver.table cimport EVENT_DISABLE_TIMING
from accelrt.status cimport NO_HOST_MEMORY, NOT_READY

cdef extern from *:
    int lowest_bit "__builtin_ctzll"(unsigned long long word) noexcept nogil


cdef inline uintptr_t queue_key(int device, uintptr_t stream) noexcept nogil:
    return stream ^ <uintptr_t>device << 56


cdef Queue* queue_of(Queues* queues, int device, uintptr_t stream) noexcept nogil:
    cdef Queue* found = <Queue*>map_find(&queues.index, queue_key(device, stream))
    while found != NULL and not (found.stream == stream and found.device == device):
        found = found.same_key
    return found if found != NULL else make_queue(queues, device, stream)


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
    cdef Queue* made
    cdef uintptr_t key = queue_key(device, stream)
    if map_reserve(&queues.index) or ensure_capacity(queues):
        return NULL
    made = <Queue*>calloc(1, sizeof(Queue))
    if made == NULL:
        return NULL
    made.device = device
    made.stream = stream
    made.number = queues.count
    made.same_key = <Queue*>map_remove(&queues.index, key)
    map_insert(&queues.index, key, made)
    queues.all[queues.count] = made
    queues.count += 1
    return made


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
    while queue != NULL and queue.head.lost:
        queue = next_filled(queues, queue.number + 1)
    return queue


cdef void put_back(Queues* queues, Queue* queue, Entry* entry) noexcept nogil:
    entry.next = queue.head
    if queue.head == NULL:
        queue.tail = entry
        queues.filled[queue.number // 64] |= <uint64_t>1 << (queue.number % 64)
    queue.head = entry


cdef void push(Queues* queues, Queue* queue, Entry* entry, void* block) noexcept nogil:
    entry.block = block
    entry.lost = False
    if queue.head == NULL:
        put_back(queues, queue, entry)
        return
    entry.next = NULL
    queue.tail.next = entry
    queue.tail = entry


cdef Entry* take_oldest(Queues* queues, Queue* queue) noexcept nogil:
    cdef Entry* entry = queue.head
    queue.head = entry.next
    if queue.head == NULL:
        queues.filled[queue.number // 64] &= ~(<uint64_t>1 << (queue.number % 64))
    return entry


cdef int enqueue(Table* table, Queues* queues, Entry** spare, int device, uintptr_t stream, void* block) noexcept nogil:
    cdef Queue* queue = queue_of(queues, device, stream)
    cdef Entry* entry
    cdef int code
    if queue == NULL:
        return NO_HOST_MEMORY
    code = take_entry(table, device, spare, &entry)
    if code:
        return as_refusal(code)
    code = record_behind(table, device, entry.event, stream)
    if code:
        put_entry(spare, entry)
        return code
    push(queues, queue, entry, block)
    return 0


cdef int query_entry(Table* table, const Queue* queue, Entry* entry) noexcept nogil:
    # Queries an entry's event.  The answer for a captured event means nothing, nor does a refusal, so it is recorded again:
    # the block then waits also for work enqueued since.
    cdef int code
    if not entry.lost:
        code = table.event_query(queue.device, entry.event)
        if is_device_lost(code) or not (is_captured_event(code) or meaning_of(code) == GONE):
            return code
        entry.lost = True
    code = record_behind(table, queue.device, entry.event, queue.stream)
    if code:
        return code
    entry.lost = False
    return NOT_READY


cdef Entry* take_complete(Table* table, Queues* queues, Queue* queue, int* out_code) noexcept nogil:
    # A destroyed stream counts as complete.  out_code: 0, or a failure of the driver.
    cdef Entry* entry = queue.head
    cdef int code, meaning
    out_code[0] = 0
    if entry == NULL:
        return NULL
    code = query_entry(table, queue, entry)
    meaning = meaning_of(code)
    if meaning == DONE or meaning == GONE:
        return take_oldest(queues, queue)
    if meaning == FAILED:
        out_code[0] = code
    return NULL


cdef Entry* take_of(Queues* queues, Queue* queue, const void* block) noexcept nogil:
    cdef Entry* before = queue.head
    cdef Entry* entry
    if before.block == block:
        return take_oldest(queues, queue)
    while before.next.block != block:
        before = before.next
    entry = before.next
    before.next = entry.next
    if queue.tail == entry:
        queue.tail = before
    return entry


cdef int take_entry(Table* table, int device, Entry** spare, Entry** out_entry) noexcept nogil:
    # A spare entry of the device, or a new one: an event is recorded only on streams of its own device.  Most pools have
    # entries of one device only, so the first one usually matches.
    cdef Entry** link = spare
    cdef Entry* entry
    cdef int code
    while link[0] != NULL and link[0].device != device:
        link = &link[0].next
    entry = link[0]
    if entry != NULL:
        link[0] = entry.next
        out_entry[0] = entry
        return 0
    entry = <Entry*>calloc(1, sizeof(Entry))
    if entry == NULL:
        return NO_HOST_MEMORY
    code = table.event_create(device, EVENT_DISABLE_TIMING, &entry.event)
    if code:
        free(entry)
        return code
    entry.device = device
    out_entry[0] = entry
    return 0


cdef int destroy_entries(Table* table, Entry** spare) noexcept nogil:
    cdef Entry* entry
    cdef int code
    while spare[0] != NULL:
        entry = spare[0]
        code = table.event_destroy(entry.device, entry.event)
        if code:
            return code
        spare[0] = entry.next
        free(entry)
    return 0
