# A block that is given back and taken again, over and over, while nothing else happens in its heap.
#
# The first round goes the usual way, and proves that this very block is the best fit for its size and that neither
# state passes a ceiling.  From then on a round is two marks: structure, lists and figures stay as they are with the
# block live, and rest() makes up for the rounds before anybody looks at them or does anything else in the heap.
from libc.stdint cimport uintptr_t

from accelrt.memory.block cimport LIVE, SWUNG, Block, Heap

cdef void rest(Heap* heap) noexcept nogil  # under the heap's lock; afterwards no block swings


cdef inline bint swing_out(Heap* heap, size_t size, size_t requested, uintptr_t* out_address) noexcept nogil:
    cdef Block* block = heap.swing
    if block == NULL or block.state != SWUNG or block.size != size or block.requested != requested:
        return False
    block.state = LIVE
    heap.rounds += 1
    out_address[0] = block.address
    return True


cdef inline bint swing_back(Heap* heap, Block* block, uintptr_t address) noexcept nogil:
    if block != heap.swing or block.state != LIVE or block.address != address or block.uses != NULL:
        return False
    block.state = SWUNG
    return True


# Of the usual way: what was given back last, so that whoever takes it at once begins to swing.

cdef inline void note_given(Heap* heap, const Block* block, const Block* joined, size_t size) noexcept nogil:
    heap.given = joined if joined == block else NULL
    heap.given_size = size


cdef inline void note_taken(Heap* heap, Block* block, size_t size) noexcept nogil:
    if block == heap.given and size == heap.given_size:
        heap.swing = block
        heap.rounds = 0
    heap.given = NULL
