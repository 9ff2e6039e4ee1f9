"""record_history, tags and annotations: what is kept of what programs do, in torch's manner."""

import gc
import struct
import sys

import numpy
import pytest
from beside import Crowd, on_threads
from child import in_fork, in_fresh_interpreter, in_own_process

import accelrt
from accelrt import memory
from accelrt.memory.history import recording

pytestmark = pytest.mark.own_process  # a history is of the process, and stays


def allocate_here(size=1000):
    return accelrt.caching_allocator_alloc(size, 0)


def free_there(address):
    accelrt.caching_allocator_delete(address)


def trace(device=0):
    return memory.snapshot(device)["device_traces"][device]


def names(entry):
    return [frame["name"] for frame in entry["frames"]]


def blocks():
    return [block for segment in memory.memory_snapshot(0) for block in segment["blocks"]]


def of(address):
    return next(block for block in blocks() if block["address"] == address)


@pytest.mark.parametrize("level", ["0", "2"])
@pytest.mark.parametrize("context", [None, "state", "alloc", "all"])
@in_own_process(ACCELRT_DEBUG="{level}")
def test_a_stack_is_there_or_not_as_context_says(context, level):
    memory.record_history(context=context, clear_history=True)
    for _ in range(3):  # the slow path, the usual hit and the last-freed cache
        address = allocate_here()
        block = of(address)
        free_there(address)
        assert ("allocate_here" in names(block)) is (context is not None)
    kept = {
        action: [entry for entry in trace() if entry["action"] == action]
        for action in ("alloc", "free_requested")
    }
    assert len(kept["alloc"]) == len(kept["free_requested"]) == 3
    for entry in kept["alloc"]:
        assert ("allocate_here" in names(entry)) is (context in ("alloc", "all"))
        assert entry["size"] == 1000
    for entry in kept["free_requested"]:
        assert ("free_there" in names(entry)) is (context == "all")
        assert entry["size"] == 1000
    assert "frames" not in [key for block in blocks() if block["frames"] for key in block], (
        "freed blocks have none"
    )


def lines_and_order():
    memory.record_history()
    address = allocate_here()
    frames = of(address)["frames"]
    assert [frame["name"] for frame in frames] == ["allocate_here", "lines_and_order", "<module>"]
    assert frames[0]["filename"] == __file__
    assert frames[0]["line"] == allocate_here.__code__.co_firstlineno + 1
    again = allocate_here()
    assert of(again)["frames"] is not frames, "another line of the caller"
    both = [allocate_here() for _ in range(2)]
    assert of(both[0])["frames"] is of(both[1])["frames"], "one stack, one list"
    for one in (address, again, *both):
        free_there(one)


def test_frames_are_innermost_first_and_kept_once():
    in_fresh_interpreter(lines_and_order)  # the whole stack is compared


@pytest.mark.parametrize("settings", ["", "expandable_segments:False"])
@in_own_process(ACCELRT_ALLOC_CONF="{settings}")
def test_the_first_allocation_of_a_device_has_its_stack(settings):
    memory.record_history()
    address = allocate_here()
    assert "allocate_here" in names(of(address))
    mapped = next(entry for entry in trace() if entry["action"] in ("segment_map", "segment_alloc"))
    assert "allocate_here" in names(mapped)
    assert "allocate_here" in [frame["name"] for frame in memory.memory_snapshot(0)[0]["frames"]]
    free_there(address)


def caches_emptied(context):
    memory.record_history(context=context)
    free_there(allocate_here(30 << 20))
    accelrt.empty_cache()
    gone = [entry for entry in trace() if entry["action"] in ("segment_free", "segment_unmap")]
    assert gone
    for entry in gone:
        assert names(entry) == (["empty_cache", "caches_emptied", "<module>"] if context == "all" else [])


@pytest.mark.parametrize("context", ["alloc", "all"])
@pytest.mark.parametrize("settings", ["expandable_segments:True", "expandable_segments:False"])
def test_segments_that_are_freed_have_the_frame_of_empty_cache(context, settings):
    in_fresh_interpreter(caches_emptied, context, ACCELRT_ALLOC_CONF=settings)  # a fork's stack begins deeper


@pytest.mark.parametrize("level", ["0", "2"])
@in_own_process(ACCELRT_DEBUG="{level}")
def test_off_and_on_again_keeps_what_was_recorded(level):
    memory.record_history()
    free_there(allocate_here(1001))
    memory.record_history(None)
    assert not recording.is_recording()
    free_there(allocate_here(2002))
    memory.record_history()
    assert recording.is_recording()
    free_there(allocate_here(3003))
    sizes = [entry["size"] for entry in trace() if entry["action"] == "alloc"]
    assert sizes == [1001, 3003]
    memory.record_history(max_entries=10, clear_history=True)
    assert recording.dropped_events(0) == memory.snapshot()["accelrt"]["dropped"][0] == 0
    assert {entry["action"] for entry in trace()} == {"snapshot"}, "of the call before"
    memory.record_history(False)


@in_own_process(ACCELRT_DEBUG="0")
def test_the_ring_drops_the_oldest_and_says_how_many():
    free_there(allocate_here())
    memory.record_history(max_entries=10)
    for size in range(1, 101):
        free_there(allocate_here(size))
    snapshot = memory.snapshot()
    kept = snapshot["device_traces"][0]
    assert len(kept) == 10
    assert [entry["size"] for entry in kept if entry["action"] == "alloc"] == [98, 99, 100]
    assert snapshot["accelrt"]["dropped"][0] == 300 - 10
    assert recording.dropped_events(0) == recording.dropped_events() == 300 + 1 - 10
    memory.record_history(max_entries=4)  # the newest move along
    kept = [entry["action"] for entry in trace()]
    assert kept == ["alloc", "free_requested", "free_completed", "snapshot"]
    memory.record_history(max_entries=1000)
    free_there(allocate_here(7))
    assert [entry["action"] for entry in trace()][-3:] == ["alloc", "free_requested", "free_completed"]
    data, first, end = recording.copy_events(0, 0, 3)
    assert len(data) == 64 * 3
    assert end == first + 3
    assert recording.copy_events(0, end, 1 << 40)[1] == end
    assert recording.copy_events(1, 0, 5) == (b"", 0, 0)


@in_own_process(ACCELRT_DEBUG="0")
def test_events_are_copied_in_order_beside_threads_that_add_more():
    memory.record_history(max_entries=5000, context=None)
    free_there(allocate_here())
    seen, place = 0, 0
    with Crowd(*[lambda: free_there(allocate_here(640))] * 2):
        for _ in range(300):
            data, first, place = recording.copy_events(0, place, 100_000)
            assert len(data) == 64 * (place - first)
            seen += len(data) // 64
            times = [event[0] for event in struct.iter_unpack("<Q56x", data)]
            assert times == sorted(times)
    assert seen > 0


@in_own_process
def test_out_of_memory_is_an_event():
    memory.record_history()
    address = allocate_here()
    with pytest.raises(accelrt.OutOfMemoryError):
        allocate_here(1 << 50)
    entry = trace()[-1]
    assert entry["action"] == "oom"
    assert entry["size"] == 1 << 50
    assert entry["device_free"] == accelrt.mem_get_info(0)[0]
    assert "allocate_here" in names(entry)
    free_there(address)


def deep(left):
    return allocate_here() if left == 0 else deep(left - 1)


@in_own_process
def test_of_deep_stacks_the_outermost_frames_are_left_out():
    memory.record_history()
    address = deep(300)
    frames = of(address)["frames"]
    assert len(frames) == 128
    assert frames[0]["name"] == "allocate_here"
    assert {frame["name"] for frame in frames[1:]} == {"deep"}
    free_there(address)


@in_own_process
def test_frames_of_c_come_first_if_they_are_wanted():
    memory.record_history(stacks="all")
    address = allocate_here()
    found = of(address)["frames"]
    assert found[0]["line"] == 0
    assert found[0]["filename"].endswith(".so")
    assert "allocate_here" in [frame["name"] for frame in found]
    free_there(address)
    memory.record_history(stacks="python")
    address = allocate_here()
    assert names(of(address))[0] == "allocate_here"
    free_there(address)


class Holder:
    def __init__(self):
        self.cycle, self.address = self, allocate_here()

    def __del__(self):
        free_there(self.address)


@pytest.mark.parametrize("level", "02")
@in_own_process(ACCELRT_DEBUG="{level}")
def test_garbage_that_frees_memory_while_a_stack_is_taken(level):
    memory.record_history()
    gc.set_threshold(1)
    for _ in range(200):
        Holder()
        free_there(allocate_here(5000))
    gc.set_threshold(700)
    gc.collect()
    assert accelrt.memory_allocated(0) == 0


@in_own_process
def test_a_child_can_change_what_is_recorded():
    memory.record_history()
    tag = memory.tag("kept")
    tag.__enter__()

    def child():
        with memory.tag("in the child"):
            pass
        memory.record_history(None)

    assert in_fork(child) == 0


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"enabled": "some"}, ValueError, "'state' or 'all'"),
        ({"context": "free"}, ValueError, "'alloc'"),
        ({"stacks": "c"}, ValueError, "'python' or 'all'"),
        ({"max_entries": 0}, ValueError, "one event or more"),
        ({"max_entries": 1.5}, TypeError, "as int"),
    ],
)
def test_what_cannot_be_recorded_is_refused(arguments, error, text):
    with pytest.raises(error, match=text):
        memory.record_history(**arguments)


@in_own_process
def test_torchs_default_of_entries_is_taken():
    memory.record_history(max_entries=numpy.int64(100))
    memory.record_history(max_entries=2**63 - 1)  # torch's default
    free_there(allocate_here())
    assert len(trace()) > 2


@in_own_process
def test_recording_is_no_first_use():
    memory.record_history("state", "state")
    memory.record_history(None)
    with memory.tag("x"), memory.annotate("y"):
        pass
    assert memory.snapshot()["segments"] == []
    assert not accelrt.is_initialized()


@in_own_process
def test_annotations_are_in_the_snapshot():
    memory.record_history()
    address = allocate_here()
    with memory.annotate("forward"), memory.annotate("layer"):
        free_there(address)
    snapshot = memory.snapshot()
    told = [(entry["stage"], entry["name"], entry["device"]) for entry in snapshot["external_annotations"]]
    assert told == [
        ("START", "forward", 0),
        ("START", "layer", 0),
        ("END", "layer", 0),
        ("END", "forward", 0),
    ]
    assert [event["action"] for event in snapshot["accelrt"]["events"][0]] == [
        "annotation_begin", "annotation_begin", "annotation_end", "annotation_end",
    ]  # fmt: skip
    with pytest.raises(TypeError, match="as str"):
        memory.annotate(3)


def beside_a_second_interpreter():
    if sys.version_info >= (3, 13):
        import _interpreters as interpreters
    else:
        import _xxsubinterpreters as interpreters

    interpreters.create()  # from then on every thread counts as one that has the GIL, by PyGILState_Check()
    memory.record_history()
    accelrt.Buffer(1 << 20).free()
    buffer = accelrt.Buffer(4 << 20)
    on_threads(lambda _: [accelrt.Buffer(8 << 20).free() for _ in range(50)], range(3))
    (segment,) = [each for each in accelrt.memory_snapshot() if each["address"] == buffer.ptr]
    assert segment["blocks"][0]["frames"][0]["name"] == "beside_a_second_interpreter"


def test_a_process_with_a_second_interpreter():
    in_fresh_interpreter(beside_a_second_interpreter)
