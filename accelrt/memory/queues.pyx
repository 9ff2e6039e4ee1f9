"""Queues of events that streams have to reach before what was given back is free: device memory's, and page-locked."""
from libc.stdlib cimport calloc, free

from accelrt.driver.captures cimport DONE, FAILED, GONE, is_captured_event, meaning_of, record_behind
from accelrt.driver.table cimport EVENT_DISABLE_TIMING
from accelrt.status cimport NO_HOST_MEMORY, NOT_READY


cdef Queue* queue_of(Queue** queues, int device, uintptr_t stream) noexcept nogil:
    cdef Queue** link = queues
    while link[0] != NULL and not (link[0].stream == stream and link[0].device == device):
        link = &link[0].next
    if link[0] == NULL:
        link[0] = <Queue*>calloc(1, sizeof(Queue))
        if link[0] != NULL:
            link[0].device = device
            link[0].stream = stream
    return link[0]


cdef Queue* busy_queue(Queue* first) noexcept nogil:
    while first != NULL and (first.head == NULL or first.head.lost):
        first = first.next
    return first


cdef int enqueue(Table* table, Queue** queues, Entry** spare, int device, uintptr_t stream, void* block) noexcept nogil:
    cdef Queue* queue = queue_of(queues, device, stream)
    cdef Entry* entry
    cdef int code
    if queue == NULL:
        return NO_HOST_MEMORY
    code = take_entry(table, device, spare, &entry)
    if code:
        return code
    code = record_behind(table, device, entry.event, stream)
    if code:
        put_entry(spare, entry)
        return code
    push(queue, entry, block)
    return 0


cdef int ask_entry(Table* table, const Queue* queue, Entry* entry) noexcept nogil:
    # An event that was captured says nothing; recorded anew it is complete later than it had to be.
    cdef int code
    if not entry.lost:
        code = table.event_query(queue.device, entry.event)
        if not is_captured_event(code):
            return code
        entry.lost = True
    code = record_behind(table, queue.device, entry.event, queue.stream)
    if code:
        return code
    entry.lost = False
    return NOT_READY


cdef Entry* take_complete(Table* table, Queue* queue, int* out_code) noexcept nogil:
    cdef Entry* entry = queue.head
    cdef int code, meaning
    out_code[0] = 0
    if entry == NULL:
        return NULL
    code = ask_entry(table, queue, entry)
    meaning = meaning_of(code)
    if meaning == DONE or meaning == GONE:
        queue.head = entry.next
        return entry
    if meaning == FAILED:
        out_code[0] = code
    return NULL


cdef Entry* take_of(Queue* queue, const void* block) noexcept nogil:
    cdef Entry* before = NULL
    cdef Entry* entry = queue.head
    while entry.block != block:
        before = entry
        entry = entry.next
    if before == NULL:
        queue.head = entry.next
    else:
        before.next = entry.next
    if queue.tail == entry:
        queue.tail = before
    return entry


cdef int take_entry(Table* table, int device, Entry** spare, Entry** out_entry) noexcept nogil:
    # An event is recorded on streams of its own device; all spare ones of most pools are of one.
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
