"""Copies between each device and page-locked memory of each NUMA node of the host.

    python benchmarks/bench_numa.py [--mib 256] [--rounds 5] [--json]

For each device and node a PinnedMemPool of that node gives as many bytes, which are copied to the device and
back; the rate is the best of the rounds.  What page-locked memory without a pool lies on is told for each
device, and whether that node is the fastest.  With one node there is one row a device.  ACCELRT_DRIVER=host
runs it without a GPU (ACCELRT_HOST_NODES says of how many nodes), where the rates mean nothing.
"""

import argparse
import json
from time import perf_counter

import accelrt

MIB = 1 << 20
MOST_NODES = 64


def nodes() -> list[int]:
    """The nodes that a pool may be of."""
    found = []
    for node in range(MOST_NODES):
        try:
            accelrt.PinnedMemPool(numa_node=node)
        except (ValueError, accelrt.NotSupportedError):
            continue
        found.append(node)
    return found


def rate(to: object, origin: object, nbytes: int, stream: accelrt.Stream, rounds: int) -> float:
    """GB/s of the best round, after one to warm up."""
    best = 0.0
    for turn in range(rounds + 1):
        start = perf_counter()
        accelrt.copy(to, origin, stream=stream, blocking=False)
        stream.synchronize()
        if turn:
            best = max(best, nbytes / (perf_counter() - start) / 1e9)
    return best


def measured(ordinal: int, node: int, nbytes: int, rounds: int) -> dict[str, float]:
    """The two rates of a device and a node."""
    stream = accelrt.Stream(ordinal)
    with accelrt.device(ordinal):
        device = accelrt.Buffer(nbytes, stream=stream)
        host = accelrt.PinnedBuffer(nbytes, pool=accelrt.PinnedMemPool(numa_node=node))
        made = {
            "to_device": rate(device, host, nbytes, stream, rounds),
            "to_host": rate(host, device, nbytes, stream, rounds),
        }
        host.free()
        device.free()
    return made


def chosen(ordinal: int) -> int | None:
    """The node that page-locked memory of a device lies on where nothing names one."""
    with accelrt.device(ordinal):
        held = accelrt.PinnedBuffer(64 << 10)
        for segment in accelrt.memory.host_memory_snapshot():
            if segment["address"] <= held.ptr < segment["address"] + segment["total_size"]:
                node: int | None = segment["numa_node"]
                return node
    return None


def main() -> None:
    """Measures all, and prints a table or JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="print JSON on one line")
    options = parser.parse_args()
    devices = []
    for ordinal in range(accelrt.device_count()):
        rates = {node: measured(ordinal, node, options.mib * MIB, options.rounds) for node in nodes()}
        fastest = max(rates, key=lambda node: rates[node]["to_device"], default=None)
        devices.append(
            {"device": ordinal, "default_node": chosen(ordinal), "fastest": fastest, "rates": rates}
        )
    if options.json:
        print(json.dumps({"benchmark": "numa", "mib": options.mib, "devices": devices}))
        return
    print(
        "| device | node | to the device, GB/s | to the host, GB/s | |\n| ---: | ---: | ---: | ---: | --- |"
    )
    for each in devices:
        for node, found in each["rates"].items():
            note = "default" if node == each["default_node"] else ""
            print(
                f"| {each['device']} | {node} | {found['to_device']:.1f} | {found['to_host']:.1f} | {note} |"
            )


if __name__ == "__main__":
    main()
