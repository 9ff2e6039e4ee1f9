"""The history as torch.cuda.memory has it: its arguments, what clears it, what a snapshot tells of itself."""

import ctypes
import subprocess
import sys

import pytest
from child import in_child, in_own_process

import accelrt
from accelrt import memory
from accelrt.errors import ArgumentError
from accelrt.memory import explain
from accelrt.memory.history import recording

pytestmark = pytest.mark.own_process
MIB = 1 << 20


def allocate_here(size=1000):
    return memory.caching_allocator_alloc(size)


def free_there(address):
    memory.caching_allocator_delete(address)


def trace(device=0):
    return memory._snapshot()["device_traces"][device]


def actions(device=0):
    return [entry["action"] for entry in trace(device)]


@in_own_process
def test_a_snapshot_is_told_by_the_next_one_with_the_active_bytes():
    memory._record_memory_history(context=None)
    kept = allocate_here(3 * MIB)
    before = actions()
    assert "snapshot" not in before
    told = trace()
    assert [entry["action"] for entry in told] == [*before, "snapshot"]
    active = accelrt.memory_stats()["active_bytes.all.current"]
    assert told[-1]["size"] == active < accelrt.memory_reserved()
    assert told[-1]["pool_id"] == told[-1]["pool"] == (0, 0)
    free_there(kept)


@in_own_process
def test_an_event_names_the_pool_of_its_memory():
    memory._record_memory_history()
    pool = accelrt.MemPool()
    with accelrt.use_mem_pool(pool):
        kept = allocate_here()
    free_there(kept)
    free_there(allocate_here())
    assert [(entry["action"], entry["pool_id"]) for entry in trace()] == [
        *((action, pool.id) for action in ("segment_map", "alloc", "free_requested", "free_completed")),
        *((action, (0, 0)) for action in ("segment_map", "alloc", "free_requested", "free_completed")),
    ]


@in_own_process
def test_none_ends_the_history_and_clears_it():
    for context in ("alloc", "all", "state"):
        memory._record_memory_history(context=context)
        free_there(allocate_here())
        names = str(trace())
        assert ("free_there" in names) is (context == "all")
        assert ("allocate_here" in names) is (context != "state")
        memory._record_memory_history(None)
        assert [entry for entry in trace() if entry["action"] != "snapshot"] == []
    memory.record_history()
    free_there(allocate_here())
    memory.record_history(None)
    assert "alloc" in actions(), "accelrt's own name keeps it"


@in_own_process
def test_actions_that_are_skipped_are_not_recorded():
    memory._record_memory_history(skip_actions=["free_requested", "snapshot"], context=None)
    free_there(allocate_here())
    memory._snapshot()
    assert [one for one in actions() if not one.startswith("segment")] == ["alloc", "free_completed"]
    memory._record_memory_history(skip_actions=[], context=None, clear_history=True)
    free_there(allocate_here())
    assert actions() == ["alloc", "free_requested", "free_completed"]
    for wrong in ("alloc", ["allocate"], [3]):
        with pytest.raises(ArgumentError, match="skip_actions"):
            memory._record_memory_history(skip_actions=wrong)


@in_own_process
def test_torchs_older_arguments_are_taken():
    memory._record_memory_history(True, trace_alloc_max_entries=100, trace_alloc_record_context=True)
    assert recording.is_recording()
    address = allocate_here()
    assert "allocate_here" in [frame["name"] for frame in trace()[-1]["frames"]]
    free_there(address)
    assert trace()[-2]["frames"] == [], "frees have none in the older form"
    memory._record_memory_history(True, False, 100, clear_history=True)
    free_there(allocate_here())
    assert {len(entry["frames"]) for entry in trace()} == {0}
    memory._record_memory_history(False)
    assert not recording.is_recording()
    memory._record_memory_history("state", context=None)
    assert recording.is_recording()
    memory._record_memory_history(record_cuda=False)
    assert not recording.is_recording()
    with pytest.raises(TypeError):
        memory._record_memory_history("all", trace_alloc_max_entries=1)


@in_own_process
def test_an_annotation_is_told_once_with_the_current_device():
    memory.record_history()
    kept = [accelrt.empty(1000, dtype="u1", device=device) for device in (0, 1)]
    for device in (1, 0):
        with accelrt.device(device), memory.annotate(f"on {device}"):
            pass
    told = [(one["stage"], one["name"], one["device"]) for one in memory.snapshot()["external_annotations"]]
    assert told == [("START", "on 1", 1), ("END", "on 1", 1), ("START", "on 0", 0), ("END", "on 0", 0)]
    del kept


def block_of(address):
    segments = memory.memory_snapshot(0)
    return next(block for each in segments for block in each["blocks"] if block["address"] == address)


class Compared:
    def __init__(self, made):
        self.made = made

    def __lt__(self, other):
        self.made.append(allocate_here())
        return True


def sorted_by_c():
    made = []
    sorted([Compared(made), Compared(made)])
    return made[0]


@in_own_process
def test_frames_of_c_stand_where_they_were_called():
    memory.record_history(stacks="all")
    address = sorted_by_c()
    frames = block_of(address)["frames"]
    assert frames[0]["filename"].endswith(".so")
    assert not any("%" in frame["name"] for frame in frames)
    python = [number for number, frame in enumerate(frames) if frame["line"]]
    names = [frames[number]["name"] for number in python]
    caller = "test_frames_of_c_stand_where_they_were_called"
    assert names[:4] == ["allocate_here", "__lt__", "sorted_by_c", caller]
    if sys.version_info < (3, 13):
        between = frames[python[1] + 1 : python[2]]
        assert between, "list.sort, in C"
        assert not any(frame["line"] for frame in between)
    assert "_PyEval_EvalFrameDefault" not in [frame["name"] for frame in frames]
    text = explain.stack_text(frames)
    assert text.startswith("allocate_here (test_torchs_meaning.py:")
    assert f"{text}" in memory.report()
    free_there(address)


@in_own_process
def test_a_refusal_names_who_called_accelrt():
    memory.record_history(stacks="all")
    kept = allocate_here(700 * MIB)
    with pytest.raises(accelrt.OutOfMemoryError) as caught:
        allocate_here(700 * MIB)
    lines = str(caught.value).splitlines()
    shown = lines[lines.index("Most live memory was allocated by:") + 1]
    assert "700.00 MiB in 1 block: allocate_here (test_torchs_meaning.py:" in shown
    free_there(kept)


SOURCE = """
extern "C" void call(void (*function)());
namespace outer { namespace inner {
__attribute__((noinline)) void rand(void (*function)()) { function(); asm(""); }
} }
void call(void (*function)()) { outer::inner::rand(function); asm(""); }
"""


def called_through_cpp(library):
    made = []
    function = ctypes.CFUNCTYPE(None)(lambda: made.append(allocate_here()))
    memory.record_history(stacks="all")
    ctypes.CDLL("libstdc++.so.6")
    ctypes.CDLL(library).call(function)
    names = [frame["name"] for frame in block_of(made[0])["frames"]]
    assert "outer::inner::rand(void (*)())" in names
    assert names.index("allocate_here") < names.index("outer::inner::rand(void (*)())")


def test_names_of_cpp_are_told_as_they_are_written(tmp_path):
    path = tmp_path / "through.cpp"
    path.write_text(SOURCE)
    library = tmp_path / "through.so"
    done = subprocess.run(
        ["c++", "-shared", "-fPIC", "-O0", "-o", library, path], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    in_child(called_through_cpp, str(library))


def test_a_pools_snapshot_takes_torchs_argument():
    pool = accelrt.MemPool()
    with accelrt.use_mem_pool(pool):
        kept = accelrt.empty(1000, dtype="u1")
    assert pool.snapshot(include_traces=False) == pool.snapshot(False) == pool.snapshot(device=0)
    assert [segment["segment_pool_id"] for segment in pool.snapshot()] == [pool.id]
    del kept
