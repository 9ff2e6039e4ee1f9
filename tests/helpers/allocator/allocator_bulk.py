"""Many random operations on two devices, each followed by a comparison with the model.

    PYTHONPATH=tests/helpers python tests/helpers/allocator/allocator_bulk.py --operations 2000000 --seed 1

prints what happened, or the seed and the last operations before a difference.  Now and then a storm is run:
operations while rows of the driver fail.  test_allocator_model.py runs a part of it.
"""

import argparse
import os
import random
from collections import Counter, deque
from concurrent.futures import ThreadPoolExecutor

from allocator_contents import Contents
from allocator_mirror import OWN_STREAMS, Mirror, capacity
from allocator_storm import Storm
from child import waits, wrap_host
from model_blocks import MIB
from model_statistics import COUNTERS

DEVICES = (0, 1)
PHASE = 1000  # operations between two full comparisons, and between two changes of the aims
STORM = 60  # operations while rows fail; then the models start anew
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
    "stretch": 4,
    "record_stream": 25,
    "free_after": 2,
    "wait_event": 3,
    "take_over": 2,
    "close_gate": 3,
    "open_gate": 4,
    "blink_gate": 2,
    "empty_cache": 0.5,
    "set_fraction": 0.5,
    "allocate_apart": 12,
    "nap": 0.3,
    "reset_peaks": 0.3,
    "reset_accumulated": 0.1,
}
REPORTED = ["allocation.all.allocated", *COUNTERS]


class Bulk:
    """A mirror and the random numbers that drive it."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.mirror = Mirror(DEVICES, waits=waits)
        self.contents = Contents()
        self.happened = Counter()
        self.live = []  # keys
        self.aim, self.small, self.sizes = MOST_LIVE, 0.9, []
        self.capacity = capacity(0)
        self.recent = deque(maxlen=20)
        self.elsewhere = ThreadPoolExecutor(1)

    def step(self):
        (name,) = self.random.choices(list(WEIGHTS), WEIGHTS.values())
        if name == "allocate" and len(self.live) >= self.aim:
            name = "free"
        if name in ("free", "record_stream", "free_after", "take_over") and not self.live:
            name = "allocate"
        getattr(self, name)()

    def compare(self):
        self.aim = self.random.choice([3, 30, 100, 200, MOST_LIVE])  # live blocks
        self.small = self.random.choice([0.3, 0.8, 0.95])  # share of small requests
        self.sizes = [self.any_size() for _ in range(self.random.choice([0, 0, 4, 8]))]  # if none, any size
        for device in DEVICES:
            self.mirror.compare(device)
        self.contents.check_all()

    def storm(self):
        self.recent.append("storm")
        self.reckon()
        storm = Storm(self.mirror, self.contents, self.random)
        storm.run(STORM)
        storm.finish()
        self.live.clear()
        self.happened["raised"] += storm.raised
        self.happened["absorbed"] += storm.absorbed

    def reckon(self):
        """Adds up the rare events and counters of the models."""
        for model in self.mirror.models.values():
            self.happened.update(model.happened)
            self.happened.update({name: model.statistics.flat[name] for name in REPORTED})
            model.happened.clear()

    def close(self):
        self.reckon()
        self.mirror.close()
        self.elsewhere.shutdown()

    # operations

    def allocate(self):
        self.allocate_on(self.device(), self.size(), self.random.choice((0, 0, *OWN_STREAMS)))

    def allocate_on(self, device, n, stream):
        self.recent.append(f"allocate {n} on device {device}, stream {stream}")
        key = self.mirror.allocate(device, n, stream, **self.thread())
        if key:
            self.live.append(key)
            self.contents.write(self.mirror.address(key), n)

    def free(self):
        index = self.random.randrange(len(self.live))
        self.live[index], self.live[-1] = self.live[-1], self.live[index]
        self.recent.append(f"free {self.live[-1]}")
        self.contents.forget(self.mirror.address(self.live[-1]))
        self.mirror.free(self.live.pop(), **self.thread())

    def stretch(self):
        """A run of hits on one device, many of them frees and allocations of one size in turn."""
        device, streams = self.device(), self.random.choices((0, *OWN_STREAMS), k=2)
        sizes = [self.size() for _ in range(2)]
        self.recent.append(f"stretch on device {device}, streams {streams}, sizes {sizes}")
        with self.mirror.unchecked(device):
            for _ in range(self.random.randrange(2, 12)):
                n, stream = self.random.choice(sizes), self.random.choice(streams)
                key = self.mirror.turn(device, n, stream, self.random.randrange(4))
                if key and (len(self.live) >= self.aim or self.random.random() < 0.5):
                    self.mirror.free(key)
                elif key:
                    self.live.append(key)
                    self.contents.write(self.mirror.address(key), n)

    def record_stream(self):
        key, stream = self.random.choice(self.live), self.stream()
        self.recent.append(f"record stream {stream} on {key}")
        self.mirror.record_stream(key, stream)

    def free_after(self):
        self.free_as_of(self.random.randrange(len(self.live)), self.stream())

    def free_as_of(self, index, stream):
        key = self.live.pop(index)
        self.recent.append(f"free {key} as of an event of stream {stream}")
        self.contents.forget(self.mirror.address(key))
        return self.mirror.free_after(key, stream)

    def wait_event(self):
        device, stream = self.device(), self.stream()
        if records := list(self.mirror.events[device]):
            self.wait_for(device, stream, self.random.choice(records))

    def wait_for(self, device, stream, record):
        self.recent.append(f"wait on device {device}, stream {stream} for record {record}")
        self.mirror.wait_event(device, stream, record)

    def take_over(self):
        """A block of a busy stream is handed over to a stream that waits for its event."""
        index, (giver, claimant) = self.random.randrange(len(self.live)), self.random.sample(OWN_STREAMS, 2)
        device, *place = self.live[index]
        n = self.mirror.models[device].live[tuple(place)].requested
        self.mirror.close_gate(device, giver)
        self.wait_for(device, claimant, self.free_as_of(index, giver))
        self.allocate_on(device, max(1, n - self.random.choice((0, 0, n // 16))), claimant)

    def close_gate(self):
        device, stream = self.device(), self.stream()
        self.recent.append(f"close the gate of device {device}, stream {stream}")
        self.mirror.close_gate(device, stream)

    def open_gate(self):
        device, stream = self.device(), self.stream()
        self.recent.append(f"open the gate of device {device}, stream {stream}")
        self.mirror.open_gate(device, stream)

    def blink_gate(self):
        """The work behind a gate completes, and the stream is busy again."""
        device, stream = self.device(), self.stream()
        self.recent.append(f"open the gate of device {device}, stream {stream}, and close it")
        self.mirror.open_gate(device, stream)
        self.mirror.close_gate(device, stream)

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
        self.recent.append(f"reset the accumulated statistics of device {device}")
        self.mirror.reset_accumulated(device)

    def allocate_apart(self):
        """From a private pool, which takes naps."""
        if not self.mirror.has_pages():
            return
        device, n, stream = self.device(), self.size(), self.random.choice((0, *OWN_STREAMS))
        self.recent.append(f"allocate {n} from the pool on device {device}, stream {stream}")
        key = self.mirror.allocate(device, n, stream, pool=self.mirror.pool_id())
        if key:
            self.live.append(key)
            self.contents.write(self.mirror.address(key), n)

    def nap(self):
        """The pool sleeps on a device while other memory comes and goes, and some of its own is freed."""
        device = self.device()
        self.contents.check_all()
        if not self.mirror.has_pages() or not self.mirror.sleep(device):
            return
        self.recent.append(f"the pool sleeps on device {device}")
        live = self.mirror.models[device].live
        inside = [key for key in self.live if key[0] == device and live[key[1:]].segment.heap.pool]
        for key in self.random.sample(inside, min(len(inside), self.random.randrange(3))):
            self.live.remove(key)
            del self.contents.written[self.mirror.address(key)]
            self.mirror.free(key)
        for _ in range(self.random.randrange(6)):
            self.allocate_on(device, self.size(), self.random.choice((0, *OWN_STREAMS)))
        self.mirror.compare(device)
        while not self.mirror.wake(device):
            self.recent.append(f"the pool sleeps on on device {device}")
            self.mirror.set_fraction(device, 1.0)
            outside = [key for key in self.live if key[0] == device and key not in inside]
            if outside:
                key = self.random.choice(outside)
                self.live.remove(key)
                self.contents.forget(self.mirror.address(key))
                self.mirror.free(key)
        self.mirror.compare(device)
        self.contents.check_all()

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
        return self.random.choice(self.sizes) if self.sizes else self.any_size()

    def any_size(self):
        pick = self.random.random()
        if pick < 0.005:
            return int(self.capacity * self.random.uniform(0.3, 1.2))
        if pick < 0.05:
            return max(0, self.random.choice(EDGES) + self.random.randint(-1, 1))
        if self.random.random() < self.small:
            return int(2 ** self.random.uniform(0, 20))
        return int(2 ** self.random.choice([self.random.uniform(20, 23.4), self.random.uniform(23.3, 25.3)]))


def run(seed, operations, required=()):
    """Runs the operations; a failure's text begins with the seed and the last operations.

    required names rare events, by the models' keys, that must have happened.
    """
    wrap_host()
    bulk = Bulk(seed)
    done = 0
    try:
        for done in range(1, operations + 1):
            bulk.step()
            if done % PHASE == 0:
                bulk.compare()
                if bulk.random.random() < 0.5:
                    bulk.storm()
        bulk.close()
        missing = [name for name in required if not bulk.happened[name]]
        assert not missing, f"never happened: {', '.join(missing)}"
    except BaseException:
        print(f"seed {seed}, operation {done} of {operations}; the last ones:", *bulk.recent, sep="\n  ")
        for gate in bulk.mirror.gates.values():
            gate.set()
        bulk.elsewhere.shutdown()
        raise
    print(f"seed {seed}, {operations} operations: {dict(bulk.happened)}")


def main():
    parser = argparse.ArgumentParser(description="Compares the allocator with its model.")
    parser.add_argument("--operations", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--settings", default="", help="as in ACCELRT_ALLOC_CONF")
    parser.add_argument("--memory", default="128MiB", help="of each of the two devices")
    parser.add_argument("--debug", default="2", help="as in ACCELRT_DEBUG; 0 takes the short paths")
    given = parser.parse_args()
    settings = {"ALLOC_CONF": given.settings, "HOST_MEMORY": given.memory, "DEBUG": given.debug}
    os.environ.update({f"ACCELRT_{name}": value for name, value in settings.items()})
    run(given.seed, given.operations)


if __name__ == "__main__":
    main()
