"""What an inference engine leaves on its devices while all of it sleeps, by part, and how fast it wakes.

    python benchmarks/sleep_engine.py [--gib 60] [--graphs 67] [--shapes 35] [--devices N] [--quick]
                                      [--torch | --beside torch_memory_saver | --beside vllm]

The engine's stand-in has on each device, of so many GiB: weights (six tenths, kept asleep), a KV cache (the
rest, discarded), and graphs of kernels in a pool of their own, over several shapes; and with two devices, the
most that it takes, two communicators between them.  All pools sleep, communicators are suspended where NCCL
can (2.29.7), and both come back; then each graph is replayed and its result, the weights, every address and a
sum over the communicators are checked, without a new capture.  Any difference ends the program with status 1.
--quick takes 4 GiB of each device instead of 60, and half a minute in all.

Bytes are what NVML says of the whole device, so nothing else may use it meanwhile; a part of the driver's is
what a stage took beyond accelrt's own memory: the context, the modules (a kernel loaded and launched), the
executables of graphs, the communicators.  Before all that, another process only initialises CUDA, and its
bytes are what the goal counts from: asleep the engine has at most 300 MiB more.  With --torch all of it is
torch's, on accelrt as its allocator: the layers are matrix products, "libraries" is what cuBLAS took, whose
workspaces lie in torch's default memory, and that sleeps too.  The contexts' stacks of GPU threads go too, by
their limit, and come back at the wake.  With --beside it is torch's own allocator's, and that
package has it sleep.  The raw rates are those of bench_sleep.py.
ACCELRT_DRIVER=host runs it without a GPU, with --gib 0.1; then figures mean nothing.
"""

import argparse
import json
import os
import subprocess
import sys
import time

from bench_sleep import MIB, check, raw_rates, row
from engine_of_torch import CumemEngine, SaverEngine, TorchEngine
from engine_parts import Engine

import accelrt

GOAL = 300 * MIB
PEERS = {"torch_memory_saver": SaverEngine, "vllm": CumemEngine}
QUICK = 4  # GiB
# A process that has a context on so many devices until its input ends.
CONTEXTS = """
import ctypes, sys
cuda = ctypes.CDLL("libcuda.so.1")
assert cuda.cuInit(0) == 0
for device in range(int(sys.argv[1])):
    context = ctypes.c_void_p()
    assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) == 0
    assert cuda.cuCtxPushCurrent_v2(context) == 0
    assert cuda.cuCtxSynchronize() == 0
print("ready", flush=True)
sys.stdin.read()
"""


def used(device: int) -> int:
    """Bytes of a device that are in use."""
    return accelrt.device_memory_used(device)


def contexts_alone(devices: list[int]) -> list[int]:
    """Bytes of each device that a process takes which only initialises CUDA, before anything uses them."""
    if accelrt.device(devices[0]).type == "host":
        return [0] * len(devices)
    before = [used(device) for device in devices]
    command = [sys.executable, "-c", CONTEXTS, str(len(devices))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        check(other.stdout.readline() == "ready\n", "a process that only initialises CUDA failed")
        taken = [used(device) - start for device, start in zip(devices, before, strict=True)]
        other.stdin.close()
    end = time.monotonic() + 10
    while any(used(device) > start for device, start in zip(devices, before, strict=True)):
        check(time.monotonic() < end, "another process uses the devices too")
        time.sleep(0.05)
    return taken


class Stages:
    """What each stage took of a device, beyond accelrt's own memory."""

    def __init__(self, devices: list[int]):
        self.devices = devices
        self.before = [used(device) for device in devices]
        self.seen = list(self.before)
        self.reserved = [0] * len(devices)
        self.parts: list[dict[str, int]] = [{} for _ in devices]

    def over(self, part: str, engines: list) -> None:
        """The stage has ended."""
        for index, device in enumerate(self.devices):
            accelrt.synchronize(device)
            now, reserved = used(device), engines[index].reserved()
            self.parts[index][part] = now - self.seen[index] - (reserved - self.reserved[index])
            self.seen[index], self.reserved[index] = now, reserved


def connected(devices: list[int]) -> list:
    """Two communicators between two devices, used once."""
    if len(devices) < 2 or not accelrt.nccl.is_available():
        return []
    groups = [accelrt.nccl.init_all(devices) for _ in range(2)]
    add_up(groups, devices)
    return groups


def add_up(groups: list, devices: list[int]) -> None:
    """A sum over each communicator, on all devices."""
    for group in groups:
        arrays = []
        for device in devices:
            with accelrt.device(device):
                arrays.append(accelrt.full(1024, device + 1, "float32"))
        with accelrt.nccl.group():
            for communicator, array in zip(group, arrays, strict=True):
                with accelrt.device(array.device):
                    communicator.all_reduce(array)
        for device, array in zip(devices, arrays, strict=True):
            accelrt.synchronize(device)
            same = bool((array.numpy() == sum(each + 1 for each in devices)).all())
            check(same, "a sum over a communicator is wrong")


def suspend(groups: list) -> list[int]:
    """Has NCCL give back what it can; answers bytes of each device, none where it is older than 2.29.7."""
    try:
        stats = [[each.memory_stats() for each in group] for group in groups]
    except accelrt.NotSupportedError:
        return []
    back = [sum(each["suspendable"] for each in ranks) for ranks in zip(*stats, strict=True)]
    for group in groups:
        accelrt.nccl.suspend_all(group)
    return back


def resume(groups: list) -> None:
    """Takes it again."""
    for group in groups:
        if group[0].suspended:
            accelrt.nccl.resume_all(group)


def close(groups: list) -> None:
    """Ends communicators."""
    for group in groups:
        for communicator in group:
            communicator.close()


def asleep(stages: Stages, index: int, alone: int) -> dict:
    """What a device still has, by part; alone: bytes of a process that only initialised CUDA."""
    device = stages.devices[index]
    held, own = used(device) - stages.before[index], accelrt.memory_reserved(device)
    parts = {**stages.parts[index], "accelrt's own": own}
    more = held - alone
    met = more <= GOAL
    return {"device": device, "bytes": held, "alone": alone, "beyond": more, "met": met, "parts": parts}


def measure(options: argparse.Namespace, devices: list[int]) -> dict:
    """All of it."""
    alone = contexts_alone(devices)
    stages = Stages(devices)
    kind = PEERS[options.beside] if options.beside else TorchEngine if options.torch else Engine
    engines = [kind(device) for device in devices]
    stages.over("context", engines)
    for engine in engines:
        engine.load()
    stages.over("modules", engines)
    for engine in engines:
        engine.start_libraries()
    stages.over("libraries", engines)
    for engine in engines:
        engine.fill(int(options.gib * 2**30))
    stages.over("pages", engines)
    for engine in engines:
        engine.capture(options.graphs, options.shapes)
    stages.over("graphs", engines)
    groups = connected(devices)
    stages.over("communicators", engines)
    addresses = [engine.addresses() for engine in engines]
    rows, left = [], []
    for name in ("first", "second"):
        start = time.perf_counter()
        back = suspend(groups)
        downs = [engine.sleep() for engine in engines]
        stacks = [engine.shrink_stacks() for engine in engines]
        seconds = time.perf_counter() - start
        accelrt.empty_cache()
        left = [asleep(stages, index, alone[index]) for index in range(len(devices))]
        for each, size in zip(left, back, strict=False):
            each["parts"]["communicators"] -= size
        time.sleep(1.0 if options.gib >= 1 else 0.0)  # the driver clears what was given back
        start = time.perf_counter()
        for engine, size in zip(engines, stacks, strict=True):
            engine.restore_stacks(size)  # first, for the pools may take the rest
        ups = [engine.wake() for engine in engines]
        resume(groups)
        rows.append({"round": name, "down": seconds, "up": time.perf_counter() - start})
        for step, results in (("sleep", downs), ("wake", ups)):
            weights = [row(f"{name} {step}", each["weights"], 0) for each in results]
            rows[-1][step] = min(each["rate"] for each in weights)
            rows[-1][f"{step} bytes"] = sum(each.bytes for result in results for each in result.values())
        for engine in engines:
            engine.replay()
            check(engine.captures == options.graphs, "graphs were captured again")
        add_up(groups, devices)
    check(addresses == [engine.addresses() for engine in engines], "addresses changed")
    for engine in engines:
        engine.verify()
    close(groups)
    accelrt.empty_cache()
    return {"rows": rows, "asleep": left, "communicators": len(groups), "graphs": options.graphs}


def show(found: dict) -> None:
    """Prints both tables."""
    for each in found["rows"]:
        for step, seconds in (("sleep", each["down"]), ("wake", each["up"])):
            beside = found["raw"].get(step)
            part = f", {each[step] / beside:.1%} of the raw copy" if beside else ""
            print(
                f"{each['round']} {step}: {each[f'{step} bytes']:,} bytes in {seconds:.3f} s; weights at "
                f"{each[step]:.1f} GB/s{part}"
            )
    for each in found["asleep"]:
        print(f"device {each['device']} asleep: {each['bytes'] / MIB:,.1f} MiB by NVML")
        for part, size in each["parts"].items():
            print(f"  {part:16}{size / MIB:12,.1f} MiB")
        goal = "met" if each["met"] else "missed"
        print(f"  a process that only initialised CUDA has {each['alone'] / MIB:,.1f} MiB")
        print(f"  beyond that   {each['beyond'] / MIB:14,.1f} MiB; goal 300, {goal}")
    print(f"{found['graphs']} graphs on each device, {found['communicators']} communicators")


def main() -> None:
    """Runs it."""
    parser = argparse.ArgumentParser(description="What stays on the devices while an engine sleeps.")
    parser.add_argument("--gib", type=float, help="weights and cache on each device; 60 if it is not given")
    parser.add_argument("--graphs", type=int, default=67)
    parser.add_argument("--shapes", type=int, default=35)
    parser.add_argument("--devices", type=int, default=2, help="how many at most")
    parser.add_argument("--torch", action="store_true", help="torch's tensors, graphs and cuBLAS")
    parser.add_argument("--beside", choices=sorted(PEERS), help="torch's allocator with another package")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK} GiB if --gib is not given")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.beside == "torch_memory_saver" and options.beside not in os.environ.get("LD_PRELOAD", ""):
        from torch_memory_saver import configure_subprocess

        with configure_subprocess():
            sys.exit(subprocess.call([sys.executable, *sys.argv]))
    options.gib = options.gib or (QUICK if options.quick else 60)
    devices = list(range(min(options.devices, accelrt.device_count())))
    found = measure(options, devices)
    found["raw"] = raw_rates()  # last, for it makes a context
    if options.json:
        print(json.dumps(found))
    else:
        show(found)


if __name__ == "__main__":
    main()
