"""torch, CuPy, numba, cuda.core, RMM and accelrt on one pool, all at once, every byte checked.

    python tests/interop/mixed_libraries.py --steps 10000

Each library has threads, and each thread a stream of that library's.  A step allocates, writes with the
library's own kernels and offers the array to all; or takes one that another thread offered, most often of
another library, by DLPack or the CUDA Array Interface, adds to it on its own stream behind the work before,
reads half of them back and compares every byte, and then drops it or offers it again.  At every pause the
statistics have to be those of the live arrays to the byte.  Prints a line of JSON.  With ACCELRT_DRIVER=host
only accelrt's own arrays take part.
"""

import argparse
import collections
import gc
import importlib.util
import json
import os
import random
import sys
import threading
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1] / "helpers"), str(Path(__file__).parents[2])]

import mixed_adapters  # noqa: E402
import numba_found  # noqa: E402
import numpy as np  # noqa: E402

import accelrt  # noqa: E402

LIVE = 96  # arrays on offer at most
LARGEST = 4 << 20
PAUSES = 10


class Item:
    """An array on offer: whose it is, what is in it, and the event behind the last work on it."""

    def __init__(self, maker, array, nbytes, value, done):
        self.library, self.thread, self.array = maker.name, threading.get_ident(), array
        self.nbytes, self.address, self.value, self.done = nbytes, maker.address(array), value, done


class Run:
    """What the threads share."""

    def __init__(self, names, threads, steps, seed):
        self.names, self.seed = names, seed
        self.workers = [name for name in names for _ in range(threads)]
        self.left = collections.deque([steps // PAUSES] * PAUSES)
        self.offered, self.lock = [], threading.Lock()
        self.pause = threading.Barrier(len(self.workers) + 1)
        self.remaining, self.counts = 0, collections.Counter()
        self.handed, self.errors, self.adapters = collections.Counter(), [], []
        self.requested_before = accelrt.memory_stats()["requested_bytes.all.current"]

    def next_step(self):
        with self.lock:
            self.remaining -= 1
            return self.remaining >= 0

    def take(self, wanted):
        """One of the arrays on offer, of the libraries that are wanted if there is one."""
        with self.lock:
            places = [place for place, item in enumerate(self.offered) if item.library in wanted]
            place = random.choice(places or range(len(self.offered))) if self.offered else None
            return None if place is None else self.offered.pop(place)

    def offer(self, item):
        with self.lock:
            self.offered.append(item)

    def count(self, **amounts):
        with self.lock:
            self.counts.update(amounts)


def make(run, adapter, chance):
    """Allocates and writes an array, and offers it."""
    nbytes, value, amount = int(LARGEST ** chance.random()), chance.randrange(256), chance.randrange(1, 256)
    array = adapter.allocate(nbytes)
    adapter.fill(array, value)
    adapter.add(array, amount)
    run.offer(Item(adapter, array, nbytes, (value + amount) % 256, adapter.mine.record_event()))
    run.count(made=1)


def use(run, adapter, chance, item):
    """Adds to an array behind the work before, reads it, compares; then drops it or offers it again."""
    amount = chance.randrange(1, 256)
    adapter.mine.wait_event(item.done)
    accelrt.record_stream(item.address, adapter.mine)
    view = item.array if item.library == adapter.name else adapter.view(item.array)
    adapter.add(view, amount)
    item.value = (item.value + amount) % 256
    item.done = adapter.mine.record_event()
    if chance.random() < 0.5:
        found = np.asarray(adapter.read(view))
        if found.shape != (item.nbytes,) or not (found == item.value).all():
            raise AssertionError(
                f"{adapter.name} read wrong bytes of {item.library}'s array of {item.nbytes} bytes"
            )
        run.count(reads=1, bytes_read=item.nbytes)
    with run.lock:
        run.handed[f"{item.library} -> {adapter.name}"] += 1
    if chance.random() < 0.4:
        run.offer(item)
    else:
        run.count(freed=1, freed_by_another_thread=int(item.thread != threading.get_ident()))


def step(run, adapter, chance):
    with run.lock:
        full = len(run.offered) >= LIVE
    item = None
    if full or chance.random() < 0.6:
        others = [name for name in run.names if name != adapter.name]
        item = run.take(others if chance.random() < 0.9 else [adapter.name])
    if item is None:
        make(run, adapter, chance)
    else:
        use(run, adapter, chance, item)


def work(run, name, number):
    """A thread: steps until none is left, with a pause after each part of them."""
    try:
        adapter, chance = mixed_adapters.ADAPTERS[name](), random.Random(run.seed * 1000 + number)
        with run.lock:
            run.adapters.append(adapter)  # their streams live until the end
        for _ in range(PAUSES):
            run.pause.wait()
            while run.next_step():
                step(run, adapter, chance)
            adapter.mine.synchronize()
            run.pause.wait()
            run.pause.wait()
    except threading.BrokenBarrierError:
        pass
    except BaseException as error:
        run.errors.append(f"{name}, thread {number}: {type(error).__name__}: {error}")
        run.pause.abort()
        raise


def collect():
    for _ in range(3):  # what accelrt imported goes back a call after its stream was seen idle
        gc.collect()
        accelrt.synchronize()


def compare(run, before):
    """Statistics against the live arrays, while no thread works."""
    collect()
    accelrt.empty_cache()  # what was freed while streams used it is not counted any more
    stats = accelrt.memory_stats()
    rounded = sum(-(-item.nbytes // 512) * 512 for item in run.offered)
    exact = sum(item.nbytes for item in run.offered)
    allocated, requested = accelrt.memory_allocated(), stats["requested_bytes.all.current"]
    if allocated - before != rounded or stats["active_bytes.all.current"] != allocated:
        run.errors.append(
            f"memory_allocated() is {allocated}, the live arrays are {rounded}, and before {before}"
        )
    run.count(audits=1, bytes_compared=rounded, requested_too=int(requested - run.requested_before == exact))
    accelrt.memory.audit()


def warm_up(names):
    """What libraries allocate once, for good."""
    for name in names:
        adapter = mixed_adapters.ADAPTERS[name]()
        array = adapter.allocate(1000)
        adapter.fill(array, 1)
        adapter.add(array, 2)
        assert (np.asarray(adapter.read(array)) == 3).all(), name
        adapter.mine.synchronize()
        del array, adapter
    collect()
    accelrt.empty_cache()
    return accelrt.memory_allocated()


def run_steps(names, threads, steps, seed):
    for name, adapter in mixed_adapters.ADAPTERS.items():
        if name in names:
            adapter.install()
    before, begun = warm_up(names), time.perf_counter()
    run = Run(names, threads, steps, seed)
    workers = [
        threading.Thread(target=work, args=(run, name, number), daemon=True)
        for number, name in enumerate(run.workers)
    ]
    for worker in workers:
        worker.start()
    try:
        for part in run.left:
            run.remaining = part
            run.pause.wait()
            run.pause.wait()
            compare(run, before)
            if run.errors:
                run.pause.abort()
            run.pause.wait()
    except threading.BrokenBarrierError:
        pass
    for worker in workers:
        worker.join()
    elapsed, peak = time.perf_counter() - begun, accelrt.max_memory_allocated()
    run.offered.clear()
    collect()
    left = accelrt.memory_allocated() - before
    if left:
        run.errors.append(f"{left} bytes are live at the end")
    run.adapters.clear()
    collect()
    accelrt.empty_cache()
    accelrt.memory.audit()
    return run, {
        "held_by_libraries": before,
        "seconds": round(elapsed, 2),
        "peak_bytes": peak,
        "left_bytes": left,
    }


def installed():
    if os.environ.get("ACCELRT_DRIVER") == "host":
        return ["accelrt"]
    modules = {
        "torch": "torch",
        "cupy": "cupy",
        "numba": "numba_cuda",
        "cuda.core": "cuda.core",
        "rmm": "rmm",
    }
    if is_there("numba_cuda") and not numba_found.compiles():
        print("without numba: this numba-cuda compiles nothing with this NumPy", file=sys.stderr)
        del modules["numba"]
    return [*(name for name, module in modules.items() if is_there(module)), "accelrt"]


def is_there(module):
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=10000)
    parser.add_argument("--threads", type=int, default=2, help="of each library (2)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--libraries", help="names with commas between; those that are installed")
    given = parser.parse_args()
    names = given.libraries.split(",") if given.libraries else installed()
    random.seed(given.seed)
    run, told = run_steps(names, given.threads, given.steps, given.seed)
    told |= {"libraries": names, "threads": len(run.workers), "steps": given.steps, **run.counts}
    told |= {"handed_over": dict(sorted(run.handed.items())), "reserved_at_end": accelrt.memory_reserved()}
    print(json.dumps({"ok": not run.errors, **told, "errors": run.errors[:5]}))
    return 1 if run.errors else 0


if __name__ == "__main__":
    sys.exit(main())
