"""Memory that does not come from accelrt's own pool: records, statistics, the order of going back, and where it comes from:
the driver's stream-ordered pool, a library's two functions, or two Python functions.

Two locks, always taken in this order: relief, held by the one thread that sends leaving records off, of all pools,
and a pool's lock, held for bookkeeping.  A backend's rows run without lock, since a plugged library may take as long
as it likes, may call accelrt, and may take the GIL.  So relief is recursive, is never waited for with the GIL held, and
is waited for outside the gate of captures (await_relief).
"""
import os
from cpython.exc cimport PyErr_Fetch, PyErr_Restore, PyErr_SetObject, PyErr_WriteUnraisable
from cpython.ref cimport Py_INCREF, PyObject
from libc.stdint cimport SIZE_MAX, UINT64_MAX, int64_t, uint64_t, uintptr_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset

from accelrt.core.handle_map cimport AddressMap, map_clear, map_find, map_insert, map_remove, map_reserve
from accelrt.core.integers cimport checked_address_int
from accelrt.core.locks cimport (
    load_count, pthread_mutex_init, pthread_mutex_lock, pthread_mutex_t, pthread_mutex_trylock, pthread_mutex_unlock,
    store_count,
)
from accelrt.core.process cimport FORK_POOLS, at_fork, raise_soon
from accelrt.core.process import call_at_exit
from accelrt.driver.guard cimport (
    add_use, ask_use, come_back, drop_use, drop_with_gil, enter_wait, FAILED, go_relaxed, GONE, hand_on, is_captured_event,
    is_capturing, is_device_lost, leave_wait, make_thread_state, mark_behind, mark_use, meaning_of, PooledEvent,
    release_event, restore_mode, step_outside, Use,
)
from accelrt.driver.memory cimport KIND_DEVICE
from accelrt.driver.table cimport STREAM_NON_BLOCKING, Table
from accelrt.errors import ArgumentTypeError
from accelrt.allocator.heaps cimport heap_stream, is_trusted
from accelrt.allocator.miss cimport on_refusal
from accelrt.allocator.private.private_types cimport Source
from accelrt.allocator.sizes cimport LARGE, UNIT, kind_of
from accelrt.allocator.stats cimport (
    ACTIVE, ACTIVE_BYTES, ALLOCATED_BYTES, ALLOCATION, STATS, REQUESTED_BYTES, RESERVED_BYTES, SEGMENT, Counter,
    clear_counts, current_of, decrease, increase, note_news,
)
from accelrt.allocator.external.external_types cimport Backend, ExternalPool, Record, lock_external, unlock_external
from accelrt.status cimport (
    BROKEN, CAP_REACHED, DEINITIALIZED, INVALID_VALUE, NOT_ALLOCATED, NOT_READY, NOT_SUPPORTED, NO_CAPTURE_MEMORY,
    NO_HOST_MEMORY, NO_STREAM_POOL, OUT_OF_MEMORY, UNKNOWN, refuse_copy, refuse_unmade,
)

cdef extern from *:
    """
    static void init_recursive(pthread_mutex_t* mutex) {
        pthread_mutexattr_t attributes;
        pthread_mutexattr_init(&attributes);
        pthread_mutexattr_settype(&attributes, PTHREAD_MUTEX_RECURSIVE);
        pthread_mutex_init(mutex, &attributes);
        pthread_mutexattr_destroy(&attributes);
    }
    """
    void init_recursive(pthread_mutex_t* mutex) noexcept nogil

cdef enum:
    PATIENCE = 8  # leaving records that an allocation looks at

cdef enum:  # CUmemPool_attribute
    RELEASE_THRESHOLD = 4
    RESERVED_CURRENT = 5
    RESERVED_HIGH = 6

cdef pthread_mutex_t choice      # the pools' locks are not taken under it
cdef pthread_mutex_t relief      # outer, recursive; held by the one thread that sends leaving records off, or waits for them
cdef const Backend* chosen = NULL
cdef bint settled = False        # a pool was made, so the choice stands
cdef Backend ordered             # cudaMallocAsync, the stream-ordered allocator


# --- the choice --------------------------------------------------------------------------------------------

def backend_name() -> str:
    """The backend that is chosen now: "native", "cudaMallocAsync" or "pluggable"."""
    cdef const Backend* backend
    with nogil:
        pthread_mutex_lock(&choice)
        backend = chosen
        pthread_mutex_unlock(&choice)
    return "native" if backend == NULL else backend.name.decode()


cdef int choose_backend(const Backend* backend, str call) except -1:
    global chosen
    cdef bint late
    with nogil:
        pthread_mutex_lock(&choice)
        late = settled and backend != chosen
        if not late:
            chosen = backend
        pthread_mutex_unlock(&choice)
    if late:
        raise RuntimeError(
            f"{call}: memory of a device is in use already, from the backend {backend_name()!r}; call it before the "
            "first allocation, buffer, capture, or limit of the process, or set ACCELRT_ALLOC_CONF=backend:... "
            "in the environment"
        )
    return 0


def choose_by_name(str name, str call) -> None:
    """Has pools made on a backend, "native" or "cudaMallocAsync"; RuntimeError, for the call, once it is too late."""
    choose_backend(&ordered if name == "cudaMallocAsync" else NULL, call)


cdef int external_attach(int device, Table* table, int debug, ExternalPool** out_pool) noexcept nogil:
    global settled
    cdef int code = 0
    out_pool[0] = NULL
    pthread_mutex_lock(&choice)
    if chosen != NULL:
        code = make(device, table, debug, out_pool)
    settled = settled or code == 0
    pthread_mutex_unlock(&choice)
    return code


cdef int make(int device, Table* table, int debug, ExternalPool** out_pool) noexcept nogil:
    cdef ExternalPool* pool = <ExternalPool*>calloc(1, sizeof(ExternalPool))
    cdef int code
    if pool == NULL:
        return NO_HOST_MEMORY
    pthread_mutex_init(&pool.lock, NULL)
    pool.backend = chosen
    pool.table = table
    pool.device = device
    pool.debug = debug
    pool.limit = SIZE_MAX
    code = pool.backend.open(pool)
    if code:
        free(pool)
        return code
    out_pool[0] = pool
    return 0


# --- bookkeeping, under the lock -----------------------------------------------------------------------------

cdef void count_taken(ExternalPool* pool, const Record* record) noexcept nogil:
    cdef int kind = kind_of(record.size)
    increase(&pool.stats, ALLOCATION, kind, 1)
    increase(&pool.stats, ALLOCATED_BYTES, kind, record.size)
    increase(&pool.stats, ACTIVE, kind, 1)
    increase(&pool.stats, ACTIVE_BYTES, kind, record.size)
    increase(&pool.stats, REQUESTED_BYTES, kind, record.size)
    pool.stats.num_device_alloc += 1
    if pool.backend.read_reserved == NULL:
        increase(&pool.stats, SEGMENT, kind, 1)
        increase(&pool.stats, RESERVED_BYTES, kind, record.size)


cdef void count_gone(ExternalPool* pool, const Record* record) noexcept nogil:
    cdef int kind = kind_of(record.size)
    decrease(&pool.stats, ACTIVE, kind, 1)
    decrease(&pool.stats, ACTIVE_BYTES, kind, record.size)
    decrease(&pool.stats, REQUESTED_BYTES, kind, record.size)
    pool.stats.num_device_free += 1
    if pool.backend.read_reserved == NULL:
        decrease(&pool.stats, SEGMENT, kind, 1)
        decrease(&pool.stats, RESERVED_BYTES, kind, record.size)


cdef void begin_departure(ExternalPool* pool, const Record* record) noexcept nogil:
    pool.departing += 1
    pool.departing_bytes += record.size


cdef void append_leaving(ExternalPool* pool, Record* record) noexcept nogil:
    record.next = NULL
    if pool.oldest == NULL:
        pool.oldest = record
    else:
        pool.newest.next = record
    pool.newest = record
    pool.leaving += 1


cdef Record* detach_oldest(ExternalPool* pool) noexcept nogil:
    # NULL where none is leaving, and during a capture of ours: what a capturing thread gives back would
    # become part of the graph, or break it.
    cdef Record* record = pool.oldest
    if record == NULL or pool.captures:
        return NULL
    pool.oldest = record.next
    pool.leaving -= 1
    begin_departure(pool, record)
    return record


cdef int inspected(ExternalPool* pool, int code) noexcept nogil:
    # The debug audit after an operation; what it found stays to be read.
    cdef bint broken
    if pool.debug < 2:
        return code
    lock_external(pool)
    if pool.audit_failure == NULL:
        pool.audit_failure = external_audit_failure(pool)
    broken = pool.audit_failure != NULL
    unlock_external(pool)
    return BROKEN if broken and code == 0 else code


cdef int not_capturing(ExternalPool* pool, int device, uintptr_t stream) noexcept nogil:
    # For backends: NOT_READY where the stream is captured, whose work then cannot be waited for.
    cdef int code
    return NOT_READY if is_capturing(pool.table, device, stream, &code) else code


# --- giving back -------------------------------------------------------------------------------------------

cdef int give(ExternalPool* pool, const Record* record) noexcept nogil:
    # Given back on a stream that begins to capture, it would become part of the capture, so none begins meanwhile.
    cdef int code
    if not enter_wait():
        return NOT_READY
    code = pool.backend.give(pool, record)
    leave_wait()
    return code


cdef int depart(ExternalPool* pool, Record* record, bint wait) noexcept nogil:
    # Without the lock: no other thread can reach the record.  What cannot go yet joins the leaving records.
    cdef int code = 0
    if record.uses != NULL:
        code = pool.backend.part(pool, record, wait)
    if code == 0:
        code = give(pool, record)
    lock_external(pool)
    pool.departing -= 1
    pool.departing_bytes -= record.size
    if code == 0:
        count_gone(pool, record)
    else:
        append_leaving(pool, record)
    unlock_external(pool)
    if code == 0:
        free(record)
    return 0 if code == NOT_READY else code


cdef int send_off(ExternalPool* pool, size_t most, bint wait) noexcept nogil:
    # Under relief.  Those that stay go to the end of the queue, so that each gets its turn.
    cdef Record* record
    cdef size_t left
    cdef int code = 0
    lock_external(pool)
    left = min(most, pool.leaving)
    unlock_external(pool)
    while left and code == 0:
        lock_external(pool)
        record = detach_oldest(pool)
        unlock_external(pool)
        if record == NULL:
            break
        code = depart(pool, record, wait)
        left -= 1
    return code


cdef int send_off_if_any(ExternalPool* pool, size_t most) noexcept nogil:
    # The thread that holds relief is at it already, or is a pool's of another device: the next allocation looks again.
    cdef bint idle
    cdef int code
    lock_external(pool)
    idle = pool.oldest == NULL or pool.captures != 0
    unlock_external(pool)
    if idle or pthread_mutex_trylock(&relief):
        return 0
    code = send_off(pool, most, False)
    pthread_mutex_unlock(&relief)
    return code


cdef int external_release(ExternalPool* pool, uintptr_t address) noexcept nogil:
    # The record leaves the map before the backend hears of it, and may hand the address out again.
    cdef Record* record
    cdef int kind
    cdef bint stays
    lock_external(pool)
    record = <Record*>map_remove(&pool.live, address)
    if record == NULL:
        unlock_external(pool)
        return NOT_ALLOCATED
    kind = kind_of(record.size)
    decrease(&pool.stats, ALLOCATION, kind, 1)
    decrease(&pool.stats, ALLOCATED_BYTES, kind, record.size)
    stays = pool.captures != 0
    if stays:
        append_leaving(pool, record)
    else:
        begin_departure(pool, record)
    unlock_external(pool)
    return inspected(pool, 0 if stays else depart(pool, record, False))


cdef int external_use_on(ExternalPool* pool, uintptr_t address, int stream_on, uintptr_t stream) noexcept nogil:
    cdef Record* record
    cdef int code = 0
    lock_external(pool)
    record = <Record*>map_find(&pool.live, address)
    if record == NULL:
        code = NOT_ALLOCATED
    elif record.stream != stream or stream_on != pool.device:
        code = add_use(&pool.uses, &record.uses, stream_on, heap_stream(stream))
    unlock_external(pool)
    return code


cdef void replace_stream(
    ExternalPool* pool, Record* record, int device, uintptr_t stream, uintptr_t heir, uintptr_t owner,
) noexcept nogil:
    if device == pool.device and record.stream == stream:
        record.stream = owner
    hand_on(&pool.uses, &record.uses, device, stream, heir)


cdef void external_forget_stream(ExternalPool* pool, int device, uintptr_t stream, uintptr_t heir) noexcept nogil:
    # What it would be given back on is its heir, behind its work; where it has none the outlet, or the legacy stream for a
    # library.
    cdef Record* record
    cdef uintptr_t owner = heir
    cdef size_t index
    lock_external(pool)
    if heir == 0 and pool.backend == &ordered and open_outlet(pool) == 0:
        owner = pool.outlet
        follow(pool, device, stream)
    for index in range(pool.live.capacity):
        record = <Record*>pool.live.slots[index].value
        if record != NULL:
            replace_stream(pool, record, device, stream, heir, owner)
    record = pool.oldest
    while record != NULL:
        replace_stream(pool, record, device, stream, heir, owner)
        record = record.next
    unlock_external(pool)


# --- taking ------------------------------------------------------------------------------------------------

cdef inline bint refused(int code) noexcept nogil:
    return code == OUT_OF_MEMORY or code == CAP_REACHED


cdef int admit(ExternalPool* pool, const Record* record) noexcept nogil:
    # Promises the bytes, so that threads that ask at once stay within the limit together.
    cdef size_t held
    cdef int code = 0
    lock_external(pool)
    if pool.captures:
        code = not_capturing(pool, pool.device, record.stream)
        if code == NOT_READY:
            code = NO_CAPTURE_MEMORY
    held = current_of(&pool.stats, ACTIVE_BYTES) + pool.promised
    if code == 0 and (held > pool.limit or record.size > pool.limit - held):
        code = CAP_REACHED
    if code == 0:
        pool.promised += record.size
    unlock_external(pool)
    return code


cdef int file_record(ExternalPool* pool, Record* record) noexcept nogil:
    # Under the lock.
    if map_find(&pool.live, record.address) != NULL:
        pool.audit_failure = "the backend hands out no address twice"
        return BROKEN
    if map_reserve(&pool.live):
        return NO_HOST_MEMORY
    map_insert(&pool.live, record.address, record)
    count_taken(pool, record)
    return 0


cdef int take(ExternalPool* pool, Record* record) noexcept nogil:
    cdef int code = admit(pool, record)
    if code:
        return code
    code = pool.backend.take(pool, record)
    lock_external(pool)
    pool.promised -= record.size
    if code == 0:
        code = file_record(pool, record)
    unlock_external(pool)
    if code == NO_HOST_MEMORY and record.address:
        pool.backend.give(pool, record)
    return code


cdef void await_relief() noexcept nogil:
    # The thread may be in a function of the caller's, inside the gate, and who has relief in one that begins a capture.
    # There is one lock of all pools, since functions of two devices' pools may each ask for the other's memory.
    if pthread_mutex_trylock(&relief):
        step_outside()
        pthread_mutex_lock(&relief)
        come_back()


cdef int retry(ExternalPool* pool, Record* record) noexcept nogil:
    # Everything that is leaving goes, idle memory goes back to the device, and the backend is asked once more.
    cdef bint capturing
    cdef int code
    await_relief()
    lock_external(pool)
    pool.stats.num_alloc_retries += 1
    note_news(&pool.stats)
    pool.stats.num_sync_all_streams += 1
    capturing = pool.captures != 0
    unlock_external(pool)
    code = 0 if capturing else send_off(pool, SIZE_MAX, True)
    if code == 0 and not capturing:
        code = pool.backend.trim(pool, record.stream)
    if code == 0:
        code = take(pool, record)
    pthread_mutex_unlock(&relief)
    if refused(code):
        lock_external(pool)
        pool.stats.num_ooms += 1
        note_news(&pool.stats)
        unlock_external(pool)
    return code


cdef int external_allocate(ExternalPool* pool, size_t size, uintptr_t stream, uintptr_t* out_address) noexcept nogil:
    # size is neither 0 nor absurd.
    cdef Record* record
    cdef int code = send_off_if_any(pool, PATIENCE)
    out_address[0] = 0
    if code:
        return code
    record = <Record*>calloc(1, sizeof(Record))
    if record == NULL:
        return NO_HOST_MEMORY
    record.size = size
    record.stream = stream
    code = take(pool, record)
    if refused(code) and on_refusal != NULL and on_refusal(pool.device, size):
        code = take(pool, record)
    if refused(code):
        code = retry(pool, record)
    if code:
        free(record)
        return code
    record.stream = heap_stream(stream)
    out_address[0] = record.address
    return inspected(pool, 0)


# --- the rest ------------------------------------------------------------------------------------------------

cdef bint external_holds(ExternalPool* pool, uintptr_t address) noexcept nogil:
    cdef bint live
    lock_external(pool)
    live = map_find(&pool.live, address) != NULL
    unlock_external(pool)
    return live


cdef int external_empty(ExternalPool* pool) noexcept nogil:
    cdef bint capturing
    cdef int code = 0
    await_relief()
    lock_external(pool)
    capturing = pool.captures != 0
    pool.stats.num_sync_all_streams += 1
    unlock_external(pool)
    if not capturing:
        code = send_off(pool, SIZE_MAX, True)
        if code == 0:
            code = pool.backend.trim(pool, 0)
    pthread_mutex_unlock(&relief)
    return inspected(pool, code)


cdef int external_set_limit(ExternalPool* pool, size_t limit) noexcept nogil:
    lock_external(pool)
    pool.limit = limit
    unlock_external(pool)
    return 0


cdef int external_begin_capture(ExternalPool* pool) noexcept nogil:
    lock_external(pool)
    pool.captures += 1
    unlock_external(pool)
    return 0


cdef int external_end_capture(ExternalPool* pool) noexcept nogil:
    # A failure to send off keeps the record leaving; it is tried again at the next allocation.
    cdef int code = INVALID_VALUE
    lock_external(pool)
    if pool.captures:
        pool.captures -= 1
        code = 0
    unlock_external(pool)
    send_off_if_any(pool, SIZE_MAX)
    return code


cdef void renew_locks() noexcept nogil:
    # In a forked child too: the thread that held them is not in it.
    pthread_mutex_init(&choice, NULL)
    init_recursive(&relief)


cdef Stats external_stats(ExternalPool* pool) noexcept nogil:
    # A driver that refuses to say what it holds leaves zeros.
    cdef Stats stats
    lock_external(pool)
    stats = pool.stats
    unlock_external(pool)
    if pool.backend.read_reserved != NULL:
        pool.backend.read_reserved(pool, &stats)
    return stats


cdef size_t external_limit(ExternalPool* pool) noexcept nogil:
    cdef size_t limit
    lock_external(pool)
    limit = pool.limit
    unlock_external(pool)
    return limit


cdef void external_reset_peaks(ExternalPool* pool) noexcept nogil:
    cdef int figure, kind
    lock_external(pool)
    for figure in range(STATS):
        for kind in range(2):
            pool.stats.counters[figure][kind].peak = pool.stats.counters[figure][kind].current
        pool.stats.peak_all[figure] = current_of(&pool.stats, figure)
    unlock_external(pool)
    if pool.backend.reset_reserved_peak != NULL:
        pool.backend.reset_reserved_peak(pool)


cdef void external_reset_accumulated(ExternalPool* pool) noexcept nogil:
    cdef int figure, kind
    cdef Counter* counter
    lock_external(pool)
    for figure in range(STATS):
        for kind in range(2):
            counter = &pool.stats.counters[figure][kind]
            counter.allocated = counter.freed = 0
    clear_counts(&pool.stats)
    unlock_external(pool)


cdef const char* external_audit(ExternalPool* pool) noexcept nogil:
    cdef const char* failure
    lock_external(pool)
    failure = pool.audit_failure if pool.audit_failure != NULL else external_audit_failure(pool)
    unlock_external(pool)
    return failure


cdef const char* external_audit_failure(ExternalPool* pool) noexcept nogil:
    # Under the lock; NULL where all is well.
    cdef const Record* record
    cdef size_t index, live_bytes = 0, leaving = 0, leaving_bytes = 0
    for index in range(pool.live.capacity):
        record = <const Record*>pool.live.slots[index].value
        if record != NULL:
            if record.address != pool.live.slots[index].key or record.size == 0:
                return "a live address has its own record, of more than no bytes"
            live_bytes += record.size
    record = pool.oldest
    while record != NULL:
        leaving += 1
        leaving_bytes += record.size
        record = record.next
    if leaving != pool.leaving:
        return "the count of leaving records is that of their queue"
    return compare(pool, live_bytes, leaving_bytes + pool.departing_bytes)


cdef const char* compare(ExternalPool* pool, int64_t live_bytes, int64_t parting_bytes) noexcept nogil:
    if current_of(&pool.stats, ALLOCATION) != <int64_t>pool.live.count:
        return "every live address is counted once"
    if current_of(&pool.stats, ALLOCATED_BYTES) != live_bytes:
        return "allocated_bytes are those of the live addresses"
    if current_of(&pool.stats, ACTIVE) != <int64_t>(pool.live.count + pool.leaving + pool.departing):
        return "active = live + leaving + departing, in blocks"
    if current_of(&pool.stats, ACTIVE_BYTES) != live_bytes + parting_bytes:
        return "active = live + leaving + departing, in bytes"
    if current_of(&pool.stats, REQUESTED_BYTES) != current_of(&pool.stats, ACTIVE_BYTES):
        return "an external block is as large as was asked"
    return NULL


# --- the backend cudaMallocAsync -----------------------------------------------------------------------------

cdef int ordered_open(ExternalPool* pool) noexcept nogil:
    # Without a threshold the pool gives everything back at each synchronize.
    cdef int code = pool.table.default_pool(pool.device, KIND_DEVICE, &pool.ordered)
    if code == 0:
        code = pool.table.pool_set(pool.ordered, RELEASE_THRESHOLD, UINT64_MAX)
    return NO_STREAM_POOL if code == NOT_SUPPORTED else code


cdef int ordered_take(ExternalPool* pool, Record* record) noexcept nogil:
    return pool.table.async_alloc(pool.device, record.stream, record.size, &record.address)


cdef int ordered_give(ExternalPool* pool, const Record* record) noexcept nogil:
    # Where the stream is gone, there is no order to keep, and the outlet's is as good as any.
    cdef int code = pool.table.async_free(pool.device, record.stream, record.address)
    if code == 0 and is_trusted(record.stream):
        lock_external(pool)
        if map_find(&pool.givers, record.stream) == NULL and map_reserve(&pool.givers) == 0:
            map_insert(&pool.givers, record.stream, pool)  # any value but NULL: the map is a set
        unlock_external(pool)
    if meaning_of(code) != GONE or record.stream == pool.outlet:
        return code
    lock_external(pool)
    code = open_outlet(pool)
    if code == 0:
        code = follow(pool, pool.device, record.stream)  # not gone, perhaps: then the outlet waits for it
    unlock_external(pool)
    return code if code else pool.table.async_free(pool.device, pool.outlet, record.address)


cdef int open_outlet(ExternalPool* pool) noexcept nogil:
    return 0 if pool.outlet else pool.table.stream_create(pool.device, STREAM_NON_BLOCKING, 0, &pool.outlet)


cdef int follow(ExternalPool* pool, int device, uintptr_t stream) noexcept nogil:
    # The outlet waits for what is in the stream now; a wait keeps what its event was recorded for.  To wait for a capturing
    # stream would draw the outlet into the capture; to wait for an event of a capture that is over is refused.  A stream
    # that is gone is not followed.
    cdef PooledEvent* event
    cdef int code = mark_behind(pool.table, device, stream, &event)
    if code == 0:
        code = pool.table.stream_wait_event(pool.device, pool.outlet, event.handle)
        event.captured = is_captured_event(code)
        release_event(pool.table, event)
    elif meaning_of(code) == GONE:
        return 0
    return NOT_READY if is_captured_event(code) else code


cdef int ordered_part(ExternalPool* pool, Record* record, bint wait) noexcept nogil:
    # A failure half way is taken up where it was left.
    lock_external(pool)
    cdef int code = open_outlet(pool)
    if code == 0 and record.stream != pool.outlet:
        code = follow(pool, pool.device, record.stream)
        if code == 0:
            record.stream = pool.outlet
    while code == 0 and record.uses != NULL:
        code = follow(pool, record.uses.device, record.uses.stream)
        if code == 0:
            drop_use(&pool.uses, &record.uses)
    unlock_external(pool)
    return code


cdef int trim_behind(ExternalPool* pool, uintptr_t stream) noexcept nogil:
    # Once the stream's work so far is done; at once where it is gone, or captures.  In relaxed mode: to wait breaks a
    # global-mode capture of any thread otherwise.
    cdef PooledEvent* event
    cdef int mode
    cdef int code = go_relaxed(pool.table, &mode)
    if code:
        return code
    code = mark_behind(pool.table, pool.device, stream, &event)
    if code == 0:
        code = pool.table.event_synchronize(pool.device, event.handle)
        event.captured = is_captured_event(code)
    if code == 0:
        code = pool.table.pool_trim(pool.ordered, pool.device, event.handle, 0)
    elif meaning_of(code) != FAILED or is_captured_event(code):
        code = pool.table.pool_trim(pool.ordered, pool.device, 0, 0)
    if event != NULL:
        release_event(pool.table, event)
    restore_mode(pool.table, mode)
    return code


cdef int ordered_trim(ExternalPool* pool, uintptr_t stream) noexcept nogil:
    # The driver sees that what was given back on a stream is idle when it waits for an event of that stream.  An event of
    # all streams of the device does not do, nor does the question whether one is over (seen on an H100).  What was given
    # back on streams that may be destroyed stays, and the driver reuses it by itself.
    cdef AddressMap givers
    cdef uintptr_t outlet
    cdef size_t index
    lock_external(pool)
    outlet = pool.outlet
    givers = pool.givers
    memset(&pool.givers, 0, sizeof(AddressMap))
    unlock_external(pool)
    cdef int code = trim_behind(pool, stream)
    if code == 0 and outlet:
        code = trim_behind(pool, outlet)
    for index in range(givers.capacity):
        if code == 0 and givers.slots[index].value != NULL:
            code = trim_behind(pool, givers.slots[index].key)
    map_clear(&givers)
    return code


cdef int read_reserved(ExternalPool* pool, Stats* stats) noexcept nogil:
    # The driver has one figure, no kinds: it stands with the large ones.
    cdef uint64_t current = 0, high = 0
    cdef int code = pool.table.pool_get(pool.ordered, RESERVED_CURRENT, &current)
    if code == 0:
        code = pool.table.pool_get(pool.ordered, RESERVED_HIGH, &high)
    stats.counters[RESERVED_BYTES][LARGE].current = current
    stats.counters[RESERVED_BYTES][LARGE].peak = high
    stats.peak_all[RESERVED_BYTES] = high
    return code


cdef int reset_reserved_peak(ExternalPool* pool) noexcept nogil:
    return pool.table.pool_set(pool.ordered, RESERVED_HIGH, 0)


ordered.name = b"cudaMallocAsync"
ordered.open = ordered_open
ordered.take = ordered_take
ordered.part = ordered_part
ordered.give = ordered_give
ordered.trim = ordered_trim
ordered.read_reserved = read_reserved
ordered.reset_reserved_peak = reset_reserved_peak


# --- the backend pluggable -----------------------------------------------------------------------------------

cdef int enter_library(Table* table, int device, Visit* visit) noexcept nogil:
    # A library calls cudaMalloc on the current device.
    cdef int code = table.current_device(&visit.device)
    if code == 0:
        code = go_relaxed(table, &visit.mode)
    if code == 0 and visit.device != device:
        code = table.set_device(device)
        if code:
            restore_mode(table, visit.mode)
    return code


cdef void leave_library(Table* table, int device, const Visit* visit) noexcept nogil:
    restore_mode(table, visit.mode)
    if visit.device != device:
        table.set_device(visit.device)  # -1 where the thread had no device


cdef int plugged_open(ExternalPool* pool) noexcept nogil:
    return 0


cdef int plugged_take(ExternalPool* pool, Record* record) noexcept nogil:
    cdef const Pluggable* plug = <const Pluggable*>pool.backend
    cdef Visit visit
    cdef int code = enter_library(pool.table, pool.device, &visit)
    if code:
        return code
    record.address = <uintptr_t>plug.alloc(record.size, pool.device, <void*>record.stream)
    leave_library(pool.table, pool.device, &visit)
    return 0 if record.address else OUT_OF_MEMORY


cdef int plugged_give(ExternalPool* pool, const Record* record) noexcept nogil:
    cdef const Pluggable* plug = <const Pluggable*>pool.backend
    cdef Visit visit
    cdef int code = enter_library(pool.table, pool.device, &visit)
    if code:
        return code
    plug.free(<void*>record.address, record.size, pool.device, <void*>record.stream)
    leave_library(pool.table, pool.device, &visit)
    return 0


cdef void plugged_drop(ExternalPool* pool, Use** link) noexcept nogil:
    lock_external(pool)
    drop_use(&pool.uses, link)
    unlock_external(pool)


cdef int plugged_part(ExternalPool* pool, Record* record, bint wait) noexcept nogil:
    # The work that counts is what is there now, so all events are recorded before one is asked for; a stream that is gone
    # uses nothing more.
    cdef Use** link = &record.uses
    cdef int code
    while link[0] != NULL:
        code = mark_use(pool.table, link[0])
        if meaning_of(code) == GONE:
            plugged_drop(pool, link)
        elif code:
            return code
        else:
            link = &link[0].next
    while record.uses != NULL:
        code = ask_use(pool.table, record.uses, wait)
        if code and not is_device_lost(code):
            return code
        plugged_drop(pool, &record.uses)
    return 0


cdef int plugged_trim(ExternalPool* pool, uintptr_t stream) noexcept nogil:
    return 0  # the ABI has no word for it


cdef void fill_pluggable(Pluggable* plug) noexcept nogil:
    # All but the two functions.
    plug.backend.name = b"pluggable"
    plug.backend.open = plugged_open
    plug.backend.take = plugged_take
    plug.backend.part = plugged_part
    plug.backend.give = plugged_give
    plug.backend.trim = plugged_trim
    plug.backend.read_reserved = NULL
    plug.backend.reset_reserved_peak = NULL


# --- allocators of such libraries ------------------------------------------------------------------------------

# The library whose functions are accelrt's own, for torch (torch_table.library_path).
cdef str OURS = os.path.join(os.path.dirname(__file__), os.path.basename(__file__).replace("external_pool", "torch_table"))
chosen_allocators = []


cdef object symbol_of(object library, object name, str path, str use):
    if not isinstance(name, str):
        raise TypeError(f"{use} is {name!r} of type {type(name).__name__}; pass the function's name as str")
    if "\0" in name:
        raise ValueError(f"{use} is {name!r}: embedded null character; C would read the name up to it only")
    import ctypes

    try:
        return ctypes.cast(getattr(library, name), ctypes.c_void_p).value
    except AttributeError:
        raise AttributeError(
            f"{path} exports no function {name!r}, which {use} names; check the spelling, and that the function is "
            'extern "C" and has default visibility'
        ) from None


cdef object open_library(str path):
    if "\0" in path:
        raise ValueError(f"path_to_so_file is {path!r}: embedded null character; C would read the path up to it only")
    if os.sep in path and not os.path.exists(path):
        raise FileNotFoundError(f"the allocator's library {path} does not exist")
    import ctypes

    try:
        return ctypes.CDLL(path)
    except OSError as error:
        raise OSError(f"the allocator's library {path} cannot be loaded: {error}") from error


cdef bint is_ours(str path) except -1:
    return os.path.exists(path) and os.path.samefile(path, OURS)


cdef class Allocator:
    """An allocator of other memory, for change_current_allocator: the base of its kinds."""

    def allocator(self) -> Self:
        """The object itself, for MemPool(allocator=...), as in torch."""
        return self

    def __reduce__(self):
        refuse_copy(self, "it stands for functions of this process; make another one of the same functions")


cdef class CUDAPluggableAllocator(Allocator):
    """CUDAPluggableAllocator(path_to_so_file, alloc_fn_name, free_fn_name)\n--\n\n\
    An allocator in a shared library, for change_current_allocator and MemPool.

    Arguments:
        path_to_so_file: str or path, of the library; one without a slash is looked for as dlopen does.
        alloc_fn_name: str, of `void *alloc(size_t size, int device, cudaStream_t stream)`, which returns NULL
            where it has no memory.
        free_fn_name: str, of `void free(void *ptr, size_t size, int device, cudaStream_t stream)`.
    Raises:
        FileNotFoundError, OSError: the library does not exist, or cannot be loaded.
        AttributeError: it has no such function.
        ValueError: the library is accelrt's own, whose functions would call themselves, or there is a null character in
            a name.
        TypeError: a name is no str.
    Attributes:
        path: str, of the library, as it was given.
        alloc_fn_name, free_fn_name: str, as given.

    Both are called from any thread without the GIL, with the device current, the size that was asked for and
    the stream that the memory was asked for on.  free is called when the other streams that were recorded on
    the memory are done with it; that it follows the work of its own stream is the library's part.
    """

    cdef object library
    cdef readonly str path
    cdef readonly str alloc_fn_name
    cdef readonly str free_fn_name

    def __init__(self, path_to_so_file: str | os.PathLike[str], alloc_fn_name: str, free_fn_name: str) -> None:
        self.path = os.fsdecode(path_to_so_file)
        if "\0" not in self.path and os.sep in self.path and is_ours(self.path):
            raise ValueError(f"{self.path} is accelrt's own allocator; it is in use without being plugged in")
        self.library = open_library(self.path)
        cdef uintptr_t alloc = symbol_of(self.library, alloc_fn_name, self.path, "alloc_fn_name")
        cdef uintptr_t give_back = symbol_of(self.library, free_fn_name, self.path, "free_fn_name")
        cdef Pluggable* plug = <Pluggable*>calloc(1, sizeof(Pluggable))  # pools may stand on it while the process lives
        if plug == NULL:
            raise MemoryError("no host memory for an allocator's record")
        fill_pluggable(plug)
        plug.alloc = <void* (*)(size_t, int, void*) noexcept nogil>alloc
        plug.free = <void (*)(void*, size_t, int, void*) noexcept nogil>give_back
        self.backend = &plug.backend
        self.source = <Source*>calloc(1, sizeof(Source))
        if self.source == NULL:
            raise MemoryError("no host memory for an allocator's record")
        self.source.alloc = plug.alloc
        self.source.free = plug.free
        self.alloc_fn_name = alloc_fn_name
        self.free_fn_name = free_fn_name

    def __repr__(self):
        return f"<accelrt.memory.CUDAPluggableAllocator {self.alloc_fn_name}, {self.free_fn_name} of {self.path}>"


cdef const Source* source_of(object allocator) except NULL:
    if isinstance(allocator, Allocator) and (<Allocator>allocator).backend == NULL:
        refuse_unmade(allocator)
    if not isinstance(allocator, Allocator) or (<Allocator>allocator).source == NULL:
        raise ArgumentTypeError(
            f"allocator is {allocator!r} of type {type(allocator).__name__}; pass a CUDAPluggableAllocator, a "
            "CallbackAllocator, or None"
        )
    chosen_allocators.append(allocator)
    return (<Allocator>allocator).source


# --- the backend of two Python functions -----------------------------------------------------------------------
# Memory from two Python functions, for libraries whose allocators are Python objects.
#
# The functions run with the GIL, with the device current, in relaxed capture mode, and without the pool's lock.  The
# thread may hold relief, which is recursive, and which nothing waits for with the GIL held: so a function may
# use accelrt, and even free and allocate its memory.

cdef extern from *:
    """
    static __thread int accelrt_callback_depth;  /* allocate functions that this thread is inside of */
    """
    int depth "accelrt_callback_depth"

cdef long callbacks_over = 0  # the interpreter ends: call no more functions

cdef enum:
    MAX_DEPTH = 8  # a function that allocates what it is asked for from accelrt would call itself without end


cdef void tell(object error) noexcept:
    if on_failure != NULL:
        on_failure(error)


cdef uintptr_t address_in(const Callbacks* callbacks, const Record* record, int device) except? 0:
    # What the function answers: 0 and None are no memory.
    if depth > MAX_DEPTH:
        raise RecursionError("it asks accelrt for the memory, which asks it")
    address = (<object>callbacks.allocate)(record.size, device, record.stream)
    return 0 if address is None else checked_address_int(address, "what it returned")


cdef uintptr_t ask(const Callbacks* callbacks, const Record* record, int device, int* out_code) noexcept:
    # With the GIL.
    global depth
    cdef uintptr_t address = 0
    out_code[0] = OUT_OF_MEMORY
    depth += 1
    try:
        address = address_in(callbacks, record, device)
        if address:
            out_code[0] = 0
    except MemoryError as error:
        tell(error)
    except Exception as error:
        out_code[0] = UNKNOWN
        name = (<bytes>callbacks.name).decode()
        failure = RuntimeError(
            f"the allocator {name!r} failed: allocate({record.size}, device {device}, stream {record.stream:#x}) raised "
            f"{type(error).__name__}: {error}; nothing was allocated"
        )
        failure.__cause__ = error
        tell(failure)
    except BaseException as error:
        out_code[0] = UNKNOWN
        tell(error)
    depth -= 1
    return address


cdef int take_from_callback(ExternalPool* pool, Record* record) noexcept nogil:
    return call_allocate(<const Callbacks*>pool.backend, pool.table, pool.device, record)


cdef int call_allocate(const Callbacks* callbacks, Table* table, int device, Record* record) noexcept nogil:
    cdef Visit visit
    cdef bint new_state
    cdef int code
    if load_count(&callbacks_over):
        return DEINITIALIZED
    code = enter_library(table, device, &visit)
    if code:
        return code
    new_state = make_thread_state()
    with gil:
        drop_with_gil(new_state)
        record.address = ask(callbacks, record, device, &code)
    leave_library(table, device, &visit)
    return code


def report(error: BaseException, function: object) -> None:
    """Has sys.unraisablehook tell of an exception of a function that has no caller to raise it to."""
    PyErr_SetObject(type(error), error)
    PyErr_WriteUnraisable(function)


cdef void call_free(const Callbacks* callbacks, const Record* record, int device) noexcept:
    # With the GIL; an exception may be under way, as where a destructor frees.  What the function raises can reach no
    # caller, for it is called late, and by whichever thread comes by; and the memory is not asked back twice.
    cdef PyObject* kind
    cdef PyObject* value
    cdef PyObject* trace
    PyErr_Fetch(&kind, &value, &trace)
    try:
        (<object>callbacks.free)(record.address, record.size, device, record.stream)
    except Exception as error:
        report(error, <object>callbacks.free)
    except BaseException as error:
        raise_soon(error)
    PyErr_Restore(kind, value, trace)


cdef int give_to_callback(ExternalPool* pool, const Record* record) noexcept nogil:
    return call_free_of(<const Callbacks*>pool.backend, pool.table, pool.device, record)


cdef int call_free_of(const Callbacks* callbacks, Table* table, int device, const Record* record) noexcept nogil:
    cdef Visit visit
    cdef bint new_state
    cdef int code
    if load_count(&callbacks_over):  # the memory goes with the process
        return 0
    code = enter_library(table, device, &visit)
    if code:
        return code
    new_state = make_thread_state()
    with gil:
        drop_with_gil(new_state)
        call_free(callbacks, record, device)
    leave_library(table, device, &visit)
    return 0


# The same functions for a MemPool, whose segments they give.

cdef int take_segment(const Source* source, Table* table, int device, size_t size, uintptr_t stream,
                      uintptr_t* out_address) noexcept nogil:
    cdef Record record
    cdef int code
    memset(&record, 0, sizeof(Record))
    record.size, record.stream = size, stream
    code = call_allocate(<const Callbacks*>source.functions, table, device, &record)
    if code == 0 and record.address % UNIT:
        call_free_of(<const Callbacks*>source.functions, table, device, &record)
        refuse_misaligned(<const Callbacks*>source.functions, record.address)
        code = UNKNOWN
    out_address[0] = record.address if code == 0 else 0
    return code


cdef void refuse_misaligned(const Callbacks* callbacks, uintptr_t address) noexcept nogil:
    cdef bint new_state = make_thread_state()
    with gil:
        drop_with_gil(new_state)
        name = (<bytes>callbacks.name).decode()
        tell(RuntimeError(f"the allocator {name!r} returned {address:#x}, and a MemPool takes addresses at multiples of "
                          f"{<int>UNIT}; it was given back, and nothing was allocated"))


cdef void give_segment(const Source* source, Table* table, int device, uintptr_t address, size_t size,
                       uintptr_t stream) noexcept nogil:
    cdef Record record
    memset(&record, 0, sizeof(Record))
    record.address, record.size, record.stream = address, size, stream
    call_free_of(<const Callbacks*>source.functions, table, device, &record)


cdef class CallbackAllocator(Allocator):
    """CallbackAllocator(allocate, free, name="callbacks")\n--\n\n\
    An allocator of two Python functions, for change_current_allocator and MemPool.

    Arguments:
        allocate: callable as allocate(size, device, stream): bytes, an ordinal, and a stream's handle as int.  It
            returns the address as int, and 0 or None, or raises MemoryError, where it has no memory.
        free: callable as free(address, size, device, stream), with what allocate was given and returned.
        name: str, what get_allocator_backend() and errors call it.
    Raises:
        TypeError, ValueError: allocate or free cannot be called, or name is no str, is empty, or names a backend of
            accelrt's own.

    Both are called from any thread, with the GIL, with the device current.  They may use accelrt, but begin no capture,
    and not wait for another thread that allocates or captures: it may be waiting for them.  free is called when the other
    streams that were recorded on the memory are done with it; that it follows the work of its own stream is the function's
    part.

    A MemPool calls them for its segments, each of some MiB, of which it serves many allocations, and at multiples of 512.
    It holds no lock then, but the thread is still inside use_mem_pool, so that what allocate itself allocates has to come
    from another pool.

    What allocate raises, the allocation raises: an OutOfMemoryError of a MemoryError once nothing helped, and of any
    other Exception a RuntimeError, whose __cause__ it is.  What free raises is reported by sys.unraisablehook; the
    memory counts as given back.  At the interpreter's exit neither is called any more.
    """
    # stub: allocate: Callable[[int, int, int], int | None]
    # stub: free: Callable[[int, int, int, int], object]

    def __init__(
        self,
        allocate: Callable[[int, int, int], int | None],
        free: Callable[[int, int, int, int], object],  # no-cython-lint
        name: str = "callbacks",
    ) -> None:
        cdef Callbacks* callbacks
        for function, use in ((allocate, "allocate(size, device, stream)"), (free, "free(address, size, device, stream)")):
            if not callable(function):
                raise TypeError(f"{function!r} of type {type(function).__name__} cannot be called; pass a callable as {use}")
        if not isinstance(name, str):
            raise TypeError(f"name is {name!r} of type {type(name).__name__}; pass a str")
        if not name or "\0" in name or name in ("native", "cudaMallocAsync", "pluggable"):
            raise ValueError(f"name is {name!r}; pass a name that no backend of accelrt's has, without a null character")
        if self.backend != NULL:
            raise RuntimeError("a CallbackAllocator is initialised once")
        text = name.encode()
        callbacks = <Callbacks*>calloc(1, sizeof(Callbacks))
        if callbacks == NULL:
            raise MemoryError("no host memory for an allocator's record")
        for kept in (text, allocate, free):  # pools may stand on them for as long as the process lives
            Py_INCREF(kept)
        callbacks.name = <PyObject*>text
        callbacks.allocate = <PyObject*>allocate
        callbacks.free = <PyObject*>free
        fill_pluggable(<Pluggable*>callbacks)  # whose rows between taking and giving serve these too
        callbacks.backend.name = text
        callbacks.backend.take = take_from_callback
        callbacks.backend.give = give_to_callback
        self.source = <Source*>calloc(1, sizeof(Source))
        if self.source == NULL:
            raise MemoryError("no host memory for an allocator's record")
        self.source.take, self.source.give, self.source.functions = take_segment, give_segment, callbacks
        self.backend = &callbacks.backend
        self.allocate, self.free, self.name = allocate, free, name

    def __repr__(self):
        return f"<accelrt.memory.CallbackAllocator {self.name!r}: {self.allocate!r}, {self.free!r}>"


def _stop_calling():
    store_count(&callbacks_over, 1)


call_at_exit("allocator.external.external_pool", "callbacks", _stop_calling)


renew_locks()
at_fork("allocator.external.external_pool", FORK_POOLS, NULL, NULL, &renew_locks)
