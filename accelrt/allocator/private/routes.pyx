"""The public face of private pools: retain and release them, route allocations to them, read them.

What changes records of private pools and routes takes the pool's mutex alone, so that it does not stop the fast path;
what reads or polls heaps enters the exclusive section.
"""
from libc.stdint cimport SIZE_MAX
from libc.string cimport memset

from accelrt.core.locks cimport pthread_mutex_lock, pthread_mutex_unlock
cimport accelrt.driver.registry as registry
from accelrt.driver.table cimport CAPTURE_ACTIVE, CAPTURE_NONE
from accelrt.allocator.device_pools cimport pool_if_made, pool_of
from accelrt.allocator.exclusive cimport update_fast_path, lock_all, unlock_all
from accelrt.allocator.miss cimport release_ended
from accelrt.allocator.private.private_pool cimport (
    begin_expected_route, begin_route, end_expected_route, end_route, find_private, note_replay, pool_for, release_hold,
    reset_private_peaks, retain, sum_of,
)
from accelrt.allocator.private.private_types cimport PrivatePool
from accelrt.allocator.stream_epochs cimport poll_all
from accelrt.allocator.types cimport Pool
from accelrt.allocator.external.external_pool cimport external_begin_capture, external_end_capture
from accelrt.status cimport CAPTURE_INVALID, FORKED, NOT_READY, NOT_SUPPORTED

cdef enum:
    ENDED_LIMIT = 128 << 20  # bytes that graphs may leave behind until a capture begins


cdef Pool* enter_made(int device) noexcept nogil:
    # Enters the exclusive section of the device's pool.  NULL if there is no pool, or if a fork left it with the parent.
    cdef Pool* pool = pool_if_made(device)
    if pool != NULL:
        lock_all(pool)
    return pool


cdef int retain_pool(int device, uint64_t first, uint64_t second, bint user, size_t limit) noexcept nogil:
    cdef Pool* pool
    cdef int code = pool_of(device, &pool)
    if code:
        return code
    pthread_mutex_lock(&pool.lock)
    code = retain(pool, first, second, user)
    if code == 0 and user:
        find_private(pool, first, second).limit = limit
    pthread_mutex_unlock(&pool.lock)
    return code


cdef int set_up_pool(int device, uint64_t first, uint64_t second, const Source* source, bint whole,
                     bint lends) noexcept nogil:
    cdef Pool* pool
    cdef PrivatePool* owner
    cdef int code = pool_of(device, &pool)
    if code:
        return code
    pthread_mutex_lock(&pool.lock)
    owner = find_private(pool, first, second)
    owner.source = source
    owner.whole = whole
    owner.lends = lends
    pthread_mutex_unlock(&pool.lock)
    return 0


cdef int release_pool(int device, uint64_t first, uint64_t second, bint user) noexcept nogil:
    # FORKED if the pool belongs to the parent process.
    cdef Pool* pool = pool_if_made(device)
    cdef int code
    if pool == NULL:
        return FORKED
    pthread_mutex_lock(&pool.lock)
    code = release_hold(pool, first, second, user)
    pthread_mutex_unlock(&pool.lock)
    return code


cdef void note_replays_as(int device, uint64_t first, uint64_t second, uintptr_t stream, bint hidden) noexcept nogil:
    # A pool that the parent process retained is ignored.
    cdef Pool* pool = pool_if_made(device)
    cdef PrivatePool* owner
    if pool == NULL:
        return
    pthread_mutex_lock(&pool.lock)
    owner = find_private(pool, first, second)
    if owner != NULL and hidden:
        owner.hidden = True
    elif owner != NULL:
        note_replay(owner, stream)
    pthread_mutex_unlock(&pool.lock)


cdef void note_replays(int device, uint64_t first, uint64_t second, uintptr_t stream) noexcept nogil:
    note_replays_as(device, first, second, stream, False)


cdef void hide_replays(int device, uint64_t first, uint64_t second) noexcept nogil:
    note_replays_as(device, first, second, 0, True)


cdef void read_figures(Pool* pool, PrivatePool* owner, PrivateStats* stats, bint reset) noexcept nogil:
    # In the exclusive section.
    cdef int stat
    if reset:
        reset_private_peaks(pool, owner)
    stats.known = True
    stats.uses = owner.uses
    stats.limit = owner.limit
    stats.sleeping = owner.sleeping
    for stat in range(STATS):
        stats.current[stat] = sum_of(pool, owner, stat)
        stats.peak[stat] = owner.peak[stat]


cdef PrivateStats read_private(int device, uint64_t first, uint64_t second, bint reset) noexcept nogil:
    # known is False if the device has no such pool.
    cdef Pool* pool = enter_made(device)
    cdef PrivatePool* owner
    cdef PrivateStats stats
    memset(&stats, 0, sizeof(PrivateStats))
    stats.limit = SIZE_MAX
    if pool == NULL:
        return stats
    owner = find_private(pool, first, second)
    if owner != NULL:
        read_figures(pool, owner, &stats, reset)
    unlock_all(pool, NULL)
    return stats


cdef void private_of(int device, uintptr_t stream, uint64_t* out_id) noexcept nogil:
    # Zeros if no route leads to a private pool, or the query of the stream's capture fails.
    cdef Pool* pool = enter_made(device)
    cdef PrivatePool* owner = NULL
    out_id[0] = out_id[1] = 0
    if pool == NULL:
        return
    if pool_for(pool, stream, &owner) == 0 and owner != NULL:
        out_id[0], out_id[1] = owner.id[0], owner.id[1]
    unlock_all(pool, NULL)


# --- routes --------------------------------------------------------------------------------------------------

cdef bint has_much_to_release(Pool* pool) noexcept nogil:
    # Whether ended pools have reserved so much more since it was tried last.
    pool.ended_kept = min(pool.ended_kept, pool.ended)
    return pool.ended - pool.ended_kept > ENDED_LIMIT


cdef void expect_idle(int device) noexcept nogil:
    # Polls the streams of all heaps whose pages may serve others.  What graphs left behind serves no other graph, and a
    # capture cannot wait for the device to give it back: beyond a bound that is done here.
    cdef Pool* pool = pool_if_made(device)
    cdef bint much
    if pool == NULL or pool.external != NULL:
        return
    lock_all(pool)
    poll_all(pool)
    much = has_much_to_release(pool)
    unlock_all(pool, NULL)
    if much:
        pthread_mutex_lock(&pool.growth)
        lock_all(pool)
        if release_ended(pool) != NOT_READY:  # what cannot go back, such as pages with live memory, stays as it is
            pool.ended_kept = pool.ended
        unlock_all(pool, NULL)
        pthread_mutex_unlock(&pool.growth)


cdef int begin_capture(int device, uint64_t first, uint64_t second, uint64_t capture) noexcept nogil:
    # No capture has the id 0, which stands for a thread's route.  The first capture disables the fast path.
    cdef Pool* pool
    cdef int code = pool_of(device, &pool) if capture else CAPTURE_INVALID
    if code:
        return code
    if pool.external != NULL:
        return external_begin_capture(pool.external)
    pthread_mutex_lock(&pool.lock)
    code = begin_route(pool, first, second, capture)
    if pool.captures == 1:
        update_fast_path(pool)
    pthread_mutex_unlock(&pool.lock)
    return code


cdef int begin_capture_on(int device, uintptr_t stream, uint64_t first, uint64_t second,
                          uint64_t* out_capture) noexcept nogil:
    cdef int status = CAPTURE_NONE
    cdef int code
    out_capture[0] = 0
    code = registry.active().capture_status(device, stream, &status, out_capture)
    if code == 0 and status != CAPTURE_ACTIVE:
        code = CAPTURE_INVALID
    return code if code else begin_capture(device, first, second, out_capture[0])


cdef int end_capture(int device, uint64_t capture) noexcept nogil:
    # The end of the last capture enables the fast path again.
    cdef Pool* pool = pool_if_made(device)
    cdef int code
    if pool == NULL or capture == 0:
        return FORKED if pool == NULL else CAPTURE_INVALID
    if pool.external != NULL:
        return external_end_capture(pool.external)
    pthread_mutex_lock(&pool.lock)
    code = end_route(pool, NULL, capture, 0)
    if pool.captures == 0:
        update_fast_path(pool)
    pthread_mutex_unlock(&pool.lock)
    return code


cdef int expect_capture_on(int device, uintptr_t stream, uint64_t first, uint64_t second) noexcept nogil:
    # NOT_SUPPORTED for a device whose memory comes from another backend.
    cdef Pool* pool
    cdef int code = pool_of(device, &pool)
    if code == 0 and pool.external != NULL:
        code = NOT_SUPPORTED
    if code:
        return code
    pthread_mutex_lock(&pool.lock)
    code = begin_expected_route(pool, first, second, stream)
    if code == 0 and pool.captures == 1:
        update_fast_path(pool)
    pthread_mutex_unlock(&pool.lock)
    return code


cdef int end_expected_capture(int device, uintptr_t stream, uint64_t first, uint64_t second) noexcept nogil:
    cdef Pool* pool = pool_if_made(device)
    cdef int code
    if pool == NULL:
        return FORKED
    pthread_mutex_lock(&pool.lock)
    code = end_expected_route(pool, find_private(pool, first, second), stream)
    if code == 0 and pool.captures == 0:
        update_fast_path(pool)
    pthread_mutex_unlock(&pool.lock)
    return code


cdef int begin_pool(int device, uint64_t first, uint64_t second) noexcept nogil:
    # NOT_SUPPORTED for a device whose memory comes from another backend.  If the route fails, the pool is released
    # again.
    cdef Pool* pool
    cdef int code = pool_of(device, &pool)
    if code:
        return code
    if pool.external != NULL:
        return NOT_SUPPORTED
    pthread_mutex_lock(&pool.lock)
    code = retain(pool, first, second, True)
    if code == 0:
        code = begin_route(pool, first, second, 0)
        if code:
            release_hold(pool, first, second, True)
    pthread_mutex_unlock(&pool.lock)
    return code


cdef int end_pool(int device, uint64_t first, uint64_t second, uint64_t thread) noexcept nogil:
    # Ends the thread's latest route to the pool, then releases the pool.
    cdef int code = end_thread_route(device, first, second, thread)
    return code if code else release_pool(device, first, second, True)


cdef int end_thread_route(int device, uint64_t first, uint64_t second, uint64_t thread) noexcept nogil:
    cdef Pool* pool = pool_if_made(device)
    cdef int code
    if pool == NULL:
        return FORKED
    pthread_mutex_lock(&pool.lock)
    code = end_route(pool, find_private(pool, first, second), 0, thread)
    pthread_mutex_unlock(&pool.lock)
    return code
