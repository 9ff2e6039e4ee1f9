"""What the settings string says, as the pools read it."""
from libc.stdint cimport SIZE_MAX

from accelrt.memory.sizes cimport GRANULE, LARGE_SEGMENT


cdef void take_policy(Pool* pool) noexcept nogil:
    # A device without virtual memory has plain segments, whatever is wanted.
    cdef size_t granule = 0, total = 0
    pool.policy = wanted
    pool.granule = GRANULE
    pool.limit = SIZE_MAX
    if wanted.fraction < 1 and pool.table.device_memory(pool.device, &total) == 0:
        pool.limit = <size_t>(wanted.fraction * total)
    if not wanted.virtual_memory:
        return
    if pool.table.granularity(pool.device, &granule) or granule == 0:
        pool.policy.virtual_memory = pool.policy.stitching = False
    elif granule > GRANULE:
        pool.granule = granule


wanted.virtual_memory = wanted.stitching = True
wanted.max_split = SIZE_MAX
wanted.large_segment = wanted.max_rounding = LARGE_SEGMENT
wanted.fraction = 1
