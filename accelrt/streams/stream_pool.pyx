"""The pools that Streams and Events take what the driver made from, and nogil code by handles."""
from libc.stdint cimport uintptr_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset

from accelrt.allocator.heaps cimport trust_stream
from accelrt.allocator.pool cimport MAX_DEVICES
from accelrt.core.handle_map cimport AddressMap, map_find, map_insert, map_remove, map_reserve
from accelrt.core.locks cimport spin_lock, spin_unlock
from accelrt.core.process cimport FORK_STREAMS, at_fork
from accelrt.driver.guard cimport is_capturing, query_uncaptured
cimport accelrt.driver.registry as registry
from accelrt.driver.table cimport EVENT_INTERPROCESS, STREAM_NON_BLOCKING
cimport accelrt.runtime.access as watch
from accelrt.runtime.lifetimes cimport EVENT, dispose, functions_wait
from accelrt.status cimport INVALID_HANDLE, NO_HOST_MEMORY, NOT_READY, raise_status
from accelrt.uses.events cimport make_event, PooledEvent, release_event, return_event, take_event, take_spare

# --- streams ---------------------------------------------------------------------------------------------------------
# A Stream that dies returns its driver stream, and nogil code the handle that it took; it is handed out again only when
# its work is complete.  So no two holders share a stream, and none is destroyed while the allocator still has memory
# filed under it.  That memory serves the next holder of the stream.  The driver is asked whether the work is complete only
# where there may be some: a stream whose holder did nothing with it is as idle as before.

cdef struct Returned:  # streams of one device and priority, the one returned first at the front
    PooledStream* first
    PooledStream* last

cdef enum:
    LEVELS = 8       # priorities kept apart
    MAX_QUERIES = 4  # a request: one stream that is busy for long must not hide the others

cdef Returned[MAX_DEVICES][LEVELS] returned  # under the lock
cdef AddressMap streams                      # handle -> PooledStream, of all; under the lock
cdef AddressMap events                       # handle -> PooledEvent, of those that nogil code has; under the lock
cdef long event_holders = 0                  # Events that have a PooledEvent; guarded by the GIL
cdef int lock = 0                            # held for no call of the driver's


cdef void forget_in_child() noexcept nogil:
    # The parent's streams and events, and a lock that another of its threads may have held.
    global lock, event_holders
    lock = 0
    event_holders = 0
    memset(returned, 0, sizeof(returned))
    memset(&streams, 0, sizeof(streams))
    memset(&events, 0, sizeof(events))


cdef inline Returned* returned_like(int device, int priority) noexcept nogil:
    return &returned[device][-priority & (LEVELS - 1)]


cdef PooledStream* pop(Returned* queue) noexcept nogil:
    # The stream that was returned first, or NULL.  Takes the lock.
    cdef PooledStream* found
    spin_lock(&lock)
    found = queue.first
    if found != NULL:
        queue.first = found.next
        found.idle = False
    spin_unlock(&lock)
    return found


cdef void push_locked(PooledStream* stream) noexcept nogil:
    cdef Returned* queue = returned_like(stream.device, stream.priority)
    if stream.sharers:  # one of its holders is gone
        stream.sharers -= 1
        return
    stream.idle = True
    stream.next = NULL
    if queue.first == NULL:
        queue.first = stream
    else:
        queue.last.next = stream
    queue.last = stream


cdef void return_stream(PooledStream* stream, bint used) noexcept nogil:
    spin_lock(&lock)
    if used:
        stream.used = True
    push_locked(stream)
    spin_unlock(&lock)


cdef PooledStream* share_stream(int device, uintptr_t stream, int* out_code) noexcept nogil:
    # Takes the lock.
    cdef PooledStream* found
    out_code[0] = 0
    spin_lock(&lock)
    found = <PooledStream*>map_find(&streams, stream)
    if found != NULL and (found.idle or found.device != device):
        out_code[0] = INVALID_HANDLE
        found = NULL
    elif found != NULL:
        found.sharers += 1
    spin_unlock(&lock)
    return found


cdef int take_idle(int device, int priority, PooledStream** out_stream, const char** out_row) noexcept nogil:
    # A stream whose work is complete; NOT_READY where the ones that were queried are busy, which go to the end, or
    # where there is none.  A stream is not in the pool while it is queried, so that no other thread takes it too.
    cdef Returned* queue = returned_like(device, priority)
    cdef PooledStream* stream
    cdef bint is_last
    cdef int code, _query
    for _query in range(MAX_QUERIES):
        stream = pop(queue)
        if stream == NULL:
            return NOT_READY
        is_last = stream.next == NULL
        out_stream[0] = stream
        if not stream.used:
            return 0
        code = query_uncaptured(registry.active(), device, stream.handle, out_row)
        if code == 0:
            stream.used = False
            return 0
        return_stream(stream, True)
        if is_last or code != NOT_READY:  # the device's work failed, which the caller has to hear
            return code
    return NOT_READY


cdef int enlist(AddressMap* holders, uintptr_t handle, void* pooled) noexcept nogil:
    # Takes the lock.
    cdef int code
    spin_lock(&lock)
    code = map_reserve(holders)
    if code == 0:
        map_insert(holders, handle, pooled)
    spin_unlock(&lock)
    return code


cdef int make_stream(int device, int priority, PooledStream** out_stream) noexcept nogil:
    # Takes the lock, but not for the driver's call, which may wait.
    cdef PooledStream* made = <PooledStream*>calloc(1, sizeof(PooledStream))
    cdef int code
    if made == NULL:
        return NO_HOST_MEMORY
    made.device = device
    made.priority = priority
    code = registry.active().stream_create(device, STREAM_NON_BLOCKING, priority, &made.handle)
    if code == 0:
        code = enlist(&streams, made.handle, made)
        if code:
            registry.active().stream_destroy(device, made.handle)
    if code:
        free(made)
        return code
    trust_stream(made.handle)  # where that fails, its memory serves no other stream
    out_stream[0] = made
    return 0


cdef PooledStream* take_stream(int device, int priority) except NULL:
    # The GIL is released where a copy of another thread's may hold a lock of the driver's until a function of Python's
    # has run.
    cdef PooledStream* found = NULL
    cdef const char* row = NULL
    cdef int code
    if functions_wait():
        with nogil:
            code = take_idle(device, priority, &found, &row)
    else:
        code = take_idle(device, priority, &found, &row)
    if code == NOT_READY:
        with nogil:
            code = make_stream(device, priority, &found)
        if code:
            raise_status(code, "stream_create", ("device", device, "priority", priority))
    elif code:
        raise_status(code, row.decode(), ("stream", found.handle))
    watch.note_stream(device, found.handle)
    return found


# --- by handles, without the GIL -----------------------------------------------------------------------------

cdef int clamp_priority(int device, int* priority) noexcept nogil:
    cdef int least = 0, greatest = 0
    cdef int code
    if priority[0] == 0:
        return 0
    code = registry.active().stream_priority_range(device, &least, &greatest)
    priority[0] = max(greatest, min(least, priority[0]))
    return code


cdef int take_handle(int device, int priority, uintptr_t* out_stream) noexcept nogil:
    # Takes the lock.
    cdef PooledStream* found = NULL
    cdef const char* row = NULL
    cdef int code = clamp_priority(device, &priority)
    out_stream[0] = 0
    if code:
        return code
    code = take_idle(device, priority, &found, &row)
    if code == NOT_READY:
        code = make_stream(device, priority, &found)
    if code:
        return code
    spin_lock(&lock)
    found.by_handle = True
    found.used = True
    spin_unlock(&lock)
    out_stream[0] = found.handle
    return 0


cdef int return_handle(int device, uintptr_t stream) noexcept nogil:
    # Takes the lock.
    cdef PooledStream* found
    cdef int code = INVALID_HANDLE
    spin_lock(&lock)
    found = <PooledStream*>map_find(&streams, stream)
    if found != NULL and found.by_handle and found.device == device:
        found.by_handle = False
        push_locked(found)
        code = 0
    spin_unlock(&lock)
    return code


cdef size_t streams_in_use() noexcept nogil:
    # Takes the lock.
    cdef const PooledStream* stream
    cdef size_t count
    cdef int device, level
    spin_lock(&lock)
    count = streams.count
    for device in range(MAX_DEVICES):
        for level in range(LEVELS):
            stream = returned[device][level].first
            while stream != NULL:
                count -= 1
                stream = stream.next
    spin_unlock(&lock)
    return count


# --- events ------------------------------------------------------------------------------------------------------
# Their own pool, by device and flags, is that of uses/events.pyx.

cdef PooledEvent* take_for_event(int device, unsigned int flags, bint fresh) except NULL:
    global event_holders
    cdef PooledEvent* event = NULL if fresh else take_spare(device, flags)
    cdef int code
    if event == NULL:
        with nogil:
            code = make_event(registry.active(), device, flags, &event)
        if code:
            raise_status(code, "event_create", ("device", device, "flags", flags))
    event_holders += 1
    return event


cdef void return_from_event(PooledEvent* event) noexcept:
    # An interprocess event is destroyed: what another process did with it is unknown.
    global event_holders
    event_holders -= 1
    if event.flags & EVENT_INTERPROCESS:
        dispose(EVENT, event.device, event.handle)
        free(event)
    else:
        return_event(event)


cdef long events_in_use() noexcept nogil:
    return event_holders + <long>events.count


cdef int take_event_handle(int device, unsigned int flags, uintptr_t* out_event) noexcept nogil:
    # Takes the lock, but not for the driver's call.
    cdef PooledEvent* event
    cdef int code = take_event(registry.active(), device, flags, &event)
    out_event[0] = 0
    if code:
        return code
    code = enlist(&events, event.handle, event)
    if code:
        return_event(event)
        return code
    out_event[0] = event.handle
    return 0


cdef int return_event_handle(int device, uintptr_t event) noexcept nogil:
    # Takes the lock, but not for the driver's call.
    cdef PooledEvent* found
    spin_lock(&lock)
    found = <PooledEvent*>map_find(&events, event)
    if found != NULL and found.device == device:
        map_remove(&events, event)
    else:
        found = NULL
    spin_unlock(&lock)
    if found == NULL:
        return INVALID_HANDLE
    release_event(registry.active(), found)
    return 0


cdef void note_record(int device, uintptr_t event, uintptr_t stream) noexcept nogil:
    # Takes the lock, but not for the driver's call.
    cdef PooledEvent* found
    cdef int code
    if not is_capturing(registry.active(), device, stream, &code):
        return
    spin_lock(&lock)
    found = <PooledEvent*>map_find(&events, event)
    if found != NULL:
        found.captured = True
    spin_unlock(&lock)


at_fork("streams.stream_pool", FORK_STREAMS, NULL, NULL, &forget_in_child)
