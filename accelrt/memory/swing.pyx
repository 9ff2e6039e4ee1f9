"""The end of a swing: what its rounds did is made up for."""
from accelrt.memory.heap cimport Change, of_freeing
from accelrt.memory.hits cimport lay_aside
from accelrt.memory.share cimport add_given, add_made_rounds


cdef void rest(Heap* heap) noexcept nogil:
    # Nothing passes a ceiling by it: both states were there before, and ceilings fall in the world alone.
    cdef Block* block = heap.swing
    cdef Change change
    heap.swing = NULL
    heap.given = NULL
    if block == NULL:
        return
    change = of_freeing(block)
    add_made_rounds(heap, block, heap.rounds, change)
    if block.state == SWUNG:
        block.state = LIVE
        add_given(heap, block.kind, block.size, block.requested, block.segment.kind, change)
        lay_aside(heap, block)
