"""Threads that capture, copy, free and replay at once, on one device or several; contents are compared.

    python tests/helpers/capture_ends.py --seconds 75 --threads 8 --devices 2

Every thread captures streams of accelrt's own and frees memory that the others' streams used: what one thread
asks of a stream would meet the end of another's capture at any moment.  Exits with 1 where a replay
brought wrong bytes or a call raised; a driver that dies ends the process.  Prints a line.
"""

import argparse
import os
import random
import sys
import time

import numpy as np
from beside import until_over

import accelrt

SIZE = 4096
SHARED = 16  # streams of each device that all threads use


class Worker:
    """One thread: its streams, what it shares with the others, and what it did."""

    def __init__(self, number, devices, shared, seed):
        self.device, self.number = number % devices, number
        self.devices, self.shared, self.choice = devices, shared, random.Random(seed)
        self.rounds = self.wrong = 0

    def run(self, over):
        accelrt.set_device(self.device)
        self.stream, self.side = accelrt.Stream(self.device), accelrt.Stream(self.device)
        while not (over.is_set() and self.rounds):
            self.capture_and_replay()
            self.rounds += 1

    def use_elsewhere(self):
        # Freed while streams of all threads may use it: events are recorded behind them, now or later.
        stream = self.choice.choice(self.shared[self.device])
        passing = accelrt.Buffer(self.choice.choice((600, 70_000, 3 << 20)), self.device, stream=stream)
        passing.fill(1, stream=stream)
        for other in self.choice.sample(self.shared[self.device], 3):
            passing.record_stream(other)
        pinned = accelrt.PinnedBuffer(5000)
        accelrt.record_host_stream(pinned, self.choice.choice(self.shared[self.device]))
        return passing, pinned

    def capture_and_replay(self):
        value, graph = self.choice.randrange(1, 250), accelrt.CUDAGraph()
        origin = self.stream if self.choice.random() < 0.5 else accelrt.Stream(self.device)
        used = [self.use_elsewhere() for _ in range(3)]
        with accelrt.Buffer(2 * SIZE, self.device, stream=origin) as target:
            far = self.far_buffer()
            with accelrt.graph(graph, stream=origin, capture_error_mode="thread_local"):
                with accelrt.Buffer(SIZE, self.device) as inner:
                    inner.fill(value)
                    self.side.wait_stream(origin)
                    target.fill(value + 1, SIZE, stream=self.side)
                    accelrt.copy(target, inner, SIZE, dst_offset=SIZE, blocking=False)
                    if far is not None:
                        accelrt.copy(far, inner, stream=origin, blocking=False)
                    origin.wait_stream(self.side)
                del used
            for _ in range(2):
                with accelrt.stream(origin):
                    graph.replay()
            self.compare(target, origin, value, far)
            graph.reset()

    def far_buffer(self):
        # On the next device, where one reaches the other, now and then.
        other = (self.device + 1) % self.devices
        if other == self.device or self.choice.random() < 0.5:
            return None
        return accelrt.Buffer(SIZE, other) if accelrt.can_device_access_peer(self.device, other) else None

    def compare(self, target, origin, value, far):
        out, event = np.zeros(2 * SIZE, np.uint8), accelrt.Event()
        event.record(origin)
        while not event.query():
            origin.query()
        target.copy_to(out, stream=origin)
        self.wrong += not (out == np.repeat([value + 1, value], SIZE)).all()
        if far is not None:
            far_out = np.zeros(SIZE, np.uint8)
            far.copy_to(far_out)
            self.wrong += not (far_out == value).all()
            far.free()


def storm(seconds, threads, devices, seed=1):
    """Returns (rounds, wrong replays); raises what a thread raised."""
    shared = [[accelrt.Stream(device) for _ in range(SHARED)] for device in range(devices)]
    workers = [Worker(number, devices, shared, 1000 * seed + number) for number in range(threads)]
    with until_over(lambda over, worker: worker.run(over), workers):
        time.sleep(seconds)
    for device in range(devices):
        accelrt.synchronize(device)
    accelrt.memory.audit()
    accelrt.memory.host_audit()
    return sum(worker.rounds for worker in workers), sum(worker.wrong for worker in workers)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--devices", type=int, default=accelrt.device_count())
    parser.add_argument("--seed", type=int, default=os.getpid())
    given = parser.parse_args()
    began = time.monotonic()
    rounds, wrong = storm(given.seconds, given.threads, given.devices, given.seed)
    took = time.monotonic() - began
    print(
        f"{rounds} captures, {2 * rounds} replays on {given.devices} devices in {took:.0f} s: {wrong} wrong"
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
