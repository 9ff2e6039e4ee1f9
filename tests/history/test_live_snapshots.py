"""Snapshots of a real recording, through files and torch's own viewer."""

import importlib.util
import os
import pickle
import random

import pytest
from beside import until_over

import accelrt
from accelrt import memory

VIEWER = "cuda/_memory_viz.py"


@pytest.fixture
def recorded():
    """What a small program does, recorded with stacks."""
    memory.record_history("all", context="all", clear_history=True)
    kept = [accelrt.Buffer(size) for size in (1000, 5 << 20, 1 << 20, 77)]
    with memory.tag("kv cache"), memory.annotate("step"):
        kept.append(accelrt.Buffer(3 << 20))
    kept[1].free()
    yield kept
    kept.clear()
    memory.record_history(None, clear_history=True)


@pytest.mark.parametrize("name", ["now.pickle", "now.accelrt"])
def test_a_dump_is_what_snapshot_gives(tmp_path, recorded, name):
    memory.dump_snapshot(tmp_path / name)
    found, now = memory.load_snapshot(tmp_path / name), memory.snapshot()
    assert found.keys() == now.keys()
    assert found["segments"] == now["segments"]
    trace, later = found["device_traces"][0], now["device_traces"][0]
    assert trace == later[: len(trace)]
    assert {event["action"] for event in later[len(trace) :]} <= {"snapshot"}
    assert found["allocator_settings"] == now["allocator_settings"]
    assert found["external_annotations"] == now["external_annotations"]
    assert found["accelrt"] == now["accelrt"]
    assert len(found["device_traces"]) == accelrt.device_count()
    sizes = [event["size"] for event in found["device_traces"][0] if event["action"] == "alloc"]
    assert sizes == [1000, 5 << 20, 1 << 20, 77, 3 << 20]


def test_events_say_where_they_come_from(tmp_path, recorded):
    memory.dump_snapshot(tmp_path / "now")
    found = memory.load_snapshot(tmp_path / "now")
    event = next(event for event in found["device_traces"][0] if event["action"] == "alloc")
    assert any(frame["filename"] == __file__ for frame in event["frames"])
    block = next(block for segment in found["segments"] for block in segment["blocks"] if block["tag"])
    assert (block["tag"], block["requested_size"]) == ("kv cache", 3 << 20)


def torchs_viewer():
    """torch's _memory_viz.py as a module, without torch."""
    spec = importlib.util.find_spec("torch")
    places = [os.path.join(folder, VIEWER) for folder in (spec.submodule_search_locations if spec else ())]
    found = [place for place in [*places, os.environ.get("TORCH_MEMORY_VIZ", "")] if os.path.isfile(place)]
    if not found:
        pytest.skip("torch is not installed, whose viewer this needs")
    spec = importlib.util.spec_from_file_location("torchs_memory_viz", found[0])
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_torchs_viewer_opens_a_dump(tmp_path, recorded):
    viewer = torchs_viewer()
    memory.dump_snapshot(tmp_path / "now.pickle")
    with open(tmp_path / "now.pickle", "rb") as file:
        found = pickle.load(file)
    for view in (viewer.segments, viewer.memory):
        lines = view(found, format_flamegraph=str)
        assert "active_allocated" in lines
        assert os.path.basename(__file__) in lines
    assert "segments:" in viewer.segsum(found)
    assert "Device 0" in viewer.trace(found)
    assert all("MemoryViz.js" in plot(found) for plot in (viewer.trace_plot, viewer.segment_plot))


def live_addresses(trace):
    """What is allocated once a trace's events have happened."""
    live = set()
    for event in trace:
        if event["action"] == "alloc":
            live.add(event["addr"])
        elif event["action"] == "free_requested":
            live.remove(event["addr"])
    return live


def churn(over, seed):
    chance, kept = random.Random(seed), []
    with accelrt.stream(accelrt.Stream()):
        while not over.is_set():
            kept.append(accelrt.Buffer(chance.randint(1, 1 << 20)))
            if len(kept) > 20:
                kept.pop(chance.randrange(20))


@pytest.mark.parametrize("name", ["now.pickle", "now.accelrt"])
def test_segments_are_what_the_events_led_to_beside_busy_threads(tmp_path, recorded, name):
    with until_over(churn, range(3)):
        for _ in range(5):
            memory.dump_snapshot(tmp_path / name)
            found = memory.load_snapshot(tmp_path / name)
            blocks = [
                block["address"]
                for segment in found["segments"]
                if segment["device"] == 0
                for block in segment["blocks"]
                if block["state"] == "active_allocated"
            ]
            assert live_addresses(found["device_traces"][0]) == set(blocks)
