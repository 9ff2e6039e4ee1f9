"""Segments of a library that begin and end anywhere: every block stays with the pool that it came from."""

import ctypes
import random

import pytest
from compiled import compile_library, typed

import accelrt
from accelrt import memory

MIB = 1 << 20
SEGMENT = 2 * MIB  # of a pool that does not split
LARGE = 12 * MIB  # a request that has a segment of its size in every pool
AREA = 64 * MIB


class Arena:
    """A library whose segments lie where a test says."""

    def __init__(self, path):
        library = ctypes.CDLL(path)
        self.next = typed(library, "arena_next", None, [ctypes.c_size_t])
        self.asked = typed(library, "arena_asked")
        self.returned = typed(library, "arena_returned", ctypes.c_long)
        accelrt.init()
        self.start = typed(library, "arena_make", ctypes.c_size_t, [ctypes.c_size_t])(AREA)
        self.allocator = memory.CUDAPluggableAllocator(path, "arena_alloc", "arena_free")

    def take(self, pool, address, size=SEGMENT):
        """A buffer of a whole segment of the pool at an address."""
        self.next(address)
        with accelrt.use_mem_pool(pool):
            buffer = accelrt.Buffer(size)
        assert (buffer.ptr, self.asked()) == (address, size)
        return buffer

    def give_back(self, pool, buffer):
        """Frees a buffer, and has its segment returned to the library."""
        returned = self.returned()
        buffer.free()
        accelrt.synchronize()
        with accelrt.use_mem_pool(pool):
            accelrt.empty_cache()
        assert self.returned() == returned + 1


@pytest.fixture(scope="module")
def arena(tmp_path_factory):
    return Arena(compile_library("arena", tmp_path_factory.mktemp("arena")))


@pytest.fixture
def pools(arena):
    before = memory.memory_allocated()
    made = [accelrt.MemPool(arena.allocator, no_split=True) for _ in range(3)]
    made.append(accelrt.MemPool(arena.allocator))
    yield made
    made.clear()
    accelrt.synchronize()
    accelrt.empty_cache()
    memory.audit()
    assert memory.memory_allocated() == before


def test_a_segment_in_the_gap_beside_another_leaves_that_ones_blocks_alone(arena, pools):
    before = memory.memory_allocated()
    border = (arena.start + 8 * MIB) // SEGMENT * SEGMENT
    low = arena.take(pools[0], border - MIB)
    high = arena.take(pools[1], border + MIB)
    arena.give_back(pools[0], low)
    shorter = arena.take(pools[2], border - 3 * MIB // 2)
    memory.audit()
    high.record_stream(accelrt.Stream())
    arena.give_back(pools[1], high)
    assert memory.memory_allocated() == before + SEGMENT
    arena.give_back(pools[2], shorter)


def test_segments_that_come_and_go_at_any_address_keep_their_blocks(arena, pools):
    numbers, live, owners = random.Random(5), {}, {}
    stream = accelrt.Stream()
    for _ in range(400):
        pool = numbers.choice(pools)
        size = LARGE if pool is pools[-1] else SEGMENT
        offset = numbers.randrange(0, AREA - size, 64 << 10)
        met = [other for other in live if other < offset + size and offset < other + live[other].nbytes]
        if not met:
            live[offset] = arena.take(pool, arena.start + offset, size)
            owners[offset] = pool
        else:
            gone = numbers.choice(met)
            if numbers.random() < 0.5:
                live[gone].record_stream(stream)
            arena.give_back(owners.pop(gone), live.pop(gone))
        memory.audit()
