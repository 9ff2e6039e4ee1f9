"""Damage to an allocator's heaps as a fault in its fast path would leave it, for tests of the audits."""
from libc.stdint cimport int64_t, uintptr_t

from accelrt.allocator.heaps cimport heap_at
from accelrt.allocator.inline.block_map cimport block_in
from accelrt.allocator.inline.free_list cimport remove
from accelrt.allocator.stats cimport ALLOCATION, BLOCKS, BOTH, SPLITS, HeapStats
from accelrt.allocator.types cimport CLASSES, WORDS, Block, Heap


cdef Heap* heap_of(uintptr_t address) except NULL:
    return heap_at(address)


def forget_last_freed(uintptr_t live):
    cdef Heap* heap = heap_of(live)
    remove(heap, <Block*>heap.freed_last)
    heap.freed_last = NULL


def list_without_a_bit(uintptr_t live):
    cdef Heap* heap = heap_of(live)
    heap.trees[CLASSES - 30] = <Block*>heap.freed_last


def say_that_one_is_listed(uintptr_t live):
    cdef Heap* heap = heap_of(live)
    heap.filled[WORDS - 1] |= 1
    heap.summary |= 1 << WORDS - 1


def count_one_more(uintptr_t live):
    heap_of(live).stats[0].headroom[BLOCKS] -= 1


def rise_above_ceiling(uintptr_t live):
    heap_of(live).stats[0].limit[ALLOCATION] = 0


def raise_sum_of_ceilings(uintptr_t live):
    cdef Heap* heap = heap_of(live)
    heap.sole = False
    heap.stats[BOTH].limit[ALLOCATION] += 1 << 40


def turn_another(uintptr_t cached, uintptr_t live):
    heap_of(cached).cached = block_in(heap_of(cached), live)


def lose_room_to_turn(uintptr_t cached):
    cdef HeapStats* stats = &heap_of(cached).stats[BOTH]
    cdef int64_t lost = stats.headroom[SPLITS] + 100
    stats.headroom[SPLITS] -= lost
    stats.count_limit[SPLITS] -= lost
