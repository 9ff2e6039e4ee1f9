"""Page-locked memory in the history: its segments and events in snapshots, in torch's form too."""

import threading

import numpy as np
import pytest
from beside import on_threads

import accelrt
from accelrt import memory
from accelrt.tools.viewer.html_page import make_page
from accelrt.tools.viewer.snapshot_columns import Recording

MIB = 1 << 20


@pytest.fixture
def recorded():
    """A recording of page-locked memory alone, with nothing cached."""
    accelrt.init()
    memory.host_empty_cache()
    memory.record_history(clear_history=True, record_pinned_host_memory=True, record_cuda=False)
    yield
    memory.record_history(None, clear_history=True)
    memory.host_empty_cache()


def traced():
    (trace,) = memory.snapshot()["host_traces"]
    return trace


def of(address):
    return [event["action"] for event in traced() if event["addr"] == address]


def test_memory_of_the_drivers_pools_is_told_too(recorded):
    def make_pool_memory():
        return pool.allocate(3 * MIB)

    try:
        pool = memory.DriverPool(pinned=True, numa_node=0)
    except (accelrt.NotSupportedError, accelrt.CudaError):
        pytest.skip("the driver makes no pools of page-locked memory")
    with memory.tag("staging"):
        held = make_pool_memory()
    address = held.ptr
    assert of(address) == ["alloc"]
    (allocated,) = [event for event in traced() if event["addr"] == address]
    assert (allocated["size"], allocated["tag"]) == (3 * MIB, "staging")
    assert "make_pool_memory" in [frame["name"] for frame in allocated["frames"]]
    held.free()
    assert of(address) == ["alloc", "free_requested", "free_completed"]
    address = pool.allocate(MIB).ptr  # freed as it dies
    assert of(address)[-3:] == ["alloc", "free_requested", "free_completed"]
    assert make_page(memory.snapshot(), "pools")
    accelrt.synchronize()


def test_allocations_and_frees_are_told_with_their_stacks(recorded):
    def make_staging():
        return accelrt.PinnedBuffer(3 * MIB)

    with memory.tag("staging"):
        buffer = make_staging()
    address, size = buffer.ptr, buffer.nbytes
    buffer.free()
    memory.host_empty_cache()
    told = [event for event in traced() if event["addr"] == address]
    assert [event["action"] for event in told if not event["action"].startswith("segment")] == [
        "alloc",
        "free_requested",
        "free_completed",
    ]
    assert [event["action"] for event in traced()].count("segment_alloc") == 1
    assert [event["action"] for event in traced()][-1] == "segment_free"
    allocated = next(event for event in told if event["action"] == "alloc")
    assert allocated["size"] >= size
    assert allocated["tag"] == "staging"
    assert "make_staging" in [frame["name"] for frame in allocated["frames"]]
    times = [event["time_us"] for event in traced()]
    assert times == sorted(times)


def test_what_a_stream_uses_is_completed_later(recorded):
    stream, held = accelrt.Stream(), threading.Event()
    buffer, device = accelrt.PinnedBuffer(MIB), accelrt.Buffer(MIB, stream=stream)
    address = buffer.ptr
    stream.launch_host_func(lambda: held.wait(300))
    device.copy_from(buffer, stream=stream, blocking=False)
    buffer.free()
    assert of(address)[-1] == "free_requested"
    held.set()
    stream.synchronize()
    memory.host_empty_cache()
    assert of(address).count("free_requested") == of(address).count("free_completed") == 1


def test_segments_are_told_as_those_of_devices(recorded):
    with accelrt.PinnedBuffer(MIB) as buffer:
        segments = memory.snapshot()["host_segments"]
        (segment,) = [
            each for each in segments if each["address"] <= buffer.ptr < each["address"] + each["total_size"]
        ]
        assert segment["segment_type"] == "host"
        assert segment["allocated_size"] == segment["active_size"] >= MIB
        block = next(each for each in segment["blocks"] if each["address"] == buffer.ptr)
        assert (block["state"], block["size"] >= MIB) == ("active_allocated", True)
        assert sum(each["size"] for each in segment["blocks"]) == segment["total_size"]
        theirs = accelrt.Buffer(512)
        keys = {key for each in memory.snapshot()["segments"] for key in each}
        theirs.free()
        assert {"address", "total_size", "allocated_size", "active_size", "blocks", "stream"} <= keys & set(
            segment
        )


def test_nothing_is_told_where_nothing_was_recorded():
    accelrt.PinnedBuffer(64).free()
    assert not {"host_segments", "host_traces"} & set(memory.snapshot())


def test_device_memory_is_recorded_beside_it_or_not():
    for record_cuda in (True, False):
        memory.record_history(clear_history=True, record_pinned_host_memory=True, record_cuda=record_cuda)
        with accelrt.Buffer(512), accelrt.PinnedBuffer(512):
            snapshot = memory.snapshot()
        memory.record_history(None, clear_history=True)
        assert bool(snapshot["device_traces"][0]) == record_cuda
        assert any(event["action"] == "alloc" for event in snapshot["host_traces"][0])


def test_the_ring_keeps_the_newest_and_skips_what_is_not_wanted():
    memory.record_history(
        clear_history=True, record_pinned_host_memory=True, max_entries=5, skip_actions=["free_requested"]
    )
    try:
        for _ in range(9):
            accelrt.PinnedBuffer(4096).free()
        assert [event["action"] for event in traced()] == ["free_completed", *["alloc", "free_completed"] * 2]
    finally:
        memory.record_history(None, clear_history=True)


def test_a_file_in_torchs_form_holds_it(recorded, tmp_path):
    with accelrt.PinnedBuffer(MIB) as buffer:
        np.frombuffer(buffer, np.uint8)[:] = 1
        memory._dump_snapshot(str(tmp_path / "snapshot.pickle"))
        wanted = memory.snapshot()
    found = memory.load_snapshot(tmp_path / "snapshot.pickle")
    assert found["host_traces"] == wanted["host_traces"]
    assert found["host_segments"] == wanted["host_segments"]
    assert found["segments"] == wanted["segments"]


def test_torchs_function_records_it():
    memory._record_memory_history(record_pinned_host_memory=True, record_cuda=False, max_entries=100)
    try:
        accelrt.PinnedBuffer(64).free()
        assert "alloc" in [event["action"] for event in traced()]
    finally:
        memory._record_memory_history(None)


def test_threads_record_at_once(recorded):
    def work(_):
        for _ in range(200):
            accelrt.PinnedBuffer(4096).free()

    on_threads(work, range(4))
    actions = [event["action"] for event in traced()]
    assert [actions.count(each) for each in ("alloc", "free_requested", "free_completed")] == [800] * 3


def test_the_viewer_shows_it_behind_the_devices(recorded, tmp_path):
    kept = accelrt.PinnedBuffer(MIB)
    with memory.tag("passing"):
        accelrt.PinnedBuffer(2 * MIB).free()
    shown = Recording(memory.snapshot())
    host = shown.devices[-1]
    assert (host.device, host.title) == (-1, "page-locked memory")
    assert [each.title for each in shown.devices[:-1]] == ["device 0"]
    assert host.count == len(traced())
    ended = [end < host.count for end in host.alloc_end.tolist()]
    assert ended == [False, True]
    assert [shown.strings[tag] for tag in host.alloc_tag.tolist()] == ["", "passing"]
    assert "page-locked" in make_page(memory.snapshot(), "snapshot")
    kept.free()


@pytest.mark.parametrize(
    ("key", "value"), [("host_segments", 5), ("host_segments", [{"address": 1}]), ("host_traces", [5])]
)
def test_what_is_not_of_the_form_is_refused(recorded, key, value):
    accelrt.PinnedBuffer(64).free()
    with pytest.raises(ValueError, match=key):
        Recording(memory.snapshot() | {key: value})
