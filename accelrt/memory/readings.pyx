"""A pool's figures, each read at one moment."""
from libc.stdint cimport SIZE_MAX
from libc.string cimport memset

from accelrt.memory.block cimport CLASSES, Block, Heap
from accelrt.memory.credit cimport forget_earned
from accelrt.memory.foreign_readings cimport (
    foreign_audit, foreign_limit, foreign_reset_accumulated, foreign_reset_peaks, foreign_stats,
)
from accelrt.memory.freelist cimport next_class
from accelrt.memory.invariants cimport violated_between
from accelrt.memory.lock cimport spin_lock, spin_unlock
from accelrt.memory.private cimport has_graphs, sum_of
from accelrt.memory.share cimport current, forget_made, lower_ceilings, made
from accelrt.memory.stats cimport (
    ACTIVE_BYTES, ALLOCATED_BYTES, BOTH, FIGURES, RESERVED_BYTES, SHARED, Counter, current_of,
)
from accelrt.memory.swing cimport rest
from accelrt.memory.terms cimport Private
from accelrt.memory.world cimport counted, enter, leave, lock_to_read, reserved, unlock_after_read
from accelrt.mutex cimport pthread_mutex_lock, pthread_mutex_unlock


cdef int64_t foreign_current(Pool* pool, int figure) noexcept nogil:
    cdef Stats stats = foreign_stats(pool.foreign)
    return current_of(&stats, figure)


cdef int64_t current_shared(Pool* pool, int figure) noexcept nogil:
    # A few nanoseconds a heap that is awake.
    cdef int64_t answer
    cdef Heap* heap
    if pool == NULL:
        return 0
    if pool.foreign != NULL:
        return foreign_current(pool, figure)
    pthread_mutex_lock(&pool.lock)
    answer = pool.asleep[0][figure] + pool.asleep[1][figure]
    heap = pool.awake
    while heap != NULL:
        spin_lock(&heap.lock)
        rest(heap)
        answer += current(heap, BOTH, figure)
        spin_unlock(&heap.lock)
        heap = heap.next_awake
    pthread_mutex_unlock(&pool.lock)
    return answer


cdef int64_t allocated_bytes(Pool* pool) noexcept nogil:
    return current_shared(pool, ALLOCATED_BYTES)


cdef int64_t active_bytes(Pool* pool) noexcept nogil:
    return current_shared(pool, ACTIVE_BYTES)


cdef int64_t reserved_bytes(Pool* pool) noexcept nogil:
    cdef int64_t answer
    if pool == NULL:
        return 0
    if pool.foreign != NULL:
        return foreign_current(pool, RESERVED_BYTES)
    enter(pool)
    answer = reserved(pool)
    leave(pool, NULL)
    return answer


cdef int64_t peak_of(Pool* pool, int figure) noexcept nogil:
    cdef int64_t answer
    if pool == NULL:
        return 0
    if pool.foreign != NULL:
        return foreign_stats(pool.foreign).peak_all[figure]
    enter(pool)
    answer = pool.stats.peak_all[figure]
    leave(pool, NULL)
    return answer


cdef size_t largest_in(const Heap* heap) noexcept nogil:
    cdef int index = next_class(heap, -1), last = -1
    cdef const Block* block
    while index >= 0:
        last = index
        index = next_class(heap, index) if index + 1 < CLASSES else -1
    if last < 0:
        return 0
    block = heap.trees[last]
    while block.right != NULL:
        block = block.right
    return block.size


cdef size_t largest_free(Pool* pool) noexcept nogil:
    cdef size_t largest = 0
    cdef Heap* heap
    if pool == NULL:
        return 0
    enter(pool)
    heap = pool.heaps
    while heap != NULL:
        largest = max(largest, largest_in(heap))
        heap = heap.next
    leave(pool, NULL)
    return largest


cdef Holders holders_of_idle(Pool* pool) noexcept nogil:
    cdef Holders answer
    cdef const Private* owner
    cdef int64_t idle, most = 0
    memset(&answer, 0, sizeof(Holders))
    if pool == NULL or pool.foreign != NULL:
        return answer
    enter(pool)
    answer.capturing = pool.captures > 0
    owner = pool.privates
    while owner != NULL:
        idle = <int64_t>owner.reserved - sum_of(pool, owner, ACTIVE_BYTES)
        if has_graphs(owner):
            answer.graphs += idle
        elif owner.users:
            answer.pools += idle
            if idle > most:
                most = idle
                answer.largest = owner.id
        owner = owner.next
    leave(pool, NULL)
    return answer


cdef size_t limit_of(Pool* pool) noexcept nogil:
    cdef size_t limit
    if pool == NULL:
        return SIZE_MAX
    if pool.foreign != NULL:
        return foreign_limit(pool.foreign)
    enter(pool)
    limit = pool.limit
    leave(pool, NULL)
    return limit


cdef int64_t max_split_of(Pool* pool) noexcept nogil:
    cdef size_t limit = SIZE_MAX
    if pool != NULL:
        enter(pool)
        limit = pool.policy.max_split
        leave(pool, NULL)
    return -1 if limit == SIZE_MAX else limit


cdef int64_t accumulated(const Pool* pool, int figure, int kind) noexcept nogil:
    cdef const Heap* heap = pool.heaps
    cdef int64_t answer = 0
    while heap != NULL:
        answer += made(heap, kind, figure)
        heap = heap.next
    return answer


cdef Stats read_stats(Pool* pool) noexcept nogil:
    # What was freed is what was allocated, less what is there, plus what was there at the last reset.
    cdef Stats stats
    cdef int figure, kind
    cdef Counter* counter
    if pool == NULL:
        memset(&stats, 0, sizeof(Stats))
        return stats
    if pool.foreign != NULL:
        return foreign_stats(pool.foreign)
    enter(pool)
    stats = pool.stats
    for figure in range(SHARED):
        for kind in range(2):
            counter = &stats.figure[figure][kind]
            counter.current = counted(pool, figure, kind)
            counter.allocated = accumulated(pool, figure, kind)
            counter.freed = counter.allocated - counter.current + pool.freed_base[kind][figure]
    leave(pool, NULL)
    return stats


cdef void reset_peaks(Pool* pool) noexcept nogil:
    # The ceilings are shared out anew below the new peaks.
    cdef int figure, kind
    cdef Heap* heap
    if pool == NULL:
        return
    if pool.foreign != NULL:
        foreign_reset_peaks(pool.foreign)
        return
    enter(pool)
    heap = pool.heaps
    while heap != NULL:
        lower_ceilings(heap)
        heap = heap.next
    for figure in range(FIGURES):
        for kind in range(2):
            if figure < SHARED:
                pool.stats.figure[figure][kind].current = pool.total[kind][figure]
            pool.stats.figure[figure][kind].peak = pool.stats.figure[figure][kind].current
        pool.stats.peak_all[figure] = (
            pool.stats.figure[figure][0].current + pool.stats.figure[figure][1].current
        )
    pool.stats.oversize_allocations.peak = pool.stats.oversize_allocations.current
    pool.stats.oversize_segments.peak = pool.stats.oversize_segments.current
    leave(pool, NULL)


cdef void reset_counter(Counter* counter) noexcept nogil:
    counter.allocated = counter.freed = 0


cdef void reset_accumulated(Pool* pool) noexcept nogil:
    cdef int figure, kind
    cdef Heap* heap
    if pool == NULL:
        return
    if pool.foreign != NULL:
        foreign_reset_accumulated(pool.foreign)
        return
    enter(pool)
    forget_earned(pool)
    heap = pool.heaps
    while heap != NULL:
        forget_made(heap)
        heap = heap.next
    pool.asleep_made = 0
    for kind in range(2):
        for figure in range(SHARED):
            pool.freed_base[kind][figure] = pool.total[kind][figure]
        for figure in range(SHARED, FIGURES):
            reset_counter(&pool.stats.figure[figure][kind])
    reset_counter(&pool.stats.oversize_allocations)
    reset_counter(&pool.stats.oversize_segments)
    pool.stats.num_alloc_retries = pool.stats.num_ooms = pool.stats.num_sync_all_streams = 0
    pool.stats.num_device_alloc = pool.stats.num_device_free = pool.stats.virtual_memory_calls = 0
    leave(pool, NULL)


cdef const char* look_for_violation(Pool* pool) noexcept nogil:
    cdef const char* found
    if pool.foreign != NULL:
        return foreign_audit(pool.foreign)
    lock_to_read(pool)
    found = pool.broken if pool.broken != NULL else violated_between(pool, 2)
    unlock_after_read(pool)
    return found


cdef object find_violation(Pool* pool):
    cdef const char* found
    if pool == NULL:
        return None
    with nogil:
        found = look_for_violation(pool)
    return None if found == NULL else found.decode()
