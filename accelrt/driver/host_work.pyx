"""The host driver's rows for streams, events, copies and fills."""
from libc.stdint cimport uintptr_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, memset

from accelrt.addresses cimport AddressMap, map_find, map_insert, map_remove, map_reserve
from accelrt.driver.host_capture cimport (
    abandon, add_node, break_capture, capture_of, check_device, check_implicit, check_unsafe, join,
)
from accelrt.driver.host_gate cimport gate, gate_any
from accelrt.driver.host_memory cimport UNKNOWN_MEMORY, owner_of
from accelrt.driver.host_queue cimport (
    CALL, COPY, FILL, RECORD, WAIT, HostEvent, HostStream, Ticket, Work,
    add_stream, clear_frontier, copy_frontier, drain_device, drop_stream, drop_ticket, enqueue, find_stream,
    follow_legacy_order, hold_ticket, is_legacy, lock, mark, new_handle, unlock, wait_for,
)
from accelrt.driver.table cimport EVENT_DISABLE_TIMING, EVENT_INTERPROCESS, STREAM_NON_BLOCKING, Table, host_fn
from accelrt.status cimport (
    CAPTURED_EVENT, CAPTURE_INVALID, CAPTURE_ISOLATION, CAPTURE_UNSUPPORTED, INVALID_HANDLE, INVALID_VALUE, NO_HOST_MEMORY,
    NOT_READY,
)

cdef enum:
    GREATEST_PRIORITY = -5

cdef AddressMap events  # guarded by the queue's lock


# --- putting work in ---------------------------------------------------------------------------------------

cdef int put_in(HostStream* stream, const Work* work, Ticket* ticket, void* staged) noexcept nogil:
    # Under the lock: into the stream's queue, or into its capture.
    cdef int code
    if stream == NULL:
        return INVALID_HANDLE
    code = check_implicit(stream)
    if code:
        return code
    if stream.capture != NULL:
        return add_node(stream, work)
    code = follow_legacy_order(stream)
    return code if code else enqueue(stream, work, ticket, staged)


cdef int finish_if_queued(HostStream* stream) noexcept nogil:
    # Under the lock: the caller's bytes are written before the row returns.
    cdef int code
    cdef Ticket* ticket
    if stream.capture != NULL:
        return 0
    ticket = mark(stream, &code)
    if ticket != NULL:
        wait_for(ticket)
        drop_ticket(ticket)
    return code


cdef bint reaches_out(uintptr_t address, size_t size) noexcept nogil:
    # It begins in memory that the driver knows, and leaves it.
    return owner_of(address, 1) != UNKNOWN_MEMORY and owner_of(address, size) == UNKNOWN_MEMORY


cdef int copy(int device, uintptr_t stream, uintptr_t dst, uintptr_t src, size_t size) noexcept nogil:
    cdef HostStream* found
    cdef Work work
    cdef void* staged = NULL
    cdef int code = gate(device)
    if code or size == 0:
        return code
    if reaches_out(dst, size) or reaches_out(src, size) or dst == 0 or src == 0:
        return INVALID_VALUE
    memset(&work, 0, sizeof(Work))
    work.kind = COPY
    work.dst = dst
    work.src = src
    work.size = size
    lock()
    found = find_stream(device, stream)
    if found != NULL and found.capture == NULL and owner_of(src, size) == UNKNOWN_MEMORY:
        staged = malloc(size)
        if staged == NULL:
            unlock()
            return NO_HOST_MEMORY
        memcpy(staged, <void*>src, size)
    code = put_in(found, &work, NULL, staged)
    if code:
        free(staged)
    elif owner_of(dst, size) == UNKNOWN_MEMORY:
        code = finish_if_queued(found)
    unlock()
    return code


cdef int copy_peer(int dst_on, uintptr_t dst, int src_on, uintptr_t src, size_t size, uintptr_t stream) noexcept nogil:
    cdef int code = gate(dst_on)
    if code == 0:
        code = gate(src_on)
    if code == 0 and size and (owner_of(dst, size) != dst_on or owner_of(src, size) != src_on):
        code = INVALID_VALUE
    return code if code else copy(src_on, stream, dst, src, size)


cdef int fill(int device, uintptr_t stream, uintptr_t dst, unsigned int value, int width, size_t count) noexcept nogil:
    cdef Work work
    cdef int code = gate(device)
    if code:
        return code
    if width not in (1, 2, 4) or dst % width or (count and owner_of(dst, count * width) == UNKNOWN_MEMORY):
        return INVALID_VALUE
    if count == 0:
        return 0
    memset(&work, 0, sizeof(Work))
    work.kind = FILL
    work.dst = dst
    work.value = value
    work.width = width
    work.size = count
    lock()
    code = put_in(find_stream(device, stream), &work, NULL, NULL)
    unlock()
    return code


cdef int stream_host_func(int device, uintptr_t stream, host_fn fn, void* data) noexcept nogil:
    cdef Work work
    cdef int code = gate(device)
    if code:
        return code
    if fn == NULL:
        return INVALID_VALUE
    memset(&work, 0, sizeof(Work))
    work.kind = CALL
    work.fn = fn
    work.data = data
    lock()
    code = put_in(find_stream(device, stream), &work, NULL, NULL)
    unlock()
    return code


# --- streams -----------------------------------------------------------------------------------------------

cdef int stream_priority_range(int device, int* out_least, int* out_greatest) noexcept nogil:
    out_least[0] = 0
    out_greatest[0] = GREATEST_PRIORITY
    return gate(device)


cdef int stream_create(int device, unsigned int flags, int priority, uintptr_t* out_stream) noexcept nogil:
    cdef HostStream* made
    cdef int code = gate(device)
    if code or flags > STREAM_NON_BLOCKING:
        return code if code else INVALID_VALUE
    lock()
    made = add_stream(device, flags, min(0, max(GREATEST_PRIORITY, priority)))
    if made != NULL:
        out_stream[0] = made.handle
    unlock()
    return 0 if made != NULL else NO_HOST_MEMORY


cdef int stream_destroy(int device, uintptr_t stream) noexcept nogil:
    cdef HostStream* found
    cdef int code = gate(device)
    if code or stream <= 2:
        return code if code else INVALID_HANDLE
    lock()
    found = find_stream(device, stream)
    if found != NULL:
        abandon(found)
        drop_stream(found)
    unlock()
    return 0 if found != NULL else INVALID_HANDLE


cdef int stream_priority(int device, uintptr_t stream, int* out_priority) noexcept nogil:
    cdef HostStream* found
    cdef int code = gate(device)
    if code:
        return code
    lock()
    found = find_stream(device, stream)
    if found != NULL:
        out_priority[0] = found.priority
    unlock()
    return 0 if found != NULL else INVALID_HANDLE


cdef int look(HostStream* stream, bint wait) noexcept nogil:
    # Under the lock: whether a stream is idle, now or after waiting for it.
    cdef Ticket* ticket
    cdef int code
    if stream == NULL:
        return INVALID_HANDLE
    if stream.capture != NULL:
        code = CAPTURE_INVALID if stream.capture.broken else CAPTURE_UNSUPPORTED
        return break_capture(stream, code)
    code = check_unsafe()
    if code == 0:
        code = check_implicit(stream)
    if code == 0 and is_legacy(stream):
        code = follow_legacy_order(stream)
    if code or stream.head == NULL:
        return code
    if not wait:
        return NOT_READY
    ticket = mark(stream, &code)
    if ticket != NULL:
        wait_for(ticket)
        drop_ticket(ticket)
    return code


cdef int stream_query(int device, uintptr_t stream) noexcept nogil:
    cdef int code = gate(device)
    if code:
        return code
    lock()
    code = look(find_stream(device, stream), False)
    unlock()
    return code


cdef int stream_synchronize(int device, uintptr_t stream) noexcept nogil:
    cdef int code = gate(device)
    if code:
        return code
    lock()
    code = look(find_stream(device, stream), True)
    unlock()
    return code


cdef int device_synchronize(int device) noexcept nogil:
    cdef int code = gate(device)
    if code:
        return code
    lock()
    code = check_device(device)
    if code == 0:
        code = drain_device(device)
    unlock()
    return code


# --- events ------------------------------------------------------------------------------------------------

cdef int event_create(int device, unsigned int flags, uintptr_t* out_event) noexcept nogil:
    cdef HostEvent* made
    cdef int code = gate(device)
    if code:
        return code
    if flags >= 8 or (flags & EVENT_INTERPROCESS and not flags & EVENT_DISABLE_TIMING):
        return INVALID_VALUE
    made = <HostEvent*>calloc(1, sizeof(HostEvent))
    if made == NULL:
        return NO_HOST_MEMORY
    made.device = device
    made.flags = flags
    lock()
    code = map_reserve(&events)
    if code == 0:
        made.handle = new_handle()
        map_insert(&events, made.handle, made)
        out_event[0] = made.handle
    unlock()
    if code:
        free(made)
    return code


cdef int event_destroy(int device, uintptr_t event) noexcept nogil:
    cdef HostEvent* found
    cdef int code = gate(device)
    if code:
        return code
    lock()
    found = <HostEvent*>map_remove(&events, event)
    if found != NULL:
        drop_ticket(found.ticket)
        clear_frontier(&found.frontier)
        free(found)
    unlock()
    return 0 if found != NULL else INVALID_HANDLE


cdef size_t count_events() noexcept nogil:
    return events.count


cdef int record_in_capture(HostEvent* event, HostStream* stream) noexcept nogil:
    if stream.capture.broken:
        return CAPTURE_INVALID
    if copy_frontier(&event.frontier, &stream.frontier):
        return NO_HOST_MEMORY
    drop_ticket(event.ticket)
    event.ticket = NULL
    event.capture = stream.capture.id
    return 0


cdef int record_now(HostEvent* event, HostStream* stream) noexcept nogil:
    cdef Work work
    cdef int code = follow_legacy_order(stream)
    cdef Ticket* ticket
    if code:
        return code
    ticket = <Ticket*>calloc(1, sizeof(Ticket))
    if ticket == NULL:
        return NO_HOST_MEMORY
    ticket.holders = 1
    memset(&work, 0, sizeof(Work))
    work.kind = RECORD
    code = enqueue(stream, &work, ticket, NULL)
    if code:
        drop_ticket(ticket)
        return code
    drop_ticket(event.ticket)
    event.ticket = ticket
    event.capture = 0
    return 0


cdef int event_record(int device, uintptr_t event, uintptr_t stream) noexcept nogil:
    cdef HostEvent* found
    cdef HostStream* on
    cdef int code = gate(device)
    if code:
        return code
    lock()
    found = <HostEvent*>map_find(&events, event)
    on = find_stream(device, stream)
    if found == NULL or on == NULL or found.device != device:
        code = INVALID_HANDLE
    else:
        code = check_implicit(on)
    if code == 0:
        code = record_in_capture(found, on) if on.capture != NULL else record_now(found, on)
    unlock()
    return code


cdef int wait_in_stream(HostStream* stream, HostEvent* event) noexcept nogil:
    cdef Work work
    cdef int code
    if event.capture:
        return join(stream, event.capture, &event.frontier)
    if event.ticket == NULL:
        return 0
    if stream.capture != NULL:
        return break_capture(stream, CAPTURE_INVALID if stream.capture.broken else CAPTURE_ISOLATION)
    if event.ticket.done:
        return 0
    code = follow_legacy_order(stream)
    memset(&work, 0, sizeof(Work))
    work.kind = WAIT
    return code if code else enqueue(stream, &work, event.ticket, NULL)


cdef int stream_wait_event(int device, uintptr_t stream, uintptr_t event) noexcept nogil:
    cdef HostEvent* found
    cdef HostStream* waiter
    cdef int code = gate(device)
    if code:
        return code
    lock()
    found = <HostEvent*>map_find(&events, event)
    waiter = find_stream(device, stream)
    if found == NULL or waiter == NULL:
        code = INVALID_HANDLE
    else:
        code = check_implicit(waiter)
    if code == 0:
        code = wait_in_stream(waiter, found)
    unlock()
    return code


cdef int ask_event(uintptr_t event, bint wait) noexcept nogil:
    cdef HostEvent* found
    cdef Ticket* ticket
    cdef int code
    lock()
    found = <HostEvent*>map_find(&events, event)
    if found == NULL:
        code = INVALID_HANDLE
    elif found.capture:
        code = CAPTURED_EVENT if capture_of(found.capture) != NULL else INVALID_VALUE
    else:
        code = check_unsafe()
        ticket = hold_ticket(found.ticket)
        if code == 0 and ticket != NULL and not ticket.done:
            if wait:
                wait_for(ticket)
            else:
                code = NOT_READY
        drop_ticket(ticket)
    unlock()
    return code


cdef int event_query(int device, uintptr_t event) noexcept nogil:
    cdef int code = gate(device)
    return code if code else ask_event(event, False)


cdef int event_synchronize(int device, uintptr_t event) noexcept nogil:
    cdef int code = gate(device)
    return code if code else ask_event(event, True)


cdef int event_elapsed(uintptr_t start, uintptr_t end, float* out_ms) noexcept nogil:
    cdef HostEvent* first
    cdef HostEvent* last
    cdef int code = gate_any()
    if code:
        return code
    lock()
    first = <HostEvent*>map_find(&events, start)
    last = <HostEvent*>map_find(&events, end)
    if first == NULL or last == NULL or (first.flags | last.flags) & EVENT_DISABLE_TIMING:
        code = INVALID_HANDLE
    elif first.capture or last.capture:
        code = INVALID_VALUE
    elif first.ticket == NULL or last.ticket == NULL:
        code = INVALID_HANDLE
    elif not first.ticket.done or not last.ticket.done:
        code = NOT_READY
    else:
        out_ms[0] = <float>(last.ticket.time_ms - first.ticket.time_ms)
    unlock()
    return code


cdef void fill_work_rows(Table* table) noexcept nogil:
    table.copy = copy
    table.copy_peer = copy_peer
    table.fill = fill
    table.stream_host_func = stream_host_func
    table.stream_priority_range = stream_priority_range
    table.stream_create = stream_create
    table.stream_destroy = stream_destroy
    table.stream_priority = stream_priority
    table.stream_query = stream_query
    table.stream_synchronize = stream_synchronize
    table.device_synchronize = device_synchronize
    table.event_create = event_create
    table.event_destroy = event_destroy
    table.event_record = event_record
    table.event_query = event_query
    table.event_synchronize = event_synchronize
    table.event_elapsed = event_elapsed
    table.stream_wait_event = stream_wait_event
