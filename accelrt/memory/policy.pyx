"""What the settings string says, as the pools read it."""
from libc.stdint cimport SIZE_MAX

from accelrt.memory.credit cimport open_credit
from accelrt.memory.sizes cimport GRANULE, LARGE_SEGMENT


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
