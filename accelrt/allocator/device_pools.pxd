# Each device's pool: it is made at its first use, with the settings that are wanted then.  Devices are valid ordinals.
# Callers hold none of the pool's locks and, unless a comment says otherwise, not the GIL.
from accelrt.allocator.history_types cimport HistorySettings
from accelrt.allocator.pool_settings cimport PoolSettings
from accelrt.allocator.types cimport Pool

cdef enum:
    MAX_DEVICES = 64

cdef extern from *:
    """
    #define load_pool(place) __atomic_load_n(place, __ATOMIC_ACQUIRE)
    """
    Pool* load_pool(Pool** place) noexcept nogil

# What the fast path looks at: the pool, a stand-in while it is watched (pool.pyx), or one that is not made.  Written by
# device_pools.pyx alone.
cdef Pool* pools[MAX_DEVICES]

cdef int make_pool(int device, Pool** out_pool) noexcept nogil  # where pool_of finds none; a device that does not exist too


cdef inline Pool* listed_pool(int device) noexcept nogil:
    # Never NULL.  Any thread, without a lock, as the next.
    return load_pool(&pools[device])


cdef inline Pool* pool_if_made(int device) noexcept nogil:
    # NULL before the device's first allocation.
    return listed_pool(device).whole


cdef inline int pool_of(int device, Pool** out_pool) noexcept nogil:
    # Makes it if it does not exist.
    cdef Pool* pool = pool_if_made(device)
    if pool == NULL:
        return make_pool(device, out_pool)
    out_pool[0] = pool
    return 0


cdef void want_settings(const PoolSettings* settings) noexcept nogil  # for pools that are made from now on
cdef void want_level(int level) noexcept nogil  # likewise, the level of audits: 0 none, 1 counters, 2 everything
cdef void replace_settings(Pool* pool, const PoolSettings* settings) noexcept nogil  # in the exclusive section
# Of all pools, those that are made later too.  NO_HOST_MEMORY: some have it, some don't.  Callers take turns.
cdef int set_history(const HistorySettings* settings) noexcept nogil
# For callers that come without the GIL from Python, under no lock: whether operations of this level keep their stack
# (history_types.pxd); and, with the GIL, takes the one of the operation that is about to begin.
cdef bint wants_stack(int level) noexcept nogil
cdef void take_stack_of(int device, int level) noexcept nogil
cdef int wanted_context() noexcept nogil  # which operations of pools that are yet to be made keep their stack
