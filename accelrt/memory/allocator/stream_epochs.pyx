"""What is known of a stream's progress.

A stream's free blocks bear the epoch in which they were freed.  An epoch ends when the stream is seen idle,
or when an event is recorded behind its work: once that is complete, what was freed until then is free of
the stream's work, without an event for each block.
"""
from accelrt.driver.capture_guard cimport (
    enter_wait, go_relaxed, is_captured_event, is_capturing, leave_wait, record_behind, restore_mode,
)
from accelrt.memory.allocator.backing.free_pages cimport file_heap, file_heaps, has_pages
from accelrt.memory.allocator.block_ops cimport is_heap_quiescent
from accelrt.memory.allocator.event_queue cimport Entry, put_entry, take_entry
from accelrt.memory.allocator.private_pool cimport drop_replay, first_ending, forget_replays, has_graphs
from accelrt.memory.allocator.types cimport PrivatePool, Replay
from accelrt.status cimport NOT_READY

cdef void mark_quiescent(Heap* heap) noexcept nogil:
    # A marker that is still out says nothing new.
    heap.quiescent_epoch = heap.progress_epoch = heap.epoch
    heap.epoch += 1


cdef void mark(Pool* pool, Heap* heap) noexcept nogil:
    # Behind the work of a stream that is busy.  A refusal only means that its pages stay its own longer.
    if take_entry(pool.table, pool.device, &pool.spare_entries, &heap.progress_event):
        heap.progress_event = NULL
    elif record_behind(pool.table, pool.device, heap.progress_event.event, heap.stream):
        put_entry(&pool.spare_entries, heap.progress_event)
        heap.progress_event = NULL
    else:
        heap.progress_epoch = heap.epoch
        heap.epoch += 1


cdef void ask_marker(Pool* pool, Heap* heap) noexcept nogil:
    # One that cannot be asked, since it was captured, makes room for another.
    cdef int code
    if heap.progress_event == NULL:
        return
    code = pool.table.event_query(pool.device, heap.progress_event.event)
    if code == NOT_READY:
        return
    if code == 0 and <int>(heap.progress_epoch - heap.quiescent_epoch) > 0:  # the device may have been waited for since
        heap.quiescent_epoch = heap.progress_epoch
    put_entry(&pool.spare_entries, heap.progress_event)
    heap.progress_event = NULL


cdef void query_stream(Pool* pool, Heap* heap) noexcept nogil:
    # Inside enter_wait: no capture of accelrt's begins between the look and the question.
    cdef int code
    ask_marker(pool, heap)
    if is_heap_quiescent(heap) or is_capturing(pool.table, pool.device, heap.stream, &code) or code:
        return
    if pool.table.stream_query(pool.device, heap.stream) == 0:
        mark_quiescent(heap)
    elif heap.progress_event == NULL:
        mark(pool, heap)


cdef void ask_beside_capture(Pool* pool, Heap* heap) noexcept nogil:
    # The stream might begin to capture before it is asked, which would break that; an event is safe to ask.  One
    # behind the work of an idle stream is complete at once, or soon.
    ask_marker(pool, heap)
    if heap.progress_event == NULL and not is_heap_quiescent(heap):
        mark(pool, heap)
        ask_marker(pool, heap)


cdef void poll_progress(Pool* pool, Heap* heap) noexcept nogil:
    cdef int mode
    if is_heap_quiescent(heap) or not heap.trusted or go_relaxed(pool.table, &mode):
        return
    if enter_wait():
        query_stream(pool, heap)
        leave_wait()
    else:
        ask_beside_capture(pool, heap)
    restore_mode(pool.table, mode)


cdef void poll_others(Pool* pool, Heap* heap) noexcept nogil:
    cdef Heap* other = <Heap*>heap.owner.heaps if heap.owner != NULL else pool.awake
    while other != NULL:
        if other != heap and has_pages(pool, other) and (other.owner == heap.owner or other.owner.uses == 0):
            poll_progress(pool, other)
        other = other.sibling if heap.owner != NULL else other.next_awake
    if heap.owner == NULL:
        look_at_busy(pool, False)


cdef void look_at_busy(Pool* pool, bint in_use) noexcept nogil:
    # Those of private pools that are in use only where they are asked for.
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
    # At whatever pages may go to others: not those of graphs.
    cdef Heap* heap = pool.awake if pool.settings.virtual_memory else NULL
    cdef PrivatePool* owner = first_ending(pool)
    while heap != NULL:
        if has_pages(pool, heap) and (heap.owner == NULL or not has_graphs(heap.owner)):
            poll_progress(pool, heap)
        heap = heap.next_awake
    look_at_busy(pool, True)
    while owner != NULL:
        if owner.rest == 0:
            look_at_replays(pool, owner)
        owner = owner.next_ending


# --- replays of graphs that are gone -------------------------------------------------------------------------

cdef bint is_past(Pool* pool, Replay* found) noexcept nogil:
    # Its marker is asked anywhere; the stream itself inside enter_wait.
    cdef int code
    if not found.progress_epoch:
        return False
    code = pool.table.event_query(pool.device, (<Entry*>found.progress_event).event)
    found.progress_epoch = not is_captured_event(code)
    return code == 0


cdef void mark_replay(Pool* pool, Replay* found) noexcept nogil:
    if found.progress_event == NULL and take_entry(pool.table, pool.device, &pool.spare_entries, <Entry**>&found.progress_event):
        found.progress_event = NULL
        return
    found.progress_epoch = record_behind(pool.table, pool.device, (<Entry*>found.progress_event).event, found.stream) == 0


cdef void ask_replays(Pool* pool, PrivatePool* owner, bint may_ask_streams) noexcept nogil:
    # A stream that is idle is past them; behind a busy one a marker is recorded, which can be asked beside captures.
    cdef Replay** link = &owner.replays
    cdef Replay* found
    cdef int code
    while link[0] != NULL:
        found = link[0]
        if is_past(pool, found):
            drop_replay(pool, link)
            continue
        if may_ask_streams and not found.progress_epoch:
            if not is_capturing(pool.table, pool.device, found.stream, &code) and code == 0 and (
                    pool.table.stream_query(pool.device, found.stream) == 0):
                drop_replay(pool, link)
                continue
            mark_replay(pool, found)
        link = &found.next


cdef void look_at_replays(Pool* pool, PrivatePool* owner) noexcept nogil:
    cdef Replay* found = owner.replays
    cdef int mode
    while found != NULL:
        found.waited = False
        found = found.next
    if owner.replays != NULL and go_relaxed(pool.table, &mode) == 0:
        if enter_wait():
            ask_replays(pool, owner, True)
            leave_wait()
        else:
            ask_replays(pool, owner, False)
        restore_mode(pool.table, mode)
    note_rest(pool, owner)


cdef void note_rest(Pool* pool, PrivatePool* owner) noexcept nogil:
    if owner.replays == NULL and not owner.hidden:
        owner.rest = 2
        file_heaps(pool, owner)


cdef Replay* next_replay(Pool* pool) noexcept nogil:
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
    # Another replay may have been noted there meanwhile, or the record have gone: then it was not waited for.
    cdef PrivatePool* owner = first_ending(pool)
    cdef Replay** link
    while owner != NULL:
        link = &owner.replays
        while link[0] != NULL and link[0] != waited:
            link = &link[0].next
        if link[0] != NULL and link[0].waited:
            drop_replay(pool, link)
            if owner.rest == 0:
                note_rest(pool, owner)
            return
        owner = owner.next_ending


cdef void drop_progress_events(Pool* pool) noexcept nogil:
    # What they would have said is asked again when it is wanted.
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
                found.progress_epoch = False
            found = found.next
        owner = owner.next_ending


cdef void close_epochs(Pool* pool) noexcept nogil:
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


cdef void settle_none(Pool* pool) noexcept nogil:
    cdef PrivatePool* owner = pool.ending
    while owner != NULL:
        if owner.rest == 1:
            owner.rest = 0
        owner = owner.next_ending
