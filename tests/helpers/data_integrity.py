"""Threads that write, copy, free and read memory in every way that accelrt has, and check every byte.

    python tests/helpers/data_integrity.py --seconds 300 --threads 8 --seed 1

Runs on the driver that ACCELRT_DRIVER names and on all of its devices.  Every second thread never chooses a
device, so that it has no context of its own.  The program orders its streams as CUDA asks of a user.  What
accelrt has to see to is that memory which is freed, dropped or handed over while work on it is under way, on
whichever stream and device, is not reused too early.  Prints a line of JSON; fails at the first wrong byte.
"""

import argparse
import contextlib
import json
import os
import queue
import random
import sys
import threading
import time
import traceback

import numpy as np

import accelrt
from accelrt.driver.registry import Rows

STREAM_NON_BLOCKING = 1
LIVE = 24  # allocations a thread keeps
SIZES = (1, 300, 512, 4096, 70_000, 1 << 20, (1 << 20) + 512, 3_000_000, 5 << 20)


class Raw:
    """Memory by its address alone, as other libraries have it."""

    def __init__(self, nbytes, device, stream):
        self.nbytes = nbytes
        self.ptr = accelrt.memory.caching_allocator_alloc(nbytes, device, stream)

    @property
    def __cuda_array_interface__(self):
        return {"shape": (self.nbytes,), "typestr": "|u1", "data": (self.ptr, False), "version": 3}

    def record_stream(self, stream):
        accelrt.memory.record_stream(self.ptr, stream)

    def free(self):
        accelrt.memory.caching_allocator_delete(self.ptr)


class Allocation:
    """One allocation, and what its bytes ought to be once all work put in so far is done."""

    def __init__(self, memory, nbytes, device, stream):
        self.memory, self.nbytes, self.device, self.stream = memory, nbytes, device, stream
        self.expected = np.zeros(nbytes, np.uint8)
        self.history = []


class Shared:
    """What the threads have in common: streams, memory on its way to be freed elsewhere, failures."""

    def __init__(self, devices):
        self.devices = devices
        self.freed = queue.SimpleQueue()
        self.over = threading.Event()
        self.failures = []
        self.rows = Rows(os.environ["ACCELRT_DRIVER"])
        self.rows.open()
        self.driver_streams = []
        self.streams = {device: self.make_streams(device) for device in devices}
        self.pools = {device: accelrt.MemPool(device=device) for device in devices}

    def make_streams(self, device):
        code, handle = self.rows.stream_create(device, STREAM_NON_BLOCKING, 0)
        assert code == 0
        self.driver_streams.append((device, handle))
        external = accelrt.ExternalStream(handle, device)
        return [accelrt.Stream(device), accelrt.Stream(device, -1), external, accelrt.default_stream(device)]

    def close(self):
        self.streams.clear()
        self.pools.clear()
        for device, handle in self.driver_streams:
            assert self.rows.stream_destroy(device, handle) == 0


class Worker:
    """One thread's doings, each a method; its dice decide which comes next."""

    def __init__(self, number, shared, seed, host_functions):
        self.number, self.shared = number, shared
        self.dice = random.Random(f"{seed}/{number}")
        self.live, self.counts = [], {}
        self.steps = {
            self.make: 30, self.write: 20, self.copy: 40, self.check: 20, self.free: 12,
            self.free_elsewhere: 8,
            self.free_what_others_left: 8, self.hand_over: 6, self.hold_up: 4, self.replay: 3, self.empty: 1,
        }  # fmt: skip
        if not host_functions:
            del self.steps[self.hold_up]

    def run(self):
        try:
            self.work()
        except BaseException:
            self.shared.failures.append(f"thread {self.number}: {traceback.format_exc()}")
            self.shared.over.set()

    def work(self):
        if self.number % 2:
            accelrt.set_device(self.dice.choice(self.shared.devices))
        own = {device: accelrt.Stream(device) for device in self.shared.devices}
        self.streams = {
            device: [own[device], *streams, accelrt.per_thread_stream(device)]
            for device, streams in self.shared.streams.items()
        }
        steps, weights = list(self.steps), list(self.steps.values())
        while not self.shared.over.is_set():
            step = self.dice.choices(steps, weights)[0]
            self.counts[step.__name__] = self.counts.get(step.__name__, 0) + 1
            step()
        while self.live:
            self.check()
            self.free()

    # --- choices

    def pick_stream(self, device):
        return self.dice.choice(self.streams[device])

    def pick(self):
        if not self.live:
            self.make()
        return self.dice.choice(self.live)

    def bytes_of(self, nbytes):
        return np.frombuffer(self.dice.randbytes(min(nbytes, 4099)), np.uint8)[np.arange(nbytes) % 4099]

    def order(self, worker, *sides):
        for side in sides:
            if side.stream != worker:
                worker.wait_stream(side.stream)

    def order_back(self, worker, side):
        if side.stream != worker:
            side.stream.wait_stream(worker)

    def order_back_or_drop(self, worker, side):
        # What is dropped is dropped while the worker's stream uses it, and in no order with its own stream.
        if self.dice.random() < 0.75:
            self.order_back(worker, side)
            return
        if isinstance(side.memory, Raw):  # of an address accelrt knows no users but those that it is told
            side.memory.record_stream(worker)
        self.drop(side)

    # --- steps

    def make(self):
        if len(self.live) >= LIVE:
            self.free()
        device = self.dice.choice(self.shared.devices)
        stream = self.pick_stream(device)
        nbytes = self.dice.choice(SIZES) + self.dice.choice((0, 0, 1, 700))
        kind = self.dice.choice(("buffer", "buffer", "raw", "pool"))
        if kind == "pool":
            with accelrt.use_mem_pool(self.shared.pools[device], device):
                memory = accelrt.Buffer(nbytes, device, stream)
        else:
            memory = (Raw if kind == "raw" else accelrt.Buffer)(nbytes, device, stream)
        made = Allocation(memory, nbytes, device, stream)
        value = self.dice.randrange(256)
        accelrt.fill(memory, value, stream=stream)
        made.expected[:] = value
        made.history.append(f"made {kind}, filled with {value}")
        self.live.append(made)

    def write(self):
        side = self.pick()
        worker = self.pick_stream(side.device)
        start = self.dice.randrange(side.nbytes)
        data = self.bytes_of(self.dice.randint(1, side.nbytes - start))
        how = self.dice.choice(("fill", "pageable", "pinned", "pinned and dropped"))
        self.order(worker, side)
        if how == "fill":
            data = np.full_like(data, data[0])
            accelrt.fill(side.memory, int(data[0]), len(data), offset=start, stream=worker)
        elif how == "pageable":
            blocking = self.dice.random() < 0.5
            accelrt.copy(side.memory, data, dst_offset=start, stream=worker, blocking=blocking)
        else:
            pinned = accelrt.PinnedBuffer(len(data))
            np.frombuffer(pinned, np.uint8)[:] = data
            accelrt.copy(side.memory, pinned, dst_offset=start, stream=worker, blocking=False)
            if how == "pinned":
                worker.synchronize()
            del pinned
        side.expected[start : start + len(data)] = data
        side.history.append(f"{how} of {len(data)} at {start} on {worker}")
        self.order_back_or_drop(worker, side)

    def copy(self):
        origin, target = self.pick(), self.pick()
        if origin is target:
            return
        worker = self.pick_stream(self.dice.choice((origin.device, target.device)))
        size = self.dice.randint(1, min(origin.nbytes, target.nbytes))
        skip, start = (self.dice.randrange(side.nbytes - size + 1) for side in (origin, target))
        self.order(worker, origin, target)
        blocking = self.dice.random() < 0.1
        accelrt.copy(target.memory, origin.memory, size, dst_offset=start, src_offset=skip, stream=worker,
                     blocking=blocking)  # fmt: skip
        target.expected[start : start + size] = origin.expected[skip : skip + size]
        target.history.append(f"copy of {size} from device {origin.device} to {start} on {worker}")
        self.order_back_or_drop(worker, origin)
        self.order_back_or_drop(worker, target)

    def check(self):
        side = self.pick()
        worker = self.pick_stream(side.device)
        self.order(worker, side)
        if self.dice.random() < 0.5:
            found = np.empty(side.nbytes, np.uint8)
            accelrt.copy(found, side.memory, stream=worker, blocking=self.dice.random() < 0.7)
            worker.synchronize()
        else:
            pinned = accelrt.PinnedBuffer(side.nbytes)
            accelrt.copy(pinned, side.memory, stream=worker, blocking=False)
            worker.record_event().synchronize()
            found = np.frombuffer(pinned, np.uint8).copy()
        self.order_back(worker, side)
        self.compare(side, found)

    def compare(self, side, found):
        wrong = np.flatnonzero(found != side.expected)
        assert not len(wrong), (
            f"{len(wrong)} of {side.nbytes} bytes at {side.memory.ptr:#x} of device {side.device} are wrong, "
            f"from {wrong[0]} to {wrong[-1]}: {found[wrong[0]]}, not {side.expected[wrong[0]]}; "
            f"{side.history[-8:]}"
        )

    def drop(self, side):
        self.live.remove(side)
        side.memory.free()

    def free(self):
        if self.live:
            self.drop(self.pick())

    def free_elsewhere(self):
        if self.live and self.shared.freed.qsize() < 50:
            side = self.pick()
            if side.stream.handle != self.streams[side.device][-1].handle:  # that one is the thread's own
                self.live.remove(side)
                self.shared.freed.put(side.memory)

    def free_what_others_left(self):
        with contextlib.suppress(queue.Empty):
            self.shared.freed.get_nowait().free()

    def hand_over(self):
        side = self.pick()
        if not isinstance(side.memory, Raw):
            return
        worker = self.pick_stream(side.device)
        taker = self.pick_stream(side.device)
        self.order(worker, side)
        accelrt.fill(side.memory, 0xEE, stream=worker)
        done = worker.record_event()
        self.live.remove(side)
        accelrt.memory.free_after(side.memory.ptr, done)
        taker.wait_event(done)
        made = Allocation(Raw(side.nbytes, side.device, taker), side.nbytes, side.device, taker)
        accelrt.fill(made.memory, 0x77, stream=taker)
        made.expected[:] = 0x77
        made.history.append(f"handed over from {worker}")
        self.live.append(made)

    def hold_up(self):
        worker = self.pick_stream(self.dice.choice(self.shared.devices))
        worker.launch_host_func(lambda: time.sleep(0.002))

    def replay(self):
        device = self.dice.choice(self.shared.devices)
        mode = self.dice.choice(("thread_local", "relaxed"))
        nbytes, first = self.dice.choice(SIZES), self.dice.randrange(256)
        graph, stream = accelrt.CUDAGraph(), accelrt.Stream(device)
        source = accelrt.Buffer(nbytes, device, stream)
        target = accelrt.Buffer(nbytes, device, stream)
        with accelrt.graph(graph, stream=stream, capture_error_mode=mode):
            inner = accelrt.Buffer(nbytes, device, stream)
            accelrt.copy(inner, source, stream=stream, blocking=False)
            accelrt.copy(target, inner, stream=stream, blocking=False)
            inner.free()
        side = Allocation(target, nbytes, device, stream)
        for value in (first, (first + 1) % 256):
            source.fill(value, stream=stream)
            with accelrt.stream(stream):
                graph.replay()
            found = np.empty(nbytes, np.uint8)
            target.copy_to(found, stream=stream)
            side.expected[:] = value
            side.history.append(f"replay of a graph captured in mode {mode}")
            self.compare(side, found)
        with accelrt.stream(stream):  # it may die with its memory while it runs
            graph.replay()

    def empty(self):
        (accelrt.empty_cache if self.dice.random() < 0.7 else accelrt.host_empty_cache)()


def run(seconds, threads, seed, devices=None, host_functions=True):
    """Runs the program and returns what was done, by name; raises AssertionError with the first failures."""
    before = np.array([accelrt.memory_allocated(device) for device in range(accelrt.device_count())])
    shared = Shared(list(range(devices or accelrt.device_count())))
    workers = [Worker(number, shared, seed, host_functions) for number in range(threads)]
    running = [threading.Thread(target=worker.run) for worker in workers]
    for thread in running:
        thread.start()
    shared.over.wait(seconds)
    while not any(worker.counts.get("check") for worker in workers) and not shared.over.wait(0.01):
        pass  # a machine with much else to do has not compared any bytes yet
    shared.over.set()
    for thread in running:
        thread.join()
    assert not shared.failures, "\n".join(shared.failures[:3])
    while not shared.freed.empty():
        shared.freed.get().free()
    for device in shared.devices:
        accelrt.synchronize(device)
    accelrt.memory.audit()
    accelrt.memory.host_audit()
    after = np.array([accelrt.memory_allocated(device) for device in range(accelrt.device_count())])
    assert (before == after).all(), f"bytes live before and after, by device: {before}, {after}"
    counts = {}
    for worker in workers:
        for name, count in worker.counts.items():
            counts[name] = counts.get(name, 0) + count
    shared.close()
    return counts


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--devices", type=int, help="how many of them; all, unless given")
    parser.add_argument(
        "--no-host-functions", action="store_true", help="put no Python functions into streams"
    )
    arguments = parser.parse_args()
    os.environ.setdefault("ACCELRT_DRIVER", "host")
    try:
        host_functions = not arguments.no_host_functions
        counts = run(arguments.seconds, arguments.threads, arguments.seed, arguments.devices, host_functions)
    except AssertionError as failure:
        print(failure, file=sys.stderr)
        sys.exit(1)
    print(json.dumps({"seconds": arguments.seconds, "steps": sum(counts.values()), **counts}))


if __name__ == "__main__":
    main()
