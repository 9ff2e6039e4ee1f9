"""What is known of a stream's progress.

A stream's free blocks bear the epoch in which they were freed.  An epoch ends when the stream is seen idle,
or when an event is recorded behind its work: once that is complete, what was freed until then is free of
the stream's work, without an event for each block.
"""
from accelrt.addresses cimport AddressMap, map_find, map_insert, map_reserve
from accelrt.driver.captures cimport enter_wait, is_capturing, leave_wait, record_behind
from accelrt.driver.relaxed cimport go_relaxed, restore_mode
from accelrt.memory.lock cimport spin_lock, spin_unlock
from accelrt.memory.queues cimport put_entry, take_entry
from accelrt.memory.terms cimport Private
from accelrt.status cimport NOT_READY

cdef AddressMap trusted  # under the lock; forks inherit it, which is harmless: handles of a child are its own
cdef int trusting = 0


cdef int trust_stream(uintptr_t stream, Lineage* lineage) noexcept nogil:
    cdef int code = 0
    spin_lock(&trusting)
    if map_find(&trusted, stream) == NULL:
        code = map_reserve(&trusted)
        if code == 0:
            map_insert(&trusted, stream, lineage)
    spin_unlock(&trusting)
    return code


cdef bint is_trusted(uintptr_t stream) noexcept nogil:
    # 0 and 1 are the legacy default stream; 2, the thread's own, is another one for each who asks.
    cdef bint answer
    spin_lock(&trusting)
    answer = stream < 2 or map_find(&trusted, stream) != NULL
    spin_unlock(&trusting)
    return answer


cdef const Lineage* lineage_of(uintptr_t stream) noexcept nogil:
    cdef const Lineage* found
    spin_lock(&trusting)
    found = <const Lineage*>map_find(&trusted, stream)
    spin_unlock(&trusting)
    return found


cdef void settle_epoch(Heap* heap) noexcept nogil:
    # A marker that is still out says nothing new.
    heap.settled = heap.marked = heap.epoch
    heap.epoch += 1


cdef void mark(Pool* pool, Heap* heap) noexcept nogil:
    # Behind the work of a stream that is busy.  A refusal only means that its pages stay its own longer.
    if take_entry(pool.table, pool.device, &pool.spare_entries, &heap.marker):
        heap.marker = NULL
    elif record_behind(pool.table, pool.device, heap.marker.event, heap.stream):
        put_entry(&pool.spare_entries, heap.marker)
        heap.marker = NULL
    else:
        heap.marked = heap.epoch
        heap.epoch += 1


cdef void ask_marker(Pool* pool, Heap* heap) noexcept nogil:
    # One that cannot be asked, since it was captured, makes room for another.
    cdef int code = pool.table.event_query(pool.device, heap.marker.event)
    if code == NOT_READY:
        return
    if code == 0 and <int>(heap.marked - heap.settled) > 0:  # the device may have been waited for since
        heap.settled = heap.marked
    put_entry(&pool.spare_entries, heap.marker)
    heap.marker = NULL


cdef void ask(Pool* pool, Heap* heap) noexcept nogil:
    # Inside enter_wait: no capture of accelrt's begins between the look and the question.
    cdef int code
    if heap.marker != NULL:
        ask_marker(pool, heap)
    if is_quiet(heap) or is_capturing(pool.table, pool.device, heap.stream, &code) or code:
        return
    if pool.table.stream_query(pool.device, heap.stream) == 0:
        settle_epoch(heap)
    elif heap.marker == NULL:
        mark(pool, heap)


cdef bint begin_asking(Pool* pool, int* out_mode) noexcept nogil:
    if not enter_wait():
        return False
    if go_relaxed(pool.table, out_mode) == 0:
        return True
    leave_wait()
    return False


cdef void end_asking(Pool* pool, int mode) noexcept nogil:
    restore_mode(pool.table, mode)
    leave_wait()


cdef void look(Pool* pool, Heap* heap) noexcept nogil:
    # Not beside a capture, where asking about streams is not ours to do.
    cdef int mode
    if is_quiet(heap) or not heap.trusted or not begin_asking(pool, &mode):
        return
    ask(pool, heap)
    end_asking(pool, mode)


cdef void look_at_others(Pool* pool, Heap* heap) noexcept nogil:
    cdef Heap* other = pool.heaps
    cdef bint relaxed = False, lends
    cdef int mode
    while other != NULL:
        lends = other.owner == heap.owner or (heap.owner == NULL and other.owner.uses == 0)
        if other != heap and lends and other.summary and other.trusted and not is_quiet(other):
            if not relaxed and not begin_asking(pool, &mode):
                return
            relaxed = True
            ask(pool, other)
        other = other.next
    if relaxed:
        end_asking(pool, mode)


cdef void drop_markers(Pool* pool) noexcept nogil:
    # What they would have said is asked again when it is wanted.
    cdef Heap* heap = pool.heaps
    while heap != NULL:
        if heap.marker != NULL:
            put_entry(&pool.spare_entries, heap.marker)
            heap.marker = NULL
        heap = heap.next


cdef void close_epochs(Pool* pool) noexcept nogil:
    cdef Heap* heap = pool.heaps
    cdef Private* owner = pool.privates
    while heap != NULL:
        heap.waited = heap.epoch
        heap.epoch += 1
        heap = heap.next
    while owner != NULL:
        if owner.uses == 0 and owner.rest == 0:
            owner.rest = 1
        owner = owner.next


cdef void settle_all(Pool* pool) noexcept nogil:
    cdef Heap* heap = pool.heaps
    cdef Private* owner = pool.privates
    while heap != NULL:
        if <int>(heap.waited - heap.settled) > 0:
            heap.settled = heap.waited
        heap = heap.next
    while owner != NULL:
        if owner.rest == 1:
            owner.rest = 2
        owner = owner.next
