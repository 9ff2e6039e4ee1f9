"""Each device's pool: its making, the settings that are wanted of pools, and what is recorded in them.

A pool is made at the first use of its device, and never freed.  The lock making is held meanwhile, under which other pools'
growth locks are taken (backing/pages.pyx, join_peers).
"""
from libc.stdint cimport SIZE_MAX
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy

from accelrt.core.locks cimport pthread_mutex_init, pthread_mutex_lock, pthread_mutex_t, pthread_mutex_unlock
from accelrt.core.process cimport FORK_POOLS, at_fork
cimport accelrt.driver.registry as registry
from accelrt.allocator.backing.pages cimport join_peers
from accelrt.allocator.backing.stitching cimport reset_budget
from accelrt.allocator.event_ring cimport ensure_history, new_ring, replace_ring, take_first_stack, take_stack
from accelrt.allocator.exclusive cimport lock_all, unlock_all
from accelrt.allocator.history_types cimport Event
from accelrt.allocator.metadata cimport gone
from accelrt.allocator.pool_settings cimport store_flag, store_steps
from accelrt.allocator.pool_settings cimport limit_of_fraction
from accelrt.allocator.sizes cimport GRANULE
from accelrt.allocator.types cimport HEAP_SLOTS, MAX_PROBES, Heap
from accelrt.allocator.external.external_pool cimport external_attach
from accelrt.status cimport INVALID_DEVICE, NO_DEVICE, NO_HOST_MEMORY

cdef extern from *:
    """
    #define store_pool(place, pool) __atomic_store_n(place, pool, __ATOMIC_RELEASE)
    #define load_context(place) __atomic_load_n(place, __ATOMIC_RELAXED)
    #define store_context(place, context) __atomic_store_n(place, context, __ATOMIC_RELAXED)
    """
    void store_pool(Pool** place, Pool* pool) noexcept nogil
    int load_context(const int* place) noexcept nogil
    void store_context(int* place, int context) noexcept nogil

cdef Pool unmade              # in `pools` for each pool that is not made: it has no heaps
cdef Heap nowhere             # in the heap table for each heap that is not made: never fast, and no stream has its handle
cdef PoolSettings wanted      # of pools that are made from now on; under making
cdef int wanted_level         # likewise, the level of audits
cdef HistorySettings wanted_history  # of all pools; under making
cdef pthread_mutex_t making   # held while a pool is made; other pools' growth locks are taken under it


cdef int make_pool(int device, Pool** out_pool) noexcept nogil:
    # Makes a device's pool if the device exists.  Takes the lock making.
    cdef int count
    cdef int code = registry.active().device_count(&count)  # the first use initialises here, without a lock
    if code:
        return code
    if device >= count:
        return INVALID_DEVICE if count else NO_DEVICE
    pthread_mutex_lock(&making)
    if pools[device] == &unmade:
        code = make(device)
    out_pool[0] = pools[device].whole
    pthread_mutex_unlock(&making)
    return code


cdef void want_settings(const PoolSettings* settings) noexcept nogil:
    global wanted
    pthread_mutex_lock(&making)
    wanted = settings[0]
    pthread_mutex_unlock(&making)


cdef void want_level(int level) noexcept nogil:
    global wanted_level
    pthread_mutex_lock(&making)
    wanted_level = level
    pthread_mutex_unlock(&making)


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


cdef Pool* new_pool(int device) noexcept nogil:
    # A pool without heaps; NULL: no host memory.
    cdef Pool* pool = <Pool*>calloc(1, sizeof(Pool))
    cdef int index
    if pool == NULL:
        return NULL
    pool.device = device
    for index in range(HEAP_SLOTS + MAX_PROBES):
        pool.heap_table[0][index] = pool.heap_table[1][index] = &nowhere
    return pool


cdef void take_settings(Pool* pool) noexcept nogil:
    # Gives a pool that is made the wanted settings.  A device without virtual memory has plain segments, whatever is
    # wanted.  Under the lock making.
    cdef size_t granule = 0, total = 0
    pool.settings = wanted
    pool.granule = GRANULE
    pool.limit = SIZE_MAX
    reset_budget(pool)
    if wanted.fraction < 1 and pool.table.device_memory(pool.device, &total) == 0:
        pool.limit = limit_of_fraction(wanted.fraction, total)
    if not wanted.virtual_memory:
        return
    if pool.table.granularity(pool.device, &granule) or granule == 0:
        pool.settings.virtual_memory = pool.settings.stitching = False
    elif granule > GRANULE:
        pool.granule = granule


cdef int make(int device) noexcept nogil:
    # Makes a pool with the wanted settings, and its stand-in if need be, and publishes it.  Under the lock making.
    cdef Pool* pool = new_pool(device)
    cdef int code
    if pool == NULL:
        return NO_HOST_MEMORY
    pool.whole = pool
    pool.debug = wanted_level
    pool.table = registry.active()
    code = external_attach(device, registry.active(), wanted_level, &pool.external)
    if code == 0 and pool.external == NULL:
        code = ensure_recording(pool, &wanted_history)
    elif code == 0 and pool.debug:
        code = ensure_stand_in(pool)
    if code == 0:
        pthread_mutex_init(&pool.lock, NULL)
        pthread_mutex_init(&pool.growth, NULL)
        take_settings(pool)
    if code == 0 and pool.external == NULL:
        start_recording(pool, &wanted_history)
        code = join_peers(pool)
    if code:
        free(pool.stand_in)
        free(pool)
        return code
    store_pool(&pools[device], pool if pool.stand_in == NULL else pool.stand_in)
    return 0


# --- what is recorded ----------------------------------------------------------------------------------------

cdef int ensure_stand_in(Pool* pool) noexcept nogil:
    if pool.stand_in == NULL:
        pool.stand_in = new_pool(pool.device)
        if pool.stand_in == NULL:
            return NO_HOST_MEMORY
        pool.stand_in.whole = pool
    return 0


cdef inline bint is_watched(const Pool* pool, const HistorySettings* settings) noexcept nogil:
    return pool.debug != 0 or settings.records or settings.context or settings.tags


cdef int ensure_recording(Pool* pool, const HistorySettings* settings) noexcept nogil:
    # What may fail.  Of a pool that others use, without locks: only the thread whose turn it is (set_history) changes this.
    cdef Event* ring
    cdef int code = 0
    if is_watched(pool, settings):
        code = ensure_stand_in(pool)
    if code == 0 and (settings.records or settings.context or settings.tags):
        code = ensure_history(pool)
    if code == 0 and settings.records and pool.history.capacity != settings.capacity:
        ring = new_ring(settings.capacity)
        if ring == NULL:
            return NO_HOST_MEMORY
        free(replace_ring(pool.history, ring, settings.capacity))
    return code


cdef void start_recording(Pool* pool, const HistorySettings* settings) noexcept nogil:
    # Of a pool that others use, in the exclusive section: so no hit is under way, and no block is in a last-freed cache.
    if pool.history != NULL:
        pool.history.records = settings.records
        pool.history.skipped = settings.skipped
        store_context(&pool.history.context, settings.context)


cdef int wanted_context() noexcept nogil:
    return load_context(&wanted_history.context)


cdef bint wants_stack(int level) noexcept nogil:
    return wanted_context() >= level


cdef void take_stack_of(int device, int level) noexcept nogil:
    cdef const Pool* pool = pool_if_made(device)
    if pool != NULL:
        take_stack(pool, level, NULL)
    else:
        take_first_stack(wanted_context())


cdef int set_history(const HistorySettings* settings) noexcept nogil:
    cdef Pool* pool
    cdef int device, code
    pthread_mutex_lock(&making)
    wanted_history.records = settings.records
    store_context(&wanted_history.context, settings.context)
    wanted_history.capacity = settings.capacity
    wanted_history.skipped = settings.skipped
    wanted_history.tags = settings.tags
    pthread_mutex_unlock(&making)
    for device in range(MAX_DEVICES):
        pool = pool_if_made(device)
        if pool == NULL or pool.external != NULL:
            continue
        code = ensure_recording(pool, settings)
        if code:
            return code
        lock_all(pool)
        start_recording(pool, settings)
        store_pool(&pools[device], pool.stand_in if is_watched(pool, settings) else pool)
        unlock_all(pool, NULL)
    return 0


cdef void forget_pools() noexcept nogil:
    # At import, and in a forked child, which cannot use the parent's pools and locks that threads of the parent held.
    cdef int device
    pthread_mutex_init(&making, NULL)
    for device in range(MAX_DEVICES):
        store_pool(&pools[device], &unmade)


cdef void prepare_module() noexcept nogil:
    # At import.
    cdef int index
    nowhere.stream = gone()
    for index in range(HEAP_SLOTS + MAX_PROBES):
        unmade.heap_table[0][index] = unmade.heap_table[1][index] = &nowhere
    forget_pools()


prepare_module()
at_fork("allocator.device_pools", FORK_POOLS, NULL, NULL, &forget_pools)
