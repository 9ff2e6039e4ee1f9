"""Segments of page-locked memory, and the search for what contains an address."""
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memmove

from accelrt.core.handle_map cimport map_find
from accelrt.memory.host.block cimport LEAVING
from accelrt.memory.host.sizes cimport PAGE, SMALL, STEP, log2_floor

cdef enum:
    SLAB = 64   # records taken at once
    LOOKS = 16  # at blocks of a list that may be too small


cdef PinnedBlock* new_block_slow(PinnedPool* pool) noexcept nogil:
    # Never given back before the process ends: 96 bytes beside blocks of at least 64, mostly far more.
    cdef PinnedBlock* slab = <PinnedBlock*>calloc(SLAB, sizeof(PinnedBlock))
    cdef int index
    if slab == NULL:
        return NULL
    for index in range(SLAB - 1):
        slab[index].right = &slab[index + 1]
    pool.spare_blocks = slab
    return slab


cdef PinnedSegment* new_segment(uintptr_t address, size_t size, int kind) noexcept nogil:
    cdef PinnedSegment* segment = <PinnedSegment*>calloc(1, sizeof(PinnedSegment))
    if segment == NULL:
        return NULL
    segment.address = address
    segment.size = size
    segment.kind = kind
    segment.unit = STEP if kind == SMALL else PAGE
    segment.starts = <uint64_t*>calloc((size // segment.unit + 63) // 64, sizeof(uint64_t))
    if segment.starts == NULL:
        free(segment)
        return NULL
    return segment


cdef void drop_segment(PinnedSegment* segment) noexcept nogil:
    free(segment.starts)
    free(segment)


cdef size_t position(PinnedPool* pool, uintptr_t address) noexcept nogil:
    # How many segments start at or below the address.
    cdef size_t low = 0, high = pool.segment_count, middle
    while low < high:
        middle = (low + high) // 2
        if pool.segments[middle].address <= address:
            low = middle + 1
        else:
            high = middle
    return low


cdef int reserve_segment(PinnedPool* pool) noexcept nogil:
    cdef size_t room = 2 * pool.segment_room + 16
    cdef void* larger
    if pool.segment_count < pool.segment_room:
        return 0
    larger = realloc(pool.segments, room * sizeof(PinnedSegment*))
    if larger == NULL:
        return NO_HOST_MEMORY
    pool.segments = <PinnedSegment**>larger
    pool.segment_room = room
    return 0


cdef int attach(PinnedPool* pool, PinnedSegment* segment) noexcept nogil:
    cdef PinnedBlock* block = pool.spare_blocks
    cdef size_t index
    if block == NULL:
        block = new_block_slow(pool)
    if block == NULL or reserve_segment(pool):
        return NO_HOST_MEMORY
    pool.spare_blocks = block.right
    index = position(pool, segment.address)
    memmove(&pool.segments[index + 1], &pool.segments[index], (pool.segment_count - index) * sizeof(PinnedSegment*))
    pool.segments[index] = segment
    pool.segment_count += 1
    block.address = segment.address
    block.size = segment.size
    block.segment = segment
    block.before = block.after = NULL
    block.uses = NULL
    block.events = 0
    segment.first = block
    segment.next = NULL
    flip_start(block)
    insert(pool, block)
    add(&pool.stats.segments, 1)
    add(&pool.stats.segment_bytes, segment.size)
    return 0


cdef void detach(PinnedPool* pool, PinnedSegment* segment) noexcept nogil:
    cdef size_t index = position(pool, segment.address) - 1
    cdef PinnedBlock* block = segment.first
    if block.state == FREE:
        remove(pool, block)
    flip_start(block)
    block.right = pool.spare_blocks
    pool.spare_blocks = block
    segment.first = NULL
    pool.segment_count -= 1
    memmove(&pool.segments[index], &pool.segments[index + 1], (pool.segment_count - index) * sizeof(PinnedSegment*))
    subtract(&pool.stats.segments, 1)
    subtract(&pool.stats.segment_bytes, segment.size)


cdef void doom(PinnedPool* pool, PinnedBlock* block) noexcept nogil:
    block.state = LEAVING
    block.segment.next = pool.doomed
    pool.doomed = block.segment


cdef PinnedSegment* detach_doomed(PinnedPool* pool) noexcept nogil:
    cdef PinnedSegment* segments = pool.doomed
    cdef PinnedSegment* segment = segments
    pool.doomed = NULL
    while segment != NULL:
        detach(pool, segment)
        segment = segment.next
    return segments


cdef PinnedSegment* detach_idle(PinnedPool* pool) noexcept nogil:
    cdef PinnedSegment* idle = detach_doomed(pool)
    cdef PinnedSegment* segment
    cdef size_t index = pool.segment_count
    while index:
        index -= 1
        segment = pool.segments[index]
        if segment.first.state == FREE and segment.first.after == NULL:
            detach(pool, segment)
            segment.next = idle
            idle = segment
    return idle


cdef PinnedBlock* find_unrounded(PinnedPool* pool, size_t size) noexcept nogil:
    # A size between two classes: blocks of just this size are in the list of the class below it, among others.
    cdef PinnedBlock* block = pool.free[kind_of(size)][class_below(size)]
    cdef int left = LOOKS
    while block != NULL and left:
        if block.size >= size:
            return block
        block = block.right
        left -= 1
    return find(pool, size)


cdef PinnedSegment* segment_of(PinnedPool* pool, uintptr_t address) noexcept nogil:
    cdef size_t index = position(pool, address)
    cdef PinnedSegment* segment
    if index == 0:
        return NULL
    segment = pool.segments[index - 1]
    return segment if address - segment.address < segment.size else NULL


cdef PinnedBlock* block_of(PinnedPool* pool, uintptr_t address) noexcept nogil:
    # Most callers pass a block's start.  Else the bits below the address's own lead to it: 64 units a step.
    cdef PinnedBlock* block = <PinnedBlock*>map_find(&pool.live, address)
    cdef PinnedSegment* segment
    cdef size_t unit, word
    cdef uint64_t bits
    if block == NULL:
        segment = segment_of(pool, address)
        if segment == NULL:
            return NULL
        unit = (address - segment.address) // segment.unit
        word = unit >> 6
        bits = segment.starts[word] & (~<uint64_t>0 >> (63 - (unit & 63)))
        while bits == 0:
            word -= 1
            bits = segment.starts[word]
        unit = 64 * word + log2_floor(bits)
        block = <PinnedBlock*>map_find(&pool.live, segment.address + unit * segment.unit)
    return block if block != NULL and block.state == LIVE else NULL
