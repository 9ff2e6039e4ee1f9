"""Memory handed from process to process, whole rounds of it: contents checked, and nothing left behind.

    python tests/helpers/shared_memory_rounds.py --handovers 10000

Each process makes Arrays of many sizes on all devices, fills them by work that it does not wait for, and
sends them to the others, dropping them at once; who gets one looks at every element, writes another value
over it, and drops it.  At the end each has to have as much memory, and as many descriptors, threads and
mappings, as a few hand-overs leave.
"""

import argparse
import gc
import multiprocessing
import os
import random
import threading
import time

import numpy as np

import accelrt
import accelrt.sharing

SIZES = (1, 100, 4096, 300_000, 1_200_000, 3_000_000)  # of int32: from less than a block to several pages
AT_ONCE = 12  # arrays of one process that are under way
# A socket and a pidfd for each other process, and the events that wait for their next use.
FILES_LEFT = 100
SECONDS = 300


def descriptors():
    return len(os.listdir("/proc/self/fd"))


def send(number, own, inboxes, chosen):
    device = chosen.randrange(accelrt.device_count())
    value = chosen.randrange(1, 1 << 30)
    array = accelrt.empty((chosen.choice(SIZES),), "int32", device=device)
    array.fill_(value - 1)
    array.fill_(value)
    to = chosen.choice([other for other in range(len(inboxes)) if other != own])
    inboxes[to].put((array, value, number))


def check(array, value):
    seen = array.numpy()
    wrong = np.flatnonzero(seen != value)
    assert wrong.size == 0, (
        f"{wrong.size} of {seen.size} elements are not {value}: {seen[wrong[:4]]} at {wrong[:4]}"
    )
    array.fill_(-1)


def has_too_many(files, threads, processes):
    """Whether descriptors or threads are left over; those that end do so after the memory is back."""
    # main, listener; for each other process one that gives back, and lenders of its connections
    return files > FILES_LEFT or threads > 2 + (processes - 1) * 6


def wait_until(done, what):
    end = time.monotonic() + SECONDS
    while not done():
        assert time.monotonic() < end, f"{what}: {accelrt.sharing.statistics()}"
        accelrt.ipc_collect()
        time.sleep(0.002)


def under_way():
    told = accelrt.sharing.statistics()
    return told["lent"] + told["unopened"]


def serve(own, inboxes, wanted, report, all_done):
    """One process."""
    try:
        take_part(own, inboxes, wanted, report, all_done)
    except accelrt.CudaError:
        accelrt.memory.audit()  # which identity of the allocator is violated, where one is
        raise


def take_part(own, inboxes, wanted, report, all_done):
    """Sends as many arrays as it is to, and takes what comes until every other process has ended."""
    for device in range(accelrt.device_count()):
        accelrt.full((1,), 1, device=device).numpy()
    before, chosen = descriptors(), random.Random(own)
    sent, ended, seen = 0, 0, 0
    while sent < wanted or ended < len(inboxes) - 1:
        if sent < wanted and under_way() < AT_ONCE:
            send(sent, own, inboxes, chosen)
            sent += 1
            if sent == wanted:
                for other in range(len(inboxes)):
                    if other != own:
                        inboxes[other].put(None)
        while not inboxes[own].empty():
            message = inboxes[own].get()
            if message is None:
                ended += 1
                continue
            check(message[0], message[1])
            seen += 1
            del message
        if sent == wanted:
            time.sleep(0.001)
    gc.collect()
    wait_until(
        lambda: under_way() == 0 and accelrt.sharing.statistics()["opened"] == 0, "memory is still lent"
    )
    accelrt.empty_cache()
    wait_until(
        lambda: not has_too_many(descriptors() - before, threading.active_count(), len(inboxes)), "left"
    )
    left = {
        "seen": seen,
        "bytes": sum(accelrt.memory_allocated(device) for device in range(accelrt.device_count())),
        "files": descriptors() - before,
        "threads": threading.active_count(),
        **accelrt.sharing.statistics(),
    }
    report.put((own, left))
    all_done.wait(SECONDS)  # whoever ended early would take its descriptors of others with it


def run(handovers, processes, method="spawn"):
    """Runs it all; what each process had left, by its number."""
    context = multiprocessing.get_context(method)
    inboxes = [context.SimpleQueue() for _ in range(processes)]
    report, all_done = context.SimpleQueue(), context.Event()
    shares = [handovers // processes + (own < handovers % processes) for own in range(processes)]
    children = [
        context.Process(target=serve, args=(own, inboxes, shares[own], report, all_done))
        for own in range(processes)
    ]
    for child in children:
        child.start()
    found, end = {}, time.monotonic() + SECONDS
    while len(found) < processes:
        if report.empty():
            dead = [child.exitcode for child in children if child.exitcode not in (None, 0)]
            assert not dead, f"exit codes {dead}, reports of {sorted(found)}"
            assert time.monotonic() < end, f"reports of {sorted(found)} alone"
            time.sleep(0.01)
            continue
        own, left = report.get()
        found[own] = left
    all_done.set()
    for child in children:
        child.join(SECONDS)
    assert [child.exitcode for child in children] == [0] * processes
    return found


def judge(found, handovers, processes):
    """Raises AssertionError where something was lost, or is left."""
    assert sum(left["seen"] for left in found.values()) == handovers, found
    for own, left in found.items():
        kept = {name: left[name] for name in ("bytes", "handles", "unopened", "lent", "opened", "mapped")}
        assert not any(kept.values()), (own, left)
        assert not has_too_many(left["files"], left["threads"], processes), (own, left)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--handovers", type=int, default=10_000)
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--method", choices=("spawn", "forkserver"), default="spawn")
    given = parser.parse_args()
    begun = time.perf_counter()
    found = run(given.handovers, given.processes, given.method)
    judge(found, given.handovers, given.processes)
    files = max(left["files"] for left in found.values())
    print(
        f"{given.handovers} hand-overs between {given.processes} processes in "
        f"{time.perf_counter() - begun:.1f} s: all contents right, no memory, mapping or loan left, at "
        f"most {files} more descriptors and "
        f"{max(left['threads'] for left in found.values())} threads in a process"
    )


if __name__ == "__main__":
    main()
