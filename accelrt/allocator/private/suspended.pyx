"""The records of suspended pools: which there are, whether memory is theirs, and the contents that the host keeps of it.

Whether memory is theirs is what everybody asks before memory is used.  The list of all of them is under a spin lock of this
module's own, the last in the order of locks; contents are noted and copied under the growth lock, and dropped once no
record leads to them.
"""
from libc.stdint cimport int64_t, uint64_t, uintptr_t
from libc.stdlib cimport calloc, free, malloc, qsort
from libc.string cimport memset
from posix.time cimport CLOCK_MONOTONIC, clock_gettime, timespec

from accelrt.core.locks cimport add_count, pthread_mutex_lock, pthread_mutex_unlock, spin_lock, spin_unlock, store_count
from accelrt.core.process cimport FORK_POOLS, at_fork
from accelrt.driver.capture_guard cimport DONE, GONE, is_device_lost, meaning_of
from accelrt.driver.table cimport STREAM_NON_BLOCKING
from accelrt.allocator.address_table cimport block_at
from accelrt.allocator.device_pools cimport MAX_DEVICES, pool_if_made
from accelrt.allocator.exclusive cimport lock_all, unlock_all
from accelrt.allocator.private.private_pool cimport sum_of
from accelrt.allocator.private.private_types cimport Kept, Range
from accelrt.allocator.stats cimport ACTIVE
from accelrt.allocator.types cimport LIVE, Block, Heap, Segment
from accelrt.allocator.pinned.pool cimport allocate_pinned_on, release_pinned, use_pinned_on
from accelrt.status cimport NO_HOST_MEMORY, SLEEPING, raise_status

cdef enum:
    CHUNK = 256 << 20    # bytes of page-locked memory in one piece: a copy of 64 MiB and more runs at the link's full speed
    BRIDGED = 64 << 10   # free bytes between two live blocks that are copied along, rather than begin another copy

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


cdef bint is_of_suspended(int device, uint64_t first, uint64_t second, uintptr_t address) noexcept nogil:
    cdef const Suspension* found
    cdef bint answer
    spin_lock(&lock)
    found = suspensions
    while found != NULL and not is_of(found, device, first, second):
        found = found.next
    answer = found != NULL and has_address(found, address)
    spin_unlock(&lock)
    return answer


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
    global suspensions
    spin_lock(&lock)
    made.next = suspensions
    suspensions = made
    add_count(&suspended_pools, 1)
    spin_unlock(&lock)


cdef void delist(Suspension* gone) noexcept nogil:
    cdef Suspension** link = &suspensions
    spin_lock(&lock)
    while link[0] != gone:
        link = &link[0].next
    link[0] = gone.next
    add_count(&suspended_pools, -1)
    spin_unlock(&lock)


cdef void forget_suspensions() noexcept nogil:
    # At import, and in a forked child: the pools are the parent's.
    global suspensions, lock
    suspensions = NULL
    lock = 0
    memset(spare_streams, 0, sizeof(spare_streams))
    memset(spares_copy, 0, sizeof(spares_copy))
    store_count(&suspended_pools, 0)


cdef void discard(Suspension* suspension) noexcept nogil:
    # It is in no list and no pool names it any more.
    release_chunks(suspension)
    free(suspension.ranges)
    free(suspension)


# --- contents ----------------------------------------------------------------------------------------------------

cdef size_t count_live(const PrivatePool* owner, const Segment* segment, Kept* kept, size_t count) noexcept nogil:
    # Counts the live blocks of the owner in a list of segments, and notes them if kept is not NULL; the new count.
    cdef const Block* block
    while segment != NULL:
        block = segment.first if segment.heap.owner == owner else NULL
        while block != NULL:
            if block.state == LIVE:
                if kept != NULL:
                    kept[count].address = block.address
                    kept[count].size = block.size
                count += 1
            block = block.after
        segment = segment.after
    return count


cdef size_t count_all_live(Pool* pool, const PrivatePool* owner, Kept* kept) noexcept nogil:
    cdef const Heap* heap = <const Heap*>owner.heaps
    cdef size_t count = count_live(owner, pool.first, kept, 0)
    while heap != NULL:
        count = count_live(owner, heap.first_stitched, kept, count)
        heap = heap.sibling
    return count


cdef int note_contents(Pool* pool, const PrivatePool* owner, Suspension* made) noexcept nogil:
    # Lists the live memory, laid end to end on the host; where little lies between two blocks, that comes along.  Such a
    # gap is mapped: it is smaller than a page, so each of its pages has bytes of one of the blocks.
    cdef size_t count = count_all_live(pool, owner, NULL)
    cdef size_t index, last
    cdef Kept* before
    made.kept = <Kept*>malloc((count + 1) * sizeof(Kept))
    if made.kept == NULL:
        return NO_HOST_MEMORY
    made.kept_count = count_all_live(pool, owner, made.kept)
    made.kept_bytes = 0
    for index in range(made.kept_count):
        if index:
            before = &made.kept[index - 1]
            last = before.address + before.size
            if made.kept[index].address - last <= BRIDGED:
                made.kept_bytes += made.kept[index].address - last
        made.kept[index].offset = made.kept_bytes
        made.kept_bytes += made.kept[index].size
    made.chunk_size = CHUNK
    made.chunk_count = (made.kept_bytes + CHUNK - 1) // CHUNK
    made.chunks = <uintptr_t*>calloc(made.chunk_count + 1, sizeof(uintptr_t))
    return 0 if made.chunks != NULL else NO_HOST_MEMORY


cdef int64_t now() noexcept nogil:
    cdef timespec read
    clock_gettime(CLOCK_MONOTONIC, &read)
    return <int64_t>read.tv_sec * 1000000000 + read.tv_nsec


cdef int take_chunks(Pool* pool, Suspension* made, Moved* moved) noexcept nogil:
    # All of the host's memory before the first copy: what is refused then has cost nothing.
    cdef size_t index
    cdef int64_t start = now()
    cdef int code = 0
    for index in range(made.chunk_count):
        if code == 0:
            code = allocate_pinned_on(
                pool.device, min(made.chunk_size, made.kept_bytes - index * made.chunk_size), &made.chunks[index])
    moved.host_ns = now() - start
    if code:
        moved.row = "host_alloc"
    return code


cdef int copy_piece(Pool* pool, const Suspension* made, uintptr_t stream, uintptr_t address, size_t size, size_t offset,
                    bint out) noexcept nogil:
    # Copies contiguous memory, cut where the chunks end.
    cdef size_t part
    cdef uintptr_t host
    cdef int code = 0
    while size and code == 0:
        part = min(size, made.chunk_size - offset % made.chunk_size)
        host = made.chunks[offset // made.chunk_size] + offset % made.chunk_size
        if out:
            code = pool.table.copy_async(pool.device, stream, host, address, part)
        else:
            code = pool.table.copy_async(pool.device, stream, address, host, part)
        address += part
        offset += part
        size -= part
    return code


cdef int copy_pieces(Pool* pool, const Suspension* made, uintptr_t stream, bint out, Moved* moved) noexcept nogil:
    # Blocks that follow each other on the host as they do on the device are copied as one.  A block that was freed since
    # has size 0 and ends a piece.
    cdef const Kept* block
    cdef uintptr_t address = 0
    cdef size_t index, size = 0, offset = 0
    cdef int code = 0
    for index in range(made.kept_count):
        block = &made.kept[index]
        if size and block.size and block.address - address == block.offset - offset and (
                block.address - address - size <= BRIDGED):
            size = block.address + block.size - address
            continue
        if code == 0:
            code = copy_piece(pool, made, stream, address, size, offset, out)
            moved.copied += size
        address, size, offset = block.address, block.size, block.offset
    if code == 0:
        code = copy_piece(pool, made, stream, address, size, offset, out)
        moved.copied += size
    return code


# For each device a stream that the driver refused to take back or to wait for: the next contents are copied on it, so that
# they come behind what it may still copy.  Under the growth lock.
cdef uintptr_t[MAX_DEVICES] spare_streams
cdef bint[MAX_DEVICES] spares_copy  # it may have copies under way, which use the pages and the chunks of a failed call


cdef bint may_still_copy(const Pool* pool) noexcept nogil:
    return spares_copy[pool.device]


cdef int await_copies(Pool* pool, Moved* moved) noexcept nogil:
    # Before pages are changed again: copies that an earlier call could not wait for.
    cdef int code = 0
    if spares_copy[pool.device]:
        code = pool.table.stream_synchronize(pool.device, spare_streams[pool.device])
        if code == 0 or is_device_lost(code):
            spares_copy[pool.device] = False
        else:
            moved.row = "stream_synchronize"
    return code


cdef int take_stream(Pool* pool, uintptr_t* out_stream) noexcept nogil:
    out_stream[0] = spare_streams[pool.device]
    spare_streams[pool.device] = 0
    return pool.table.stream_create(pool.device, STREAM_NON_BLOCKING, 0, out_stream) if out_stream[0] == 0 else 0


cdef int copy_contents(Pool* pool, Suspension* made, bint out, Moved* moved) noexcept nogil:
    # On a stream of its own, which is waited for whatever happened: the chunks and the pages may go then, but where even the
    # wait for the device is refused (may_still_copy).
    cdef uintptr_t stream = 0
    cdef int64_t start
    cdef size_t index
    cdef int code, waited, settled
    moved.copied = 0
    if made.kept_count == 0:
        return 0
    code = take_stream(pool, &stream)
    if code:
        moved.row = "stream_create"
        return code
    start = now()
    code = copy_pieces(pool, made, stream, out, moved)
    waited = pool.table.stream_synchronize(pool.device, stream)
    settled = 0 if is_device_lost(waited) else waited
    if settled:
        settled = pool.table.device_synchronize(pool.device)
    spares_copy[pool.device] = settled != 0 and not is_device_lost(settled)
    moved.copy_ns = now() - start
    if spares_copy[pool.device]:
        for index in range(made.chunk_count):
            use_pinned_on(made.chunks[index], pool.device, stream)  # who gives a chunk back waits for the copies
    if spares_copy[pool.device] or meaning_of(pool.table.stream_destroy(pool.device, stream)) not in (DONE, GONE):
        spare_streams[pool.device] = stream
    if code or waited:
        moved.row = "copy_async" if code else "stream_synchronize"
    return code if code else waited


cdef void drop_freed(Pool* pool, PrivatePool* owner, Suspension* suspension) noexcept nogil:
    # Contents of blocks that were freed meanwhile are not copied back.
    cdef const Block* block
    cdef Kept* kept
    cdef size_t index
    for index in range(suspension.kept_count):
        kept = &suspension.kept[index]
        block = block_at(pool, kept.address)
        if block == NULL or block.state != LIVE or block.heap.owner != owner or block.size != kept.size:
            kept.size = 0


cdef void release_chunks(Suspension* suspension) noexcept nogil:
    # A chunk that a copy may still use was said to be used by its stream (copy_contents).
    cdef size_t index
    for index in range(suspension.chunk_count):
        if suspension.chunks[index]:
            release_pinned(suspension.chunks[index])
    free(suspension.chunks)
    free(suspension.kept)
    suspension.chunks = NULL
    suspension.kept = NULL
    suspension.chunk_count = suspension.kept_count = suspension.kept_bytes = 0


# --- the end ---------------------------------------------------------------------------------------------------

cdef Suspension* unlink_orphans(int device) noexcept nogil:
    # Those whose private pool's record is gone, chained by next.
    cdef Suspension** link = &suspensions
    cdef Suspension* gone = NULL
    cdef Suspension* found
    spin_lock(&lock)
    while link[0] != NULL:
        found = link[0]
        if found.device == device and found.orphan:
            link[0] = found.next
            add_count(&suspended_pools, -1)
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
    if pool == NULL or not has_suspended_pools():
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
at_fork("allocator.private.suspended", FORK_POOLS, NULL, NULL, &forget_suspensions)
