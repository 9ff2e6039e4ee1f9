"""Managed memory: prefetched against moved as it is touched, beside the raw driver and RMM.

    python benchmarks/bench_managed.py [--gib 4] [--rounds 5] [--json]

The host writes so many bytes of managed memory, then the device copies them to memory of its own.  Without a
prefetch its copy moves each page as it comes to it; with one the pages are there.  The other way round the
device writes, and the host reads.  Each is timed from the call to the end of the work, the best of the
rounds, and what was copied is compared.  Never more than a quarter of the device's free memory is used.
The raw column calls cuMemAllocManaged, cuMemPrefetchAsync and the copies by ctypes; RMM's has a DeviceBuffer
of a ManagedMemoryResource, where rmm is installed.  ACCELRT_DRIVER=host runs it without a GPU, where the
figures mean nothing.
"""

import argparse
import ctypes
import json
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import accelrt

GIB = 1 << 30
HOST = -1  # CU_DEVICE_CPU


def check(condition: bool, text: str) -> None:
    """Ends the program where something differs."""
    if not condition:
        sys.exit(f"bench_managed: {text}")


def view_of(address: int, size: int) -> np.ndarray:
    """The bytes at an address, for the host."""
    return np.frombuffer((ctypes.c_uint8 * size).from_address(address), np.uint8)


class Accelrt:
    """accelrt's managed Buffer."""

    name = "accelrt"

    def __init__(self, size: int):
        self.stream = accelrt.Stream()
        self.buffer = accelrt.Buffer(size, stream=self.stream, managed=True)
        self.address = self.buffer.ptr

    def prefetch(self, to_host: bool) -> None:
        """Moves all of it."""
        accelrt.memory.prefetch(self.buffer, "cpu" if to_host else None, stream=self.stream)

    def wait(self) -> None:
        """Until the stream is past all of it."""
        self.stream.synchronize()


class Raw:
    """The driver's calls, by ctypes, in the device's primary context."""

    name = "raw driver"

    def __init__(self, size: int):
        self.cuda = ctypes.CDLL("libcuda.so.1")
        address, stream, context = ctypes.c_uint64(), ctypes.c_void_p(), ctypes.c_void_p()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), accelrt.current_device())
        self.call("cuCtxSetCurrent", context)
        self.call("cuMemAllocManaged", ctypes.byref(address), ctypes.c_size_t(size), 1)
        self.call("cuStreamCreate", ctypes.byref(stream), 1)
        self.address, self.size, self.handle = address.value, size, stream.value
        self.stream = accelrt.ExternalStream(self.handle)

    def call(self, name: str, *arguments: object) -> None:
        """One call, which has to succeed."""
        code = getattr(self.cuda, name)(*arguments)
        check(code == 0, f"{name} answered {code}")

    def prefetch(self, to_host: bool) -> None:
        """Moves all of it."""
        device = HOST if to_host else accelrt.current_device()
        at, size = ctypes.c_uint64(self.address), ctypes.c_size_t(self.size)
        self.call("cuMemPrefetchAsync", at, size, device, ctypes.c_void_p(self.handle))

    def wait(self) -> None:
        """Until the stream is past all of it."""
        self.call("cuStreamSynchronize", ctypes.c_void_p(self.handle))


class Rmm:
    """RMM's DeviceBuffer of managed memory."""

    name = "RMM"

    def __init__(self, size: int):
        import rmm

        self.resource = rmm.mr.ManagedMemoryResource()
        self.stream = accelrt.Stream()
        self.theirs = rmm.pylibrmm.stream.Stream(self.stream)
        self.buffer = rmm.DeviceBuffer(size=size, stream=self.theirs, mr=self.resource)
        self.address = self.buffer.ptr

    def prefetch(self, to_host: bool) -> None:
        """Moves all of it."""
        device = HOST if to_host else accelrt.current_device()
        self.buffer.prefetch(device=device, stream=self.theirs)

    def wait(self) -> None:
        """Until the stream is past all of it."""
        self.stream.synchronize()


def timed(work: Callable[[], None]) -> float:
    """Seconds of one call."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def measure(subject: Any, size: int, rounds: int) -> dict[str, float]:
    """GB/s of each way, with a prefetch and without, and of the prefetches alone."""
    view = view_of(subject.address, size)
    target = accelrt.Buffer(size, stream=subject.stream)
    out = np.empty(size, np.uint8)
    best: dict[str, float] = {}

    def keep(key: str, seconds: float) -> None:
        best[key] = max(best.get(key, 0.0), size / seconds / 1e9)

    def to_device() -> None:
        accelrt.copy(target, Pointer(subject.address, size), stream=subject.stream, blocking=False)
        subject.wait()

    def to_host() -> None:
        np.copyto(out, view)

    for turn in range(rounds):
        for prefetches in (False, True):
            name = "prefetched" if prefetches else "touched"
            view[:] = turn + 1
            if prefetches:
                keep("prefetch to the device", timed(lambda: (subject.prefetch(False), subject.wait())))
            keep(f"device reads, {name}", timed(to_device))
            target.copy_to(out)
            check(bool((out == turn + 1).all()), f"{subject.name}: the device read something else")
            Pointer(subject.address, size).fill(subject.stream, turn + 101)
            subject.wait()
            if prefetches:
                keep("prefetch to the host", timed(lambda: (subject.prefetch(True), subject.wait())))
            keep(f"host reads, {name}", timed(to_host))
            check(bool((out == turn + 101).all()), f"{subject.name}: the host read something else")
    return best


class Pointer:
    """Managed memory under accelrt's copies and fills, whoever allocated it."""

    def __init__(self, address: int, size: int):
        self.address, self.size = address, size

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        data = (self.address, False)
        return {"shape": (self.size,), "typestr": "|u1", "data": data, "version": 3}

    def fill(self, stream: accelrt.Stream, value: int) -> None:
        """By the device."""
        accelrt.fill(self, value, stream=stream)


def subjects(size: int) -> list[Any]:
    """What can be measured here."""
    made: list[Any] = [Accelrt(size)]
    if accelrt.device(0).type == "host":
        return made
    made.append(Raw(size))
    try:
        made.append(Rmm(size))
    except ImportError:
        print("RMM is not installed", file=sys.stderr)
    return made


def main() -> None:
    """Runs it."""
    parser = argparse.ArgumentParser(description="Managed memory: prefetched, or moved as it is touched.")
    parser.add_argument("--gib", type=float, default=4, help="how much of it")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    size = int(given.gib * GIB)
    free = accelrt.mem_get_info()[0]
    check(
        4 * size <= free,
        f"{size} bytes are more than a quarter of the {free} that are free; pass a smaller --gib",
    )
    rates = {each.name: measure(each, size, given.rounds) for each in subjects(size)}
    if given.json:
        print(json.dumps({"bytes": size, "GB/s": rates}))
        return
    print(f"{'GB/s':28}" + "".join(f"{name:>14}" for name in rates))
    for key in next(iter(rates.values())):
        print(f"{key:28}" + "".join(f"{found[key]:14.1f}" for found in rates.values()))


if __name__ == "__main__":
    main()
