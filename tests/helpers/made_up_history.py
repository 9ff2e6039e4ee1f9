"""Events, stacks and segments made up by a seed, and a recorder that hands them out as accelrt's does."""

import numpy as np

from accelrt.memory.history.memory_history import ACTIONS, EVENT, History

ADDRESS = 0x7F52_0000_0000
TIME_NS = 1_790_000_000_000_000_000


def stack(number):
    """A stack of one to six frames."""
    return [
        {"filename": f"/home/me/model{number % 7}.py", "line": 10 * depth + number, "name": f"layer_{depth}"}
        for depth in range(1 + number % 6)
    ]


def made_events(count, seed=0, device=0, stacks=50):
    """Allocations and frees in turn, with each of the other actions among them."""
    random = np.random.default_rng(seed)
    events = np.zeros(count, EVENT)
    events["time_ns"] = TIME_NS + np.arange(count) * 1500
    events["address"] = ADDRESS + random.integers(0, 1 << 20, count) * 512
    events["size"] = random.integers(1, 1 << 31, count)
    events["stream"] = random.choice([0, 0x55F0_1234_5670], count)
    events["pool"][:, 1] = random.choice([0, 3], count)
    events["stack"] = random.integers(0, stacks + 1, count)
    events["tag"] = random.integers(0, 5, count)
    events["thread"] = 4_194_304 + random.integers(0, 4, count)
    events["action"] = random.choice(len(ACTIONS), count, p=chances())
    events["device"] = device
    return events


def chances():
    found = np.ones(len(ACTIONS))
    found[:3] = 200
    return found / found.sum()


def made_segments(history, device=0):
    """A few segments with blocks in every state."""
    states = ("active_allocated", "inactive", "active_pending_free")
    return [
        {
            "device": device,
            "address": ADDRESS + (number << 30),
            "total_size": 3 << 20,
            "allocated_size": 1 << 20,
            "active_size": 2 << 20,
            "requested_size": 1_500_000,
            "stream": 0,
            "segment_type": ("large", "small")[number % 2],
            "segment_pool_id": (0, number),
            "is_expandable": number % 2 == 0,
            "serial": number,
            "asleep": number == 3,
            "managed": number == 2,
            "frames": history.frames[number],
            "blocks": [
                {
                    "address": ADDRESS + (number << 30) + (index << 20),
                    "size": 1 << 20,
                    "requested_size": 700_000,
                    "state": states[index % 3],
                    "frames": [] if index % 3 == 1 else stack(1000 + index),
                    "tag": ("", "kv cache", "weights")[index % 3],
                }
                for index in range(3)
            ],
        }
        for number in range(4)
    ]


def made_history(count=200, devices=2, stacks=50):
    """A whole history; the second device's is smaller."""
    history = History(settings={"text": "stitching:False", "max_split_size": -1, "roundup": {"1": 0}})
    history.frames |= {number: stack(number) for number in range(1, stacks + 1)}
    history.tags |= {1: "kv cache", 2: "Gewichte ü", 3: "accelrt", 4: "frames"}
    history.names |= {0: "forward", 1: "backward", 2: "kv cache", 3: "name", 4: "shared"}
    for device in range(devices):
        history.events.append(made_events(count // (1 + device), device, device, stacks))
        history.dropped.append(7 * device)
        figures = {"current": 5, "peak": 9, "allocated": 12, "freed": 7}
        history.tag_figures.append({"kv cache": {"allocated_bytes": figures, "allocation": figures}})
        history.segments += made_segments(history, device)
    return history


class MadeUpRecorder:
    """Stands in for accelrt.memory.history.recording; the first event kept has the number `oldest`."""

    def __init__(self, history, oldest=0):
        self.history = history
        self.oldest = oldest

    def history_begin(self, device):
        return 0

    def copy_events(self, device, start, count):
        first = max(start, self.oldest)
        found = self.history.events[device][first - self.oldest : first - self.oldest + count]
        return found.tobytes(), first, first + len(found)

    def frames_of(self, number):
        return self.history.frames[number]

    def tag_name(self, number):
        return self.history.tags[number]

    def annotation_name(self, number):
        return self.history.names[number]

    def tag_stats(self, device):
        return self.history.tag_figures[device]
