"""The host driver's rows for events: records, waits, questions and times, and events as nodes of graphs."""
from libc.stdint cimport uint64_t, uintptr_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset

from accelrt.core.handle_map cimport AddressMap, map_find, map_insert, map_remove, map_reserve
from accelrt.core.slots cimport Slot
from accelrt.driver.capture_guard cimport enter_asking, leave_asking
from accelrt.driver.host.capture cimport add_node, break_capture, capture_of, check_implicit, check_unsafe, join
from accelrt.driver.host.frontier cimport clear_frontier, copy_frontier
from accelrt.driver.host.queue cimport (
    RECORD, WAIT, Capture, HostEvent, HostStream, Plan, Ticket, Work, drop_ticket, drop_tickets, enqueue, find_stream,
    follow_legacy_order, follow_shared, hold_ticket, lock, new_handle, new_ticket, note_beside_end, unlock, wait_for,
)
from accelrt.driver.host.shared_event cimport (
    EVENT_FILE, SharedEvent, begin_record, complete_record, drop_shared_event, is_record_done, last_record,
    make_shared_event, name_file, open_shared_event,
)
from accelrt.driver.host.stream cimport gate, gate_any
from accelrt.driver.table cimport EVENT_DISABLE_TIMING, EVENT_INTERPROCESS, Table
from accelrt.status cimport (
    CAPTURED_EVENT, CAPTURE_INVALID, CAPTURE_ISOLATION, ILLEGAL_STATE, INVALID_HANDLE, INVALID_VALUE, NOT_READY,
    NO_HOST_MEMORY, OPERATING_SYSTEM,
)

cdef AddressMap events  # guarded by the queue's lock

include "event_rows.pxi"


cdef int event_create(int device, unsigned int flags, uintptr_t* out_event) noexcept nogil:
    cdef SharedEvent* shared = NULL
    cdef int code = gate(device)
    if code:
        return code
    if flags >= 8 or (flags & EVENT_INTERPROCESS and not flags & EVENT_DISABLE_TIMING):
        return INVALID_VALUE
    if flags & EVENT_INTERPROCESS:
        shared = make_shared_event()
        if shared == NULL:
            return OPERATING_SYSTEM
    code = add_event(device, flags, shared, out_event)
    if code:
        lock()
        drop_shared_event(shared)
        unlock()
    return code


cdef int add_event(int device, unsigned int flags, SharedEvent* shared, uintptr_t* out_event) noexcept nogil:
    cdef HostEvent* made = <HostEvent*>calloc(1, sizeof(HostEvent))
    cdef int code
    if made == NULL:
        return NO_HOST_MEMORY
    made.device = device
    made.flags = flags
    made.shared = shared
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


cdef HostEvent* find_event(uintptr_t event) noexcept nogil:
    cdef HostEvent* found = <HostEvent*>map_find(&events, event)
    if found != NULL and found.capture:
        note_beside_end(capture_of(found.capture))
    return found


cdef int event_destroy(int device, uintptr_t event) noexcept nogil:
    cdef HostEvent* found
    cdef int code = gate(device)
    if code:
        return code
    lock()
    found = <HostEvent*>map_remove(&events, event)
    if found != NULL:
        drop_ticket(found.ticket)
        drop_shared_event(found.shared)
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
    ticket = new_ticket()
    if ticket == NULL:
        return NO_HOST_MEMORY
    memset(&work, 0, sizeof(Work))
    work.kind = RECORD
    if event.shared != NULL:
        event.shared.holders += 1
        ticket.shared = event.shared
        ticket.number = begin_record(event.shared)
    code = enqueue(stream, &work, ticket, NULL)
    if code:
        if event.shared != NULL:
            complete_record(event.shared, ticket.number)
        drop_ticket(ticket)
        return code
    drop_ticket(event.ticket)
    event.ticket = ticket
    event.capture = 0
    return 0


cdef int last_ticket(HostEvent* event, Ticket** out_ticket) noexcept nogil:
    # Under the lock: what stands for the event's last record, in whichever process; NULL where that is done, or there is
    # none.  The caller drops it.
    cdef uint64_t number
    out_ticket[0] = NULL
    if event.shared != NULL:
        number = last_record(event.shared)
        if number == 0 or is_record_done(event.shared, number):
            return 0
        if event.ticket == NULL or event.ticket.number != number:
            out_ticket[0] = follow_shared(event.shared, number)
            return 0 if out_ticket[0] != NULL else NO_HOST_MEMORY
    if event.ticket != NULL and not event.ticket.done:
        out_ticket[0] = hold_ticket(event.ticket)
    return 0


cdef int event_record(int device, uintptr_t event, uintptr_t stream) noexcept nogil:
    cdef HostEvent* found
    cdef HostStream* on
    cdef int code = gate(device)
    if code:
        return code
    lock()
    found = find_event(event)
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
    cdef Ticket* ticket = NULL
    cdef Work work
    cdef int code
    if stream.capture != NULL and stream.capture.broken:
        return CAPTURE_INVALID
    if event.capture:
        return join(stream, event.capture, &event.frontier)
    if event.ticket == NULL and (event.shared == NULL or last_record(event.shared) == 0):
        return 0
    if stream.capture != NULL:
        return break_capture(stream, CAPTURE_ISOLATION)
    code = last_ticket(event, &ticket)
    if ticket == NULL:
        return code
    code = follow_legacy_order(stream)
    memset(&work, 0, sizeof(Work))
    work.kind = WAIT
    if code == 0:
        code = enqueue(stream, &work, ticket, NULL)
    drop_ticket(ticket)
    return code


cdef int stream_wait_event(int device, uintptr_t stream, uintptr_t event) noexcept nogil:
    cdef HostEvent* found
    cdef HostStream* waiter
    cdef int code = gate(device)
    if code:
        return code
    lock()
    found = find_event(event)
    waiter = find_stream(device, stream)
    if found == NULL or waiter == NULL:
        code = INVALID_HANDLE
    else:
        code = check_implicit(waiter)
    if code == 0:
        code = wait_in_stream(waiter, found)
    unlock()
    return code


# --- events as nodes ---------------------------------------------------------------------------------------

cdef int add_point(int kind, int device, uintptr_t stream, uintptr_t event) noexcept nogil:
    # The event itself stays as it is: every launch of the graph records it, or looks at what it waits for.
    cdef HostEvent* found
    cdef HostStream* on
    cdef Work work
    cdef int code = gate(device)
    if code:
        return code
    memset(&work, 0, sizeof(Work))
    work.kind = kind
    work.event = event
    lock()
    found = find_event(event)
    on = find_stream(device, stream)
    if found == NULL or on == NULL or (kind == RECORD and found.device != device):
        code = INVALID_HANDLE
    elif on.capture == NULL:
        code = ILLEGAL_STATE
    else:
        code = add_node(on, &work)
    unlock()
    return code


cdef int event_record_external(int device, uintptr_t event, uintptr_t stream) noexcept nogil:
    return add_point(RECORD, device, stream, event)


cdef int stream_wait_external(int device, uintptr_t stream, uintptr_t event) noexcept nogil:
    return add_point(WAIT, device, stream, event)


cdef void record_at_launch(HostEvent* event, Ticket* ticket) noexcept nogil:
    drop_ticket(event.ticket)
    event.ticket = hold_ticket(ticket)
    event.capture = 0


cdef void abandon_tickets(const Plan* plan, void* given) noexcept nogil:
    # Of a launch that came to nothing: the streams that wait for one of its records are let go.
    cdef Ticket** tickets = <Ticket**>given
    cdef int index
    if tickets == NULL:
        return
    for index in range(plan.count):
        if tickets[index] != NULL and plan.nodes[index].work.kind == RECORD:
            tickets[index].done = True
    drop_tickets(tickets, plan.count)
    free(tickets)


cdef bint has_points(const Plan* plan) noexcept nogil:
    cdef int index
    for index in range(plan.count):
        if plan.nodes[index].work.event:
            return True
    return False


cdef int tickets_for(const Plan* plan, void** out_tickets) noexcept nogil:
    # A new one for each record, in the order of the nodes, so that a wait sees the records before it.
    cdef Ticket** tickets
    cdef const Work* work
    cdef HostEvent* event
    cdef int index
    out_tickets[0] = NULL
    if not has_points(plan):
        return 0
    tickets = <Ticket**>calloc(plan.count, sizeof(void*))
    if tickets == NULL:
        return NO_HOST_MEMORY
    out_tickets[0] = tickets
    for index in range(plan.count):
        work = &plan.nodes[index].work
        if work.kind != RECORD and work.kind != WAIT:
            continue
        event = <HostEvent*>map_find(&events, work.event)
        if work.kind == WAIT:
            tickets[index] = hold_ticket(event.ticket) if event != NULL else NULL
            continue
        tickets[index] = new_ticket()
        if tickets[index] == NULL:
            abandon_tickets(plan, tickets)
            return NO_HOST_MEMORY
        if event != NULL:
            record_at_launch(event, tickets[index])
    return 0


cdef int ask_captured(uint64_t id) noexcept nogil:
    # The event has no state, and asking for it breaks the capture, if that still goes on.
    cdef Capture* capture = capture_of(id)
    if capture == NULL:
        return INVALID_VALUE
    capture.broken = True
    return CAPTURED_EVENT


cdef int ask_event(uintptr_t event, bint wait) noexcept nogil:
    # A wait's question is held back while a capture ends, and the wait itself is not.
    cdef Slot* asker = enter_asking(False) if wait else NULL
    cdef HostEvent* found
    cdef Ticket* ticket = NULL
    cdef uint64_t number
    cdef int code
    lock()
    found = find_event(event)
    if found == NULL:
        code = INVALID_HANDLE
    elif found.capture:
        code = ask_captured(found.capture)
    else:
        code = check_unsafe()
        if code == 0 and not wait and found.shared != NULL:  # to ask takes no thread
            number = last_record(found.shared)
            code = 0 if number == 0 or is_record_done(found.shared, number) else NOT_READY
        elif code == 0:
            code = last_ticket(found, &ticket)
    leave_asking(asker)
    if ticket != NULL:
        code = wait_for(ticket) if wait else NOT_READY
        drop_ticket(ticket)
    unlock()
    return code


cdef int event_query(int device, uintptr_t event) noexcept nogil:
    cdef int code = gate(device)
    return code if code else ask_event(event, False)


cdef int event_synchronize(int device, uintptr_t event) noexcept nogil:
    cdef int code = gate(device)
    if code == 0:
        code = ask_event(event, True)
    return code if code else gate(device)


cdef int event_elapsed(uintptr_t start, uintptr_t end, float* out_ms) noexcept nogil:
    cdef HostEvent* first
    cdef HostEvent* last
    cdef int code = gate_any()
    if code:
        return code
    lock()
    first = find_event(start)
    last = find_event(end)
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


# --- events of several processes, by handles of 64 bytes that name their files ------------------------------

cdef int ipc_event_export(int device, uintptr_t event, char* out_ipc) noexcept nogil:
    cdef HostEvent* found
    cdef int code = gate(device)
    if code:
        return code
    lock()
    found = find_event(event)
    if found == NULL or found.device != device or found.shared == NULL:
        code = INVALID_HANDLE
    else:
        code = name_file(found.shared.file, EVENT_FILE, 0, 0, out_ipc)
    unlock()
    return code


cdef int ipc_event_open(int device, const char* handle, uintptr_t* out_event) noexcept nogil:
    cdef SharedEvent* shared = NULL
    cdef int code = gate(device)
    if code == 0:
        code = open_shared_event(handle, &shared)
    if code == 0:
        code = add_event(device, EVENT_DISABLE_TIMING | EVENT_INTERPROCESS, shared, out_event)
        if code:
            lock()
            drop_shared_event(shared)
            unlock()
    return code
