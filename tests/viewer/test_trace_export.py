"""The trace for Perfetto: well formed, and with the figures of the snapshot."""

import itertools
import json
from collections import Counter

import pytest
from made_snapshot import make_snapshot

from accelrt.tools.viewer.chrome_trace import trace_events, write_trace
from accelrt.tools.viewer.snapshot_columns import Recording


@pytest.fixture(scope="module")
def snapshot():
    return make_snapshot(5000)


@pytest.fixture(scope="module")
def events(snapshot, tmp_path_factory):
    path = tmp_path_factory.mktemp("trace") / "trace.json"
    write_trace(snapshot, path, largest=300)
    return json.loads(path.read_text())["traceEvents"]


def of_phase(events, phase, **fields):
    return [each for each in events if each["ph"] == phase and fields.items() <= each.items()]


def test_every_event_has_what_the_format_asks_for(events):
    assert {each["ph"] for each in events} == set("MCibeX")
    for event in events:
        assert isinstance(event["name"], str)
        assert isinstance(event["pid"], int)
        assert event["ph"] == "M" or event["ts"] > 1e15
    assert of_phase(events, "M", name="process_name")[0]["args"] == {"name": "device 0"}


def test_counters_end_with_the_snapshots_figures(events, snapshot):
    last = {each["name"]: each["args"]["bytes"] for each in of_phase(events, "C")}
    live = sum(
        block["requested_size"]
        for segment in snapshot["segments"]
        for block in segment["blocks"]
        if block["state"] == "active_allocated"
    )
    reserved = sum(segment["total_size"] for segment in snapshot["segments"])
    assert last == {"allocated": live, "reserved": reserved}


def test_the_largest_allocations_are_slices_with_stacks(events):
    begins, ends = of_phase(events, "b"), of_phase(events, "e")
    assert len(begins) == 300
    assert Counter(each["id"] for each in begins) == Counter(each["id"] for each in ends)
    assert min(each["args"]["bytes"] for each in begins) >= 1 << 20
    assert any("train_step (/home/user/model/train.py:88)" in each["args"]["stack"] for each in begins)
    closes = {each["id"]: each["ts"] for each in ends}
    assert all(closes[each["id"]] >= each["ts"] for each in begins)


def test_slices_of_a_lane_nest(events):
    lanes = {}
    for each in of_phase(events, "X"):
        lanes.setdefault(each["tid"], []).append((each["ts"], each["ts"] + each["dur"]))
    assert lanes
    for slices in lanes.values():
        for (begin, end), (later, until) in itertools.pairwise(slices):
            assert later >= end or (begin <= later and until <= end)


def test_annotations_that_overlap_have_lanes_of_their_own():
    marks = [("START", "a", 0), ("START", "b", 5), ("END", "a", 10), ("END", "b", 15)]
    snapshot = {
        "segments": [],
        "external_annotations": [
            {"stage": stage, "name": name, "device": 0, "time_us": time} for stage, name, time in marks
        ],
    }
    found = of_phase(list(trace_events(Recording(snapshot))), "X")
    assert [(each["name"], each["ts"], each["dur"]) for each in found] == [("a", 0, 10), ("b", 5, 10)]
    assert len({each["tid"] for each in found}) == 2


def test_out_of_memory_and_segments_are_instants():
    events = list(trace_events(Recording(make_snapshot(30_000))))
    names = Counter(each["name"] for each in of_phase(events, "i"))
    assert names["out of memory"] >= 1
    assert names["segment_map"] > 5
    assert names["stitch"] >= 1
    assert not names.keys() & {"alloc", "free_requested", "free_completed"}


def test_a_number_of_allocations_below_zero_is_refused(tmp_path, snapshot):
    with pytest.raises(ValueError, match="largest is -1; a number of allocations from 0 on is needed"):
        write_trace(snapshot, tmp_path / "x.json", -1)
    assert not (tmp_path / "x.json").exists()
