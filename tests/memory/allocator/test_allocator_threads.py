"""Threads that allocate, write, hand over and free at the same time."""

import queue
import random
import threading

import numpy
import pytest
from beside import on_threads

import accelrt
from accelrt.driver.registry import Rows

pytestmark = pytest.mark.host
THREADS = 8
ROUNDS = 300


@pytest.fixture
def empty_pool():
    accelrt.empty_cache()
    assert accelrt.memory_snapshot(0) == []
    yield
    accelrt.synchronize()
    accelrt.memory.audit(0)
    accelrt.empty_cache()
    assert accelrt.memory_snapshot(0) == []
    stats = accelrt.memory_stats(0)
    assert {key: value for key, value in stats.items() if key.endswith(".current") and value} == {}


def run_threads(target):
    """Runs target(index) on THREADS threads, which begin together."""
    barrier = threading.Barrier(THREADS)

    def body(index):
        barrier.wait()
        target(index)

    on_threads(body, range(THREADS))


class Writer:
    """Blocks on a stream of its own, each filled with a word that no other block has."""

    def __init__(self, index):
        self.stream = accelrt.Stream(0)
        self.rows = Rows()
        self.random = random.Random(index)
        self.word = index << 24

    def make(self):
        words = self.random.choice([16, 128, 1000, 20_000])
        self.word += 1
        address = accelrt.caching_allocator_alloc(4 * words, 0, self.stream)
        assert self.rows.fill(0, self.stream.cuda_stream, address, self.word, 4, words) == 0
        return address, words, self.word

    def check(self, block):
        address, words, word = block
        read = numpy.zeros(words, numpy.uint32)
        assert self.rows.copy(0, self.stream.cuda_stream, read.ctypes.data, address, read.nbytes) == 0
        self.stream.synchronize()
        assert (read == word).all(), f"the block at {address:#x} was written by another: {read}"


def test_contents_survive_when_every_thread_has_a_stream(empty_pool):
    def work(index):
        writer, held = Writer(index), []
        for _ in range(ROUNDS):
            if len(held) < 12 and writer.random.random() < 0.6:
                held.append(writer.make())
            elif held:
                block = held.pop(writer.random.randrange(len(held)))
                writer.check(block)
                accelrt.caching_allocator_delete(block[0])
        for block in held:
            writer.check(block)
            accelrt.caching_allocator_delete(block[0])

    run_threads(work)


def test_contents_survive_a_hand_over_and_a_free_by_another_thread(empty_pool):
    inboxes = [queue.SimpleQueue() for _ in range(THREADS)]

    def work(index):
        writer = Writer(index)
        for _ in range(ROUNDS):
            block = writer.make()
            event = writer.stream.record_event()
            inboxes[(index + 1) % THREADS].put((block, event))
            block, event = inboxes[index].get(timeout=300)
            writer.stream.wait_event(event)
            accelrt.record_stream(block[0], writer.stream)
            writer.check(block)
            accelrt.caching_allocator_delete(block[0])

    run_threads(work)


def test_statistics_add_up_after_threads_have_raced(empty_pool):
    accelrt.reset_accumulated_memory_stats(0)

    def work(index):
        chance = random.Random(index)
        for _ in range(ROUNDS):
            held = [accelrt.caching_allocator_alloc(chance.randint(1, 3 << 20), 0) for _ in range(4)]
            for address in held:
                accelrt.caching_allocator_delete(address)

    run_threads(work)
    stats = accelrt.memory_stats(0)
    assert stats["allocation.all.allocated"] == stats["allocation.all.freed"] == THREADS * ROUNDS * 4
    assert stats["allocated_bytes.all.allocated"] == stats["allocated_bytes.all.freed"]


def test_peaks_are_exact_for_threads_that_take_turns(empty_pool):
    streams = [accelrt.Stream(0) for _ in range(THREADS)]
    for stream in streams:
        accelrt.caching_allocator_delete(accelrt.caching_allocator_alloc(1 << 20, 0, stream))
    accelrt.reset_peak_memory_stats(0)
    turn = threading.Lock()

    def work(index):
        for _ in range(ROUNDS):
            with turn:
                address = accelrt.caching_allocator_alloc(1 << 20, 0, streams[index])
                accelrt.caching_allocator_delete(address)

    run_threads(work)
    assert accelrt.max_memory_allocated(0) == 1 << 20


def test_peaks_of_racing_threads_are_too_high_by_no_more_than_the_bound(empty_pool):
    accelrt.reset_peak_memory_stats(0)

    def work(index):
        stream, chance = accelrt.Stream(0), random.Random(index)
        for _ in range(ROUNDS):  # each call walks every heap that the process has (ACCELRT_DEBUG=2)
            held = [accelrt.caching_allocator_alloc(chance.choice([512, 65536]), 0, stream) for _ in range(8)]
            for address in held:
                accelrt.caching_allocator_delete(address)

    run_threads(work)
    assert 8 <= accelrt.memory_stats(0)["allocation.all.peak"] <= THREADS * (8 + 64)
    assert accelrt.max_memory_allocated(0) <= THREADS * (8 * 65536 + (2 << 20))


def test_one_free_of_many_at_once_succeeds(empty_pool):
    for _ in range(50):
        address = accelrt.caching_allocator_alloc(4096, 0)
        refused = queue.SimpleQueue()

        def work(index, address=address, refused=refused):
            try:
                accelrt.caching_allocator_delete(address)
            except (accelrt.CudaError, ValueError):
                refused.put(index)

        run_threads(work)
        assert refused.qsize() == THREADS - 1
