"""Many random operations on two devices, each followed by a comparison with the model.

Run by test_allocator_model.py in a process of its own.
"""

import random
from collections import deque
from concurrent.futures import ThreadPoolExecutor

from allocator_mirror import OWN_STREAMS, Mirror, capacity
from child import waits, wrap_host
from model_blocks import MIB
from model_statistics import COUNTERS

DEVICES = (0, 1)
PHASE = 1000  # operations between two comparisons of everything, and two changes of what is aimed at
MOST_LIVE = 300
EDGES = [
    0,
    1,
    512,
    1024,
    MIB - 512,
    MIB,
    MIB + 512,
    2 * MIB,
    10 * MIB - 512,
    10 * MIB,
    11 * MIB - 512,
    11 * MIB,
    20 * MIB,
]
WEIGHTS = {
    "allocate": 100,
    "free": 60,
    "record_stream": 25,
    "close_gate": 3,
    "open_gate": 4,
    "empty_cache": 0.5,
    "set_fraction": 0.5,
    "reset_peaks": 0.3,
    "reset_accumulated": 0.1,
}
REPORTED = ["allocation.all.peak", "segment.all.peak", "inactive_split.all.peak", *COUNTERS]


class Bulk:
    """A mirror and the random numbers that drive it."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.mirror = Mirror(DEVICES, waits=waits)
        self.live = []  # keys
        self.aim, self.small = MOST_LIVE, 0.9
        self.capacity = capacity(0)
        self.recent = deque(maxlen=20)
        self.elsewhere = ThreadPoolExecutor(1)

    def step(self):
        (name,) = self.random.choices(list(WEIGHTS), WEIGHTS.values())
        if name == "allocate" and len(self.live) >= self.aim:
            name = "free"
        if name in ("free", "record_stream") and not self.live:
            name = "allocate"
        getattr(self, name)()

    def compare(self):
        self.aim = self.random.choice([3, 30, 100, 200, MOST_LIVE])  # live blocks
        self.small = self.random.choice([0.3, 0.8, 0.95])  # share of small requests
        for device in DEVICES:
            self.mirror.compare(device)

    def close(self):
        self.mirror.close()
        self.elsewhere.shutdown()

    # operations

    def allocate(self):
        device, n = self.device(), self.size()
        stream = self.random.choice((0, 0, *OWN_STREAMS))
        self.recent.append(f"allocate {n} on device {device}, stream {stream}")
        key = self.mirror.allocate(device, n, stream, **self.thread())
        if key:
            self.live.append(key)

    def free(self):
        index = self.random.randrange(len(self.live))
        self.live[index], self.live[-1] = self.live[-1], self.live[index]
        self.recent.append(f"free {self.live[-1]}")
        self.mirror.free(self.live.pop(), **self.thread())

    def record_stream(self):
        key, stream = self.random.choice(self.live), self.stream()
        self.recent.append(f"record stream {stream} on {key}")
        self.mirror.record_stream(key, stream)

    def close_gate(self):
        device, stream = self.device(), self.stream()
        self.recent.append(f"close the gate of device {device}, stream {stream}")
        self.mirror.close_gate(device, stream)

    def open_gate(self):
        device, stream = self.device(), self.stream()
        self.recent.append(f"open the gate of device {device}, stream {stream}")
        self.mirror.open_gate(device, stream)

    def empty_cache(self):
        self.recent.append("empty_cache")
        self.mirror.empty_cache()

    def set_fraction(self):
        device, fraction = self.device(), self.random.choice([0.2, 0.4, 0.6, 0.8, 1.0, 1.0])
        self.recent.append(f"limit device {device} to {fraction}")
        self.mirror.set_fraction(device, fraction)

    def reset_peaks(self):
        device = self.device()
        self.recent.append(f"reset the peaks of device {device}")
        self.mirror.reset_peaks(device)

    def reset_accumulated(self):
        device = self.device()
        self.recent.append(f"reset the accumulated figures of device {device}")
        self.mirror.reset_accumulated(device)

    # choices

    def device(self):
        return self.random.choice((0, 0, 0, 1))

    def stream(self):
        return self.random.choice(OWN_STREAMS)

    def thread(self):
        if self.random.random() < 0.95:
            return {}
        return {"run": lambda function, *given: self.elsewhere.submit(function, *given).result()}

    def size(self):
        pick = self.random.random()
        if pick < 0.005:
            return int(self.capacity * self.random.uniform(0.3, 1.2))
        if pick < 0.05:
            return max(0, self.random.choice(EDGES) + self.random.randint(-1, 1))
        if self.random.random() < self.small:
            return int(2 ** self.random.uniform(0, 20))
        return int(2 ** self.random.choice([self.random.uniform(20, 23.4), self.random.uniform(23.3, 25.3)]))


def run(seed, operations):
    """Runs the operations; a failure's text begins with the seed and the last operations."""
    wrap_host()
    bulk = Bulk(seed)
    done = 0
    try:
        for done in range(1, operations + 1):
            bulk.step()
            if done % PHASE == 0:
                bulk.compare()
        bulk.close()
    except BaseException:
        print(
            f"ACCELRT_TEST_SEED={seed}, operation {done} of {operations}; the last ones:",
            *bulk.recent,
            sep="\n  ",
        )
        for gate in bulk.mirror.gates.values():
            gate.set()
        bulk.elsewhere.shutdown()
        raise
    for device in DEVICES:
        figures = bulk.mirror.models[device].statistics.flat
        told = {name: figures[name] for name in REPORTED}
        print(f"seed {seed}, {operations} operations, device {device}: {told}")
