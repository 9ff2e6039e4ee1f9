"""A foreign room's figures and identities."""
from libc.stdint cimport int64_t

from accelrt.memory.foreign cimport Record, lock_room, unlock_room
from accelrt.memory.stats cimport (
    ACTIVE, ACTIVE_BYTES, ALLOCATED_BYTES, ALLOCATION, FIGURES, REQUESTED_BYTES, Counter, current_of,
)


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
    for figure in range(FIGURES):
        for kind in range(2):
            room.stats.figure[figure][kind].peak = room.stats.figure[figure][kind].current
        room.stats.peak_all[figure] = current_of(&room.stats, figure)
    unlock_room(room)
    if room.backend.reset_reserved_peak != NULL:
        room.backend.reset_reserved_peak(room)


cdef void foreign_reset_accumulated(Foreign* room) noexcept nogil:
    cdef int figure, kind
    cdef Counter* counter
    lock_room(room)
    for figure in range(FIGURES):
        for kind in range(2):
            counter = &room.stats.figure[figure][kind]
            counter.allocated = counter.freed = 0
    room.stats.num_alloc_retries = room.stats.num_ooms = room.stats.num_sync_all_streams = 0
    room.stats.num_device_alloc = room.stats.num_device_free = 0
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
