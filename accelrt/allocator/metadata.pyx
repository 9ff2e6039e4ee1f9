"""The records of blocks, heaps and uses: allocated in slabs, recycled, and never freed before the process ends.

Records are small beside what they describe: 128 bytes for a block of at least 512.  A block's record stays with its heap,
so that a hit takes and recycles records under its heap's lock alone.
"""
from libc.stdint cimport uint32_t
from libc.stdlib cimport calloc
from libc.string cimport memset

from accelrt.core.handle_map cimport AddressMap, map_find, map_insert, map_remove, map_reserve
from accelrt.core.locks cimport spin_lock, spin_unlock
from accelrt.core.zero_pages cimport take_fresh
from accelrt.allocator.exclusive cimport link_awake
from accelrt.allocator.inline.block_ops cimport recycle
from accelrt.allocator.sizes cimport UNIT
from accelrt.allocator.types cimport HOLE, MAX_PROBES
from accelrt.status cimport NO_HOST_MEMORY

cdef extern from "<stdlib.h>" nogil:
    int posix_memalign(void** out, size_t alignment, size_t size)

cdef enum:
    SLAB = 64     # records of blocks that are allocated together
    LINE = 128    # two cache lines: records that different threads use share none
    HEAPS = 16    # records of heaps that are allocated together


cdef void* take_lines(size_t size) noexcept nogil:
    # Zeroed memory that shares no cache line with other memory; NULL: no host memory.
    cdef void* lines = NULL
    if posix_memalign(&lines, LINE, (size + LINE - 1) // LINE * LINE):
        return NULL
    return memset(lines, 0, size)


cdef uint32_t next_weight(Heap* heap) noexcept nogil:
    # xorshift32 (Marsaglia, 2003): the treaps only need weights without a pattern.
    heap.seed ^= heap.seed << 13
    heap.seed ^= heap.seed >> 17
    heap.seed ^= heap.seed << 5
    return heap.seed


cdef int ensure_blocks(Heap* heap, size_t wanted) noexcept nogil:
    # Allocates records until the heap has so many spare ones.
    cdef Block* block = heap.spare
    cdef Block* slab
    cdef int index
    while block != NULL and wanted:
        block = block.left
        wanted -= 1
    while wanted:
        slab = <Block*>take_lines(SLAB * sizeof(Block))
        if slab == NULL:
            return NO_HOST_MEMORY
        for index in range(SLAB):
            slab[index].weight = next_weight(heap)
            slab[index].heap = heap
            recycle(heap, &slab[index])
        wanted -= min(wanted, <size_t>SLAB)
    return 0


cdef Block* append_hole(Segment* segment, size_t size) noexcept nogil:
    # The caller has ensured a spare record.
    cdef Heap* heap = segment.heap
    cdef Block* block = heap.spare
    heap.spare = block.left
    block.before = segment.last
    block.after = NULL
    if segment.last == NULL:
        segment.first = block
        block.address = segment.address
    else:
        segment.last.after = block
        block.address = segment.last.address + segment.last.size
    segment.last = block
    block.size = size
    block.order = (segment.serial << 32) + (block.address - segment.address) // UNIT
    block.segment = segment
    block.state = HOLE
    block.requested = 0
    block.epoch = heap.epoch
    return block


cdef Use* new_use(Pool* pool) noexcept nogil:
    cdef Use* use = pool.spare_uses
    if use == NULL:
        use = <Use*>calloc(1, sizeof(Use))
    else:
        pool.spare_uses = use.next
    pool.uses += use != NULL
    return use


cdef void recycle_use(Pool* pool, Use* use) noexcept nogil:
    use.next = pool.spare_uses
    pool.spare_uses = use
    pool.uses -= 1


cdef bint has_use(const Use* uses, int device, uintptr_t stream) noexcept nogil:
    while uses != NULL and not (uses.stream == stream and uses.device == device):
        uses = uses.next
    return uses != NULL


cdef int add_use(Pool* pool, Use** uses, int device, uintptr_t stream) noexcept nogil:
    # Does not look for an equal use: see has_use.
    cdef Use* use = new_use(pool)
    if use == NULL:
        return NO_HOST_MEMORY
    use.stream = stream
    use.device = device
    use.next = uses[0]
    uses[0] = use
    return 0


cdef Heap* take_heap(Pool* pool) noexcept nogil:
    # A zeroed record, of several that are allocated together: most of it is free lists that stay empty, and take_fresh
    # takes no memory for host pages that are not written to.  NULL: no host memory.
    cdef size_t size = (sizeof(Heap) + LINE - 1) // LINE * LINE
    if pool.unused_heaps == 0:
        pool.heap_slab = <char*>take_fresh(HEAPS * size)
        if pool.heap_slab == NULL:
            return NULL
        pool.unused_heaps = HEAPS
    pool.unused_heaps -= 1
    return <Heap*>(pool.heap_slab + pool.unused_heaps * size)


cdef Heap* make_heap(Pool* pool) noexcept nogil:
    # A heap without stream and index: the record of a heap whose private pool is gone, or a new one, which is then awake
    # and locked like all others in the exclusive section.  NULL: no host memory.
    cdef Heap* heap = pool.spare_heaps
    if heap != NULL:
        pool.spare_heaps = heap.sibling
        heap.sibling = NULL
        return heap
    heap = take_heap(pool)
    if heap == NULL:
        return NULL
    heap.settings = &pool.settings
    heap.seed = 0x2545F491
    spin_lock(&heap.lock)
    link_awake(pool, heap)
    store_heap(&pool.heaps if pool.last_heap == NULL else &pool.last_heap.next, heap)
    pool.last_heap = heap
    pool.heap_count += 1
    return heap


cdef uintptr_t heap_key(const PrivatePool* owner, uintptr_t stream, int kind) noexcept nogil:
    # Different heaps may have the same key; they are chained by same_key.
    return stream ^ <uintptr_t>owner * 0xC2B2AE3D27D4EB4FULL ^ <uintptr_t>kind << 62


cdef Heap* find_heap(const Pool* pool, const PrivatePool* owner, uintptr_t stream, int kind) noexcept nogil:
    cdef Heap* heap = <Heap*>map_find(&pool.heap_index, heap_key(owner, stream, kind))
    while heap != NULL and (heap.stream != stream or heap.owner != owner or heap.kind != kind):
        heap = heap.same_key
    return heap


cdef void index_heap(Pool* pool, Heap* heap) noexcept nogil:
    # Adds a heap to the index and to its private pool.  The caller has called map_reserve.
    cdef uintptr_t key = heap_key(heap.owner, heap.stream, heap.kind)
    heap.same_key = <Heap*>map_remove(&pool.heap_index, key)
    map_insert(&pool.heap_index, key, heap)
    if heap.owner != NULL:
        heap.sibling = <Heap*>heap.owner.heaps
        heap.owner.heaps = heap


cdef void retire_heap(Pool* pool, Heap* heap) noexcept nogil:
    # Removes a heap from the index and keeps its record for the next one.
    cdef uintptr_t key = heap_key(heap.owner, heap.stream, heap.kind)
    cdef Heap* first = <Heap*>map_remove(&pool.heap_index, key)
    cdef Heap** link = &first
    while link[0] != heap:
        link = &link[0].same_key
    link[0] = heap.same_key
    if first != NULL:
        map_insert(&pool.heap_index, key, first)
    heap.owner = NULL
    heap.stream = gone()
    heap.trusted = False
    heap.sibling = pool.spare_heaps
    pool.spare_heaps = heap


cdef void bring_near(Pool* pool, Heap* heap) noexcept nogil:
    # Puts a common heap into the heap table: in the first free place of its probes.  If all are taken it replaces the heap
    # in the first, which only the slow path finds from then on.
    cdef Heap** place = &pool.heap_table[heap.kind][hash_stream(heap.stream)]
    cdef int step
    for step in range(MAX_PROBES):
        if place[step] == heap:
            return
        if place[step].stream == gone():
            store_heap(place + step, heap)
            return
    store_heap(place, heap)


cdef int heap_of(Pool* pool, PrivatePool* owner, uintptr_t stream, int kind, Heap** out_heap) noexcept nogil:
    # Finds or makes a heap, and puts a common one into the heap table.
    cdef Heap* heap = find_heap(pool, owner, stream, kind)
    if heap == NULL:
        heap = NULL if map_reserve(&pool.heap_index) else make_heap(pool)
        if heap == NULL:
            return NO_HOST_MEMORY
        heap.stream = stream
        heap.owner = owner
        heap.kind = kind
        index_heap(pool, heap)
        heap.trusted = is_trusted(stream)
        heap.epoch = heap.quiescent_epoch + 1
        heap.waited = heap.quiescent_epoch
    if owner == NULL:
        bring_near(pool, heap)
    out_heap[0] = heap
    return 0


# --- streams that live as long as the process, so that the allocator may query them at any time --------------

cdef AddressMap trusted  # under the lock below.  A forked child inherits it: harmless, as its handles are others
cdef int trusting = 0  # the spin lock of the map; no lock is taken under it


cdef int trust_stream(uintptr_t stream) noexcept nogil:
    # Adds a stream once; 0 or NO_HOST_MEMORY.
    cdef int code = 0
    spin_lock(&trusting)
    if map_find(&trusted, stream) == NULL:
        code = map_reserve(&trusted)
        if code == 0:
            map_insert(&trusted, stream, &trusted)  # any value but NULL: the map is a set
    spin_unlock(&trusting)
    return code


cdef bint is_trusted(uintptr_t stream) noexcept nogil:
    # 0 and 1 are the legacy default stream; 2, the per-thread default stream, is a different stream on each thread.
    cdef bint answer
    spin_lock(&trusting)
    answer = stream < 2 or map_find(&trusted, stream) != NULL
    spin_unlock(&trusting)
    return answer
