"""The records that describe memory: taken in slabs, recycled, never given back before the process ends.

Records are small beside what they describe: 128 bytes a block of at least 512.  A heap's records stay its
own, so that a stale pointer to one leads to the heap whose lock says what it is now.
"""
from libc.stdint cimport uint32_t
from libc.stdlib cimport calloc
from libc.string cimport memset

from accelrt.core.handle_map cimport map_find, map_insert, map_remove, map_reserve
from accelrt.core.locks cimport spin_lock
from accelrt.core.zero_pages cimport take_fresh
from accelrt.memory.allocator.block_ops cimport recycle
from accelrt.memory.allocator.exclusive cimport link_awake
from accelrt.memory.allocator.sizes cimport UNIT
from accelrt.memory.allocator.stream_registry cimport is_trusted
from accelrt.memory.allocator.types cimport HOLE, MAX_PROBES
from accelrt.status cimport NO_HOST_MEMORY

cdef extern from "<stdlib.h>" nogil:
    int posix_memalign(void** out, size_t alignment, size_t size)

cdef enum:
    SLAB = 64     # records taken at once
    LINE = 128    # two lines of cache: what different threads use shares none
    HEAPS = 16    # taken at once


cdef void* take_lines(size_t size) noexcept nogil:
    # Zeros, in lines of cache of their own; NULL where the host has no memory.
    cdef void* lines = NULL
    if posix_memalign(&lines, LINE, (size + LINE - 1) // LINE * LINE):
        return NULL
    return memset(lines, 0, size)


cdef uint32_t next_weight(Heap* heap) noexcept nogil:
    # xorshift32 (Marsaglia, 2003): the trees need weights without a pattern, nothing more.
    heap.seed ^= heap.seed << 13
    heap.seed ^= heap.seed >> 17
    heap.seed ^= heap.seed << 5
    return heap.seed


cdef int ensure_blocks(Heap* heap, size_t wanted) noexcept nogil:
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
        return <Use*>calloc(1, sizeof(Use))
    pool.spare_uses = use.next
    return use


cdef void recycle_use(Pool* pool, Use* use) noexcept nogil:
    use.next = pool.spare_uses
    pool.spare_uses = use


cdef bint has_use(const Use* uses, int device, uintptr_t stream) noexcept nogil:
    while uses != NULL and not (uses.stream == stream and uses.device == device):
        uses = uses.next
    return uses != NULL


cdef int add_use(Pool* pool, Use** uses, int device, uintptr_t stream) noexcept nogil:
    cdef Use* use = new_use(pool)
    if use == NULL:
        return NO_HOST_MEMORY
    use.stream = stream
    use.device = device
    use.next = uses[0]
    uses[0] = use
    return 0


cdef Heap* take_heap(Pool* pool) noexcept nogil:
    # Of several at once: most of a heap is lists of free blocks that stay empty.  NULL where the host has no memory.
    cdef size_t size = (sizeof(Heap) + LINE - 1) // LINE * LINE
    if pool.unused_heaps == 0:
        pool.heap_slab = <char*>take_fresh(HEAPS * size)
        if pool.heap_slab == NULL:
            return NULL
        pool.unused_heaps = HEAPS
    pool.unused_heaps -= 1
    return <Heap*>(pool.heap_slab + pool.unused_heaps * size)


cdef Heap* make_heap(Pool* pool) noexcept nogil:
    # One whose private pool is gone is taken over; else one of its own, whose lock our caller then holds.
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
    # Not of one heap alone, where others are chained behind it.
    return stream ^ <uintptr_t>owner * 0xC2B2AE3D27D4EB4FULL ^ <uintptr_t>kind << 62


cdef Heap* find_heap(const Pool* pool, const PrivatePool* owner, uintptr_t stream, int kind) noexcept nogil:
    cdef Heap* heap = <Heap*>map_find(&pool.heap_index, heap_key(owner, stream, kind))
    while heap != NULL and (heap.stream != stream or heap.owner != owner or heap.kind != kind):
        heap = heap.same_key
    return heap


cdef void index_heap(Pool* pool, Heap* heap) noexcept nogil:
    # After map_reserve.
    cdef uintptr_t key = heap_key(heap.owner, heap.stream, heap.kind)
    heap.same_key = <Heap*>map_remove(&pool.heap_index, key)
    map_insert(&pool.heap_index, key, heap)
    if heap.owner != NULL:
        heap.sibling = <Heap*>heap.owner.heaps
        heap.owner.heaps = heap


cdef void retire_heap(Pool* pool, Heap* heap) noexcept nogil:
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
    # In the first place that nobody has; where all are taken, the heap in the first is found the slow way from now on.
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
