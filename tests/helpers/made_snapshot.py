"""Snapshots made up from a training loop on a toy allocator, in torch's format or accelrt's."""

import bisect
import random

MIB = 1 << 20
SEGMENT = 20 * MIB
STREAMS = (0, 0x55D0_C0DE_0010)
PRIVATE = (0, 7)
STITCHED = 0x7FA0_0000_0000
LAYERS = 24


class ToyAllocator:
    """Segments of one stream and pool, first fit by address, whose events go to a list."""

    def __init__(self, log, base, stream, pool, expandable):
        self.log, self.stream, self.pool, self.expandable = log, stream, pool, expandable
        self.base = self.top = base
        self.segments = []  # [address, size]
        self.free = []  # (address, size), by address
        self.live = {}  # address -> (size, requested, frames, tag)

    def grow(self, size, frames):
        size = max(SEGMENT, -(-size // (2 * MIB)) * 2 * MIB)
        self.log("segment_map" if self.expandable else "segment_alloc", self.top, size, self, frames, "")
        if self.expandable and self.segments:
            self.segments[-1][1] += size
        else:
            self.segments.append([self.top, size])
        self.insert(self.top, size)
        self.top += size + (0 if self.expandable else 64 * MIB)

    def insert(self, address, size):
        at = bisect.bisect(self.free, (address, 0))
        if at < len(self.free) and address + size == self.free[at][0]:
            size += self.free.pop(at)[1]
        if at and sum(self.free[at - 1]) == address:
            address, size = self.free[at - 1][0], size + self.free[at - 1][1]
            del self.free[at - 1]
            at -= 1
        self.free.insert(at, (address, size))

    def allocate(self, requested, frames, tag=""):
        size = -(-requested // 512) * 512
        while True:
            for at, (address, room) in enumerate(self.free):
                if room >= size:
                    if room > size:
                        self.free[at] = (address + size, room - size)
                    else:
                        del self.free[at]
                    self.live[address] = (size, requested, frames, tag)
                    self.log("alloc", address, requested, self, frames, tag)
                    return address
            self.grow(size, frames)

    def release(self, address, frames):
        size, requested, _, tag = self.live.pop(address)
        for action in ("free_requested", "free_completed"):
            self.log(action, address, requested, self, frames, tag)
        self.insert(address, size)

    def describe(self, tagged):
        for address, size in self.segments:
            blocks, at = [], address
            used = [(a, *block) for a, block in self.live.items() if address <= a < address + size]
            idle = [(a, s, None, None, None) for a, s in self.free if address <= a < address + size]
            for a, block, requested, frames, tag in sorted(used + idle, key=lambda each: each[0]):
                assert a == at
                made = {"address": a, "size": block, "requested_size": requested or 0, "frames": frames or []}
                made["state"] = "inactive" if frames is None else "active_allocated"
                if tagged:
                    made["tag"] = tag or ""
                blocks.append(made)
                at += block
            live = sum(block["size"] for block in blocks if block["state"] != "inactive")
            yield {
                "device": 0,
                "address": address,
                "total_size": size,
                "allocated_size": live,
                "active_size": live,
                "requested_size": sum(block["requested_size"] for block in blocks),
                "stream": self.stream,
                "segment_type": "large",
                "segment_pool_id": self.pool,
                "is_expandable": self.expandable,
                "frames": [],
                "blocks": blocks,
            }


def make_stacks():
    """Names of places -> lists of frames, innermost first."""
    base = [("train_step", "train.py", 88), ("main", "train.py", 141), ("<module>", "train.py", 160)]

    def stack(*frames):
        return [
            {"filename": f"/home/user/model/{f}", "line": n, "name": name} for name, f, n in (*frames, *base)
        ]

    found = {"loss": stack(("cross_entropy", "losses.py", 31))}
    found["oom"] = stack(("gather_logits", "losses.py", 77))
    for layer in range(LAYERS):
        block = ("Block.forward", "transformer.py", 50 + layer)
        model = ("Model.forward", "transformer.py", 120)
        found["attention", layer] = stack(
            ("softmax_scores", "attention.py", 64), ("Attention.forward", "attention.py", 41), block, model
        )
        found["mlp", layer] = stack(("gelu", "mlp.py", 22), ("MLP.forward", "mlp.py", 17), block, model)
        found["weight", layer] = stack(
            ("Linear.__init__", "linear.py", 12), ("Block.__init__", "transformer.py", 20 + layer)
        )
        found["gradient", layer] = stack(
            ("matmul_backward", "autograd.py", 210), ("backward", "autograd.py", 90)
        )
    found["moment"] = stack(("Adam.__init__", "optim.py", 18))
    found["cache"] = stack(("KVCache.append", "serve.py", 52), ("decode", "serve.py", 30))
    found["release"] = stack(("free_saved", "autograd.py", 130), ("backward", "autograd.py", 95))
    return found


def train_step(chance, stacks, main, side):
    """A step of training: what is allocated on the way forward goes on the way back."""
    saved = []
    for layer in range(LAYERS):
        for _ in range(chance.randint(3, 9)):  # what lives for a moment only
            address = main.allocate(chance.randint(512, 2 * MIB), stacks["mlp", layer])
            main.release(address, stacks["release"])
        for kind in ("attention", "mlp"):
            address = main.allocate(chance.randint(1, 5) * MIB, stacks[kind, layer], "activations")
            saved.append((main, address))
        if layer % 6 == 0:
            saved.append((side, side.allocate(chance.randint(1, 3) * MIB, stacks["cache"], "kv cache")))
    saved.append((main, main.allocate(2 * MIB, stacks["loss"])))
    gradients = []
    for layer in reversed(range(LAYERS)):
        gradients.append(main.allocate(2 * MIB, stacks["gradient", layer], "gradients"))
        for _ in range(2):
            where, address = saved.pop()
            where.release(address, stacks["release"])
    for where, address in saved:
        where.release(address, stacks["release"])
    for address in gradients:
        main.release(address, stacks["release"])


def make_snapshot(events=100_000, ours=True):
    """A snapshot with at least that many events; ours: with accelrt's keys, else as torch's."""
    chance = random.Random(1)
    stacks = make_stacks()
    trace, extra, marks = [], [], []
    clock = 1_763_800_000_000_000

    def log(action, address, size, where, frames, tag):
        nonlocal clock
        clock += chance.randint(1, 9)
        entry = {
            "action": action,
            "device_free" if action == "oom" else "addr": address,
            "size": size,
            "stream": where.stream,
            "time_us": clock,
            "frames": frames,
        }
        if ours:
            entry |= {"tag": tag, "thread": 4242, "pool": where.pool}
        trace.append(entry)

    main = ToyAllocator(log, 0x7F10_0000_0000, STREAMS[0], (0, 0), True)
    side = ToyAllocator(log, 0x7F50_0000_0000, STREAMS[1], (0, 0), False)
    graph = ToyAllocator(log, 0x7F80_0000_0000, STREAMS[1], PRIVATE, False)
    for layer in range(LAYERS):
        for _ in range(2):
            main.allocate(chance.choice((3, 4, 6)) * MIB - 100, stacks["weight", layer], "weights")
            main.allocate(chance.choice((3, 4, 6)) * MIB, stacks["moment"], "optimizer")
    for _ in range(6):
        graph.allocate(3 * MIB, stacks["cache"], "kv cache")
    step = 0
    while len(trace) < events:
        marks.append({"stage": "START", "name": f"step {step}", "device": 0, "time_us": clock})
        train_step(chance, stacks, main, side)
        if step % 40 == 39:
            log("oom", 300 * MIB, 4096 * MIB, main, stacks["oom"], "")
        if ours and step % 25 == 24:
            for action in ("stitch", "unstitch"):
                extra.append(trace[-1] | {"action": action, "addr": STITCHED, "size": 64 * MIB})
        marks.append({"stage": "END", "name": f"step {step}", "device": 0, "time_us": clock})
        step += 1
    for layer in range(LAYERS):
        main.allocate(3 * MIB, stacks["attention", layer], "activations")
    snapshot = {
        "segments": [segment for each in (main, side, graph) for segment in each.describe(ours)],
        "device_traces": [trace],
        "allocator_settings": {"expandable_segments": True},
        "external_annotations": marks,
    }
    if ours:
        snapshot["accelrt"] = {"version": 1, "events": [extra], "dropped": [17], "tags": [{}]}
    return snapshot
