"""A snapshot as columns: lifetimes of allocations, what was mapped, and what is refused."""

import functools
import json
import operator
import random

import numpy as np
import pytest
from made_snapshot import make_snapshot

from accelrt.tools.viewer.chrome_trace import trace_events
from accelrt.tools.viewer.html_page import make_page
from accelrt.tools.viewer.memory_ranges import EXPANDABLE, PLAIN, STITCHED, Range, find_ranges, joined
from accelrt.tools.viewer.snapshot_columns import Recording

BASE = 0x7F0000000000
FRAMES = [{"filename": "a.py", "line": 3, "name": "inner"}, {"filename": "b.py", "line": 9, "name": "outer"}]


def entry(action, addr, size, time_us=0, **more):
    key = "device_free" if action == "oom" else "addr"
    return {"action": action, key: addr, "size": size, "stream": 0, "time_us": time_us, "frames": [], **more}


def segment(blocks, address=BASE, **more):
    made = {"device": 0, "address": address, "total_size": sum(size for size, _ in blocks), "stream": 0}
    states = [
        {"size": size, "requested_size": size - 12, "state": state, "frames": FRAMES}
        for size, state in blocks
    ]
    return made | {"blocks": states, "segment_pool_id": (0, 0), "is_expandable": False, "frames": []} | more


def recorded(trace=(), segments=(), **more):
    made = Recording({"segments": list(segments), "device_traces": [list(trace)], **more})
    return made.devices[0]


def lifetimes(device):
    columns = (
        device.alloc_address,
        device.alloc_size,
        device.alloc_begin,
        device.alloc_freed,
        device.alloc_end,
    )
    return [tuple(int(value) for value in row) for row in zip(*columns, strict=True)]


def test_an_allocation_lives_from_its_event_until_its_memory_is_free():
    trace = [
        entry("alloc", BASE, 100),
        entry("alloc", BASE + 512, 200),
        entry("free_requested", BASE, 100),
        entry("free_completed", BASE, 100),
    ]
    device = recorded(trace, [segment([(512, "inactive"), (512, "active_allocated")])])
    assert lifetimes(device) == [(BASE, 100, 0, 2, 3), (BASE + 512, 200, 1, 4, 4)]
    assert device.live().tolist() == [0, 100, 300, 300, 200]
    assert device.live_at(1).tolist() == [0, 1]
    assert device.alloc_block.tolist() == [0, 512]
    assert device.allocation.tolist() == [0, 1, 0, 0]


def test_what_was_live_before_the_first_event_is_found():
    trace = [entry("free_requested", BASE + 4096, 700), entry("free_completed", BASE + 4096, 700)]
    device = recorded(trace, [segment([(512, "active_allocated"), (512, "active_pending_free")])])
    assert sorted(lifetimes(device)) == [
        (BASE, 500, -1, 2, 2),
        (BASE + 512, 500, -1, -1, 2),
        (BASE + 4096, 700, -1, 0, 1),
    ]
    assert device.live().tolist() == [1700, 1700, 1000]
    stack = device.alloc_stack[device.alloc_address == BASE][0]
    assert device.recording.frame_texts(stack) == [("a.py", 3, "inner"), ("b.py", 9, "outer")]


def test_an_address_that_is_allocated_twice_ends_the_first():
    device = recorded([entry("alloc", BASE, 100), entry("alloc", BASE, 60)])
    assert lifetimes(device) == [(BASE, 100, 0, 1, 1), (BASE, 60, 1, 2, 2)]


def test_segments_alone_are_a_snapshot():
    device = recorded((), [segment([(512, "active_allocated"), (1536, "inactive")])])
    assert device.count == 0
    assert device.live().tolist() == [500]
    assert device.reserved_before == 2048
    assert device.ranges == [Range(BASE, 2048, -1, 0, 0, 0, 0, PLAIN)]


def test_what_is_reserved_follows_from_the_end_backwards():
    trace = [
        entry("segment_free", BASE + (1 << 30), 1000),
        entry("segment_alloc", BASE, 2048),
        entry("oom", 77, 1 << 40),
    ]
    device = recorded(trace, [segment([(2048, "inactive")])])
    assert device.reserved_before == 1000
    assert device.reserved.tolist() == [0, 2048, 2048]
    assert {(each.address, each.begin, each.end) for each in device.ranges} == {
        (BASE + (1 << 30), -1, 0),
        (BASE, 1, 3),
    }


def test_pages_are_cut_out_of_what_is_mapped():
    final = [Range(0, 100, -1, 4, 0, 0, 0, EXPANDABLE)]
    changes = [
        Range(0, 50, 0, 4, 0, 0, 5, EXPANDABLE),
        Range(60, 20, -1, 1, 0, 0, 0, EXPANDABLE),
        Range(60, 10, 2, 4, 0, 0, 6, EXPANDABLE),
        Range(70, 30, 3, 4, 0, 0, 7, EXPANDABLE),
    ]
    found = {(each.address, each.size, each.begin, each.end) for each in find_ranges(final, changes)}
    assert found == {(0, 50, 0, 4), (50, 10, -1, 4), (60, 10, 2, 4), (70, 30, 3, 4), (60, 20, -1, 1)}
    (whole,) = joined(each for each in find_ranges(final, changes) if each.end == 4)
    assert (whole.address, whole.size) == (0, 100)


def test_accelrts_own_events_come_in_between():
    trace = [entry("alloc", BASE, 100, 10), entry("alloc", BASE + 512, 100, 30)]
    own = {"version": 1, "events": [[entry("stitch", BASE, 4096, 20)]], "dropped": [5], "tags": [{}]}
    device = recorded(trace, accelrt=own)
    assert [device.actions[action] for action in device.action] == ["alloc", "stitch", "alloc"]
    assert device.dropped == 5
    assert device.times.tolist() == [0, 10, 20]


def test_time_never_runs_backwards():
    device = recorded([entry("alloc", BASE, 100, 50), entry("alloc", BASE + 512, 100, 40)])
    assert device.times.tolist() == [0, 0]


def test_annotations_are_paired_from_either_source():
    trace = [entry("alloc", BASE, 100, 100), entry("alloc", BASE + 512, 100, 900)]
    marks = [("START", "epoch", 100), ("START", "step", 200), ("END", "step", 300), ("END", "early", 400)]
    listed = [{"stage": stage, "name": name, "device": 0, "time_us": time} for stage, name, time in marks]
    device = recorded(trace, external_annotations=listed)
    named = [(begin, end, device.recording.strings[name]) for begin, end, name, _ in device.annotations]
    assert named == [(0, 800, "epoch"), (0, 300, "early"), (100, 200, "step")]
    events = [
        entry("annotation_begin", 0, 0, 200, name="a", tag=""),
        entry("annotation_end", 0, 0, 700, name="a", tag=""),
    ]
    device = recorded(trace, accelrt={"events": [events]})
    assert [each[:2] for each in device.annotations] == [(100, 600)]


def test_pools_come_from_the_event_or_from_the_segment_there():
    trace = [entry("alloc", BASE, 100), entry("alloc", BASE + 512, 100, pool=(0, 9))]
    device = recorded(trace, [segment([(1024, "inactive")], segment_pool_id=(0, 3))])
    assert [device.pools[pool] for pool in device.alloc_pool] == [(0, 3), (0, 9)]


def test_both_forms_of_a_snapshot_give_the_same_lifetimes():
    first, second = (Recording(make_snapshot(3000, ours)).devices[0] for ours in (True, False))
    assert lifetimes(first)[:50] == lifetimes(second)[:50]
    assert first.live()[-1] == second.live()[-1] > 0
    assert first.ranges
    assert set(first.recording.strings) >= {"weights", "activations"}


def test_an_action_that_is_not_known_is_kept():
    device = recorded([entry("teleport", BASE, 100)])
    assert device.actions[device.action[0]] == "teleport"
    assert device.events_of("teleport") == [0]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (
            {"addr": "x"},
            r"device_traces\[0\]\[0\]: an integer from 0 on was expected under 'addr', not str 'x'",
        ),
        ({"addr": -1}, "an integer from 0 on was expected under 'addr', not int -1"),
        ({"addr": 1 << 64}, r"event 0: addr is \d+; a number below 2\*\*64 is needed"),
        ({"size": 1 << 63}, r"device 0: event 0: size is \d+; a number below 2\*\*63 is needed"),
        ({"size": None}, "an integer from 0 on was expected under 'size', not NoneType"),
        ({"stream": 1.5}, "an integer from 0 on was expected under 'stream', not float 1.5"),
        ({"time_us": "now"}, "an integer from 0 on was expected under 'time_us', not str 'now'"),
        ({"time_us": 10**400}, r"event 0: time_us is 10+\.\.\.0+; a number below 2\*\*64 is needed"),
        ({"frames": [3]}, r"device_traces\[0\]\[0\].frames: a dict was expected, not int"),
        ({"frames": [{"filename": "a.py", "line": 3}]}, "a str was expected under 'name', and is missing"),
        ({"pool": 3}, "a tuple was expected under 'pool', not int 3"),
        ({"pool": (0, "x")}, "event 0: pool is .*; two integers are needed"),
        ({"pool_id": 3}, "event 0: pool_id is 3; two integers are needed"),
        ({"action": None, "addr": []}, "a str was expected under 'action', not NoneType"),
    ],
)
def test_a_wrong_event_is_refused_with_its_place(changed, said):
    with pytest.raises(ValueError, match=said):
        recorded([entry("alloc", BASE, 100) | changed])


def test_a_segment_that_ends_beyond_all_addresses_is_refused():
    with pytest.raises(ValueError, match=r"segment 0 ends at \d+; an address below 2\*\*64 is needed"):
        recorded((), [segment([(512, "inactive")], address=(1 << 64) - 512)])


def test_what_is_no_snapshot_is_refused():
    with pytest.raises(ValueError, match="neither 'segments' nor 'device_traces'"):
        Recording({"op": [1]})
    with pytest.raises(ValueError, match=r"device_traces\[0\]\[0\]: a dict was expected, not str"):
        recorded(["alloc"])
    with pytest.raises(ValueError, match=r"segments\[0\]: a dict was expected, not int"):
        Recording({"segments": [4]})
    with pytest.raises(ValueError, match=r"external_annotations\[0\] is .*a dict with stage"):
        recorded(external_annotations=[{"name": "x"}])


def test_a_hundred_thousand_events_become_columns():
    device = Recording(make_snapshot(100_000)).devices[0]
    assert device.count > 100_000
    assert len(device.alloc_size) > 30_000
    assert np.all(device.alloc_begin[:-1] <= device.alloc_begin[1:])
    assert device.live().min() >= 0


def test_pages_that_move_stay_reserved():
    end = [segment([(4096, "inactive")], BASE + (1 << 30), is_expandable=True)]
    trace = [
        entry("segment_map", BASE, 4096),
        entry("alloc", BASE, 4096),
        entry("free_requested", BASE, 4096),
        entry("free_completed", BASE, 4096),
        entry("segment_unmap", BASE, 2048),
        entry("segment_unmap", BASE + 2048, 2048),
        entry("segment_map", BASE + (1 << 30), 4096),
    ]
    stitched = [entry("stitch", BASE + (1 << 30), 4096, tag="")]
    device = recorded(trace, end, accelrt={"events": [stitched]})
    assert device.reserved_before == 0
    assert device.reserved.tolist() == [4096] * 8
    kinds = {(each.address - BASE, each.kind) for each in device.ranges}
    assert kinds == {(0, EXPANDABLE), (2048, EXPANDABLE), (1 << 30, STITCHED)}


def places(thing, path=()):
    """The paths to everything in nested dicts and lists."""
    items = thing.items() if isinstance(thing, dict) else enumerate(thing) if isinstance(thing, list) else ()
    for key, inner in items:
        yield (*path, key)
        yield from places(inner, (*path, key))


@pytest.mark.parametrize("seed", range(4))
def test_a_damaged_snapshot_is_shown_or_refused(seed):
    chance = random.Random(seed)
    text = json.dumps(make_snapshot(100))
    paths = [path for path in places(json.loads(text)) if len(path) <= 4]
    refused = 0
    for _ in range(60):
        snapshot = json.loads(text)
        *before, last = chance.choice(paths)
        inner = functools.reduce(operator.getitem, before, snapshot)
        inner[last] = chance.choice(
            [None, -1, 1.5, "x", [], {}, True, 1 << 64, (1 << 63) - 1, [[]], [{}], "\ud800"]
        )
        try:
            list(trace_events(Recording(snapshot)))
            make_page(snapshot, "damaged")
        except ValueError:
            refused += 1
    assert 0 < refused < 60


def test_sleeping_memory_is_not_reserved():
    own = [entry("sleep", BASE, 4096, 20), entry("wake", BASE, 4096, 30), entry("sleep", BASE, 4096, 40)]
    device = recorded((), [segment([(4096, "inactive"), (512, "inactive")])], accelrt={"events": [own]})
    assert device.reserved_before == 4608
    assert device.reserved.tolist() == [512, 4608, 512]
