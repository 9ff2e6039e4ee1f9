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
from accelrt.memory.backends.external_types cimport ExternalPool, Record, Sharer, lock_external, unlock_external
from accelrt.status cimport NOT_READY, NOT_SUPPORTED, NO_STREAM_POOL

cdef enum:  # CUmemPool_attribute
    RELEASE_THRESHOLD = 4
    RESERVED_CURRENT = 5
    RESERVED_HIGH = 6

cdef Backend ordered


cdef const Backend* cuda_malloc_async_backend() noexcept nogil:
    return &ordered


cdef int open_pool(ExternalPool* pool) noexcept nogil:
    # Without a threshold the pool gives everything back at each synchronize.
    cdef int code = pool.table.async_set(pool.device, RELEASE_THRESHOLD, UINT64_MAX)
    return NO_STREAM_POOL if code == NOT_SUPPORTED else code


cdef int take(ExternalPool* pool, Record* record) noexcept nogil:
    return pool.table.async_alloc(pool.device, record.stream, record.size, &record.address)


cdef int give(ExternalPool* pool, const Record* record) noexcept nogil:
    # Where the stream is gone, there is no order to keep, and the outlet's is as good as any.
    cdef int code = pool.table.async_free(pool.device, record.stream, record.address)
    if meaning_of(code) != GONE or record.stream == pool.outlet:
        return code
    lock_external(pool)
    code = open_outlet(pool)
    unlock_external(pool)
    return code if code else pool.table.async_free(pool.device, pool.outlet, record.address)


cdef int open_outlet(ExternalPool* pool) noexcept nogil:
    cdef int code = 0
    if pool.outlet == 0:
        code = pool.table.stream_create(pool.device, STREAM_NON_BLOCKING, 0, &pool.outlet)
    if code == 0 and pool.event == 0:
        code = pool.table.event_create(pool.device, EVENT_DISABLE_TIMING, &pool.event)
    return code


cdef int follow_event(ExternalPool* pool, int device, uintptr_t event, uintptr_t stream) noexcept nogil:
    # To wait for a capturing stream would draw the outlet into the capture; to wait for an event of a capture that is
    # over is refused.  A stream that is gone is not followed.
    cdef int code = record_behind(pool.table, device, event, stream)
    if meaning_of(code) == GONE:
        return 0
    if code == 0:
        code = pool.table.stream_wait_event(pool.device, pool.outlet, event)
    return NOT_READY if is_captured_event(code) else code


cdef int follow(ExternalPool* pool, int device, uintptr_t stream) noexcept nogil:
    # The outlet waits for what is in the stream now; a wait keeps what its event was recorded for, so one event serves
    # all streams of the device.  A stream of another device takes an event of its own device's.
    cdef uintptr_t event = 0
    cdef int code
    if device == pool.device:
        return follow_event(pool, device, pool.event, stream)
    code = pool.table.event_create(device, EVENT_DISABLE_TIMING, &event)
    if code == 0:
        code = follow_event(pool, device, event, stream)
        pool.table.event_destroy(device, event)
    return code


cdef int part(ExternalPool* pool, Record* record, bint wait) noexcept nogil:
    # A failure half way is taken up where it was left.
    cdef Sharer* sharer
    lock_external(pool)
    cdef int code = open_outlet(pool)
    if code == 0 and record.stream != pool.outlet:
        code = follow(pool, pool.device, record.stream)
        if code == 0:
            record.stream = pool.outlet
    while code == 0 and record.sharers != NULL:
        sharer = record.sharers
        code = follow(pool, sharer.device, sharer.stream)
        if code == 0:
            record.sharers = sharer.next
            free(sharer)
    unlock_external(pool)
    return code


cdef int wait_for(ExternalPool* pool, uintptr_t stream) noexcept nogil:
    # In relaxed mode: to wait breaks a global-mode capture of any thread otherwise.
    cdef uintptr_t event = 0
    cdef int mode
    cdef int code = go_relaxed(pool.table, &mode)
    if code:
        return code
    code = pool.table.event_create(pool.device, EVENT_DISABLE_TIMING, &event)
    if code == 0:
        code = record_behind(pool.table, pool.device, event, stream)
        if code == 0:
            code = pool.table.event_synchronize(pool.device, event)
        pool.table.event_destroy(pool.device, event)
    restore_mode(pool.table, mode)
    return code if meaning_of(code) == FAILED and not is_captured_event(code) else 0


cdef int trim(ExternalPool* pool, uintptr_t stream) noexcept nogil:
    # What was given back on other streams, and is not reached there yet, stays; the driver reuses it by itself.
    cdef uintptr_t outlet
    lock_external(pool)
    outlet = pool.outlet
    unlock_external(pool)
    cdef int code = wait_for(pool, stream)
    if code == 0 and outlet:
        code = wait_for(pool, outlet)
    return code if code else pool.table.async_trim(pool.device, 0)


cdef int read_reserved(ExternalPool* pool, Stats* stats) noexcept nogil:
    # The driver has one figure, no kinds: it stands with the large ones.
    cdef uint64_t current = 0, high = 0
    cdef int code = pool.table.async_get(pool.device, RESERVED_CURRENT, &current)
    if code == 0:
        code = pool.table.async_get(pool.device, RESERVED_HIGH, &high)
    stats.counters[RESERVED_BYTES][LARGE].current = current
    stats.counters[RESERVED_BYTES][LARGE].peak = high
    stats.peak_all[RESERVED_BYTES] = high
    return code


cdef int reset_reserved_peak(ExternalPool* pool) noexcept nogil:
    return pool.table.async_set(pool.device, RESERVED_HIGH, 0)


ordered.name = b"cudaMallocAsync"
ordered.open = open_pool
ordered.take = take
ordered.part = part
ordered.give = give
ordered.trim = trim
ordered.read_reserved = read_reserved
ordered.reset_reserved_peak = reset_reserved_peak
