"""The backend cudaMallocAsync: the driver's stream-ordered pool (CUDA driver API, "Stream Ordered Memory
Allocator").

The pool is the device's default one, shared with all else in the process that uses it.  It keeps what is given
back until empty_cache.  Memory that several streams used goes back on a stream of its own, the outlet, which
waits for all of them, so that none of theirs is held up.
"""
from libc.stdint cimport UINT64_MAX, uint64_t, uintptr_t
from libc.stdlib cimport free

from accelrt.driver.capture_guard cimport (
    FAILED, GONE, go_relaxed, is_captured_event, meaning_of, record_behind, restore_mode,
)
from accelrt.driver.table cimport EVENT_DISABLE_TIMING, STREAM_NON_BLOCKING
from accelrt.memory.allocator.sizes cimport LARGE
from accelrt.memory.allocator.stats cimport RESERVED_BYTES, Stats
from accelrt.memory.backends.external_types cimport Foreign, Record, Sharer, lock_room, unlock_room
from accelrt.status cimport NOT_READY, NOT_SUPPORTED, NO_STREAM_POOL

cdef enum:  # CUmemPool_attribute
    RELEASE_THRESHOLD = 4
    RESERVED_CURRENT = 5
    RESERVED_HIGH = 6

cdef Backend ordered


cdef const Backend* ordered_backend() noexcept nogil:
    return &ordered


cdef int open_pool(Foreign* room) noexcept nogil:
    # Without a threshold the pool gives everything back at each synchronize.
    cdef int code = room.table.async_set(room.device, RELEASE_THRESHOLD, UINT64_MAX)
    return NO_STREAM_POOL if code == NOT_SUPPORTED else code


cdef int take(Foreign* room, Record* record) noexcept nogil:
    return room.table.async_alloc(room.device, record.stream, record.size, &record.address)


cdef int give(Foreign* room, const Record* record) noexcept nogil:
    # Where the stream is gone, there is no order to keep, and the outlet's is as good as any.
    cdef int code = room.table.async_free(room.device, record.stream, record.address)
    if meaning_of(code) != GONE or record.stream == room.outlet:
        return code
    lock_room(room)
    code = open_outlet(room)
    unlock_room(room)
    return code if code else room.table.async_free(room.device, room.outlet, record.address)


cdef int open_outlet(Foreign* room) noexcept nogil:
    cdef int code = 0
    if room.outlet == 0:
        code = room.table.stream_create(room.device, STREAM_NON_BLOCKING, 0, &room.outlet)
    if code == 0 and room.event == 0:
        code = room.table.event_create(room.device, EVENT_DISABLE_TIMING, &room.event)
    return code


cdef int follow_event(Foreign* room, int device, uintptr_t event, uintptr_t stream) noexcept nogil:
    # To wait for a capturing stream would draw the outlet into the capture; to wait for an event of a capture that is
    # over is refused.  A stream that is gone is not followed.
    cdef int code = record_behind(room.table, device, event, stream)
    if meaning_of(code) == GONE:
        return 0
    if code == 0:
        code = room.table.stream_wait_event(room.device, room.outlet, event)
    return NOT_READY if is_captured_event(code) else code


cdef int follow(Foreign* room, int device, uintptr_t stream) noexcept nogil:
    # The outlet waits for what is in the stream now; a wait keeps what its event was recorded for, so one event serves
    # all streams of the device.  A stream of another device takes an event of its own device's.
    cdef uintptr_t event = 0
    cdef int code
    if device == room.device:
        return follow_event(room, device, room.event, stream)
    code = room.table.event_create(device, EVENT_DISABLE_TIMING, &event)
    if code == 0:
        code = follow_event(room, device, event, stream)
        room.table.event_destroy(device, event)
    return code


cdef int part(Foreign* room, Record* record, bint wait) noexcept nogil:
    # A failure half way is taken up where it was left.
    cdef Sharer* sharer
    lock_room(room)
    cdef int code = open_outlet(room)
    if code == 0 and record.stream != room.outlet:
        code = follow(room, room.device, record.stream)
        if code == 0:
            record.stream = room.outlet
    while code == 0 and record.sharers != NULL:
        sharer = record.sharers
        code = follow(room, sharer.device, sharer.stream)
        if code == 0:
            record.sharers = sharer.next
            free(sharer)
    unlock_room(room)
    return code


cdef int wait_for(Foreign* room, uintptr_t stream) noexcept nogil:
    # In relaxed mode: to wait breaks a global-mode capture of any thread otherwise.
    cdef uintptr_t event = 0
    cdef int mode
    cdef int code = go_relaxed(room.table, &mode)
    if code:
        return code
    code = room.table.event_create(room.device, EVENT_DISABLE_TIMING, &event)
    if code == 0:
        code = record_behind(room.table, room.device, event, stream)
        if code == 0:
            code = room.table.event_synchronize(room.device, event)
        room.table.event_destroy(room.device, event)
    restore_mode(room.table, mode)
    return code if meaning_of(code) == FAILED and not is_captured_event(code) else 0


cdef int trim(Foreign* room, uintptr_t stream) noexcept nogil:
    # What was given back on other streams, and is not reached there yet, stays; the driver reuses it by itself.
    cdef uintptr_t outlet
    lock_room(room)
    outlet = room.outlet
    unlock_room(room)
    cdef int code = wait_for(room, stream)
    if code == 0 and outlet:
        code = wait_for(room, outlet)
    return code if code else room.table.async_trim(room.device, 0)


cdef int read_reserved(Foreign* room, Stats* stats) noexcept nogil:
    # The driver has one figure, no kinds: it stands with the large ones.
    cdef uint64_t current = 0, high = 0
    cdef int code = room.table.async_get(room.device, RESERVED_CURRENT, &current)
    if code == 0:
        code = room.table.async_get(room.device, RESERVED_HIGH, &high)
    stats.counters[RESERVED_BYTES][LARGE].current = current
    stats.counters[RESERVED_BYTES][LARGE].peak = high
    stats.peak_all[RESERVED_BYTES] = high
    return code


cdef int reset_reserved_peak(Foreign* room) noexcept nogil:
    return room.table.async_set(room.device, RESERVED_HIGH, 0)


ordered.name = b"cudaMallocAsync"
ordered.open = open_pool
ordered.take = take
ordered.part = part
ordered.give = give
ordered.trim = trim
ordered.read_reserved = read_reserved
ordered.reset_reserved_peak = reset_reserved_peak
