"""The flush of the last-freed cache: brings lists and statistics up to date with its rounds."""
from accelrt.memory.allocator.block_ops cimport Change, of_freeing
from accelrt.memory.allocator.heap_stats cimport add_given, add_cached_rounds


cdef void flush_cached(Heap* heap) noexcept nogil:
    # Under the heap's lock.  No limit can be passed: the first round had both states within the limits, and limits fall
    # only in the exclusive section, which flushes the cache first.
    cdef Block* block = heap.cached
    cdef Change change
    heap.cached = NULL
    heap.freed_last = NULL
    if block == NULL:
        return
    change = of_freeing(block)
    add_cached_rounds(heap, block, heap.cached_rounds, change)
    if block.state == CACHED:
        block.state = LIVE
        add_given(heap, block.kind, block.size, block.requested, block.segment.kind, change)
        free_to_victim(heap, block)
