"""The backend pluggable: a library's own alloc and free.

The library sees the calls that torch would make: on the device that is named, in relaxed capture mode, NULL
for no memory.  It is told of other streams by being called late: its free runs when their work is done.
"""
from libc.stdint cimport uintptr_t
from libc.stdlib cimport free

from accelrt.driver.capture_guard cimport GONE, go_relaxed, is_captured_event, meaning_of, record_behind, restore_mode
from accelrt.driver.table cimport EVENT_DISABLE_TIMING
from accelrt.memory.backends.external_types cimport Foreign, Record, Sharer
from accelrt.status cimport NOT_READY, OUT_OF_MEMORY

cdef struct Visit:  # what a thread was before it went to the room's device
    int device
    int mode


cdef int enter(Foreign* room, Visit* visit) noexcept nogil:
    # A library calls cudaMalloc on the current device.
    cdef int code = room.table.current_device(&visit.device)
    if code == 0:
        code = go_relaxed(room.table, &visit.mode)
    if code == 0 and visit.device != room.device:
        code = room.table.set_device(room.device)
        if code:
            restore_mode(room.table, visit.mode)
    return code


cdef void leave(Foreign* room, const Visit* visit) noexcept nogil:
    restore_mode(room.table, visit.mode)
    if visit.device != room.device:
        room.table.set_device(visit.device)  # -1 where the thread had no device


cdef int open_device(Foreign* room) noexcept nogil:
    return 0


cdef int take(Foreign* room, Record* record) noexcept nogil:
    cdef const Plug* plug = <const Plug*>room.backend
    cdef Visit visit
    cdef int code = enter(room, &visit)
    if code:
        return code
    record.address = <uintptr_t>plug.alloc(record.size, room.device, <void*>record.stream)
    leave(room, &visit)
    return 0 if record.address else OUT_OF_MEMORY


cdef int give(Foreign* room, const Record* record) noexcept nogil:
    cdef const Plug* plug = <const Plug*>room.backend
    cdef Visit visit
    cdef int code = enter(room, &visit)
    if code:
        return code
    plug.free(<void*>record.address, record.size, room.device, <void*>record.stream)
    leave(room, &visit)
    return 0


cdef int mark(Foreign* room, Sharer* sharer) noexcept nogil:
    # The event after which the stream does not use the memory any more.
    cdef uintptr_t event = 0
    cdef int code = room.table.event_create(sharer.device, EVENT_DISABLE_TIMING, &event)
    if code == 0:
        code = record_behind(room.table, sharer.device, event, sharer.stream)
        if code:
            room.table.event_destroy(sharer.device, event)
    if code == 0:
        sharer.event = event
    return code


cdef int mark_all(Foreign* room, Record* record) noexcept nogil:
    # The work that counts is what is there now; a stream that is gone uses nothing more.
    cdef Sharer** link = &record.sharers
    cdef Sharer* sharer
    cdef int code
    while link[0] != NULL:
        sharer = link[0]
        code = mark(room, sharer) if sharer.event == 0 else 0
        if meaning_of(code) == GONE:
            link[0] = sharer.next
            free(sharer)
        elif code:
            return code
        else:
            link = &sharer.next
    return 0


cdef int drop_done(Foreign* room, Record* record, bint wait) noexcept nogil:
    cdef Sharer* sharer
    cdef int code = 0
    while record.sharers != NULL and code == 0:
        sharer = record.sharers
        if wait:
            code = room.table.event_synchronize(sharer.device, sharer.event)
        else:
            code = room.table.event_query(sharer.device, sharer.event)
        if is_captured_event(code):  # it says nothing: recorded anew next time
            room.table.event_destroy(sharer.device, sharer.event)
            sharer.event = 0
            return NOT_READY
        if code == 0 or meaning_of(code) == GONE:
            code = room.table.event_destroy(sharer.device, sharer.event)
        if code == 0:
            record.sharers = sharer.next
            free(sharer)
    return code


cdef int part(Foreign* room, Record* record, bint wait) noexcept nogil:
    # All events are recorded before one is asked for.
    cdef int mode
    cdef int code = mark_all(room, record)
    if code == 0:
        code = go_relaxed(room.table, &mode)
    if code:
        return code
    code = drop_done(room, record, wait)
    restore_mode(room.table, mode)
    return code


cdef int trim(Foreign* room, uintptr_t stream) noexcept nogil:
    return 0  # the ABI has no word for it


cdef void fill_plug(Plug* plug) noexcept nogil:
    plug.backend.name = b"pluggable"
    plug.backend.open = open_device
    plug.backend.take = take
    plug.backend.part = part
    plug.backend.give = give
    plug.backend.trim = trim
    plug.backend.read_reserved = NULL
    plug.backend.reset_reserved_peak = NULL
