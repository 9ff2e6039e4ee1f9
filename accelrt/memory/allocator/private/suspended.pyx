"""Which pools are suspended, and whether memory is theirs: what everybody asks before memory is used.

The list of all of them is under a spin lock of this module's own, the last in the order of locks.
"""
from libc.stdint cimport uint64_t, uintptr_t
from libc.stdlib cimport calloc, free, malloc, qsort

from accelrt.core.locks cimport pthread_mutex_lock, pthread_mutex_unlock, spin_lock, spin_unlock
from accelrt.memory.allocator.device_pools cimport pool_if_made
from accelrt.memory.allocator.exclusive cimport lock_all, unlock_all
from accelrt.memory.allocator.private.private_pool cimport sum_of
from accelrt.memory.allocator.private.private_types cimport Range
from accelrt.memory.allocator.stats cimport ACTIVE
from accelrt.memory.allocator.types cimport Heap, Segment
from accelrt.memory.host.pool cimport release_pinned
from accelrt.status cimport NO_HOST_MEMORY, SLEEPING, raise_status

cdef extern from "<pthread.h>" nogil:
    int pthread_atfork(void (*prepare)() noexcept, void (*parent)() noexcept, void (*child)() noexcept)

cdef Suspension* suspensions = NULL  # under the lock
cdef int lock = 0


cdef inline bint is_of(const Suspension* found, int device, uint64_t first, uint64_t second) noexcept nogil:
    return found.device == device and found.id[0] == first and found.id[1] == second and not found.orphan


cdef bint is_pool_suspended(int device, uint64_t first, uint64_t second) noexcept nogil:
    cdef const Suspension* found
    spin_lock(&lock)
    found = suspensions
    while found != NULL and not is_of(found, device, first, second):
        found = found.next
    spin_unlock(&lock)
    return found != NULL


cdef bint has_address(const Suspension* found, uintptr_t address) noexcept nogil:
    # Binary search among its segments.
    cdef size_t low = 0, high = found.range_count, middle
    while low < high:
        middle = (low + high) // 2
        if found.ranges[middle].high <= address:
            low = middle + 1
        else:
            high = middle
    return low < found.range_count and found.ranges[low].low <= address


cdef int device_of(uintptr_t address) noexcept nogil:
    # The device of a suspended pool that had this address in a segment when it was suspended; -1: none had.
    cdef const Suspension* found
    cdef int device
    spin_lock(&lock)
    found = suspensions
    while found != NULL and not has_address(found, address):
        found = found.next
    device = -1 if found == NULL else found.device
    spin_unlock(&lock)
    return device


cdef inline bint is_in(const Segment* segment, uintptr_t address) noexcept nogil:
    # Whether one of the listed segments is a suspended pool's and has the address.
    while segment != NULL:
        if address - segment.address < segment.size:
            return segment.heap.owner != NULL and segment.heap.owner.suspension != NULL
        segment = segment.after
    return False


cdef bint is_suspended(uintptr_t address) noexcept nogil:
    # The segments of a pool that nothing retains may be gone, and their addresses may be others', so the second look is at
    # the segments that there are.  It walks them all: only memory that sleeps comes here.
    cdef int device = device_of(address)
    cdef Pool* pool = NULL if device < 0 else pool_if_made(device)
    cdef const Heap* heap
    cdef bint answer
    if pool == NULL:
        return False
    lock_all(pool)
    answer = is_in(pool.first, address)
    heap = pool.heaps
    while heap != NULL and not answer:
        answer = is_in(heap.first_stitched, address)
        heap = heap.next
    unlock_all(pool, NULL)
    return answer


cdef int refuse_suspended(uintptr_t address, str name) except -1:
    cdef bint found
    if device_of(address) < 0:
        return 0
    with nogil:
        found = is_suspended(address)
    if found:
        raise_status(SLEEPING, "use", ("memory", name, "address", address))
    return 0


# --- the list ----------------------------------------------------------------------------------------------------

cdef int by_low(const void* one, const void* other) noexcept nogil:
    # For qsort of ranges.
    return -1 if (<const Range*>one).low < (<const Range*>other).low else 1


cdef int note_ranges(Pool* pool, const PrivatePool* owner, Suspension* made) noexcept nogil:
    # The addresses of the pool's segments, for is_suspended.
    cdef const Segment* segment = pool.first
    cdef const Heap* heap = <const Heap*>owner.heaps
    cdef size_t count = 0
    while segment != NULL:
        count += segment.heap.owner == owner
        segment = segment.after
    while heap != NULL:
        segment = heap.first_stitched
        while segment != NULL:
            count += 1
            segment = segment.after
        heap = heap.sibling
    made.ranges = <Range*>malloc((count + 1) * sizeof(Range))
    if made.ranges == NULL:
        return NO_HOST_MEMORY
    segment = pool.first
    while segment != NULL:
        if segment.heap.owner == owner:
            add_range(made, segment)
        segment = segment.after
    heap = <const Heap*>owner.heaps
    while heap != NULL:
        segment = heap.first_stitched
        while segment != NULL:
            add_range(made, segment)
            segment = segment.after
        heap = heap.sibling
    qsort(made.ranges, made.range_count, sizeof(Range), &by_low)
    return 0


cdef void add_range(Suspension* made, const Segment* segment) noexcept nogil:
    made.ranges[made.range_count].low = segment.address
    made.ranges[made.range_count].high = segment.address + segment.size
    made.range_count += 1


cdef void enlist(Suspension* made) noexcept nogil:
    global suspensions, suspended_pools
    spin_lock(&lock)
    made.next = suspensions
    suspensions = made
    suspended_pools += 1
    spin_unlock(&lock)


cdef void delist(Suspension* gone) noexcept nogil:
    global suspended_pools
    cdef Suspension** link = &suspensions
    spin_lock(&lock)
    while link[0] != gone:
        link = &link[0].next
    link[0] = gone.next
    suspended_pools -= 1
    spin_unlock(&lock)


cdef void forget_suspensions() noexcept nogil:
    # At import, and in a forked child: the pools are the parent's.
    global suspensions, suspended_pools, lock
    suspensions = NULL
    suspended_pools = lock = 0


cdef void release_chunks(Suspension* suspension) noexcept nogil:
    # No copy may be under way.
    cdef size_t index
    for index in range(suspension.chunk_count):
        if suspension.chunks[index]:
            release_pinned(suspension.chunks[index])
    free(suspension.chunks)
    free(suspension.kept)
    suspension.chunks = NULL
    suspension.kept = NULL
    suspension.chunk_count = suspension.kept_count = suspension.kept_bytes = 0


cdef void discard(Suspension* suspension) noexcept nogil:
    # It is in no list and no pool names it any more.
    release_chunks(suspension)
    free(suspension.ranges)
    free(suspension)


# --- the end ---------------------------------------------------------------------------------------------------

cdef Suspension* unlink_orphans(int device) noexcept nogil:
    # Those whose private pool's record is gone, chained by next.
    global suspended_pools
    cdef Suspension** link = &suspensions
    cdef Suspension* gone = NULL
    cdef Suspension* found
    spin_lock(&lock)
    while link[0] != NULL:
        found = link[0]
        if found.device == device and found.orphan:
            link[0] = found.next
            suspended_pools -= 1
            found.next = gone
            gone = found
        else:
            link = &found.next
    spin_unlock(&lock)
    return gone


cdef Suspension* take_copies(Pool* pool, Suspension* gone) noexcept nogil:
    # Moves the copies for pools that nothing retains and in which nothing is live to records chained to those given.
    cdef PrivatePool* owner = pool.privates
    cdef Suspension* shell
    while owner != NULL:
        if owner.suspension != NULL and owner.suspension.kept != NULL and owner.uses == 0 and (
                sum_of(pool, owner, ACTIVE) == 0):
            shell = <Suspension*>calloc(1, sizeof(Suspension))
            if shell == NULL:
                break
            shell.kept, owner.suspension.kept = owner.suspension.kept, NULL
            shell.chunks, owner.suspension.chunks = owner.suspension.chunks, NULL
            shell.chunk_count = owner.suspension.chunk_count
            owner.suspension.chunk_count = owner.suspension.kept_count = 0
            shell.next = gone
            gone = shell
        owner = owner.next
    return gone


cdef void sweep_suspended(int device) noexcept nogil:
    cdef Pool* pool = pool_if_made(device)
    cdef Suspension* gone
    cdef Suspension* after
    if pool == NULL or suspended_pools == 0:
        return
    pthread_mutex_lock(&pool.growth)
    lock_all(pool)
    gone = take_copies(pool, unlink_orphans(device))
    unlock_all(pool, NULL)
    pthread_mutex_unlock(&pool.growth)
    while gone != NULL:
        after = gone.next
        discard(gone)
        gone = after


forget_suspensions()
pthread_atfork(NULL, NULL, &forget_suspensions)
