"""The devices' pools: allocations and frees, and memory that other processes have."""
from libc.stdint cimport SIZE_MAX, int64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset

from accelrt.allocator.audit cimport audit_between, inspected
from accelrt.allocator.backing.pages cimport (
    connect_peers, is_in_use, join_device, join_peers, keep_file, kept_file, make_pages_shareable, open_foreign,
    open_if_connected, slot_index, unlock_growth,
)
from accelrt.allocator.backing.stitching cimport confirm_pages, free_block, reset_budget
from accelrt.allocator.event_ring cimport (
    describe, drop_stack, ensure_history, Follower, Freed, new_ring, record_allocation, record_free, replace_ring,
    set_follower, take_first_stack, take_stack,
)
from accelrt.allocator.external.external_pool cimport (
    external_allocate, external_attach, external_empty, external_forget_stream, external_holds, external_release,
    external_set_limit, external_use_on,
)
from accelrt.allocator.heaps cimport (
    PER_THREAD, block_at, count_freed, count_splits, entered_pool, find_private, gone, hand_over, heap_at, heap_of,
    heap_stream, is_routed, lock_all, lock_to_read, lookup_heap, note_peaks, pool_for, reserved, try_lock_to_read,
    unlock_after_read, unlock_all,
)
from accelrt.allocator.inline.block_map cimport block_in
from accelrt.allocator.history_types cimport CONTEXT_ALL, CONTEXT_STATE, Event
from accelrt.allocator.inline.fast_path cimport allocate_cached, free_cached, put, take
from accelrt.allocator.miss cimport (
    claim, defer, find, hand_on_uses, leave_audited, load_offers, note_wait, offer, poll, record_all_events, record_events,
    release_own, release_with, Request, retry, wait_all,
)
from accelrt.allocator.pool_settings cimport (
    limit_of_fraction, load_flag, load_routed, reserve_of, rounded, store_flag, store_steps,
)
from accelrt.allocator.private.private_types cimport PrivatePool
from accelrt.allocator.sizes cimport GRANULE, LARGE, ROUND_LIMIT, SMALL, SMALL_LIMIT, UNIT, kind_of, round_up
from accelrt.allocator.types cimport CACHED, HEAP_SLOTS, LIVE, MAX_PROBES, PLAIN, Block, Heap, Page, Pool, Segment
from accelrt.core.handle_map cimport AddressMap, map_find, map_insert, map_remove, map_reserve
from accelrt.core.locks cimport (
    load_count, pthread_mutex_init, pthread_mutex_lock, pthread_mutex_t, pthread_mutex_trylock, pthread_mutex_unlock,
    spin_briefly, spin_lock, spin_try, spin_unlock, store_count,
)
from accelrt.core.process cimport FORK_POOLS, at_fork
from accelrt.driver.guard cimport add_use, destroy_spare, drop_use, has_use, is_main_thread, make_room_by, Use, UseStore
cimport accelrt.driver.registry as registry
from accelrt.status cimport (
    BROKEN, INVALID_DEVICE, NO_DEVICE, NO_HOST_MEMORY, NOT_ALLOCATED, NOT_READY, NOT_SUPPORTED, OUT_OF_MEMORY,
    SLEEPING,
)


# --- device pools -----------------------------------------------------------------------------------------------------
# Each device's pool: its making, the settings that are wanted of pools, and what is recorded in them.
#
# A pool is made at the first use of its device, and never freed.  The lock making is held meanwhile, under which other
# pools' growth locks are taken (backing/pages.pyx, join_peers).

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
cdef bint followed = False           # likewise: events are told as they happen
cdef pthread_mutex_t changing        # held while the histories of pools change; before making
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


def any_made() -> bool:
    """Tells whether a device has a pool."""
    cdef int device
    for device in range(MAX_DEVICES):
        if pool_if_made(device) != NULL:
            return True
    return False


def want_level(int level) -> None:
    """Has pools that are made from now on audited at a level: 0 never, 1 their counters, 2 everything."""
    global wanted_level
    with nogil:
        pthread_mutex_lock(&making)
        wanted_level = level
        pthread_mutex_unlock(&making)


def want_settings(values: dict[str, object], bint at_once=False, bint limits=False) -> None:
    """Gives pools settings.

    Arguments:
        values: dict, field of PoolSettings -> value.
        at_once: bool, whether the pools that are made already get them too.
        limits: bool, whether those get the limit that the fraction stands for.
    """
    global wanted
    cdef PoolSettings settings = values
    cdef Pool* pool
    cdef int device
    with nogil:
        pthread_mutex_lock(&making)
        wanted = settings
        pthread_mutex_unlock(&making)
        for device in range(MAX_DEVICES if at_once else 0):
            pool = pool_if_made(device)
            if pool != NULL:
                lock_all(pool)
                replace_settings(pool, &settings, limits)
                unlock_all(pool, NULL)


cdef void replace_settings(Pool* pool, const PoolSettings* settings, bint limits) noexcept nogil:
    # In the exclusive section.  What stands before virtual_memory changes; what the fast path reads without a lock is
    # stored atomically, or stays.
    cdef size_t changing = <const char*>&settings.virtual_memory - <const char*>settings
    cdef bint stitches = settings.stitching and pool.settings.virtual_memory
    cdef size_t total = 0
    cdef int power
    memcpy(&pool.settings, settings, changing)
    pool.settings.stitching = stitches
    for power in range(64):
        store_steps(&pool.settings.divisions[power], settings.divisions[power])
    store_flag(&pool.settings.rounds, settings.rounds)
    pool.room = 0
    if (limits or settings.reserve >= 0) and pool.table.device_memory(pool.device, &total) == 0:
        pool.room = reserve_of(settings.reserve, total, pool.granule)
        if limits:
            pool.limit = limit_of_fraction(settings.fraction, total)


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
    if (wanted.fraction < 1 or wanted.reserve >= 0) and pool.table.device_memory(pool.device, &total) == 0:
        pool.limit = limit_of_fraction(wanted.fraction, total)
        pool.room = reserve_of(wanted.reserve, total, pool.granule)
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
    open_imported_to(device)
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
    return pool.debug != 0 or has_history(settings)


cdef inline bint has_history(const HistorySettings* settings) noexcept nogil:
    return settings.records or settings.context or settings.tags or followed


cdef int ensure_recording(Pool* pool, const HistorySettings* settings) noexcept nogil:
    # What may fail.  Of a pool that others use, without locks: only the thread whose turn it is (set_history) changes this.
    cdef Event* ring
    cdef int code = 0
    if is_watched(pool, settings):
        code = ensure_stand_in(pool)
    if code == 0 and has_history(settings):
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
        pool.history.followed = followed
        pool.history.skipped = settings.skipped
        store_context(&pool.history.context, settings.context)


cdef int wanted_context() noexcept nogil:
    # Which operations of pools that are yet to be made keep their stack.
    return load_context(&wanted_history.context)


cdef bint wants_stack(int level) noexcept nogil:
    return wanted_context() >= level


cdef void take_stack_of(int device, int level) noexcept nogil:
    cdef const Pool* pool = pool_if_made(device)
    if pool != NULL:
        take_stack(pool, level, NULL)
    else:
        take_first_stack(wanted_context())


cdef Pool* recorded_pool(int device) noexcept nogil:
    cdef Pool* pool = pool_if_made(device)
    cdef bint records
    if pool == NULL:
        pthread_mutex_lock(&making)
        records = wanted_history.records
        pthread_mutex_unlock(&making)
        if not records or make_pool(device, &pool):
            return NULL
    return pool if pool.external == NULL and pool.history != NULL else NULL


cdef int follow_history(Follower follower) noexcept nogil:
    # The follower stays known to threads that are telling it something, so it is not set to NULL.
    global followed
    cdef HistorySettings settings
    if follower != NULL:
        set_follower(follower)
    pthread_mutex_lock(&making)
    followed = follower != NULL
    settings = wanted_history
    pthread_mutex_unlock(&making)
    return set_history(&settings)


cdef int set_history(const HistorySettings* settings) noexcept nogil:
    cdef int code
    pthread_mutex_lock(&changing)
    code = change_history(settings)
    pthread_mutex_unlock(&changing)
    return code


cdef int change_history(const HistorySettings* settings) noexcept nogil:
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


cdef void renew_pools() noexcept nogil:
    # At import, and in a forked child, which cannot use the parent's pools and locks that threads of the parent held.
    cdef int device
    pthread_mutex_init(&making, NULL)
    pthread_mutex_init(&changing, NULL)
    for device in range(MAX_DEVICES):
        store_pool(&pools[device], &unmade)


cdef void prepare_pools() noexcept nogil:
    # At import.
    cdef int index
    nowhere.stream = gone()
    for index in range(HEAP_SLOTS + MAX_PROBES):
        unmade.heap_table[0][index] = unmade.heap_table[1][index] = &nowhere
    renew_pools()


prepare_pools()


# --- interprocess -----------------------------------------------------------------------------------------------------
# Memory between processes.
#
# Of this process's, which pages a live block is made of, and how often each of them is exported.  Of other processes', which
# this one has mapped, the streams that were recorded as using it, until it is given back.

cdef struct Imported:
    int device
    uintptr_t address
    size_t size
    Use* uses
    Imported* next

cdef int lock = 0
cdef Imported* imported = NULL  # the latest first; under the lock
cdef UseStore imported_uses
cdef bint[MAX_DEVICES] reaching  # devices for which let_device_reach has done its work


# --- this process's memory -------------------------------------------------------------------------------------

cdef void share_new_pages() noexcept nogil:
    make_pages_shareable()


cdef Block* live_block(const Pool* pool, uintptr_t address) noexcept nogil:
    cdef Block* block = block_at(pool, address)
    return block if block != NULL and block.state == LIVE else NULL


cdef size_t first_slot(const Block* block) noexcept nogil:
    return slot_index(block.segment, block.address + 1) - 1


cdef size_t end_slot(const Block* block) noexcept nogil:
    return slot_index(block.segment, block.address + block.size)


cdef int list_pages(const Block* block, Exported* made) noexcept nogil:
    # In the exclusive section.
    cdef const Segment* segment = block.segment
    cdef size_t first = first_slot(block), end = end_slot(block), index
    cdef Page* page
    made.pages = <ExportedPage*>calloc(end - first, sizeof(ExportedPage))
    if made.pages == NULL:
        return NO_HOST_MEMORY
    made.count = end - first
    made.base = segment.slots[first].address
    made.size = segment.slots[end - 1].address + segment.slots[end - 1].size - made.base
    for index in range(first, end):
        page = segment.slots[index].page
        made.pages[index - first].serial = page.serial
        made.pages[index - first].handle = page.handle
        made.pages[index - first].size = page.size
        made.refused += not page.shareable
    return 0


cdef void count_exports(const Block* block, int change) noexcept nogil:
    # In the exclusive section.
    cdef size_t index
    for index in range(first_slot(block), end_slot(block)):
        block.segment.slots[index].page.exports += change


cdef int export_block(const Block* block, Exported* made) noexcept nogil:
    # In the exclusive section.
    cdef int code
    made.is_private = block.heap.owner != NULL
    if block.heap.owner != NULL and block.heap.owner.suspension != NULL:
        return SLEEPING
    if block.segment.shape == PLAIN:
        made.base = block.segment.address
        made.size = block.segment.size
        made.serial = block.segment.serial
        return 0
    code = list_pages(block, made)
    if code == 0 and made.refused == 0:
        count_exports(block, 1)
    return code


cdef int begin_export(int device, uintptr_t address, Exported* out_exported) noexcept nogil:
    cdef Pool* pool = pool_if_made(device)
    cdef const Block* block
    cdef int code
    memset(out_exported, 0, sizeof(Exported))
    if pool == NULL:
        return NOT_ALLOCATED
    if pool.external != NULL:
        return NOT_SUPPORTED
    lock_all(pool)
    block = live_block(pool, address)
    code = export_block(block, out_exported) if block != NULL else NOT_ALLOCATED
    unlock_all(pool, NULL)
    if code or out_exported.refused:
        free(out_exported.pages)
        out_exported.pages = NULL
    return code


cdef void end_export(int device, uintptr_t address) noexcept nogil:
    cdef Pool* pool = pool_if_made(device)
    cdef const Block* block
    if pool == NULL or pool.external != NULL:
        return
    lock_all(pool)
    block = live_block(pool, address)
    if block != NULL and block.segment.shape != PLAIN:
        count_exports(block, -1)
    unlock_all(pool, NULL)


cdef int export_page(uintptr_t handle, int* out_file, bint* out_kept) noexcept nogil:
    cdef int code = 0
    out_file[0] = kept_file(handle)
    out_kept[0] = True
    if out_file[0] < 0:
        code = registry.active().physical_export(handle, out_file)
        out_kept[0] = code == 0 and keep_file(handle, out_file[0])
    return code


# --- other processes' memory -----------------------------------------------------------------------------------

cdef void forget_imported() noexcept nogil:
    # In a forked child, which may not use the device: a thread of the parent's may have held the lock.
    global lock, imported
    lock = 0
    imported = NULL
    memset(&imported_uses, 0, sizeof(UseStore))


cdef Imported* around(uintptr_t address) noexcept nogil:
    cdef Imported* memory = imported
    while memory != NULL and address - memory.address >= memory.size:
        memory = memory.next
    return memory


cdef void open_imported_to(int device) noexcept nogil:
    # What was mapped before the device was in use.  What a driver refuses is unmapped by now, or fails where it is used.
    cdef Imported* each
    cdef Imported* copies
    cdef size_t count = 0, index = 0
    if imported == NULL:
        return
    spin_lock(&lock)
    each = imported
    while each != NULL:
        count += 1
        each = each.next
    copies = <Imported*>calloc(count + 1, sizeof(Imported))
    each = imported if copies != NULL else NULL
    while each != NULL:
        copies[index] = each[0]
        index += 1
        each = each.next
    spin_unlock(&lock)
    for count in range(index):
        open_if_connected(registry.active(), copies[count].device, copies[count].address, copies[count].size, device)
    free(copies)


cdef int let_device_reach(int device) noexcept nogil:
    # Threads that come at once do it each, and none returns before all is open.
    cdef int code
    if load_flag(&reaching[device]):
        return 0
    code = join_device(registry.active(), device)
    if code == 0:
        open_imported_to(device)
        store_flag(&reaching[device], True)
    return code


cdef int let_devices_reach() noexcept nogil:
    cdef int device
    cdef int code = connect_peers()
    for device in range(MAX_DEVICES if code == 0 and imported != NULL else 0):
        if is_in_use(device):
            open_imported_to(device)
    return code


cdef int open_imported(int device, uintptr_t address, size_t size) noexcept nogil:
    cdef int code = let_device_reach(device)
    return code if code else open_foreign(registry.active(), device, address, size)


cdef int add_imported(int device, uintptr_t address, size_t size) noexcept nogil:
    global imported
    cdef Imported* entry = <Imported*>calloc(1, sizeof(Imported))
    if entry == NULL:
        return NO_HOST_MEMORY
    entry.device, entry.address, entry.size = device, address, size
    spin_lock(&lock)
    entry.next = imported
    imported = entry
    spin_unlock(&lock)
    return 0


cdef int imported_around(uintptr_t address, uintptr_t* out_low, uintptr_t* out_high) noexcept nogil:
    cdef const Imported* memory
    cdef int device = -1
    spin_lock(&lock)
    memory = around(address)
    if memory != NULL:
        out_low[0], out_high[0], device = memory.address, memory.address + memory.size, memory.device
    spin_unlock(&lock)
    return device


cdef void drop_imported(uintptr_t address) noexcept nogil:
    cdef Imported** link
    cdef Imported* memory
    spin_lock(&lock)
    link = &imported
    while link[0] != NULL and link[0].address != address:
        link = &link[0].next
    memory = link[0]
    if memory != NULL:
        link[0] = memory.next
        while memory.uses != NULL:
            drop_use(&imported_uses, &memory.uses)
    spin_unlock(&lock)
    free(memory)


cdef int use_imported(uintptr_t address, int device, uintptr_t stream) noexcept nogil:
    # NOT_ALLOCATED: it is none of these.
    cdef Imported* memory
    cdef int code = NOT_ALLOCATED
    if imported == NULL:
        return code
    spin_lock(&lock)
    memory = around(address)
    if memory != NULL:
        code = add_use(&imported_uses, &memory.uses, device, stream)
    spin_unlock(&lock)
    return code


cdef int copy_each(const Use* use, UseStore* store, Use** uses) noexcept nogil:
    # Copies a list, or none where it is NULL, while its lock is held.
    cdef int code = 0
    while use != NULL and code == 0:
        code = add_use(store, uses, use.device, use.stream)
        use = use.next
    return code


cdef int copy_uses(uintptr_t address, UseStore* store, Use** uses) noexcept nogil:
    cdef const Imported* memory
    cdef int code
    spin_lock(&lock)
    memory = around(address)
    code = copy_each(memory.uses if memory != NULL else NULL, store, uses)
    spin_unlock(&lock)
    return code


# --- memory that was lent ---------------------------------------------------------------------------------------
# What a resource of the user's gave (accelrt/resources), which no block stands for, or one that stands for more than that.

cdef struct Lent:
    Use* uses

cdef int lending = 0       # a lock of these two
cdef AddressMap lent       # address -> Lent
cdef long lent_count = 0   # lent.count, which who has such memory reads without the lock
cdef UseStore lent_uses


cdef void forget_lent() noexcept nogil:
    global lending
    lending = 0
    store_count(&lent_count, 0)
    memset(&lent, 0, sizeof(AddressMap))
    memset(&lent_uses, 0, sizeof(UseStore))


cdef int add_lent(uintptr_t address) noexcept nogil:
    cdef Lent* entry = <Lent*>calloc(1, sizeof(Lent))
    cdef int code = NO_HOST_MEMORY
    if entry == NULL:
        return code
    spin_lock(&lending)
    code = map_reserve(&lent)
    if code == 0:
        map_insert(&lent, address, entry)
        store_count(&lent_count, <long>lent.count)
    spin_unlock(&lending)
    if code:
        free(entry)
    return code


cdef bint is_lent(uintptr_t address) noexcept nogil:
    cdef bint lends
    if load_count(&lent_count) == 0:
        return False
    spin_lock(&lending)
    lends = map_find(&lent, address) != NULL
    spin_unlock(&lending)
    return lends


cdef int use_lent(uintptr_t address, int device, uintptr_t stream) noexcept nogil:
    cdef Lent* memory
    cdef int code = NOT_ALLOCATED
    spin_lock(&lending)
    memory = <Lent*>map_find(&lent, address)
    if memory != NULL:
        code = add_use(&lent_uses, &memory.uses, device, stream)
    spin_unlock(&lending)
    return code


cdef int drop_lent(uintptr_t address, UseStore* store, Use** uses) noexcept nogil:
    cdef Lent* memory
    cdef int code
    spin_lock(&lending)
    memory = <Lent*>map_find(&lent, address)
    code = copy_each(memory.uses if memory != NULL else NULL, store, uses)
    if code == 0 and memory != NULL:
        map_remove(&lent, address)
        store_count(&lent_count, <long>lent.count)
        while memory.uses != NULL:
            drop_use(&lent_uses, &memory.uses)
        free(memory)
    spin_unlock(&lending)
    return code


cdef void forget_in_child() noexcept nogil:
    renew_pools()
    forget_imported()
    forget_lent()


at_fork("allocator.pool", FORK_POOLS, NULL, NULL, &forget_in_child)


# --- pool -------------------------------------------------------------------------------------------------------------
# One device's caching allocator: the entry points.
#
# Three kinds of locks, always taken in this order: growth, held by the one thread that takes memory from the device or
# releases it; lock, for bookkeeping; the locks of the heaps.  The fast path takes its heap's lock alone, routes and private
# pools take lock, everything else takes lock and the heaps' locks (heaps.pxd).  None but growth is held in calls
# of the driver that wait or may take long (queries and records of events are made inside), and none while a thread takes
# the GIL.

# hit_slow and give_back_slow, called through pointers: so the compiler keeps them out of the fast path's stack frame.
cdef int (*leave_hit)(Pool*, size_t, uintptr_t, uintptr_t*, bint) noexcept nogil
cdef int (*leave_give_back)(Pool*, uintptr_t, bint) noexcept nogil


# --- the fast path ---------------------------------------------------------------------------------------

cdef inline int serve(
    Pool* pool, size_t requested, uintptr_t stream, uintptr_t* out_address, bint wait, bint noted,
) noexcept nogil:
    # Allocates by the fast path; NOT_READY: take the slow path.  Takes the heap's lock; if not wait, a lock that is held
    # longer than by a hit also gives NOT_READY.  noted is known where this is compiled: the event is noted under that lock.
    cdef size_t size
    cdef Heap* heap
    cdef int code
    # One comparison for 0 and for impossible sizes; the slow path tells them apart.
    if (requested - 1) >> ROUND_LIMIT:
        return NOT_READY
    # A thread in use_mem_pool has a route to a private pool.  Its counter is read only if the pool has such routes.
    if load_routed(&pool.routed) and is_routed():
        return NOT_READY
    size = round_up(requested, UNIT) if not load_flag(&pool.settings.rounds) else rounded(&pool.settings, requested)
    heap = lookup_heap(pool.heap_table[pool.settings.virtual_memory or size > SMALL_LIMIT], stream)
    if heap == NULL:
        return NOT_READY if noted else leave_hit(pool, requested, stream, out_address, wait)
    if wait:
        spin_lock(&heap.lock)
    elif not spin_try(&heap.lock) and not spin_briefly(&heap.lock):
        return NOT_READY
    code = 0 if allocate_cached(heap, size, requested, out_address) else take(pool, heap, size, requested, out_address)
    if noted and code == 0:
        record_allocation(pool, found_by_hit(heap, out_address[0]), False)
    spin_unlock(&heap.lock)
    return code


cdef inline int take_back(Pool* pool, uintptr_t address, bint wait, bint noted) noexcept nogil:
    # Frees by the fast path, as serve allocates.
    cdef Heap* heap = heap_at(address)
    cdef const Block* block = NULL
    cdef Freed freed
    cdef int code
    if heap == NULL or heap.settings != &pool.settings:
        return NOT_READY if noted else leave_give_back(pool, address, wait)
    if wait:
        spin_lock(&heap.lock)
    elif not spin_try(&heap.lock) and not spin_briefly(&heap.lock):
        return NOT_READY
    if noted and heap.fast:
        block = found_by_hit(heap, address)
        if block != NULL:
            freed = describe(block)
    code = 0 if free_cached(heap, address) else put(pool, heap, address)
    if noted and code == 0 and block != NULL:
        record_free(pool, address, &freed, True)
    spin_unlock(&heap.lock)
    return code


cdef inline Block* found_by_hit(Heap* heap, uintptr_t address) noexcept nogil:
    # Under the heap's lock, of a heap that is fast.
    return heap.cached if heap.cached != NULL and heap.cached.address == address else block_in(heap, address)


cdef int hit(Pool* pool, size_t requested, uintptr_t stream, uintptr_t* out_address, bint wait) noexcept nogil:
    return serve(pool, requested, stream, out_address, wait, False)


cdef int give_back(Pool* pool, uintptr_t address, bint wait) noexcept nogil:
    return take_back(pool, address, wait, False)


# While a pool is audited (ACCELRT_DEBUG 1 and 2), has its history recorded or tags in use, a stand-in takes its place in
# `pools` (pool.pxd).  That has no heaps and no blocks, so every call gets here, takes the fast path on the pool
# itself, is noted and audited.  Without one of the three the fast path checks nothing for them.

cdef int hit_slow(Pool* pool, size_t requested, uintptr_t stream, uintptr_t* out_address, bint wait) noexcept nogil:
    cdef int code
    if not stands_in(pool):
        if pool.whole == NULL:
            take_first_stack(wanted_context())
        return NOT_READY
    pool = pool.whole
    take_stack(pool, CONTEXT_STATE, NULL)
    code = serve(pool, requested, stream, out_address, wait, True)
    if code == NOT_READY:
        return code
    drop_stack()
    return audited(pool, out_address[0], wait) if code == 0 and pool.debug else code


cdef int give_back_slow(Pool* pool, uintptr_t address, bint wait) noexcept nogil:
    cdef int code
    if not stands_in(pool):
        return NOT_READY
    pool = pool.whole
    take_stack(pool, CONTEXT_ALL, NULL)
    code = take_back(pool, address, wait, True)
    if code == NOT_READY:
        return code
    drop_stack()
    return audited(pool, address, wait) if code == 0 and pool.debug else code


cdef inline bint stands_in(const Pool* pool) noexcept nogil:
    return pool.whole != pool and pool.whole != NULL


cdef int audited(Pool* pool, uintptr_t address, bint wait) noexcept nogil:
    # Audits after a hit, with the heaps as the fast path left them; the caller holds no lock.  A caller that must not wait,
    # since it holds the GIL, is not audited while another thread has the pool's mutex: the next audit walks the same heaps.
    cdef int code
    if wait:
        lock_to_read(pool)
    elif not try_lock_to_read(pool):
        return 0
    pool.audited_hits += 1
    pool.audited_cached += is_cached_at(pool, address)
    if pool.failed_identity == NULL:
        pool.failed_identity = audit_between(pool, pool.debug)
    code = 0 if pool.failed_identity == NULL else BROKEN
    unlock_after_read(pool)
    return code


cdef bint is_cached_at(const Pool* pool, uintptr_t address) noexcept nogil:
    # Whether the last-freed cache served the call.  In the exclusive section.
    cdef const Block* block = block_at(pool, address)
    if block == NULL or block.heap.cached != block:
        return False
    return block.state == CACHED or block.heap.cached_rounds > 0


cdef int allocate(int device, size_t size, uintptr_t stream, uintptr_t* out_address) noexcept nogil:
    cdef int code = hit(listed_pool(device), size, stream, out_address, True)
    if code == NOT_READY:
        return allocate_slow(device, size, stream, out_address, False)
    return code


cdef int allocate_interruptibly(int device, size_t size, uintptr_t stream, uintptr_t* out_address) noexcept nogil:
    cdef int code = hit(listed_pool(device), size, stream, out_address, True)
    if code == NOT_READY:
        return allocate_slow(device, size, stream, out_address, is_main_thread())
    return code


cdef int release(int device, uintptr_t address) noexcept nogil:
    cdef int code = give_back(listed_pool(device), address, True)
    if code == NOT_READY:
        return release_slow(device, address)
    return code


cdef int try_allocate(int device, size_t size, uintptr_t stream, uintptr_t* out_address) noexcept nogil:
    return hit(listed_pool(device), size, stream, out_address, False)


cdef int try_release(int device, uintptr_t address) noexcept nogil:
    return give_back(listed_pool(device), address, False)


# --- the slow path -----------------------------------------------------------------------------------------

cdef int prepare(Pool* pool, Request* request, size_t size, uintptr_t stream) noexcept nogil:
    # Fills a request: its size, and the heap that the stream allocates from.  Polls if the heap has pending blocks, but not
    # during captures.  In the exclusive section.
    cdef PrivatePool* owner = NULL
    cdef int code = pool_for(pool, stream, &owner)
    request.requested = size
    request.size = rounded(&pool.settings, size)
    request.stream = stream
    request.kind = LARGE if pool.settings.virtual_memory else kind_of(request.size)
    if code == 0 and owner != NULL and owner.suspension != NULL:
        code = SLEEPING
    if code == 0:
        code = heap_of(pool, owner, heap_stream(stream), request.kind, &request.heap)
    if code == 0 and request.heap.pending and pool.captures == 0:
        code = poll(pool)
    return code


cdef int allocate_slow(int device, size_t size, uintptr_t stream, uintptr_t* out_address, bint interruptible) noexcept nogil:
    # Allocates in the exclusive section; a miss also takes the growth lock.
    cdef Pool* pool
    cdef Request request
    cdef bint grows = False
    cdef int code
    out_address[0] = 0
    if size == 0:
        return 0
    if size >> ROUND_LIMIT:
        return OUT_OF_MEMORY
    code = pool_of(device, &pool)
    if code:
        return code
    if pool.external != NULL:
        drop_stack()
        return external_allocate(pool.external, size, stream, out_address)
    request.heap = NULL
    request.interruptible = interruptible
    request.searched = False
    lock_all(pool)
    pool.allocations += 1
    code = prepare(pool, &request, size, stream)
    if code == 0 and request.heap.offered and request.stream != PER_THREAD:  # whose waits are not known
        code = take_offer(pool, &request, out_address)
    if code == 0 and out_address[0] == 0:
        code = find(pool, &request, out_address)
        if code == OUT_OF_MEMORY:
            grows = True
            code = allocate_missing(pool, &request, out_address)
    if code and request.heap != NULL:
        count_splits(pool, request.heap)
    if code == 0 and request.heap.owner != NULL:
        note_peaks(pool, request.heap.owner)
    code = inspected(pool, code)
    unlock_all(pool, request.heap)
    drop_stack()
    if grows:
        unlock_growth(pool)  # last: it may call functions of Python's
    return code


cdef int allocate_missing(Pool* pool, Request* request, uintptr_t* out_address) noexcept nogil:
    # Takes the growth lock, which comes before the inner lock, and retries: if another thread holds it, and so may be
    # growing the pool, the exclusive section is released for the wait, and the request begins anew.
    cdef int code = 0
    cdef bint waited = pthread_mutex_trylock(&pool.growth) != 0
    if waited:
        unlock_all(pool, NULL)
        pthread_mutex_lock(&pool.growth)
        lock_all(pool)
        code = prepare(pool, request, request.requested, request.stream)
    if code == 0:
        code = find(pool, request, out_address) if waited else OUT_OF_MEMORY
        if code == OUT_OF_MEMORY:
            code = retry(pool, request, out_address)
    return code


cdef int take_offer(Pool* pool, Request* request, uintptr_t* out_address) noexcept nogil:
    # Allocates by claiming an offered block; address 0 if none suits.  The claimant is recorded as a use, so the block
    # returns to its heap behind the claimant's work.  In the exclusive section.
    cdef Use* use = NULL
    cdef Block* block
    if add_use(&pool.uses, &use, pool.device, request.stream):
        return NO_HOST_MEMORY
    block = claim(pool, request.heap, request.size)
    if block == NULL:
        drop_use(&pool.uses, &use)
        return 0
    use.next = block.uses
    block.uses = use
    block.heap.pending -= 1
    hand_over(pool, block, request.requested)
    out_address[0] = block.address
    return 0


cdef int release_slow(int device, uintptr_t address) noexcept nogil:
    # Frees in the exclusive section; a block that other streams use becomes pending.
    cdef Pool* pool
    cdef Block* block
    cdef Heap* heap = NULL
    cdef int code
    if address == 0:
        return 0
    code = pool_of(device, &pool)
    if code:
        return code
    if pool.external != NULL:
        return external_release(pool.external, address)
    lock_all(pool)
    block = live_at(pool, address)
    if block == NULL:
        code = NOT_ALLOCATED
    else:
        heap = block.heap
        if heap.guards:
            confirm_pages(pool, heap)
        count_freed(pool, block)
        if block.uses == NULL:
            free_block(pool, block)
        else:
            # If recording fails, the block stays pending, and the next poll tries again.
            defer(pool, block)
            record_events(pool)
            count_splits(pool, heap)
        code = inspected(pool, code)
    unlock_all(pool, heap)
    drop_stack()
    return code


cdef Block* live_at(Pool* pool, uintptr_t address) noexcept nogil:
    # NULL: no live block of this pool begins there.  In the exclusive section, where no block is CACHED.
    cdef Block* block = block_at(pool, address)
    return NULL if block == NULL or block.state != LIVE else block


cdef bint holds(Pool* pool, uintptr_t address) noexcept nogil:
    # Whether the address is live memory of this pool.  Takes the exclusive section.
    cdef bint live
    if pool.external != NULL:
        return external_holds(pool.external, address)
    lock_all(pool)
    live = live_at(pool, address) != NULL
    unlock_all(pool, NULL)
    return live


cdef int device_at(uintptr_t address) noexcept nogil:
    cdef const Heap* heap = heap_at(address)
    if heap == NULL:
        return -1
    return (<const Pool*>(<const char*>heap.settings - <size_t>&(<Pool*>NULL).settings)).device


cdef const Block* find_around(const Segment* segment, const Heap* heap, uintptr_t address) noexcept nogil:
    # The block that contains the address, in a list of segments; or NULL.  In the exclusive section.
    cdef const Block* block
    while segment != NULL and (segment.heap != heap or address - segment.address >= segment.size):
        segment = segment.after
    block = segment.first if segment != NULL else NULL
    while block != NULL and address - block.address >= block.size:
        block = block.after
    return block


cdef int block_around(int device, uintptr_t address, uintptr_t* out_low, uintptr_t* out_high) noexcept nogil:
    cdef Pool* pool = pool_if_made(device)
    cdef const Heap* heap = heap_at(address)
    cdef const Block* block
    out_low[0] = out_high[0] = 0
    if pool == NULL or pool.external != NULL or heap == NULL or heap.settings != &pool.settings:
        return 0
    lock_all(pool)
    block = live_at(pool, address)
    if block == NULL:
        block = find_around(pool.first, heap, address)
    if block == NULL:
        block = find_around(heap.first_stitched, heap, address)
    if block != NULL and block.state == LIVE:
        out_low[0] = block.address
        out_high[0] = block.address + block.size
    unlock_all(pool, NULL)
    return 0 if block == NULL or out_high[0] else NOT_ALLOCATED


cdef int locate(int hint, uintptr_t address, int* out_device) noexcept nogil:
    # Searches the pools that exist, from the hint's on; takes their exclusive sections one by one.
    cdef int step, device
    cdef Pool* pool
    cdef int code = pool_of(hint, &pool)
    if code:
        return code
    for step in range(MAX_DEVICES):
        device = (hint + step) % MAX_DEVICES
        pool = pool_if_made(device)
        if pool != NULL and holds(pool, address):
            out_device[0] = device
            return 0
    return NOT_ALLOCATED


cdef bint in_private(int device, uintptr_t address, uint64_t* out_id) noexcept nogil:
    # Takes the exclusive section, unless the address belongs to a common heap: of live memory that needs no lock.
    cdef Pool* pool = pool_if_made(device)
    cdef const Heap* heap = heap_at(address)
    cdef Block* block
    cdef bint private
    if pool == NULL or heap == NULL or heap.owner == NULL:
        return False
    lock_all(pool)
    block = live_at(pool, address)
    private = block != NULL and block.heap.owner != NULL
    if private:
        out_id[0], out_id[1] = block.heap.owner.id[0], block.heap.owner.id[1]
    unlock_all(pool, NULL)
    return private


cdef int empty(int device) noexcept nogil:
    # Takes the growth lock and the exclusive section.  Also empties the private pool that the calling thread has entered
    # (use_mem_pool), unless a graph retains it.
    return empty_named(device, NULL)


cdef int empty_named(int device, const uint64_t* name) noexcept nogil:
    # One private pool alone; (0, 0): what empty() does but for the entered one; NULL: empty().
    cdef Pool* pool = pool_if_made(device)
    cdef int code
    if pool == NULL:
        return 0
    if pool.external != NULL:
        code = external_empty(pool.external)
        return code if code else destroy_spare(pool.table, device)
    pthread_mutex_lock(&pool.growth)
    lock_all(pool)
    pool.stats.num_sync_all_streams += 1
    code = wait_all(pool)
    if code == 0 and (name == NULL or name[0] == name[1] == 0):
        code = release_with(pool, entered_pool(pool) if name == NULL else NULL)
    elif code == 0:
        code = release_own(pool, find_private(pool, name[0], name[1]))
    if code == 0:
        code = destroy_spare(pool.table, device)
    return leave_audited(pool, code)


cdef bint make_room(int device) noexcept nogil:
    # Gives back what is idle, for a call of the driver that had no memory; whether there was any.
    cdef Pool* pool = pool_if_made(device)
    cdef int64_t before
    cdef bint less
    if pool == NULL or pool.external != NULL:
        return False
    lock_all(pool)
    before = reserved(pool)
    unlock_all(pool, NULL)
    if empty(device):
        return False
    lock_all(pool)
    less = reserved(pool) < before
    unlock_all(pool, NULL)
    return less


cdef int set_limit(int device, size_t limit) noexcept nogil:
    # Takes the exclusive section.
    cdef Pool* pool
    cdef int code = pool_of(device, &pool)
    if code:
        return code
    if pool.external != NULL:
        return external_set_limit(pool.external, limit)
    lock_all(pool)
    pool.limit = limit
    unlock_all(pool, NULL)
    return 0


# --- memory that more than one stream uses: they are recorded, or an event says when it is free -------------

cdef int use_on(int device, uintptr_t address, uintptr_t stream) noexcept nogil:
    return use_across(device, address, device, stream)


cdef int try_use_across(int device, uintptr_t address, int stream_on, uintptr_t stream) noexcept nogil:
    # 0 if the use needs no record, or has one already, as most have that come again and again.  Takes the heap's lock, if
    # that is free: uses change only in the exclusive section, which holds it.
    cdef const Pool* pool = pool_if_made(device)
    cdef Heap* heap = heap_at(address)
    cdef const Block* block = NULL
    cdef bint known = False
    if load_count(&lent_count) or pool == NULL or heap == NULL or heap.settings != &pool.settings:
        return NOT_READY
    if not spin_try(&heap.lock):
        return NOT_READY
    if heap.fast:
        block = block_in(heap, address)
    if block != NULL and block.state == LIVE:
        known = heap.stream == stream and stream_on == device
        known = known or has_use(block.uses, stream_on, heap_stream(stream))
    spin_unlock(&heap.lock)
    return 0 if known else NOT_READY


cdef Heap* fixed_at(const Pool* pool, uintptr_t address) noexcept nogil:
    # The heap of the reservation that has the address; NULL: none.  A use of a reservation is one of all its memory, for
    # who uses it names a part of any size.  In the exclusive section.
    cdef Heap* heap = heap_at(address)
    if heap == NULL or heap.settings != &pool.settings or heap.owner == NULL or not heap.owner.fixed:
        return NULL
    return heap


cdef int use_across(int device, uintptr_t address, int stream_on, uintptr_t stream) noexcept nogil:
    # A use of the block's own stream is not recorded, nor one that is recorded already.  The per-thread default stream is
    # never a block's own.
    cdef Pool* pool
    cdef const Heap* fixed
    cdef Block* block
    cdef int code = pool_of(device, &pool)
    if code or address == 0:
        return code
    if load_count(&lent_count):
        code = use_lent(address, stream_on, heap_stream(stream))
        if code != NOT_ALLOCATED:
            return code
        code = 0
    if pool.external != NULL:
        code = external_use_on(pool.external, address, stream_on, stream)
        return use_imported(address, stream_on, heap_stream(stream)) if code == NOT_ALLOCATED else code
    if try_use_across(device, address, stream_on, stream) == 0:
        return 0
    lock_all(pool)
    fixed = fixed_at(pool, address)
    block = live_at(pool, address) if fixed == NULL else NULL
    if fixed != NULL:
        if fixed.stream != stream or stream_on != device:
            code = add_use(&pool.uses, &fixed.owner.streams, stream_on, heap_stream(stream))
    elif block == NULL:
        code = NOT_ALLOCATED
    elif block.heap.stream != stream or stream_on != device:
        code = add_use(&pool.uses, &block.uses, stream_on, heap_stream(stream))
    unlock_all(pool, NULL)
    if code == NOT_ALLOCATED:  # it may be another process's
        code = use_imported(address, stream_on, heap_stream(stream))
    return code


cdef void record_deferred_of(Pool* pool, int stream_on, uintptr_t stream, uintptr_t heir, bint goes) noexcept nogil:
    # A failure to record leaves the block deferred: the next poll tries again, and its caller is told.
    cdef bint any_use
    pthread_mutex_lock(&pool.lock)
    any_use = pool.deferred != NULL or goes and pool.uses.count
    pthread_mutex_unlock(&pool.lock)
    if not any_use:
        return
    lock_all(pool)
    record_all_events(pool)
    if goes:
        hand_on_uses(pool, stream_on, heap_stream(stream), heir)
    if pool.heaps != NULL:
        count_splits(pool, pool.heaps)
    inspected(pool, 0)
    unlock_all(pool, NULL)


cdef void record_deferred_uses() noexcept nogil:
    # Takes each pool's exclusive section.  A pool of another backend sends off what it kept at the end of the capture.
    cdef Pool* pool
    cdef int device
    for device in range(MAX_DEVICES):
        pool = pool_if_made(device)
        if pool != NULL and pool.external == NULL:
            record_deferred_of(pool, 0, 0, 0, False)


cdef void forget_stream(int stream_on, uintptr_t stream, uintptr_t heir) noexcept nogil:
    # Takes each pool's exclusive section.
    cdef Pool* pool
    cdef int device
    for device in range(MAX_DEVICES):
        pool = pool_if_made(device)
        if pool != NULL and pool.external != NULL:
            external_forget_stream(pool.external, stream_on, heap_stream(stream), heir)
        elif pool != NULL:
            record_deferred_of(pool, stream_on, stream, heir, True)


cdef int release_after(int device, uintptr_t address, uintptr_t event, uint64_t record) noexcept nogil:
    # Frees a live block as of the event, and offers it to the streams that wait for this recording.
    cdef Pool* pool
    cdef Block* block
    cdef int code = pool_of(device, &pool)
    if code:
        return code
    if pool.external != NULL:
        return NOT_SUPPORTED
    lock_all(pool)
    block = live_at(pool, address)
    if block == NULL:
        code = NOT_ALLOCATED
    else:
        code = offer(pool, block, event, record)
        code = inspected(pool, code)
    unlock_all(pool, NULL)
    return code


cdef int stream_waits(int device, uintptr_t stream, uint64_t record) noexcept nogil:
    # Most waits find no offer: those take no lock.
    cdef Pool* pool = pool_if_made(device)
    cdef int code
    if pool == NULL or load_offers(&pool.offers) == NULL:
        return 0
    lock_all(pool)
    code = note_wait(pool, stream, record)
    unlock_all(pool, NULL)
    return code


cdef bint knows_stream(int device, uintptr_t stream) noexcept nogil:
    # Without a lock: looks only in the table of common heaps, in which some heaps may have no slot.
    cdef Pool* pool = pool_if_made(device)
    cdef Heap* heap = NULL
    if pool != NULL and pool.external == NULL:
        heap = lookup_heap(pool.heap_table[LARGE], stream)
        if heap == NULL:
            heap = lookup_heap(pool.heap_table[SMALL], stream)
    return heap != NULL and heap.trusted


cdef void prepare_exits() noexcept nogil:
    # At import.
    global leave_hit, leave_give_back
    leave_hit = hit_slow
    leave_give_back = give_back_slow
    make_room_by(make_room)


prepare_exits()
