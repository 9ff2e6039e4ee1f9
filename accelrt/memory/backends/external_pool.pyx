"""Memory that does not come from accelrt's own pool: records, statistics, and the order of going back.

Two locks a room, always taken in this order: relief, held by the one thread that sends leaving records off,
and lock, held for bookkeeping.  A backend's rows run without lock, since a plugged library may take as long
as it likes, and may call accelrt.  Neither lock is held while the GIL is taken.
"""
from libc.stdint cimport SIZE_MAX, int64_t
from libc.stdlib cimport calloc, free

from accelrt.core.handle_map cimport map_find, map_insert, map_remove, map_reserve
from accelrt.core.locks cimport (
    pthread_mutex_init, pthread_mutex_lock, pthread_mutex_t, pthread_mutex_trylock, pthread_mutex_unlock,
)
from accelrt.driver.capture_guard cimport enter_wait, is_capturing, leave_wait
from accelrt.memory.allocator.miss cimport on_refusal
from accelrt.memory.allocator.sizes cimport kind_of
from accelrt.memory.allocator.stats cimport (
    ACTIVE, ACTIVE_BYTES, ALLOCATED_BYTES, ALLOCATION, STATS, REQUESTED_BYTES, RESERVED_BYTES, SEGMENT, Counter,
    clear_counts, current_of, decrease, increase,
)
from accelrt.memory.backends.external_types cimport Backend, Foreign, Record, Sharer, lock_room, unlock_room
from accelrt.status cimport (
    BROKEN, CAP_REACHED, ILLEGAL_STATE, INVALID_VALUE, NOT_ALLOCATED, NOT_READY, NO_CAPTURE_MEMORY, NO_HOST_MEMORY,
    OUT_OF_MEMORY,
)

cdef extern from "<pthread.h>" nogil:
    int pthread_atfork(void (*prepare)() noexcept, void (*parent)() noexcept, void (*child)() noexcept)

cdef enum:
    PATIENCE = 8  # leaving records that an allocation looks at

cdef pthread_mutex_t choice      # the room's locks are not taken under it
cdef const Backend* chosen = NULL
cdef bint settled = False        # a pool was made, so the choice stands


# --- the choice --------------------------------------------------------------------------------------------

cdef int choose(const Backend* backend) noexcept nogil:
    global chosen
    cdef int code = 0
    pthread_mutex_lock(&choice)
    if settled and backend != chosen:
        code = ILLEGAL_STATE
    else:
        chosen = backend
    pthread_mutex_unlock(&choice)
    return code


cdef const Backend* chosen_backend() noexcept nogil:
    cdef const Backend* answer
    pthread_mutex_lock(&choice)
    answer = chosen
    pthread_mutex_unlock(&choice)
    return answer


cdef int foreign_attach(int device, Table* table, int debug, Foreign** out_room) noexcept nogil:
    global settled
    cdef int code = 0
    out_room[0] = NULL
    pthread_mutex_lock(&choice)
    if chosen != NULL:
        code = make(device, table, debug, out_room)
    settled = settled or code == 0
    pthread_mutex_unlock(&choice)
    return code


cdef int make(int device, Table* table, int debug, Foreign** out_room) noexcept nogil:
    cdef Foreign* room = <Foreign*>calloc(1, sizeof(Foreign))
    cdef int code
    if room == NULL:
        return NO_HOST_MEMORY
    pthread_mutex_init(&room.lock, NULL)
    pthread_mutex_init(&room.relief, NULL)
    room.backend = chosen
    room.table = table
    room.device = device
    room.debug = debug
    room.limit = SIZE_MAX
    code = room.backend.open(room)
    if code:
        free(room)
        return code
    out_room[0] = room
    return 0


# --- bookkeeping, under the lock -----------------------------------------------------------------------------

cdef void count_taken(Foreign* room, const Record* record) noexcept nogil:
    cdef int kind = kind_of(record.size)
    increase(&room.stats, ALLOCATION, kind, 1)
    increase(&room.stats, ALLOCATED_BYTES, kind, record.size)
    increase(&room.stats, ACTIVE, kind, 1)
    increase(&room.stats, ACTIVE_BYTES, kind, record.size)
    increase(&room.stats, REQUESTED_BYTES, kind, record.size)
    room.stats.num_device_alloc += 1
    if room.backend.read_reserved == NULL:
        increase(&room.stats, SEGMENT, kind, 1)
        increase(&room.stats, RESERVED_BYTES, kind, record.size)


cdef void count_gone(Foreign* room, const Record* record) noexcept nogil:
    cdef int kind = kind_of(record.size)
    decrease(&room.stats, ACTIVE, kind, 1)
    decrease(&room.stats, ACTIVE_BYTES, kind, record.size)
    decrease(&room.stats, REQUESTED_BYTES, kind, record.size)
    room.stats.num_device_free += 1
    if room.backend.read_reserved == NULL:
        decrease(&room.stats, SEGMENT, kind, 1)
        decrease(&room.stats, RESERVED_BYTES, kind, record.size)


cdef void begin_departure(Foreign* room, const Record* record) noexcept nogil:
    room.departing += 1
    room.departing_bytes += record.size


cdef void end_departure(Foreign* room, const Record* record) noexcept nogil:
    room.departing -= 1
    room.departing_bytes -= record.size


cdef void append_leaving(Foreign* room, Record* record) noexcept nogil:
    record.next = NULL
    if room.oldest == NULL:
        room.oldest = record
    else:
        room.newest.next = record
    room.newest = record
    room.leaving += 1


cdef Record* detach_oldest(Foreign* room) noexcept nogil:
    # NULL where none is leaving, and during a capture of ours: what a capturing thread gives back would
    # become part of the graph, or break it.
    cdef Record* record = room.oldest
    if record == NULL or room.captures:
        return NULL
    room.oldest = record.next
    room.leaving -= 1
    begin_departure(room, record)
    return record


cdef int inspected(Foreign* room, int code) noexcept nogil:
    # The debug audit after an operation; what it found stays to be read.
    cdef bint broken
    if room.debug < 2:
        return code
    lock_room(room)
    if room.broken == NULL:
        room.broken = foreign_violation(room)
    broken = room.broken != NULL
    unlock_room(room)
    return BROKEN if broken and code == 0 else code


cdef int not_capturing(Foreign* room, int device, uintptr_t stream) noexcept nogil:
    cdef int code
    return NOT_READY if is_capturing(room.table, device, stream, &code) else code


# --- giving back -------------------------------------------------------------------------------------------

cdef int give(Foreign* room, const Record* record) noexcept nogil:
    # Given back on a stream that begins to capture, it would become part of the capture, so none begins meanwhile.
    cdef int code
    if not enter_wait():
        return NOT_READY
    code = room.backend.give(room, record)
    leave_wait()
    return code


cdef int depart(Foreign* room, Record* record, bint wait) noexcept nogil:
    # Without the lock: nobody else can reach the record.  What cannot go yet joins those that are leaving.
    cdef int code = 0
    if record.sharers != NULL:
        code = room.backend.part(room, record, wait)
    if code == 0:
        code = give(room, record)
    lock_room(room)
    end_departure(room, record)
    if code == 0:
        count_gone(room, record)
    else:
        append_leaving(room, record)
    unlock_room(room)
    if code == 0:
        free(record)
    return 0 if code == NOT_READY else code


cdef int send_off(Foreign* room, size_t most, bint wait) noexcept nogil:
    # Under relief.  Those that stay go to the end of the queue, so that each gets its turn.
    cdef Record* record
    cdef size_t left
    cdef int code = 0
    lock_room(room)
    left = min(most, room.leaving)
    unlock_room(room)
    while left and code == 0:
        lock_room(room)
        record = detach_oldest(room)
        unlock_room(room)
        if record == NULL:
            break
        code = depart(room, record, wait)
        left -= 1
    return code


cdef int send_off_if_any(Foreign* room, size_t most) noexcept nogil:
    # The thread that holds relief is at it already.
    cdef bint idle
    cdef int code
    lock_room(room)
    idle = room.oldest == NULL or room.captures != 0
    unlock_room(room)
    if idle or pthread_mutex_trylock(&room.relief):
        return 0
    code = send_off(room, most, False)
    pthread_mutex_unlock(&room.relief)
    return code


cdef int foreign_release(Foreign* room, uintptr_t address) noexcept nogil:
    # The record leaves the map before the backend hears of it, and may hand the address out again.
    cdef Record* record
    cdef int kind
    cdef bint stays
    lock_room(room)
    record = <Record*>map_remove(&room.live, address)
    if record == NULL:
        unlock_room(room)
        return NOT_ALLOCATED
    kind = kind_of(record.size)
    decrease(&room.stats, ALLOCATION, kind, 1)
    decrease(&room.stats, ALLOCATED_BYTES, kind, record.size)
    stays = room.captures != 0
    if stays:
        append_leaving(room, record)
    else:
        begin_departure(room, record)
    unlock_room(room)
    return inspected(room, 0 if stays else depart(room, record, False))


cdef int foreign_use_on(Foreign* room, uintptr_t address, int stream_on, uintptr_t stream) noexcept nogil:
    cdef Record* record
    cdef Sharer* sharer
    cdef int code = 0
    lock_room(room)
    record = <Record*>map_find(&room.live, address)
    if record == NULL:
        code = NOT_ALLOCATED
    elif record.stream != stream or stream_on != room.device:
        sharer = record.sharers
        while sharer != NULL and not (sharer.stream == stream and sharer.device == stream_on):
            sharer = sharer.next
        if sharer == NULL:
            sharer = <Sharer*>calloc(1, sizeof(Sharer))
            if sharer == NULL:
                code = NO_HOST_MEMORY
            else:
                sharer.stream = stream
                sharer.device = stream_on
                sharer.next = record.sharers
                record.sharers = sharer
    unlock_room(room)
    return code


# --- taking ------------------------------------------------------------------------------------------------

cdef inline bint refused(int code) noexcept nogil:
    return code == OUT_OF_MEMORY or code == CAP_REACHED


cdef int admit(Foreign* room, const Record* record) noexcept nogil:
    # Promises the bytes, so that threads that ask at once stay within the limit together.
    cdef size_t held
    cdef int code = 0
    lock_room(room)
    if room.captures:
        code = not_capturing(room, room.device, record.stream)
        if code == NOT_READY:
            code = NO_CAPTURE_MEMORY
    held = current_of(&room.stats, ACTIVE_BYTES) + room.promised
    if code == 0 and (held > room.limit or record.size > room.limit - held):
        code = CAP_REACHED
    if code == 0:
        room.promised += record.size
    unlock_room(room)
    return code


cdef int file_record(Foreign* room, Record* record) noexcept nogil:
    # Under the lock.
    if map_find(&room.live, record.address) != NULL:
        room.broken = "the backend hands out no address twice"
        return BROKEN
    if map_reserve(&room.live):
        return NO_HOST_MEMORY
    map_insert(&room.live, record.address, record)
    count_taken(room, record)
    return 0


cdef int take(Foreign* room, Record* record) noexcept nogil:
    cdef int code = admit(room, record)
    if code:
        return code
    code = room.backend.take(room, record)
    lock_room(room)
    room.promised -= record.size
    if code == 0:
        code = file_record(room, record)
    unlock_room(room)
    if code == NO_HOST_MEMORY and record.address:
        room.backend.give(room, record)
    return code


cdef int climb(Foreign* room, Record* record) noexcept nogil:
    # Everything that is leaving goes, idle memory goes back to the device, and the backend is asked once more.
    cdef bint capturing
    cdef int code
    pthread_mutex_lock(&room.relief)
    lock_room(room)
    room.stats.num_alloc_retries += 1
    room.stats.num_sync_all_streams += 1
    capturing = room.captures != 0
    unlock_room(room)
    code = 0 if capturing else send_off(room, SIZE_MAX, True)
    if code == 0 and not capturing:
        code = room.backend.trim(room, record.stream)
    if code == 0:
        code = take(room, record)
    pthread_mutex_unlock(&room.relief)
    if refused(code):
        lock_room(room)
        room.stats.num_ooms += 1
        unlock_room(room)
    return code


cdef int foreign_allocate(Foreign* room, size_t size, uintptr_t stream, uintptr_t* out_address) noexcept nogil:
    # size is neither 0 nor absurd.
    cdef Record* record
    cdef int code = send_off_if_any(room, PATIENCE)
    out_address[0] = 0
    if code:
        return code
    record = <Record*>calloc(1, sizeof(Record))
    if record == NULL:
        return NO_HOST_MEMORY
    record.size = size
    record.stream = stream
    code = take(room, record)
    if refused(code) and on_refusal != NULL and on_refusal(room.device, size):
        code = take(room, record)
    if refused(code):
        code = climb(room, record)
    if code:
        free(record)
        return code
    out_address[0] = record.address
    return inspected(room, 0)


# --- the rest ------------------------------------------------------------------------------------------------

cdef bint foreign_holds(Foreign* room, uintptr_t address) noexcept nogil:
    cdef bint answer
    lock_room(room)
    answer = map_find(&room.live, address) != NULL
    unlock_room(room)
    return answer


cdef int foreign_empty(Foreign* room) noexcept nogil:
    cdef bint capturing
    cdef int code = 0
    pthread_mutex_lock(&room.relief)
    lock_room(room)
    capturing = room.captures != 0
    room.stats.num_sync_all_streams += 1
    unlock_room(room)
    if not capturing:
        code = send_off(room, SIZE_MAX, True)
        if code == 0:
            code = room.backend.trim(room, 0)
    pthread_mutex_unlock(&room.relief)
    return inspected(room, code)


cdef int foreign_set_limit(Foreign* room, size_t limit) noexcept nogil:
    lock_room(room)
    room.limit = limit
    unlock_room(room)
    return 0


cdef int foreign_begin_capture(Foreign* room) noexcept nogil:
    lock_room(room)
    room.captures += 1
    unlock_room(room)
    return 0


cdef int foreign_end_capture(Foreign* room) noexcept nogil:
    # A failure to send off keeps the record leaving; it is tried again at the next allocation.
    cdef int code = INVALID_VALUE
    lock_room(room)
    if room.captures:
        room.captures -= 1
        code = 0
    unlock_room(room)
    send_off_if_any(room, SIZE_MAX)
    return code


cdef void forget_choice() noexcept nogil:
    # In a forked child too: the thread that held the lock is not in it.
    pthread_mutex_init(&choice, NULL)


forget_choice()
pthread_atfork(NULL, NULL, &forget_choice)


cdef Stats foreign_stats(Foreign* room) noexcept nogil:
    # A driver that refuses to say what it holds leaves zeros.
    cdef Stats stats
    lock_room(room)
    stats = room.stats
    unlock_room(room)
    if room.backend.read_reserved != NULL:
        room.backend.read_reserved(room, &stats)
    return stats


cdef size_t foreign_limit(Foreign* room) noexcept nogil:
    cdef size_t limit
    lock_room(room)
    limit = room.limit
    unlock_room(room)
    return limit


cdef void foreign_reset_peaks(Foreign* room) noexcept nogil:
    cdef int figure, kind
    lock_room(room)
    for figure in range(STATS):
        for kind in range(2):
            room.stats.counters[figure][kind].peak = room.stats.counters[figure][kind].current
        room.stats.peak_all[figure] = current_of(&room.stats, figure)
    unlock_room(room)
    if room.backend.reset_reserved_peak != NULL:
        room.backend.reset_reserved_peak(room)


cdef void foreign_reset_accumulated(Foreign* room) noexcept nogil:
    cdef int figure, kind
    cdef Counter* counter
    lock_room(room)
    for figure in range(STATS):
        for kind in range(2):
            counter = &room.stats.counters[figure][kind]
            counter.allocated = counter.freed = 0
    clear_counts(&room.stats)
    unlock_room(room)


cdef const char* foreign_audit(Foreign* room) noexcept nogil:
    cdef const char* found
    lock_room(room)
    found = room.broken if room.broken != NULL else foreign_violation(room)
    unlock_room(room)
    return found


cdef const char* foreign_violation(Foreign* room) noexcept nogil:
    cdef const Record* record
    cdef size_t index, live_bytes = 0, leaving = 0, leaving_bytes = 0
    for index in range(room.live.capacity):
        record = <const Record*>room.live.slots[index].value
        if record != NULL:
            if record.address != room.live.slots[index].key or record.size == 0:
                return "a live address has its own record, of more than no bytes"
            live_bytes += record.size
    record = room.oldest
    while record != NULL:
        leaving += 1
        leaving_bytes += record.size
        record = record.next
    if leaving != room.leaving:
        return "the count of leaving records is that of their queue"
    return compare(room, live_bytes, leaving_bytes + room.departing_bytes)


cdef const char* compare(Foreign* room, int64_t live_bytes, int64_t parting_bytes) noexcept nogil:
    if current_of(&room.stats, ALLOCATION) != <int64_t>room.live.count:
        return "every live address is counted once"
    if current_of(&room.stats, ALLOCATED_BYTES) != live_bytes:
        return "allocated_bytes are those of the live addresses"
    if current_of(&room.stats, ACTIVE) != <int64_t>(room.live.count + room.leaving + room.departing):
        return "active = live + leaving + departing, in blocks"
    if current_of(&room.stats, ACTIVE_BYTES) != live_bytes + parting_bytes:
        return "active = live + leaving + departing, in bytes"
    if current_of(&room.stats, REQUESTED_BYTES) != current_of(&room.stats, ACTIVE_BYTES):
        return "a foreign block is as large as was asked"
    return NULL
