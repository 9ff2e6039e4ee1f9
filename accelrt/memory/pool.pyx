"""One device's caching allocator: the hit, the miss, and the ladder that a miss climbs.

Two locks a pool, always taken in this order: growth, held by the one thread that takes from or gives to
the device, and lock, held for bookkeeping.  Neither is held while the GIL is taken; lock is never held
while something is waited for.
"""
from libc.stdint cimport SIZE_MAX
from libc.stdlib cimport atoi, calloc, free, getenv

cimport accelrt.driver.registry as registry
from accelrt.addresses cimport map_find, map_reserve
from accelrt.memory.invariants cimport violated
from accelrt.memory.block cimport (
    LIVE, Block, Heap, Private, Use,
    pthread_mutex_init, pthread_mutex_lock, pthread_mutex_t, pthread_mutex_trylock, pthread_mutex_unlock,
)
from accelrt.memory.foreign cimport (
    foreign_allocate, foreign_attach, foreign_begin_capture, foreign_empty, foreign_end_capture, foreign_holds,
    foreign_release, foreign_set_limit, foreign_use_on,
)
from accelrt.memory.freelist cimport best_fit
from accelrt.memory.heap cimport count_freed, hand_out, set_free
from accelrt.memory.pending cimport defer, poll, settle, wait_all
from accelrt.memory.private cimport begin_route, end_route, hold, let_go, owner_for
from accelrt.memory.records cimport drop_spare_events, heap_of, new_use
from accelrt.memory.segments cimport grow, release_free
from accelrt.memory.sizes cimport GRANULE, ROUND_LIMIT, SMALL, SMALL_SEGMENT, UNIT, kind_of, round_up, segment_size
from accelrt.status cimport (
    BROKEN, CAP_REACHED, FORKED, INVALID_DEVICE, NO_HOST_MEMORY, NOT_ALLOCATED, NOT_READY, OUT_OF_MEMORY,
)

cdef extern from "<pthread.h>" nogil:
    int pthread_atfork(void (*prepare)() noexcept, void (*parent)() noexcept, void (*child)() noexcept)

cdef extern from *:
    """
    #define load_pool(place) __atomic_load_n(place, __ATOMIC_ACQUIRE)
    #define store_pool(place, pool) __atomic_store_n(place, pool, __ATOMIC_RELEASE)
    """
    Pool* load_pool(Pool** place) noexcept nogil
    void store_pool(Pool** place, Pool* pool) noexcept nogil

cdef Pool unmade              # stands for every pool that is not made: never quiet, holds nothing
cdef Heap nowhere             # recent of a pool without heaps: no stream has its handle
cdef Pool* pools[MAX_DEVICES]
cdef pthread_mutex_t making   # held while a pool is made; no other lock is taken under it


cdef inline bint refused(int code) noexcept nogil:
    return code == OUT_OF_MEMORY or code == CAP_REACHED


# --- the hit ---------------------------------------------------------------------------------------------

cdef inline int hit(Pool* pool, size_t requested, uintptr_t stream, uintptr_t* out_address) noexcept nogil:
    cdef size_t size
    cdef Heap* heap = pool.recent
    cdef Block* block
    # One comparison for 0 and for absurd sizes; both are told apart where it is slow anyway.
    if not pool.quiet or (requested - 1) >> ROUND_LIMIT:
        return NOT_READY
    size = round_up(requested, UNIT)
    if heap.stream != stream:
        heap = <Heap*>map_find(&pool.heaps, stream)
        if heap == NULL:
            return NOT_READY
        pool.recent = heap
    block = best_fit(heap.free[kind_of(size)], size)
    if block == NULL or map_reserve(&pool.blocks):
        return NOT_READY
    hand_out(pool, block, size, requested)
    out_address[0] = block.address
    return 0


cdef inline int give_back(Pool* pool, uintptr_t address) noexcept nogil:
    cdef Block* block = <Block*>map_find(&pool.blocks, address)
    if block == NULL or block.state != LIVE or block.uses != NULL or not pool.quiet:
        return NOT_READY
    count_freed(pool, block)
    set_free(pool, block)
    return 0


cdef int allocate(int device, size_t size, uintptr_t stream, uintptr_t* out_address) noexcept nogil:
    cdef Pool* pool = load_pool(&pools[device])
    pthread_mutex_lock(&pool.lock)
    cdef int code = hit(pool, size, stream, out_address)
    pthread_mutex_unlock(&pool.lock)
    if code == NOT_READY:
        return allocate_slow(device, size, stream, out_address)
    return code


cdef int release(int device, uintptr_t address) noexcept nogil:
    cdef Pool* pool = load_pool(&pools[device])
    pthread_mutex_lock(&pool.lock)
    cdef int code = give_back(pool, address)
    pthread_mutex_unlock(&pool.lock)
    if code == NOT_READY:
        return release_slow(device, address)
    return code


cdef int try_allocate(int device, size_t size, uintptr_t stream, uintptr_t* out_address) noexcept nogil:
    cdef Pool* pool = load_pool(&pools[device])
    if pthread_mutex_trylock(&pool.lock):
        return NOT_READY
    cdef int code = hit(pool, size, stream, out_address)
    pthread_mutex_unlock(&pool.lock)
    return code


cdef int try_release(int device, uintptr_t address) noexcept nogil:
    cdef Pool* pool = load_pool(&pools[device])
    if pthread_mutex_trylock(&pool.lock):
        return NOT_READY
    cdef int code = give_back(pool, address)
    pthread_mutex_unlock(&pool.lock)
    return code


# --- the miss --------------------------------------------------------------------------------------------

cdef struct Request:
    size_t requested
    size_t size
    int kind
    Heap* heap


cdef int find(Pool* pool, Request* request, uintptr_t* out_address) noexcept nogil:
    cdef Block* block = best_fit(request.heap.free[request.kind], request.size)
    if block == NULL:
        return OUT_OF_MEMORY
    if map_reserve(&pool.blocks):
        return NO_HOST_MEMORY
    hand_out(pool, block, request.size, request.requested)
    out_address[0] = block.address
    return 0


cdef int grow_and_find(Pool* pool, Request* request, size_t size, uintptr_t* out_address) noexcept nogil:
    cdef int code = grow(pool, request.heap, request.kind, size)
    return code if code else find(pool, request, out_address)


cdef int climb(Pool* pool, Request* request, uintptr_t* out_address) noexcept nogil:
    # Every step that frees something is followed by a search.
    cdef size_t least = SMALL_SEGMENT if request.kind == SMALL else round_up(request.size, GRANULE)
    cdef int code = grow_and_find(pool, request, segment_size(request.size), out_address)
    if not refused(code):
        return code
    code = wait_all(pool)
    if code == 0:
        code = find(pool, request, out_address)
    if not refused(code):
        return code
    pool.stats.num_alloc_retries += 1
    code = release_free(pool)
    if code == 0:
        code = grow_and_find(pool, request, segment_size(request.size), out_address)
    if refused(code):
        code = grow_and_find(pool, request, least, out_address)
    if refused(code):
        pool.stats.num_ooms += 1
    return code


cdef int prepare(Pool* pool, Request* request, size_t size, uintptr_t stream) noexcept nogil:
    cdef Private* owner = NULL
    cdef int code = 0
    if pool.routes == NULL:
        code = poll(pool)
    if code == 0:
        code = owner_for(pool, stream, &owner)
    if code == 0:
        code = heap_of(pool, owner, stream, &request.heap)
    request.requested = size
    request.size = round_up(size, UNIT)
    request.kind = kind_of(request.size)
    return code


cdef void settle_down(Pool* pool) noexcept nogil:
    cdef bint own = pool.foreign == NULL and pool.debug == 0
    pool.quiet = own and pool.routes == NULL and pool.pending == 0 and pool.deferred == NULL


cdef int inspected(Pool* pool, int code) noexcept nogil:
    # The debug audit after an operation; what it found stays to be read.
    settle_down(pool)
    if pool.debug and pool.broken == NULL:
        pool.broken = violated(pool, pool.debug)
    return BROKEN if pool.broken != NULL and code == 0 else code


cdef int allocate_slow(int device, size_t size, uintptr_t stream, uintptr_t* out_address) noexcept nogil:
    cdef Pool* pool
    cdef Request request
    cdef int code
    out_address[0] = 0
    if size == 0:
        return 0
    if size >> ROUND_LIMIT:
        return OUT_OF_MEMORY
    code = pool_of(device, &pool)
    if code:
        return code
    if pool.foreign != NULL:
        return foreign_allocate(pool.foreign, size, stream, out_address)
    pthread_mutex_lock(&pool.lock)
    code = prepare(pool, &request, size, stream)
    if code == 0:
        code = find(pool, &request, out_address)
    if code == OUT_OF_MEMORY:
        # Another thread may grow first: take the outer lock before the inner, and look again.
        pthread_mutex_unlock(&pool.lock)
        pthread_mutex_lock(&pool.growth)
        pthread_mutex_lock(&pool.lock)
        code = prepare(pool, &request, size, stream)
        if code == 0:
            code = find(pool, &request, out_address)
        if code == OUT_OF_MEMORY:
            code = climb(pool, &request, out_address)
        pthread_mutex_unlock(&pool.growth)
    code = inspected(pool, code)
    pthread_mutex_unlock(&pool.lock)
    return code


cdef int release_slow(int device, uintptr_t address) noexcept nogil:
    cdef Pool* pool
    cdef Block* block
    cdef int code
    if address == 0:
        return 0
    code = pool_of(device, &pool)
    if code:
        return code
    if pool.foreign != NULL:
        return foreign_release(pool.foreign, address)
    pthread_mutex_lock(&pool.lock)
    block = <Block*>map_find(&pool.blocks, address)
    if block == NULL or block.state != LIVE:
        code = NOT_ALLOCATED
    else:
        count_freed(pool, block)
        if block.uses == NULL:
            set_free(pool, block)
        else:
            # A failure to record keeps the block pending; it is tried again at the next miss.
            defer(pool, block)
            settle(pool)
        code = inspected(pool, code)
    pthread_mutex_unlock(&pool.lock)
    return code


cdef int use_on(int device, uintptr_t address, uintptr_t stream) noexcept nogil:
    cdef Pool* pool
    cdef Block* block
    cdef Use* use
    cdef int code = pool_of(device, &pool)
    if code or address == 0:
        return code
    if pool.foreign != NULL:
        return foreign_use_on(pool.foreign, address, stream)
    pthread_mutex_lock(&pool.lock)
    block = <Block*>map_find(&pool.blocks, address)
    if block == NULL or block.state != LIVE:
        code = NOT_ALLOCATED
    elif block.segment.heap.stream != stream:
        use = block.uses
        while use != NULL and use.stream != stream:
            use = use.next
        if use == NULL:
            use = new_use(pool)
            if use == NULL:
                code = NO_HOST_MEMORY
            else:
                use.stream = stream
                use.next = block.uses
                block.uses = use
    pthread_mutex_unlock(&pool.lock)
    return code


cdef int locate(int hint, uintptr_t address, int* out_device) noexcept nogil:
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


cdef bint holds(Pool* pool, uintptr_t address) noexcept nogil:
    cdef bint answer
    if pool.foreign != NULL:
        return foreign_holds(pool.foreign, address)
    pthread_mutex_lock(&pool.lock)
    answer = map_find(&pool.blocks, address) != NULL
    pthread_mutex_unlock(&pool.lock)
    return answer


cdef bint in_private(int device, uintptr_t address) noexcept nogil:
    cdef Pool* pool = pool_if_made(device)
    cdef Block* block
    cdef bint answer
    if pool == NULL:
        return False
    pthread_mutex_lock(&pool.lock)
    block = <Block*>map_find(&pool.blocks, address)
    answer = block != NULL and block.segment.heap.owner != NULL
    pthread_mutex_unlock(&pool.lock)
    return answer


cdef int empty(int device) noexcept nogil:
    cdef Pool* pool = pool_if_made(device)
    cdef int code
    if pool == NULL:
        return 0
    if pool.foreign != NULL:
        return foreign_empty(pool.foreign)
    pthread_mutex_lock(&pool.growth)
    pthread_mutex_lock(&pool.lock)
    code = wait_all(pool)
    if code == 0:
        code = release_free(pool)
    if code == 0:
        code = drop_spare_events(pool)
    code = inspected(pool, code)
    pthread_mutex_unlock(&pool.lock)
    pthread_mutex_unlock(&pool.growth)
    return code


cdef int set_limit(int device, size_t limit) noexcept nogil:
    cdef Pool* pool
    cdef int code = pool_of(device, &pool)
    if code:
        return code
    if pool.foreign != NULL:
        return foreign_set_limit(pool.foreign, limit)
    pthread_mutex_lock(&pool.lock)
    pool.limit = limit
    pthread_mutex_unlock(&pool.lock)
    return 0


# --- private pools and captures ----------------------------------------------------------------------------

cdef int hold_private(int device, uint64_t first, uint64_t second) noexcept nogil:
    cdef Pool* pool
    cdef int code = pool_of(device, &pool)
    if code:
        return code
    pthread_mutex_lock(&pool.lock)
    code = hold(pool, first, second)
    pthread_mutex_unlock(&pool.lock)
    return code


cdef int let_go_private(int device, uint64_t first, uint64_t second) noexcept nogil:
    cdef Pool* pool = pool_if_made(device)
    cdef int code
    if pool == NULL:
        return FORKED
    pthread_mutex_lock(&pool.lock)
    code = let_go(pool, first, second)
    pthread_mutex_unlock(&pool.lock)
    return code


cdef int begin_capture(int device, uint64_t first, uint64_t second, uint64_t capture) noexcept nogil:
    cdef Pool* pool
    cdef int code = pool_of(device, &pool)
    if code:
        return code
    if pool.foreign != NULL:
        return foreign_begin_capture(pool.foreign)
    pthread_mutex_lock(&pool.lock)
    code = begin_route(pool, first, second, capture)
    pthread_mutex_unlock(&pool.lock)
    return code


cdef int end_capture(int device, uint64_t capture) noexcept nogil:
    cdef Pool* pool = pool_if_made(device)
    cdef int code
    if pool == NULL:
        return FORKED
    if pool.foreign != NULL:
        return foreign_end_capture(pool.foreign)
    pthread_mutex_lock(&pool.lock)
    code = end_route(pool, capture)
    settle_down(pool)
    pthread_mutex_unlock(&pool.lock)
    return code


# --- making ------------------------------------------------------------------------------------------------

cdef int pool_of(int device, Pool** out_pool) noexcept nogil:
    cdef Pool* pool = load_pool(&pools[device])
    if pool == &unmade:
        return make_slow(device, out_pool)
    out_pool[0] = pool
    return 0


cdef Pool* pool_if_made(int device) noexcept nogil:
    cdef Pool* pool = load_pool(&pools[device])
    return NULL if pool == &unmade else pool


cdef int make_slow(int device, Pool** out_pool) noexcept nogil:
    cdef int count
    cdef int code = registry.active.device_count(&count)  # the first use initialises here, without a lock
    if code:
        return code
    if device >= count:
        return INVALID_DEVICE
    pthread_mutex_lock(&making)
    if pools[device] == &unmade:
        code = make(device)
    pthread_mutex_unlock(&making)
    out_pool[0] = pools[device]
    return code


cdef int make(int device) noexcept nogil:
    cdef Pool* pool = <Pool*>calloc(1, sizeof(Pool))
    cdef const char* debug = getenv("ACCELRT_DEBUG")
    cdef int code
    if pool == NULL:
        return NO_HOST_MEMORY
    code = foreign_attach(device, registry.active, &pool.foreign)
    if code:
        free(pool)
        return code
    pthread_mutex_init(&pool.lock, NULL)
    pthread_mutex_init(&pool.growth, NULL)
    pool.table = registry.active
    pool.device = device
    pool.debug = atoi(debug) if debug != NULL else 0
    pool.limit = SIZE_MAX
    pool.recent = &nowhere
    pool.seed = 0x2545F491
    settle_down(pool)
    store_pool(&pools[device], pool)
    return 0


cdef void forget_pools() noexcept nogil:
    # Also in a forked child: the parent's pools, and whatever locks its threads held, are not the child's.
    cdef int device
    pthread_mutex_init(&making, NULL)
    pthread_mutex_init(&unmade.lock, NULL)
    for device in range(MAX_DEVICES):
        store_pool(&pools[device], &unmade)


nowhere.stream = SIZE_MAX
unmade.recent = &nowhere
forget_pools()
pthread_atfork(NULL, NULL, &forget_pools)
