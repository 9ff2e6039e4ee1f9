"""A pool's settings, as the settings string gives them, and its stitching budget (backing/DESIGN.md)."""
from libc.stdint cimport SIZE_MAX, int64_t
from libc.string cimport memcpy

from accelrt.memory.allocator.heap_stats cimport cumulative
from accelrt.memory.allocator.sizes cimport GRANULE, LARGE, SMALL
from accelrt.memory.allocator.stats cimport ALLOCATION
from accelrt.memory.allocator.types cimport Heap


cdef void take_settings(Pool* pool) noexcept nogil:
    # Under the lock making.  A device without virtual memory has plain segments, whatever is wanted.
    cdef size_t granule = 0, total = 0
    pool.settings = wanted
    pool.granule = GRANULE
    pool.limit = SIZE_MAX
    reset_budget(pool)
    if wanted.fraction < 1 and pool.table.device_memory(pool.device, &total) == 0:
        pool.limit = <size_t>(wanted.fraction * total)
    if not wanted.virtual_memory:
        return
    if pool.table.granularity(pool.device, &granule) or granule == 0:
        pool.settings.virtual_memory = pool.settings.stitching = False
    elif granule > GRANULE:
        pool.granule = granule


cdef void replace_settings(Pool* pool, const PoolSettings* settings) noexcept nogil:
    # In the exclusive section.  What stands before virtual_memory changes; what the fast path reads without a lock is
    # stored atomically, or stays.
    cdef size_t changing = <const char*>&settings.virtual_memory - <const char*>settings
    cdef bint stitches = settings.stitching and pool.settings.virtual_memory
    cdef int power
    memcpy(&pool.settings, settings, changing)
    pool.settings.stitching = stitches
    for power in range(64):
        store_steps(&pool.settings.divisions[power], settings.divisions[power])
    store_flag(&pool.settings.rounds, settings.rounds)


# --- the stitching budget: whether new stitched segments are worth what they cost ---------------------------

cdef enum:
    MAX_BUDGET = 8192  # the budget stays within plus and minus this; an allocation earns 1
    STITCH_PRICE = 64  # besides 1 a page; work that reuses its stitched segments makes fewer than one in so many allocations


cdef int64_t allocations(const Pool* pool) noexcept nogil:
    # All allocations since the last reset_accumulated, of the fast and the slow path.  In the exclusive section.
    cdef const Heap* heap = pool.awake
    cdef int64_t answer = pool.asleep_cumulative[SMALL][ALLOCATION] + pool.asleep_cumulative[LARGE][ALLOCATION]
    while heap != NULL:
        answer += cumulative(heap, SMALL, ALLOCATION) + cumulative(heap, LARGE, ALLOCATION)
        heap = heap.next_awake
    return answer


cdef void reset_budget(Pool* pool) noexcept nogil:
    pool.stitch_budget = MAX_BUDGET
    pool.refused = SIZE_MAX


cdef void earn_budget(Pool* pool) noexcept nogil:
    # Adds the allocations since the last call, so the fast path need not count them.  In the exclusive section.
    cdef int64_t count = allocations(pool)
    pool.stitch_budget = min(<int64_t>MAX_BUDGET, pool.stitch_budget + count - pool.budget_allocations)
    pool.budget_allocations = count


cdef bint is_over_budget(Pool* pool) noexcept nogil:
    earn_budget(pool)
    return pool.stitch_budget < 0


cdef void restart_budget_count(Pool* pool) noexcept nogil:
    earn_budget(pool)
    pool.budget_allocations = 0


cdef void charge_budget(Pool* pool, size_t pages) noexcept nogil:
    earn_budget(pool)
    pool.stitch_budget = max(-<int64_t>MAX_BUDGET, pool.stitch_budget - <int64_t>(STITCH_PRICE + pages))


cdef void refund_budget(Pool* pool, size_t pages) noexcept nogil:
    earn_budget(pool)
    pool.stitch_budget = min(<int64_t>MAX_BUDGET, pool.stitch_budget + <int64_t>(STITCH_PRICE + pages))
