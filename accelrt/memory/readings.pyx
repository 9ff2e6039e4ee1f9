"""A pool's figures, each read under its lock."""
from libc.stdint cimport SIZE_MAX
from libc.string cimport memset

from accelrt.addresses cimport AddressMap
from accelrt.memory.foreign_readings cimport (
    foreign_audit, foreign_limit, foreign_reset_accumulated, foreign_reset_peaks, foreign_stats,
)
from accelrt.memory.invariants cimport violated
from accelrt.memory.block cimport Block, Heap, Private, pthread_mutex_lock, pthread_mutex_unlock
from accelrt.memory.stats cimport (
    ACTIVE_BYTES, ALLOCATED_BYTES, FIGURES, RESERVED_BYTES, Counter, current_of,
)


cdef int64_t read_current(Pool* pool, int figure) noexcept nogil:
    cdef int64_t answer
    cdef Stats stats
    if pool == NULL:
        return 0
    if pool.foreign != NULL:
        stats = foreign_stats(pool.foreign)
        return current_of(&stats, figure)
    pthread_mutex_lock(&pool.lock)
    answer = current_of(&pool.stats, figure)
    pthread_mutex_unlock(&pool.lock)
    return answer


cdef int64_t allocated_bytes(Pool* pool) noexcept nogil:
    return read_current(pool, ALLOCATED_BYTES)


cdef int64_t active_bytes(Pool* pool) noexcept nogil:
    return read_current(pool, ACTIVE_BYTES)


cdef int64_t reserved_bytes(Pool* pool) noexcept nogil:
    return read_current(pool, RESERVED_BYTES)


cdef size_t largest_in(const AddressMap* heaps) noexcept nogil:
    cdef const Heap* heap
    cdef const Block* block
    cdef size_t index, largest = 0
    cdef int kind
    for index in range(heaps.capacity):
        heap = <const Heap*>heaps.slots[index].value
        if heap == NULL:
            continue
        for kind in range(2):
            block = heap.free[kind]
            while block != NULL:
                largest = max(largest, block.size)
                block = block.right
    return largest


cdef size_t largest_free(Pool* pool) noexcept nogil:
    cdef size_t largest
    cdef const Private* owner
    if pool == NULL:
        return 0
    pthread_mutex_lock(&pool.lock)
    largest = largest_in(&pool.heaps)
    owner = pool.privates
    while owner != NULL:
        largest = max(largest, largest_in(&owner.heaps))
        owner = owner.next
    pthread_mutex_unlock(&pool.lock)
    return largest


cdef size_t limit_of(Pool* pool) noexcept nogil:
    cdef size_t limit
    if pool == NULL:
        return SIZE_MAX
    if pool.foreign != NULL:
        return foreign_limit(pool.foreign)
    pthread_mutex_lock(&pool.lock)
    limit = pool.limit
    pthread_mutex_unlock(&pool.lock)
    return limit


cdef Stats read_stats(Pool* pool) noexcept nogil:
    cdef Stats stats
    if pool == NULL:
        memset(&stats, 0, sizeof(Stats))
        return stats
    if pool.foreign != NULL:
        return foreign_stats(pool.foreign)
    pthread_mutex_lock(&pool.lock)
    stats = pool.stats
    pthread_mutex_unlock(&pool.lock)
    return stats


cdef void reset_peaks(Pool* pool) noexcept nogil:
    cdef int figure, kind
    if pool == NULL:
        return
    if pool.foreign != NULL:
        foreign_reset_peaks(pool.foreign)
        return
    pthread_mutex_lock(&pool.lock)
    for figure in range(FIGURES):
        for kind in range(2):
            pool.stats.figure[figure].kind[kind].peak = pool.stats.figure[figure].kind[kind].current
        pool.stats.figure[figure].peak_all = current_of(&pool.stats, figure)
    pthread_mutex_unlock(&pool.lock)


cdef void reset_accumulated(Pool* pool) noexcept nogil:
    cdef int figure, kind
    cdef Counter* counter
    if pool == NULL:
        return
    if pool.foreign != NULL:
        foreign_reset_accumulated(pool.foreign)
        return
    pthread_mutex_lock(&pool.lock)
    for figure in range(FIGURES):
        for kind in range(2):
            counter = &pool.stats.figure[figure].kind[kind]
            counter.allocated = counter.freed = 0
    pool.stats.num_alloc_retries = pool.stats.num_ooms = pool.stats.num_sync_all_streams = 0
    pool.stats.num_device_alloc = pool.stats.num_device_free = 0
    pthread_mutex_unlock(&pool.lock)


cdef object find_violation(Pool* pool):
    cdef const char* found
    if pool == NULL:
        return None
    if pool.foreign != NULL:
        found = foreign_audit(pool.foreign)
        return None if found == NULL else found.decode()
    with nogil:
        pthread_mutex_lock(&pool.lock)
        found = pool.broken if pool.broken != NULL else violated(pool, 2)
        pthread_mutex_unlock(&pool.lock)
    return None if found == NULL else found.decode()
