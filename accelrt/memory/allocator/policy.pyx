"""What the settings string says, as the pools read it."""
from libc.stdint cimport SIZE_MAX
from libc.stdint cimport SIZE_MAX, int64_t

from accelrt.memory.allocator.heap_stats cimport made
from accelrt.memory.allocator.sizes cimport GRANULE, LARGE, LARGE_SEGMENT, SMALL
from accelrt.memory.allocator.stats cimport ALLOCATION
from accelrt.memory.allocator.types cimport Heap

cdef void take_policy(Pool* pool) noexcept nogil:
    # A device without virtual memory has plain segments, whatever is wanted.
    cdef size_t granule = 0, total = 0
    pool.policy = wanted
    pool.granule = GRANULE
    pool.limit = SIZE_MAX
    open_credit(pool)
    if wanted.fraction < 1 and pool.table.device_memory(pool.device, &total) == 0:
        pool.limit = <size_t>(wanted.fraction * total)
    if not wanted.virtual_memory:
        return
    if pool.table.granularity(pool.device, &granule) or granule == 0:
        pool.policy.virtual_memory = pool.policy.stitching = False
    elif granule > GRANULE:
        pool.granule = granule


cdef void replace_policy(Pool* pool, const Policy* policy) noexcept nogil:
    # What a pool was made with stays, how it grows and the size of its pieces: hits read it without a lock.
    cdef int power
    pool.policy.stitching = policy.stitching and pool.policy.virtual_memory
    pool.policy.slack = policy.slack
    pool.policy.max_split = policy.max_split
    pool.policy.large_segment = policy.large_segment
    pool.policy.max_rounding = policy.max_rounding
    pool.policy.collect = policy.collect
    pool.policy.fraction = policy.fraction
    for power in range(64):
        store_steps(&pool.policy.divisions[power], policy.divisions[power])
    store_flag(&pool.policy.rounds, policy.rounds)


wanted.virtual_memory = wanted.stitching = True
wanted.max_split = SIZE_MAX
wanted.large_segment = wanted.max_rounding = LARGE_SEGMENT
wanted.fraction = 1
wanted.slack = -1


# --- whether new windows are worth what they cost ---------------------------------------------------------

cdef enum:
    MOST = 8192        # of credit, and of debt; an allocation earns 1
    WINDOW_PRICE = 64  # beside 1 a page: windows that are wanted again are far rarer than one in so many


cdef int64_t allocations(const Pool* pool) noexcept nogil:
    cdef const Heap* heap = pool.awake
    cdef int64_t answer = pool.asleep_made[SMALL][ALLOCATION] + pool.asleep_made[LARGE][ALLOCATION]
    while heap != NULL:
        answer += made(heap, SMALL, ALLOCATION) + made(heap, LARGE, ALLOCATION)
        heap = heap.next_awake
    return answer


cdef void open_credit(Pool* pool) noexcept nogil:
    pool.credit = MOST
    pool.refused = SIZE_MAX


cdef void earn(Pool* pool) noexcept nogil:
    cdef int64_t count = allocations(pool)
    pool.credit = min(<int64_t>MOST, pool.credit + count - pool.earned)
    pool.earned = count


cdef bint is_overdrawn(Pool* pool) noexcept nogil:
    earn(pool)
    return pool.credit < 0


cdef void forget_earned(Pool* pool) noexcept nogil:
    earn(pool)
    pool.earned = 0


cdef void charge(Pool* pool, size_t pages) noexcept nogil:
    earn(pool)
    pool.credit = max(-<int64_t>MOST, pool.credit - <int64_t>(WINDOW_PRICE + pages))


cdef void repay(Pool* pool, size_t pages) noexcept nogil:
    earn(pool)
    pool.credit = min(<int64_t>MOST, pool.credit + <int64_t>(WINDOW_PRICE + pages))
