"""How far each stream has finished with the memory that it freed.

Each free block carries the epoch in which its heap's stream freed it.  An epoch ends when the stream is seen idle, or
when a progress event is recorded behind its work: once the event is complete, everything that was freed up to that
epoch is quiescent, without an event for each block.  Everything here runs in the exclusive section.
"""
from accelrt.driver.capture_guard cimport (
    enter_wait, go_relaxed, is_captured_event, is_capturing, leave_wait, record_behind, restore_mode,
)
from accelrt.allocator.backing.free_pages cimport file_heap, file_heaps, has_pages
from accelrt.allocator.event_queue cimport Entry, put_entry, take_entry
from accelrt.allocator.inline.block_ops cimport is_heap_quiescent
from accelrt.allocator.private.private_pool cimport drop_replay, first_ending, forget_replays, has_graphs
from accelrt.allocator.private.private_types cimport PrivatePool, Replay
from accelrt.status cimport NOT_READY

cdef void mark_quiescent(Heap* heap) noexcept nogil:
    # A progress event that is still recorded adds nothing then: its epoch is quiescent already.
    heap.quiescent_epoch = heap.progress_epoch = heap.epoch
    heap.epoch += 1


cdef void mark(Pool* pool, Heap* heap) noexcept nogil:
    # Records a progress event behind the work of a busy stream.  A failure is harmless: other streams get the heap's
    # pages later.
    if take_entry(pool.table, pool.device, &pool.spare_entries, &heap.progress_event):
        heap.progress_event = NULL
    elif record_behind(pool.table, pool.device, heap.progress_event.event, heap.stream):
        put_entry(&pool.spare_entries, heap.progress_event)
        heap.progress_event = NULL
    else:
        heap.progress_epoch = heap.epoch
        heap.epoch += 1


cdef void query_progress(Pool* pool, Heap* heap) noexcept nogil:
    # Queries the heap's progress event.  An event that was captured cannot be queried; it is dropped, so that another
    # can be recorded.
    cdef int code
    if heap.progress_event == NULL:
        return
    code = pool.table.event_query(pool.device, heap.progress_event.event)
    if code == NOT_READY:
        return
    if code == 0 and <int>(heap.progress_epoch - heap.quiescent_epoch) > 0:  # else the device was waited for since
        heap.quiescent_epoch = heap.progress_epoch
    put_entry(&pool.spare_entries, heap.progress_event)
    heap.progress_event = NULL


cdef void query_stream(Pool* pool, Heap* heap) noexcept nogil:
    # Queries the stream itself; a busy one gets a progress event.  Only between enter_wait and leave_wait, so that no
    # capture of accelrt's begins between the check for one and the query.
    cdef int code
    query_progress(pool, heap)
    if is_heap_quiescent(heap) or is_capturing(pool.table, pool.device, heap.stream, &code) or code:
        return
    if pool.table.stream_query(pool.device, heap.stream) == 0:
        mark_quiescent(heap)
    elif heap.progress_event == NULL:
        mark(pool, heap)


cdef void query_beside_capture(Pool* pool, Heap* heap) noexcept nogil:
    # Uses events alone: the stream may begin to capture before a query, which would break the capture.  An event behind
    # the work of an idle stream is complete at once, or soon.
    query_progress(pool, heap)
    if heap.progress_event == NULL and not is_heap_quiescent(heap):
        mark(pool, heap)
        query_progress(pool, heap)


cdef void poll_progress(Pool* pool, Heap* heap) noexcept nogil:
    # A stream that accelrt does not keep alive (not trusted) is never queried.  In relaxed capture mode, so that a query
    # breaks no capture of another thread.
    cdef int mode
    if is_heap_quiescent(heap) or not heap.trusted or go_relaxed(pool.table, &mode):
        return
    if enter_wait():
        query_stream(pool, heap)
        leave_wait()
    else:
        query_beside_capture(pool, heap)
    restore_mode(pool.table, mode)


cdef void poll_others(Pool* pool, Heap* heap) noexcept nogil:
    # Of the heaps that are awake or busy (free_pages.pxd), or, for a private pool's heap, of that pool.
    cdef Heap* other = <Heap*>heap.owner.heaps if heap.owner != NULL else pool.awake
    while other != NULL:
        if other != heap and has_pages(pool, other) and (other.owner == heap.owner or other.owner.uses == 0):
            poll_progress(pool, other)
        other = other.sibling if heap.owner != NULL else other.next_awake
    if heap.owner == NULL:
        poll_busy(pool, False)


cdef void poll_busy(Pool* pool, bint in_use) noexcept nogil:
    # Polls the sleeping heaps with free pages that are not quiescent, and files those that became so.  Heaps of private
    # pools in use only if in_use.
    cdef Heap* heap = pool.busy
    cdef Heap* after
    while heap != NULL:
        after = heap.filed_after
        if in_use or heap.owner == NULL or heap.owner.uses == 0:
            poll_progress(pool, heap)
        if is_heap_quiescent(heap):
            file_heap(pool, heap)
        heap = after


cdef void poll_all(Pool* pool) noexcept nogil:
    # Graphs keep the pages of their private pools, so those are not polled.
    cdef Heap* heap = pool.awake if pool.settings.virtual_memory else NULL
    cdef PrivatePool* owner = first_ending(pool)
    while heap != NULL:
        if has_pages(pool, heap) and (heap.owner == NULL or not has_graphs(heap.owner)):
            poll_progress(pool, heap)
        heap = heap.next_awake
    poll_busy(pool, True)
    while owner != NULL:
        if owner.rest == 0:
            poll_replays(pool, owner)
        owner = owner.next_ending


# --- replays of destroyed graphs -----------------------------------------------------------------------------

cdef bint is_past(Pool* pool, Replay* found) noexcept nogil:
    # Whether a replay's progress event is complete.  An event may be queried at any time, the stream only inside
    # enter_wait.  An event that was captured has to be recorded again.
    cdef int code
    if not found.recorded:
        return False
    code = pool.table.event_query(pool.device, (<Entry*>found.progress_event).event)
    found.recorded = not is_captured_event(code)
    return code == 0


cdef void mark_replay(Pool* pool, Replay* found) noexcept nogil:
    # Records a progress event behind the work of the replay's stream; recorded says whether that succeeded.
    cdef Entry** place = <Entry**>&found.progress_event
    if found.progress_event == NULL and take_entry(pool.table, pool.device, &pool.spare_entries, place):
        found.progress_event = NULL
        return
    found.recorded = record_behind(pool.table, pool.device, (<Entry*>found.progress_event).event, found.stream) == 0


cdef void query_replays(Pool* pool, PrivatePool* owner, bint may_query_streams) noexcept nogil:
    # Drops the replays that are over.  An idle stream has finished them; behind a busy one a progress event is recorded,
    # which can be queried beside captures too.
    cdef Replay** link = &owner.replays
    cdef Replay* found
    cdef int code
    while link[0] != NULL:
        found = link[0]
        if is_past(pool, found):
            drop_replay(pool, link)
            continue
        if may_query_streams and not found.recorded:
            if not is_capturing(pool.table, pool.device, found.stream, &code) and code == 0 and (
                    pool.table.stream_query(pool.device, found.stream) == 0):
                drop_replay(pool, link)
                continue
            mark_replay(pool, found)
        link = &found.next


cdef void poll_replays(Pool* pool, PrivatePool* owner) noexcept nogil:
    # Polls the replays of a private pool whose graphs are destroyed, and notes when all of them are over.
    cdef Replay* found = owner.replays
    cdef int mode
    while found != NULL:
        found.waited = False
        found = found.next
    if owner.replays != NULL and go_relaxed(pool.table, &mode) == 0:
        if enter_wait():
            query_replays(pool, owner, True)
            leave_wait()
        else:
            query_replays(pool, owner, False)
        restore_mode(pool.table, mode)
    update_replay_state(pool, owner)


cdef void update_replay_state(Pool* pool, PrivatePool* owner) noexcept nogil:
    # When no replay can be under way any more, the pool's pages may be searched: its heaps are filed.
    if owner.replays == NULL and not owner.hidden:
        owner.rest = 2
        file_heaps(pool, owner)


cdef Replay* next_replay(Pool* pool) noexcept nogil:
    # Of the private pools that have segments.
    cdef PrivatePool* owner = first_ending(pool)
    cdef Replay* found
    while owner != NULL:
        found = owner.replays if owner.rest == 0 and owner.segments else NULL
        while found != NULL and found.waited:
            found = found.next
        if found != NULL:
            return found
        owner = owner.next_ending
    return NULL


cdef void drop_waited(Pool* pool, const Replay* waited) noexcept nogil:
    # Skips a record that was freed, or whose stream replayed again during the wait (no longer marked waited).
    cdef PrivatePool* owner = first_ending(pool)
    cdef Replay** link
    while owner != NULL:
        link = &owner.replays
        while link[0] != NULL and link[0] != waited:
            link = &link[0].next
        if link[0] != NULL and link[0].waited:
            drop_replay(pool, link)
            if owner.rest == 0:
                update_replay_state(pool, owner)
            return
        owner = owner.next_ending


cdef void drop_progress_events(Pool* pool) noexcept nogil:
    # Of heaps and of replays.  Progress is queried anew when it is needed.
    cdef Heap* heap = pool.heaps
    cdef PrivatePool* owner = first_ending(pool)
    cdef Replay* found
    while heap != NULL:
        if heap.progress_event != NULL:
            put_entry(&pool.spare_entries, heap.progress_event)
            heap.progress_event = NULL
        heap = heap.next
    while owner != NULL:
        found = owner.replays
        while found != NULL:
            if found.progress_event != NULL:
                put_entry(&pool.spare_entries, <Entry*>found.progress_event)
                found.progress_event = NULL
                found.recorded = False
            found = found.next
        owner = owner.next_ending


cdef void close_epochs(Pool* pool) noexcept nogil:
    # Ends the epoch of every heap, and notes which private pools the wait for the device covers.
    cdef Heap* heap = pool.heaps
    cdef PrivatePool* owner = first_ending(pool)
    while heap != NULL:
        heap.waited = heap.epoch
        heap.epoch += 1
        heap = heap.next
    while owner != NULL:
        if owner.rest == 0:
            owner.rest = 1
        owner = owner.next_ending


cdef void mark_all_quiescent(Pool* pool) noexcept nogil:
    # Everything freed before close_epochs is quiescent, and the replays noted before it are over.
    cdef Heap* heap = pool.heaps
    cdef PrivatePool* owner = pool.ending
    while heap != NULL:
        if <int>(heap.waited - heap.quiescent_epoch) > 0:
            heap.quiescent_epoch = heap.waited
            if not heap.awake:
                file_heap(pool, heap)
        heap = heap.next
    while owner != NULL:
        if owner.rest == 1:
            owner.rest = 2
            forget_replays(pool, owner)
            file_heaps(pool, owner)
        owner = owner.next_ending


cdef void cancel_device_wait(Pool* pool) noexcept nogil:
    cdef PrivatePool* owner = pool.ending
    while owner != NULL:
        if owner.rest == 1:
            owner.rest = 0
        owner = owner.next_ending
