# What a hit does under its heap's lock.  Whatever is not there already is left to the slow path: NOT_READY.
from libc.stdint cimport uintptr_t

from accelrt.memory.aside cimport fit_of_hit, put_aside, unlist
from accelrt.memory.block cimport LIVE, PLAIN, WINDOW, Block, Heap
from accelrt.memory.heap cimport (
    Change, join_freed, joined_size, keeps_rest, make_live, of_freeing, of_taking, split_off,
)
from accelrt.memory.places cimport find_cell
from accelrt.memory.share cimport add_given, add_taken, raise_ceilings, take_back_given, take_back_taken
from accelrt.memory.sizes cimport GRANULE, kind_of
from accelrt.memory.state cimport Pool
from accelrt.memory.swing cimport note_given, note_taken, rest
from accelrt.memory.terms cimport Policy
from accelrt.status cimport NOT_READY

cdef extern from *:
    """
    #define expect_read(place) __builtin_prefetch(place, 0)
    #define expect_write(place) __builtin_prefetch(place, 1)
    """
    void expect_read(const void* place) noexcept nogil
    void expect_write(const void* place) noexcept nogil


cdef inline int take(
    Heap* heap, const Policy* policy, size_t size, size_t requested, uintptr_t* out_address,
) noexcept nogil:
    cdef Block* block
    cdef Change change
    cdef bint splits
    cdef int kind = kind_of(size)
    if not heap.quiet:
        return NOT_READY
    if heap.swing != NULL:
        rest(heap)
    block = fit_of_hit(heap, size)
    if block == NULL or block.size >= policy.max_split:
        return NOT_READY
    if block.cell == NULL:
        block.cell = find_cell(block.address)
    if block.cell == NULL or heap.spare == NULL:
        return NOT_READY
    expect_write(block.cell)  # seldom in the cache
    splits = keeps_rest(block, size)
    change = of_taking(block, size, splits)
    if not splits:
        size = block.size
    if add_taken(heap, kind, size, requested, block.segment.kind, change):
        if not heap.sole:
            take_back_taken(heap, kind, size, requested, block.segment.kind, change)
            return NOT_READY
        raise_ceilings(heap)
    unlist(heap, block)
    if splits:
        split_off(heap, block, size)
        put_aside(heap, block.after)
    make_live(block, requested, kind)
    note_taken(heap, block, size)
    out_address[0] = block.address
    return 0


cdef inline void lay_aside(Heap* heap, Block* block) noexcept nogil:
    # What is given back and counted.
    cdef size_t size = block.size
    cdef Block* joined = join_freed(heap, block)
    put_aside(heap, joined)
    note_given(heap, block, joined, size)


cdef inline int put(const Pool* pool, Heap* heap, Block* block, uintptr_t address) noexcept nogil:
    # The heap is the one that the block was read to belong to: now it is certain.
    cdef Change change
    if not heap.quiet or block.address != address or block.state != LIVE or block.uses != NULL:
        return NOT_READY
    if block.size >= heap.policy.max_split:  # one figure more
        return NOT_READY
    if heap.swing != NULL:
        rest(heap)
    if block.segment.shape == WINDOW and joined_size(block) >= GRANULE:  # pages may go home
        return NOT_READY
    change = of_freeing(block)
    if add_given(heap, block.kind, block.size, block.requested, block.segment.kind, change):
        if not heap.sole:
            take_back_given(heap, block.kind, block.size, block.requested, block.segment.kind, change)
            return NOT_READY
        raise_ceilings(heap)
    if block.segment.shape == PLAIN:
        block.segment.idle_since = pool.allocations
    elif block.segment.shape == WINDOW:
        block.segment.used = heap.epoch
    lay_aside(heap, block)
    return 0
