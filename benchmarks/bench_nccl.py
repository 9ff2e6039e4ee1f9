"""Bandwidth of collectives between GPUs, a process each, with torch.distributed beside them in the same run.

    python benchmarks/bench_nccl.py [--ranks 2] [--most-mib 1024] [--rounds 5] [--json]

Sizes go from 1 MiB up by four.  A figure is the bus bandwidth of nccl-tests: bytes by seconds, by 2 (n - 1) /
n for all_reduce, (n - 1) / n for all_gather and reduce_scatter, and 1 for broadcast and for an exchange of
neighbours.  A round times a row of calls that are put into a stream one after the other, between two waits
for the device; seconds are the mean over the ranks, and the figure is the median of the rounds, in which
accelrt and torch take turns at being first.  Both use one libnccl.  What all_reduce computes is checked
first. ACCELRT_DRIVER=host runs it without a GPU, where the figures mean nothing, and torch is left out.
"""

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path

from nccl_subjects import Ours, Torchs

MIB = 1 << 20
GOAL = 0.98  # of torch.distributed's bandwidth
BYTES_A_ROUND = 4 << 30
CALLS = (20, 500)  # of a round, the fewest and the most


def factor(call, ranks):
    """From bytes by seconds to nccl-tests' bus bandwidth."""
    if call == "all_reduce":
        return 2 * (ranks - 1) / ranks
    if call in ("all_gather", "reduce_scatter"):
        return (ranks - 1) / ranks
    return 1.0


def seconds(subject, ours, function, count):
    """Of one call, among so many in a row, as the mean over the ranks."""
    subject.wait()
    ours.barrier()
    began = time.perf_counter()
    for _ in range(count):
        function()
    subject.wait()
    return ours.mean((time.perf_counter() - began) / count)


def measure(subjects, call, size, rounds):
    """Median seconds of a call by each subject."""
    found = {each.name: [] for each in subjects}
    functions = {each.name: each.calls(call, size) for each in subjects}
    count = min(max(BYTES_A_ROUND // size, CALLS[0]), CALLS[1])
    for each in subjects:
        seconds(each, subjects[0], functions[each.name], 5)
    for turn in range(rounds):
        for each in subjects if turn % 2 == 0 else reversed(subjects):
            found[each.name].append(seconds(each, subjects[0], functions[each.name], count))
    return {name: statistics.median(values) for name, values in found.items()}


def work(most, rounds, torch_port, calls):
    """One rank: prints a line of JSON, on rank 0."""
    global BYTES_A_ROUND, CALLS
    from accelrt import nccl
    from accelrt.runtime import init

    host = init.chosen_driver() == "host"
    if host:
        BYTES_A_ROUND, CALLS = 0, (2, 2)
    comm = nccl.init_from_environment()
    subjects = [Ours(comm, most)]
    subjects[0].check()
    absent = "the host device" if host else None
    if not host:
        try:
            subjects.append(Torchs(comm, most, torch_port))
        except ImportError as error:
            absent = str(error)
    rows = []
    for call in calls:
        size = MIB
        while size <= most:
            found = measure(subjects, call, size, rounds)
            speeds = {name: size / value / 1e9 * factor(call, comm.size) for name, value in found.items()}
            rows.append({"call": call, "bytes": size, "seconds": found, "GB/s": speeds})
            size *= 4
    version = ".".join(map(str, nccl.version()))
    if comm.rank == 0:
        print(json.dumps({"ranks": comm.size, "nccl": version, "absent": absent, "rows": rows}), flush=True)
    if len(subjects) > 1:
        subjects[1].dist.destroy_process_group()
    comm.close()


def free_ports():
    """Two ports that nothing listens on now."""
    with socket.socket() as one, socket.socket() as other:
        one.bind(("127.0.0.1", 0))
        other.bind(("127.0.0.1", 0))
        return min(one.getsockname()[1], 65000), other.getsockname()[1]


def run(ranks, most, rounds, calls):
    """Starts the ranks; what rank 0 found."""
    port, torch_port = free_ports()
    command = [sys.executable, str(Path(__file__).resolve()), "--worker", str(torch_port)]
    command += ["--most-mib", str(most // MIB), "--rounds", str(rounds), "--calls", *calls]
    started = []
    for rank in range(ranks):
        place = {"RANK": rank, "WORLD_SIZE": ranks, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": ranks}
        place |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        environment = os.environ | {name: str(value) for name, value in place.items()}
        environment.pop("TORCHELASTIC_USE_AGENT_STORE", None)
        started.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True))
    outputs = [each.communicate()[0] for each in started]
    if any(each.returncode for each in started):
        sys.exit(f"bench_nccl: a rank failed: {[each.returncode for each in started]}")
    return json.loads(outputs[0].strip().split("\n")[-1])


def print_table(found):
    """A line a row: GB/s of bus bandwidth, and accelrt's share of torch's."""
    print(f"NCCL {found['nccl']}, {found['ranks']} ranks, bus bandwidth in GB/s")
    if found["absent"]:
        print(f"torch.distributed is left out: {found['absent']}")
    print(f"{'call':<16}{'MiB':>6}{'accelrt us':>12}{'accelrt':>10}{'torch':>10}{'ratio':>8}  goal {GOAL}")
    for row in found["rows"]:
        ours, theirs = row["GB/s"]["accelrt"], row["GB/s"].get("torch")
        ratio = "-" if theirs is None else f"{ours / theirs:.3f}"
        met = "" if theirs is None else "met" if ours >= GOAL * theirs else "missed"
        other = "-" if theirs is None else f"{theirs:.1f}"
        micro = row["seconds"]["accelrt"] * 1e6
        print(
            f"{row['call']:<16}{row['bytes'] // MIB:>6}{micro:>12.1f}{ours:>10.1f}{other:>10}{ratio:>8}  "
            f"{met}"
        )


def main():
    every = ["all_reduce", "all_gather", "reduce_scatter", "broadcast", "exchange"]
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--most-mib", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--calls", nargs="+", choices=every, default=every)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--worker", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker is not None:
        work(given.most_mib * MIB, given.rounds, given.worker, given.calls)
        return
    found = run(given.ranks, given.most_mib * MIB, given.rounds, given.calls)
    if given.json:
        print(json.dumps(found))
    else:
        print_table(found)


if __name__ == "__main__":
    main()
