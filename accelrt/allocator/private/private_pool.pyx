"""Private pools: the heaps that captures and threads allocate from, and the routes that lead to them.

The pool's mutex guards their records and lists; private_pool.pxd says which functions need more, or no lock.
"""
from libc.stdint cimport SIZE_MAX, int64_t
from libc.stdlib cimport calloc, free

from accelrt.core.handle_map cimport map_find, map_insert, map_remove, map_reserve
from accelrt.driver.table cimport CAPTURE_ACTIVE
from accelrt.allocator.backing.free_pages cimport file_heaps
from accelrt.allocator.event_queue cimport Entry, put_entry
from accelrt.allocator.inline.heap_stats cimport current
from accelrt.allocator.metadata cimport is_trusted, retire_heap
from accelrt.allocator.pool_settings cimport store_routed
from accelrt.allocator.private.private_types cimport Route
from accelrt.allocator.stats cimport BOTH, STATS, RESERVED_BYTES, SEGMENT, PER_HEAP
from accelrt.allocator.types cimport Heap
from accelrt.status cimport CAPTURE_IMPLICIT, INVALID_VALUE, NO_HOST_MEMORY

cdef extern from *:
    """
    /* Numbers of threads, from 1 on, never used again, as the system's are. */
    static uint64_t accelrt_thread_count;
    static __thread uint64_t accelrt_thread;
    static __thread long accelrt_routes;  /* of this thread, into pools of any device */
    static uint64_t accelrt_this_thread(void) {
        if (!accelrt_thread) accelrt_thread = __atomic_add_fetch(&accelrt_thread_count, 1, __ATOMIC_RELAXED);
        return accelrt_thread;
    }
    #define accelrt_routes_here() (accelrt_routes != 0)
    #define accelrt_count_routes(n) (accelrt_routes += (n))
    """
    uint64_t this_thread "accelrt_this_thread" () noexcept nogil
    bint routes_here "accelrt_routes_here" () noexcept nogil
    void count_routes "accelrt_count_routes" (long n) noexcept nogil


cdef uintptr_t private_key(uint64_t first, uint64_t second) noexcept nogil:
    return second ^ first * 0xC2B2AE3D27D4EB4FULL


cdef PrivatePool* find_private(Pool* pool, uint64_t first, uint64_t second) noexcept nogil:
    cdef PrivatePool* found = <PrivatePool*>map_find(&pool.private_index, private_key(first, second))
    while found != NULL and (found.id[0] != first or found.id[1] != second):
        found = found.same_key
    return found


cdef PrivatePool* make_private(Pool* pool, uint64_t first, uint64_t second) noexcept nogil:
    # NULL where the host has no memory.
    cdef PrivatePool* made = NULL if map_reserve(&pool.private_index) else <PrivatePool*>calloc(1, sizeof(PrivatePool))
    if made == NULL:
        return NULL
    made.id[0] = first
    made.id[1] = second
    made.limit = SIZE_MAX
    made.rest = 2
    made.next = pool.privates
    if made.next != NULL:
        made.next.before = made
    pool.privates = made
    made.same_key = <PrivatePool*>map_remove(&pool.private_index, private_key(first, second))
    map_insert(&pool.private_index, private_key(first, second), made)
    return made


cdef int retain(Pool* pool, uint64_t first, uint64_t second, bint user) noexcept nogil:
    # The first use, and the first by a graph, change which heaps may serve others: those are filed again.
    cdef PrivatePool* found = find_private(pool, first, second)
    if found == NULL:
        found = make_private(pool, first, second)
        if found == NULL:
            return NO_HOST_MEMORY
    if found.uses == 0:
        pool.ended -= found.reserved
    found.uses += 1
    found.users += user
    if not user:
        found.rest = 0
    if found.uses == 1 or (not user and found.uses == found.users + 1):  # the first, or the first graph
        file_heaps(pool, found)
    return 0


cdef int release_hold(Pool* pool, uint64_t first, uint64_t second, bint user) noexcept nogil:
    # INVALID_VALUE for a pool that is not retained.  The record stays until its segments are gone, since blocks of a
    # destroyed graph may still be live.  A pool that was never allocated from is freed at once, for programs that
    # capture again and again.
    cdef PrivatePool* found = find_private(pool, first, second)
    if found == NULL or found.uses == 0:
        return INVALID_VALUE
    found.uses -= 1
    found.users -= user
    if found.uses == 0:
        pool.ended += found.reserved
    if found.uses == 0 and found.segments == 0 and found.heaps == NULL:
        unlink(pool, found)
        return 0
    if not user and not found.ending and not has_graphs(found):
        link_ending(pool, found)
    if found.uses == 0 or (not user and not has_graphs(found)):  # the last, or the last graph
        file_heaps(pool, found)
    return 0


cdef void link_ending(Pool* pool, PrivatePool* owner) noexcept nogil:
    # Adds a pool to the list of those whose graphs are destroyed while replays may still run.
    owner.ending = True
    owner.before_ending = NULL
    owner.next_ending = pool.ending
    if pool.ending != NULL:
        pool.ending.before_ending = owner
    pool.ending = owner


cdef void unlink_ending(Pool* pool, PrivatePool* owner) noexcept nogil:
    owner.ending = False
    if owner.before_ending == NULL:
        pool.ending = owner.next_ending
    else:
        owner.before_ending.next_ending = owner.next_ending
    if owner.next_ending != NULL:
        owner.next_ending.before_ending = owner.before_ending


cdef void unlink(Pool* pool, PrivatePool* owner) noexcept nogil:
    # Takes the record out of index and lists, and frees it.
    cdef uintptr_t key = private_key(owner.id[0], owner.id[1])
    cdef PrivatePool* first = <PrivatePool*>map_remove(&pool.private_index, key)
    cdef PrivatePool** link = &first
    while link[0] != owner:
        link = &link[0].same_key
    link[0] = owner.same_key
    if first != NULL:
        map_insert(&pool.private_index, key, first)
    if owner.ending:
        unlink_ending(pool, owner)
    if owner.before == NULL:
        pool.privates = owner.next
    else:
        owner.before.next = owner.next
    if owner.next != NULL:
        owner.next.before = owner.before
    forget_replays(pool, owner)
    if owner.suspension != NULL:
        owner.suspension.orphan = True
    free(owner)


cdef PrivatePool* first_ending(Pool* pool) noexcept nogil:
    # Takes pools out of the list whose replays are over, or that a graph uses again.
    cdef PrivatePool* owner = pool.ending
    cdef PrivatePool* after
    while owner != NULL:
        after = owner.next_ending
        if owner.rest == 2 or has_graphs(owner):
            unlink_ending(pool, owner)
        owner = after
    return pool.ending


# --- replays of destroyed graphs -----------------------------------------------------------------------------

cdef bint has_graphs(const PrivatePool* owner) noexcept nogil:
    return owner.uses > owner.users


cdef void note_replay(PrivatePool* owner, uintptr_t stream) noexcept nogil:
    # One record a stream.  Without host memory for it, or if the stream may be destroyed (not trusted), only a wait for
    # the device tells that the replays are over: hidden.
    cdef Replay* found = owner.replays
    while found != NULL and found.stream != stream:
        found = found.next
    if found != NULL:
        found.waited = found.recorded = False
        return
    found = <Replay*>calloc(1, sizeof(Replay)) if is_trusted(stream) else NULL
    if found == NULL:
        owner.hidden = True
        return
    found.stream = stream
    found.next = owner.replays
    owner.replays = found


cdef void forget_replays(Pool* pool, PrivatePool* owner) noexcept nogil:
    while owner.replays != NULL:
        drop_replay(pool, &owner.replays)
    owner.hidden = False


cdef void drop_replay(Pool* pool, Replay** link) noexcept nogil:
    cdef Replay* found = link[0]
    link[0] = found.next
    if found.progress_event != NULL:
        put_entry(&pool.spare_entries, <Entry*>found.progress_event)
    free(found)


# --- routes --------------------------------------------------------------------------------------------------

cdef Route* add_route(Pool* pool, uint64_t first, uint64_t second, int* out_code) noexcept nogil:
    # NULL, with INVALID_VALUE, if there is no such private pool.
    cdef PrivatePool* owner = find_private(pool, first, second)
    cdef Route* route = NULL if owner == NULL else <Route*>calloc(1, sizeof(Route))
    out_code[0] = 0 if route != NULL else INVALID_VALUE if owner == NULL else NO_HOST_MEMORY
    if route != NULL:
        route.owner = owner
        route.next = pool.routes
        pool.routes = route
    return route


cdef int begin_route(Pool* pool, uint64_t first, uint64_t second, uint64_t capture) noexcept nogil:
    # A thread's route disables the fast path for that thread.
    cdef int code
    cdef Route* route = add_route(pool, first, second, &code)
    if code:
        return code
    route.capture = capture
    if capture:
        pool.captures += 1
    else:
        route.thread = this_thread()
        store_routed(&pool.routed, pool.routed + 1)
        count_routes(1)
    return 0


cdef int begin_expected_route(Pool* pool, uint64_t first, uint64_t second, uintptr_t origin) noexcept nogil:
    cdef int code
    cdef Route* route = add_route(pool, first, second, &code)
    if code == 0:
        route.origin = origin
        pool.captures += 1
    return code


cdef int end_expected_route(Pool* pool, const PrivatePool* owner, uintptr_t origin) noexcept nogil:
    # Ends the latest such route, whether its capture began or not.
    cdef Route** link = &pool.routes
    cdef Route* route
    while link[0] != NULL and (link[0].origin != origin or link[0].owner != owner):
        link = &link[0].next
    route = link[0]
    if route == NULL or owner == NULL:
        return INVALID_VALUE
    link[0] = route.next
    pool.captures -= 1
    free(route)
    return 0


cdef int end_route(Pool* pool, const PrivatePool* owner, uint64_t capture, uint64_t thread) noexcept nogil:
    # Ends the latest route of the capture, or of the thread to this pool.  Another thread than the one that began it may
    # end it; the latter's routes are counted too high then, which keeps it from the fast path while any thread has a
    # route.
    cdef Route** link = &pool.routes
    cdef Route* route
    while link[0] != NULL and (link[0].capture != capture or link[0].thread != thread
                               or (capture == 0 and link[0].owner != owner)):
        link = &link[0].next
    route = link[0]
    if route == NULL:
        return INVALID_VALUE
    link[0] = route.next
    if capture:
        pool.captures -= 1
    else:
        store_routed(&pool.routed, pool.routed - 1)
        if thread == this_thread():
            count_routes(-1)
    free(route)
    return 0


cdef bint is_routed() noexcept nogil:
    return routes_here()


cdef uint64_t thread_number() noexcept nogil:
    return this_thread()


cdef int capture_of(Pool* pool, uintptr_t stream, uint64_t* out_capture) noexcept nogil:
    # The id of the stream's capture; 0 if it does not capture.  A query of the legacy stream while a stream that it
    # waits for captures is refused without harm, and means that it does not capture itself.
    cdef uint64_t capture = 0
    cdef int status = 0
    cdef int code = pool.table.capture_status(pool.device, stream, &status, &capture)
    out_capture[0] = capture if code == 0 and status == CAPTURE_ACTIVE else 0
    return 0 if code == CAPTURE_IMPLICIT else code


cdef void learn_capture(Pool* pool, Route* route) noexcept nogil:
    # An expected capture may have begun: its id is the one that its stream has now.
    cdef uint64_t capture = 0
    if route.origin and route.capture == 0 and capture_of(pool, route.origin, &capture) == 0:
        route.capture = capture


cdef int pool_for(Pool* pool, uintptr_t stream, PrivatePool** out_owner) noexcept nogil:
    # The latest route of the calling thread or of the stream's capture decides.  Costs one call of the driver per
    # allocation, and only while captures are under way.
    cdef Route* route = pool.routes
    cdef uint64_t thread = this_thread() if pool.routed else 0
    cdef uint64_t capture = 0
    cdef bint asked = False
    cdef int code
    out_owner[0] = NULL
    while route != NULL:
        if route.thread == 0 and not asked:
            asked = True
            code = capture_of(pool, stream, &capture)
            if code:
                return code
        if route.thread == 0 and capture:
            learn_capture(pool, route)
        if (route.thread and route.thread == thread) or (route.capture and route.capture == capture):
            out_owner[0] = route.owner
            return 0
        route = route.next
    return 0


cdef PrivatePool* entered_pool(const Pool* pool) noexcept nogil:
    cdef Route* route = pool.routes if pool.routed else NULL
    while route != NULL and (route.capture or route.thread != this_thread()):
        route = route.next
    return NULL if route == NULL else route.owner


cdef bint is_captured(const Pool* pool, const PrivatePool* owner) noexcept nogil:
    cdef const Route* route = pool.routes
    while route != NULL and (route.thread or route.owner != owner):
        route = route.next
    return route != NULL


# --- statistics ----------------------------------------------------------------------------------------------

cdef int64_t sum_of(const Pool* pool, const PrivatePool* owner, int stat) noexcept nogil:
    cdef const Heap* heap = <const Heap*>owner.heaps
    cdef int64_t answer = 0
    if stat == SEGMENT:
        return owner.segments
    if stat == RESERVED_BYTES:
        return owner.reserved
    while heap != NULL:
        answer += current(heap, BOTH, stat)
        heap = heap.sibling
    return answer


cdef void note_peaks(Pool* pool, PrivatePool* owner) noexcept nogil:
    # Exact, since the fast path never allocates from private pools: every rise passes here.
    cdef int stat
    for stat in range(PER_HEAP):
        owner.peak[stat] = max(owner.peak[stat], sum_of(pool, owner, stat))


cdef void reset_private_peaks(Pool* pool, PrivatePool* owner) noexcept nogil:
    cdef int stat
    for stat in range(STATS):
        owner.peak[stat] = sum_of(pool, owner, stat)


# --- the end -------------------------------------------------------------------------------------------------

cdef void recycle_heaps(Pool* pool, PrivatePool* owner) noexcept nogil:
    # Their records are kept for the next private pool.
    cdef Heap* heap = <Heap*>owner.heaps
    cdef Heap* after
    while heap != NULL:
        after = heap.sibling
        if heap.progress_event != NULL:
            put_entry(&pool.spare_entries, heap.progress_event)
            heap.progress_event = NULL
        retire_heap(pool, heap)
        heap = after
    owner.heaps = NULL


cdef void drop_empty(Pool* pool) noexcept nogil:
    # Needs the growth lock, since a thread that grows a private heap releases the exclusive section meanwhile.
    cdef PrivatePool* found = pool.privates
    cdef PrivatePool* after
    while found != NULL:
        after = found.next
        if found.uses == 0 and found.segments == 0:
            recycle_heaps(pool, found)
            unlink(pool, found)
        found = after
