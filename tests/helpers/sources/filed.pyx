"""How many heaps and queues searches and polls go by, for tests of what they cost."""
from accelrt.allocator.heaps cimport BUSY, RANKED, UNSEARCHED
from accelrt.allocator.pool cimport pool_if_made
from accelrt.allocator.types cimport Heap, Pool
from accelrt.driver.guard cimport next_filled, Queue


def filed(int device=0):
    """dict of counts: awake, busy, unsearched, ranked."""
    cdef Pool* pool = pool_if_made(device)
    cdef const Heap* heap = pool.heaps
    counts = dict.fromkeys(("awake", "busy", "unsearched", "ranked"), 0)
    while heap != NULL:
        counts["awake"] += heap.awake
        counts["busy"] += heap.filed == BUSY
        counts["unsearched"] += heap.filed == UNSEARCHED
        counts["ranked"] += heap.filed == RANKED
        heap = heap.next
    return counts


def queues(int device=0):
    """(how many streams have a queue, of how many it is not empty)."""
    cdef Pool* pool = pool_if_made(device)
    cdef const Queue* queue = next_filled(&pool.queues, 0)
    filled = 0
    while queue != NULL:
        filled += 1
        queue = next_filled(&pool.queues, queue.number + 1)
    return pool.queues.count, filled
