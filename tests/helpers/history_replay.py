"""What a history says memory is now, event for event, against what the allocator says."""

import gc
import itertools
import random

from beside import on_threads

import accelrt
from accelrt import memory

MIB = 1 << 20
PAGE = 2 * MIB


class Replayed:
    """State after some events of one device: pages that are mapped, live memory, memory freed but in use."""

    def __init__(self):
        self.pages, self.live, self.pending = set(), {}, {}

    def take(self, entry):
        action, address, size = entry["action"], entry.get("addr", 0), entry["size"]
        if action in ("segment_alloc", "segment_map"):
            pages = set(range(address, address + size, PAGE))
            assert not pages & self.pages, f"mapped twice: {entry}"
            self.pages |= pages
        elif action in ("segment_free", "segment_unmap"):
            pages = set(range(address, address + size, PAGE))
            assert pages <= self.pages, f"not mapped: {entry}"
            self.pages -= pages
        elif action == "alloc":
            assert address not in self.live, f"allocated twice: {entry}"
            self.pending.pop(address, None)  # claimed by a stream that waits for its event
            self.live[address] = size, entry["tag"], entry["stream"], entry["pool"]
        elif action == "free_requested":
            found = self.live.pop(address)
            assert found == (size, entry["tag"], entry["stream"], entry["pool"]), f"another block: {entry}"
            self.pending[address] = found
        elif action == "free_completed":
            assert self.pending.pop(address)[0] == size

    def compare(self, snapshot, device):
        segments = [segment for segment in snapshot["segments"] if segment["device"] == device]
        pages, live, pending = set(), {}, {}
        for segment in segments:
            pages |= set(range(segment["address"], segment["address"] + segment["total_size"], PAGE))
            for block in segment["blocks"]:
                about = block["requested_size"], block["tag"], segment["stream"], segment["segment_pool_id"]
                if block["state"] == "active_allocated":
                    live[block["address"]] = about
                elif block["state"] == "active_pending_free":
                    pending[block["address"]] = about
        assert self.pages == pages
        assert self.live == live
        assert self.pending == pending


def check(device=0):
    """Replays everything that was recorded of a device, and compares the outcome with its snapshot."""
    snapshot = memory.snapshot(device)
    assert snapshot["accelrt"]["dropped"][device] == 0
    replayed = Replayed()
    times = [entry["time_us"] for entry in snapshot["device_traces"][device]]
    assert times == sorted(times)
    for entry in snapshot["device_traces"][device]:
        replayed.take(entry)
    replayed.compare(snapshot, device)
    blocks = [block for segment in snapshot["segments"] for block in segment["blocks"]]
    live = [block for block in blocks if block["state"] == "active_allocated"]
    for name, figures in snapshot["accelrt"]["tags"][device].items():
        sizes = [block["size"] for block in live if block["tag"] == name]
        assert figures["allocated_bytes"]["current"] == sum(sizes)
        assert figures["allocation"]["current"] == len(sizes)
        assert figures["allocated_bytes"]["peak"] >= sum(sizes)
    return snapshot


SIZES = (1, 512, 4000, 100_000, MIB, 3 * MIB + 5, 11 * MIB, 30 * MIB)


def steps(seed, count, streams, pool):
    """Random use of memory by one thread: tags, other streams' uses, a pool, offers, caches emptied."""
    chance = random.Random(seed)
    live, tags = [], [memory.tag(f"tag {number}") for number in range(3)]

    def allocate():
        stream = chance.choice(streams)
        size = chance.choice(SIZES)
        if chance.random() < 0.2:
            with memory.use_mem_pool(pool):
                return accelrt.caching_allocator_alloc(size, stream=stream), stream
        return accelrt.caching_allocator_alloc(size, stream=stream), stream

    for _ in range(count):
        what = chance.random()
        if what < 0.5 and len(live) < 30:
            if chance.random() < 0.5:
                with chance.choice(tags):
                    live.append(allocate())
            else:
                live.append(allocate())
        elif what < 0.95 and live:
            address, stream = live.pop(chance.randrange(len(live)))
            other = chance.choice(streams)
            if chance.random() < 0.2:
                accelrt.record_stream(address, other)
            if chance.random() < 0.1:
                done = stream.record_event()
                memory.free_after(address, done)
                other.wait_event(done)
            else:
                accelrt.caching_allocator_delete(address)
        elif what > 0.99:
            accelrt.empty_cache()
    return live


def program(threads, count, **how):
    """Records threads' random steps, and checks the history in between and at the end."""
    memory.record_history(max_entries=1 << 20, **how)
    streams = [accelrt.Stream() for _ in range(4)]
    held = [memory.MemPool()]
    found = [[] for _ in range(threads)]

    def run(place):
        number, _ = place
        found[number] += steps(hash(place), count, streams, held[0])

    for part in range(3):
        on_threads(run, [(number, part) for number in range(threads)])
        check()
        if part == 1:
            memory.record_history(None)
            memory.record_history(max_entries=1 << 20, **how)
    for address, _ in itertools.chain(*found):
        accelrt.caching_allocator_delete(address)
    accelrt.synchronize()
    held.clear()
    gc.collect()
    accelrt.empty_cache()
    snapshot = check()
    assert snapshot["segments"] == []
    assert sum(figures["allocation"]["current"] for figures in snapshot["accelrt"]["tags"][0].values()) == 0
    memory.audit()
    actions = {entry["action"] for entry in snapshot["device_traces"][0]}
    assert {"alloc", "free_requested", "free_completed", "snapshot"} <= actions
    return snapshot
