"""Sleep and wake of a memory pool: bytes, seconds and GB/s, with the driver's own copies beside them.

    python benchmarks/bench_sleep.py [--gib 20] [--rounds 2] [--beside] [--json]

A pool of so many GiB, in four Buffers, sleeps and wakes; a graph that was captured over it is replayed right
after each wake.  Contents, addresses and the device's free memory are checked, and any difference ends the
program with status 1.  The raw figures are cuMemcpyDtoHAsync and cuMemcpyHtoDAsync on one stream between
plain device memory and page-locked memory of the driver's, 4 GiB in pieces of 256 MiB: less would be read
from the processor's cache.  The first sleep has to take its page-locked memory from the driver; later ones
find it in the cache.  Between the first sleep and its wake is no time, before later wakes a second: the
driver clears what was given back, and new memory waits for that.
ACCELRT_DRIVER=host runs it without a GPU, where the figures mean nothing and there are no raw ones.
"""

import argparse
import ctypes
import json
import sys
import time

import numpy as np

import accelrt

MIB = 1 << 20
PIECE = 16 * MIB  # of one value
RAW = 256 * MIB
RAWS = 16
PARTS = 4
OWN = 64 * MIB  # what a driver may take or give for itself meanwhile


def check(condition: bool, text: str) -> None:
    """Ends the program where something differs."""
    if not condition:
        sys.exit(f"bench_sleep: {text}")


class Model:
    """What stands for a model's weights: Buffers of one pool, a value for each piece, and a graph."""

    def __init__(self, size: int):
        self.pool = accelrt.MemPool()
        self.stream = accelrt.Stream()
        part = max(size // PARTS // PIECE, 1) * PIECE
        with accelrt.use_mem_pool(self.pool):
            self.parts = [accelrt.Buffer(part, stream=self.stream) for _ in range(PARTS)]
            self.noise = accelrt.Buffer(PIECE, stream=self.stream)
            self.target = accelrt.Buffer(PIECE, stream=self.stream)
        self.out = accelrt.pinned_empty(PIECE, np.uint8)
        self.random = np.random.default_rng(1).integers(0, 256, PIECE, np.uint8)
        self.noise.copy_from(self.random, stream=self.stream)
        for number, buffer in enumerate(self.parts):
            for at in range(0, part, PIECE):
                buffer.fill(self.value(number, at), PIECE // 4, width=4, offset=at, stream=self.stream)
        self.graph = accelrt.CUDAGraph()
        with accelrt.graph(self.graph, pool=self.pool, stream=self.stream):
            self.target.copy_from(self.noise, stream=self.stream, blocking=False)
        self.addresses = [buffer.ptr for buffer in (*self.parts, self.noise, self.target)]
        accelrt.synchronize()

    def value(self, number: int, at: int) -> int:
        """Of a piece."""
        return (number << 24 | at // PIECE) + 1

    def replay(self) -> None:
        """Right after a wake: the graph's target holds what its source did before."""
        with accelrt.stream(self.stream):
            self.graph.replay()
        self.target.copy_to(self.out, stream=self.stream)
        check(
            bool((self.out == self.random).all()),
            "the graph that was replayed after a wake copied something else",
        )

    def verify(self) -> None:
        """Every byte is what it was, at the same addresses."""
        for number, buffer in enumerate(self.parts):
            for at in range(0, len(buffer), PIECE):
                buffer.copy_to(self.out, PIECE, offset=at, stream=self.stream)
                same = bool((self.out.view(np.uint32) == self.value(number, at)).all())
                check(same, f"part {number} has other contents at {at:#x}")
        addresses = [buffer.ptr for buffer in (*self.parts, self.noise, self.target)]
        check(addresses == self.addresses, "addresses changed")


def measure(model: Model, name: str, pause: float, alone: bool) -> list[dict]:
    """One sleep and, so many seconds later, one wake, as rows of the table."""
    before = accelrt.mem_get_info()[0]
    down = model.pool.sleep()
    rise = accelrt.mem_get_info()[0] - before
    check(
        rise >= down.bytes - OWN or not alone,
        f"the device's free memory rose by {rise} bytes, and {down.bytes} went back",
    )
    check(accelrt.memory.sleeping() == down.bytes, "the figures are not what sleeps")
    time.sleep(pause)
    up = model.pool.wake()
    model.replay()
    left = accelrt.mem_get_info()[0] - before
    check(abs(left) <= OWN or not alone, f"after the wake {left} bytes more are free than before the sleep")
    return [row(f"{name} sleep", down, rise), row(f"{name} wake", up, 0)]


def row(name: str, result: accelrt.memory.SleepResult, rise: int) -> dict:
    """A SleepResult as the table shows it."""
    rate = result.copied / result.copy_seconds / 1e9 if result.copied else 0.0
    return {"what": name, **result._asdict(), "rate": rate, "free_memory_rose": rise}


def raw_rates() -> dict[str, float]:
    """GB/s of the driver's own copies; {} on the host device."""
    if accelrt.device(accelrt.current_device()).type == "host":
        return {}
    cuda = ctypes.CDLL("libcuda.so.1")
    context, device, stream = ctypes.c_void_p(), ctypes.c_uint64(), ctypes.c_void_p()
    hosts = [ctypes.c_void_p() for _ in range(RAWS)]
    size = ctypes.c_size_t(RAW)

    def call(name: str, *arguments: object) -> None:
        code = getattr(cuda, name)(*arguments)
        check(code == 0, f"{name} answered {code}")

    def target(number: int) -> ctypes.c_uint64:
        return ctypes.c_uint64(device.value + number * RAW)

    call("cuInit", 0)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), accelrt.current_device())
    call("cuCtxPushCurrent_v2", context)
    call("cuStreamCreate", ctypes.byref(stream), 1)
    call("cuMemAlloc_v2", ctypes.byref(device), ctypes.c_size_t(RAWS * RAW))
    for host in hosts:
        call("cuMemHostAlloc", ctypes.byref(host), size, 0)
    rates = {}
    for name, copy in (
        ("sleep", lambda number, host: call("cuMemcpyDtoHAsync_v2", host, target(number), size, stream)),
        ("wake", lambda number, host: call("cuMemcpyHtoDAsync_v2", target(number), host, size, stream)),
    ):
        times = []
        for _ in range(5):
            start = time.perf_counter()
            for number, host in enumerate(hosts):
                copy(number, host)
            call("cuStreamSynchronize", stream)
            times.append(time.perf_counter() - start)
        rates[name] = RAWS * RAW / min(times) / 1e9
    for host in hosts:
        call("cuMemFreeHost", host)
    call("cuMemFree_v2", device)
    call("cuStreamDestroy_v2", stream)
    call("cuCtxPopCurrent_v2", ctypes.byref(context))
    call("cuDevicePrimaryCtxRelease_v2", accelrt.current_device())
    return rates


def show(rows: list[dict], raw: dict[str, float]) -> None:
    """Prints the table."""
    print(
        f"{'':14}{'bytes back':>16}{'copied':>16}{'s':>9}{'copy s':>9}{'host s':>9}{'GB/s':>8}{'of raw':>8}"
    )
    for each in rows:
        beside = raw.get(each["what"].split()[-1])
        part = f"{each['rate'] / beside:.1%}" if beside and each["copied"] else ""
        print(
            f"{each['what']:14}{each['bytes']:16,}{each['copied']:16,}{each['seconds']:9.3f}"
            f"{each['copy_seconds']:9.3f}{each['host_seconds']:9.3f}{each['rate']:8.1f}{part:>8}"
        )
    for name, rate in raw.items():
        print(f"raw copy of a {name}: {rate:.1f} GB/s")


def main() -> None:
    """Runs it."""
    parser = argparse.ArgumentParser(description="Sleep and wake of a memory pool.")
    parser.add_argument("--gib", type=float, default=20, help="size of the pool")
    parser.add_argument(
        "--rounds", type=int, default=2, help="sleeps with contents kept; one more discards them"
    )
    parser.add_argument("--json", action="store_true")
    parser.add_argument(
        "--beside", action="store_true", help="other processes use the device: its free memory is not checked"
    )
    given = parser.parse_args()
    raw = raw_rates()
    start = accelrt.mem_get_info()[0]
    model = Model(int(given.gib * (1 << 30)))
    rows = []
    for index in range(given.rounds):
        name = ("first", "second", "third")[index] if index < 3 else f"{index + 1}th"
        rows += measure(model, name, 1.0 if index else 0.0, not given.beside)
        if index in (0, given.rounds - 1):
            model.verify()
    down = model.pool.sleep("discard")
    rows += [row("discard sleep", down, 0), row("discard wake", model.pool.wake(), 0)]
    held = start - accelrt.mem_get_info()[0]
    if given.json:
        print(json.dumps({"rows": rows, "raw": raw, "held": held}))
    else:
        show(rows, raw)


if __name__ == "__main__":
    main()
