"""The process of one allocator that hands CUDA tensors to other processes, and what that took (words.py).

    python handover_process.py COLUMN [--quick] [--gib N] [--processes N]

torch_handover.py starts it.
"""

import argparse
import gc
import importlib
import os
import signal
import statistics
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import peers  # noqa: F401 - its import lets an accelrt that is not installed be found
from training_process import PLUGGED
from words import say

MIB = 1 << 20
LIMIT = 60  # seconds until another process counts as stuck
SETTLING = 10  # seconds in which what dead processes had has to come back


@dataclass(frozen=True)
class Plan:
    """How much is handed over, to how many processes."""

    processes: int
    tensors: int
    size: int  # bytes of each


FULL, QUICK = Plan(8, 60, 512 * MIB), Plan(2, 6, 8 * MIB)


def prepare(column: str) -> None:
    """Readies a process: each takes the column's allocator before its first tensor."""
    if column == PLUGGED:
        importlib.import_module("accelrt").interop.torch.install()


def addresses() -> int:
    """Bytes of address space that this process has mapped or reserved, as the system counts them."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")


def filled(count: int, size: int) -> list:
    """Tensors, each with its number in its last byte."""
    import torch

    tensors = [torch.empty(size, dtype=torch.uint8, device="cuda") for _ in range(count)]
    for number, tensor in enumerate(tensors):
        tensor[-1:].copy_(torch.tensor([number % 256], dtype=torch.uint8))
    torch.cuda.synchronize()
    return tensors


def last_bytes(tensors: list) -> list[int]:
    """What filled() wrote."""
    return [int(tensor[-1:].cpu()) for tensor in tensors]


def serve(pipe, ready: Callable[[], None]) -> None:
    """The other process: keeps tensors that it is sent, and sends its own."""
    import torch

    ready()
    torch.zeros(1, device="cuda").cpu()
    kept, before = [], addresses()
    pipe.send("ready")
    while True:
        order = pipe.recv()
        if torch.is_tensor(order):
            kept.append(order)
            order = None
            pipe.send(len(kept))
        elif order == "addresses":
            pipe.send(addresses() - before)
        elif order == "contents":
            pipe.send(last_bytes(kept))
        elif isinstance(order, Plan):
            kept = filled(order.tensors, order.size)
            for tensor in kept:
                pipe.send(tensor)
        else:
            return


class Other:
    """Another process, from the side of the one that measures."""

    def __init__(self, ready: Callable[[], None]):
        import torch

        context = torch.multiprocessing.get_context("spawn")
        self.pipe, end = context.Pipe()
        self.process = context.Process(target=serve, args=(end, ready), daemon=True)
        self.process.start()
        end.close()

    def answer(self):
        """Its next one."""
        if not self.pipe.poll(LIMIT):
            raise TimeoutError(f"process {self.process.pid} did not answer in {LIMIT} s")
        return self.pipe.recv()

    def ask(self, order):
        """What it answers to an order."""
        self.pipe.send(order)
        return self.answer()

    def give(self, tensor) -> float:
        """Hands a tensor over: milliseconds until it is open there."""
        start = time.perf_counter()
        self.ask(tensor)
        return (time.perf_counter() - start) * 1000

    def kill(self) -> None:
        """By SIGKILL, which it cannot see."""
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.join(LIMIT)


def check(found: list[int], count: int, where: str) -> None:
    """Raises where contents are others than filled() wrote."""
    if found != [number % 256 for number in range(count)]:
        raise RuntimeError(f"{where}: the tensors have other contents: {found}")


def settled(left: Callable[[], int]) -> int:
    """The bytes that are left once nothing more comes back."""
    import torch

    end = time.monotonic() + SETTLING
    while True:
        gc.collect()
        torch.cuda.ipc_collect()
        bytes_left = left()
        if bytes_left <= 0 or time.monotonic() > end:
            return max(bytes_left, 0)
        time.sleep(0.02)


def gib(count: int) -> dict:
    """A cell of bytes."""
    return {"value": count / 2**30, "bytes": count}


def give_all(plan: Plan, ready: Callable[[], None]) -> dict[str, dict]:
    """Every tensor to every process, which then are killed."""
    import torch

    others = [Other(ready) for _ in range(plan.processes)]
    for other in others:
        other.answer()
    tensors = filled(plan.tensors, plan.size)
    times = [[other.give(tensor) for tensor in tensors] for other in others]
    for other in others:
        check(other.ask("contents"), plan.tensors, "a receiver")
    reserved = max(other.ask("addresses") for other in others)
    for other in others:
        other.kill()
    tensors.clear()
    left = settled(torch.cuda.memory_allocated)
    later = [each for of_one in times[1:] for each in of_one]
    return {
        "first": {"value": statistics.median(times[0]), "times": times[0]},
        "later": {"value": statistics.median(later), "times": later},
        "most": {"value": max(max(of_one) for of_one in times)},
        "addresses": gib(reserved),
        "receivers": gib(left),
    }


def take_all(plan: Plan, ready: Callable[[], None]) -> dict[str, dict]:
    """A process sends a part of it and is killed; its tensors have to last until they are dropped."""
    import torch

    torch.cuda.empty_cache()
    before = torch.cuda.mem_get_info()[0]
    sender = Other(ready)
    sender.answer()
    part = Plan(1, max(plan.tensors // 4, 1), plan.size)
    sender.pipe.send(part)
    tensors = [sender.answer() for _ in range(part.tensors)]
    sender.kill()
    check(last_bytes(tensors), part.tensors, "after the sender was killed")
    tensors.clear()
    spare = 16 * MIB  # of the driver's own
    return {"sender": gib(settled(lambda: before - torch.cuda.mem_get_info()[0] - spare))}


def measure(plan: Plan, ready: Callable[[], None]) -> dict[str, dict]:
    """All cells."""
    import torch

    torch.zeros(1, device="cuda").cpu()
    gc.collect()
    return {**give_all(plan, ready), **take_all(plan, ready)}


def main() -> None:
    """The whole program."""
    parser = argparse.ArgumentParser()
    parser.add_argument("column")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--gib", type=float)
    parser.add_argument("--processes", type=int)
    chosen = parser.parse_args()
    try:
        torch = importlib.import_module("torch")
    except ImportError as error:
        say(absent=f"{type(error).__name__}: {error}")
        return
    say(version=torch.__version__)
    if not torch.cuda.is_available():
        say(row="first", error="torch finds no GPU")
        return
    plan = QUICK if chosen.quick else FULL
    tensors = plan.tensors if chosen.gib is None else max(int(chosen.gib * 2**30 / plan.size), 1)
    plan = Plan(chosen.processes or plan.processes, tensors, plan.size)
    ready = partial(prepare, chosen.column)
    ready()
    try:
        say(cells=measure(plan, ready))
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(place.filename).name}:{place.lineno}"
        say(row="first", error=f"{type(error).__name__}: {error} ({where})")


if __name__ == "__main__":
    main()
