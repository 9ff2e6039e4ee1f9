"""Captures beside every public call that a driver permits there, made by other threads: none may be broken.

    python tests/helpers/capture_storm.py --captures 100000

What breaks a capture is the user's doing (a synchronize(), a query of the capturing stream; in global mode
also raw queries and waits of other threads) and is left out; what accelrt does on its own account, in any of
these calls or when something dies, must break none.  Prints a line a mode.
"""

import argparse
import functools
import gc
import random
from collections import Counter

import numpy as np
from beside import Crowd

import accelrt

MODES = ("global", "thread_local", "relaxed")
MIB = 1 << 20


class Others:
    """What another thread does, on streams of its own and with memory that the capturing stream used."""

    def __init__(self, captured, mode, seed):
        self.captured, self.choice = captured, random.Random(seed)
        self.stream, self.side = accelrt.Stream(), accelrt.Stream()
        self.buffer = accelrt.Buffer(1 << 16, stream=self.stream)
        self.pinned = accelrt.PinnedBuffer(1 << 16)
        self.graph = accelrt.CUDAGraph()
        self.pool = accelrt.MemPool()
        with accelrt.graph(self.graph, stream=self.stream, capture_error_mode="relaxed"):
            self.buffer.fill(2)
        self.calls = [getattr(self, name) for name in dir(self) if name.startswith("call_")]
        if mode != "global":  # there these are refused, and break the captures of others
            self.calls += [getattr(self, name) for name in dir(self) if name.startswith("asking_")]

    def call_buffers_of_sizes(self):
        return [accelrt.Buffer(3 * MIB + 4096 * n, stream=self.stream) for n in range(1, 5)]

    def call_memory_that_the_captured_stream_used(self):
        buffer = accelrt.Buffer(1000, stream=self.stream)
        buffer.record_stream(self.captured)
        buffer.record_stream(accelrt.default_stream())
        buffer.free()

    def call_pinned_memory_that_it_used(self):
        pinned = accelrt.PinnedBuffer(5000)
        accelrt.record_host_stream(pinned, self.captured)
        pinned.free()

    def call_work(self):
        self.buffer.fill(1, stream=self.stream)
        accelrt.copy(self.buffer, self.pinned, stream=self.stream, blocking=False)
        self.side.wait_stream(self.stream)
        self.stream.wait_event(self.side.record_event())

    def call_hand_over(self):
        address = accelrt.caching_allocator_alloc(MIB, stream=self.stream)
        done = self.side.record_event()
        accelrt.memory.free_after(address, done)
        self.stream.wait_event(done)
        accelrt.caching_allocator_delete(accelrt.caching_allocator_alloc(MIB, stream=self.stream))

    def call_private_pool(self):
        with accelrt.use_mem_pool(self.pool):
            accelrt.Buffer(4096).free()

    def call_graphs(self):
        with accelrt.stream(self.stream):
            self.graph.replay()

    def call_another_capture(self):
        graph = accelrt.CUDAGraph()
        with accelrt.graph(graph, capture_error_mode="relaxed"), accelrt.Buffer(512) as inner:
            inner.fill(1)

    def call_streams_and_events(self):
        with accelrt.stream(accelrt.Stream()):
            return [accelrt.Event().record(), accelrt.Buffer(4096)]

    def call_caches(self):
        accelrt.empty_cache()
        accelrt.host_empty_cache()

    def call_figures(self):
        accelrt.memory_stats()
        accelrt.host_memory_stats()
        accelrt.mem_get_info()
        accelrt.memory_snapshot()
        accelrt.is_current_stream_capturing()

    def call_garbage(self):
        loop = [accelrt.Event(), accelrt.CUDAGraph(), accelrt.Buffer(4096), accelrt.PinnedBuffer(4096)]
        loop.append(loop)
        del loop
        if self.choice.random() < 0.05:
            gc.collect()

    def asking_streams_and_events(self):
        event = self.stream.record_event()
        self.stream.query()
        event.query()
        event.synchronize()
        self.side.synchronize()

    def asking_copies(self):
        there = np.zeros(4096, np.uint8)
        self.buffer.copy_from(there, stream=self.stream)
        self.buffer.copy_to(there, 4096, stream=self.stream)

    def round(self):
        call = self.choice.choice(self.calls)
        try:
            call()
        except accelrt.OutOfMemoryError:
            accelrt.empty_cache()
        return call.__name__


def capture(stream, mode, side, n):
    graph = accelrt.CUDAGraph()
    with accelrt.Buffer(8 * MIB, stream=stream) as large:  # free before it begins: others may ask for it
        large.fill(1, 64, stream=stream)
    context = accelrt.graph(graph, stream=stream, capture_error_mode=mode)
    with context, accelrt.Buffer(4096) as inner:
        inner.fill(n % 251)
        side.wait_stream(stream)
        inner.fill(3, 64, stream=side)
        inner.record_stream(side)
        stream.wait_stream(side)
        accelrt.PinnedBuffer(256).free()
    return graph


def storm(mode, captures, seed=1, threads=3):
    """Returns how often each call was made beside the captures; raises what a capture or a call raised."""
    stream, side, made = accelrt.Stream(), accelrt.Stream(), Counter()
    others = [Others(stream, mode, seed + n) for n in range(threads)]
    accelrt.synchronize()

    def run(each):
        made[each.round()] += 1

    with Crowd(*(functools.partial(run, each) for each in others)) as crowd:
        for n in range(captures):
            if crowd.has_failed():
                break
            graph = capture(stream, mode, side, n)
            if n % 16 == 0:
                graph.replay()
    gc.collect()
    return made


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--captures", type=int, default=1000, help="a mode (default %(default)s)")
    parser.add_argument("--mode", choices=MODES, action="append", help="default: each")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    for mode in given.mode or MODES:
        made = storm(mode, given.captures, given.seed)
        accelrt.synchronize()
        accelrt.memory.audit()
        accelrt.memory.host_audit()
        calls = f"{made.total()} calls of {len(made)} kinds"
        print(f"{mode}: {given.captures} captures, none broken, beside {calls}")


if __name__ == "__main__":
    main()
