"""Captures that begin while other threads do what they may: none is broken, and neither notices the other."""

import contextlib
from collections import Counter
from functools import partial

import pytest
from beside import Crowd
from capture_storm import MODES, storm
from child import in_child, in_own_process, wrap_host

import accelrt
from accelrt import testing
from accelrt.testing import Interleaver

MIB = 1 << 20
THREAD_LOCAL = 1
pytestmark = pytest.mark.own_process


@pytest.mark.parametrize("mode", MODES)
@in_own_process
def test_no_capture_is_broken_beside_what_other_threads_may_do(mode):
    made = storm(mode, 200)
    accelrt.synchronize()
    accelrt.memory.audit()
    assert made.total() > 0


def give_back_used(pinned, captured, stream):
    """Frees memory that was used on a stream which captures again and again."""
    if pinned:
        given = accelrt.PinnedBuffer(5000)
        accelrt.record_host_stream(given, captured)
    else:
        given = accelrt.Buffer(1000, stream=stream)
        given.record_stream(captured)
    given.free()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("pinned", [False, True], ids=["device", "pinned"])
@in_own_process(ACCELRT_DEBUG="0")
def test_memory_that_the_captured_stream_used_is_freed_on_other_threads(mode, pinned):
    captured, stream = accelrt.Stream(), accelrt.Stream()
    buffer = accelrt.Buffer(64)
    give_back = partial(give_back_used, pinned, captured, stream)
    with Crowd(give_back, give_back, give_back) as crowd:
        while sum(crowd.rounds) < 20000 and not crowd.has_failed():
            with accelrt.graph(accelrt.CUDAGraph(), stream=captured, capture_error_mode=mode):
                buffer.fill(1)
    accelrt.synchronize()
    accelrt.Buffer(1000, stream=stream).free()  # what was pending is asked for
    accelrt.PinnedBuffer(3 * MIB).free()
    accelrt.memory.audit()
    assert accelrt.memory_stats()["active.all.current"] == 1
    assert accelrt.host_memory_stats()["active_requests.current"] == 0


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("pinned", [False, True], ids=["device", "pinned"])
@in_own_process(ACCELRT_DEBUG="0")
def test_no_capture_takes_an_event_that_the_allocators_record_for_freed_memory(mode, pinned):
    testing.use_device()
    captured, stream = accelrt.Stream(), accelrt.Stream()
    buffer = accelrt.Buffer(64)
    give_back = partial(give_back_used, pinned, captured, stream)
    with testing.failing(code=100, mode="slow", rows=["event_record"]), Crowd(give_back) as crowd:
        while crowd.rounds[0] < 300 and not crowd.has_failed():
            with accelrt.graph(accelrt.CUDAGraph(), stream=captured, capture_error_mode=mode):
                buffer.fill(1)
    assert testing.count_misuses()["marks_in_captures"] == 0


def test_a_nogil_capture_broken_as_soon_as_it_began_is_an_error_and_nothing_else(downstream):
    in_child(broken_at_once_without_the_gil)


@in_own_process(ACCELRT_DEBUG="0")
def test_a_stream_that_begins_to_capture_is_not_asked_whether_it_is_idle():
    # The captured stream has free memory, which others look at for their own requests.
    stream, other = accelrt.Stream(), accelrt.Stream()
    source, target = accelrt.Buffer(64, stream=stream), accelrt.Buffer(64, stream=stream)

    def allocate():
        for _ in range(8):
            [accelrt.Buffer(3 * MIB + 4096 * n, stream=other) for n in range(1, 9)]

    with Crowd(allocate) as crowd:
        for _ in range(5000):
            accelrt.Buffer(8 * MIB, stream=stream).free()
            with accelrt.graph(accelrt.CUDAGraph(), stream=stream, capture_error_mode="relaxed"):
                accelrt.copy(target, source, blocking=False)
    assert crowd.rounds[0]
    accelrt.memory.audit()


def broken_at_once_without_the_gil():
    from downstream import graphs  # the parent built it

    wrap_host(posing=True)
    told, buffer, pool, stream = Counter(), accelrt.Buffer(4096), accelrt.MemPool(), graphs.lease(0)

    def synchronize():
        with contextlib.suppress(accelrt.CaptureError):
            accelrt.synchronize()

    def capture():
        graph = graphs.BareGraph()
        try:
            graph.begin(0, stream, THREAD_LOCAL, *pool.id)
            graphs.set_bytes(0, stream, buffer.ptr, 1, 4096)
            graph.end()
        except accelrt.CaptureError:
            told["later" if graph.is_begun() else "at once"] += 1
        if graph.is_begun():
            graph.destroy()
        assert graphs.status_of(0, stream) == (0, 0)
        assert pool.use_count() == 1
        graphs.give(0, graphs.take(0, 4096, stream))

    beside_each_call(capture, synchronize)
    assert told["at once"] > 0
    assert told["later"] > 0
    graphs.give_stream(0, stream)
    accelrt.memory.audit()
    assert {segment["segment_pool_id"] for segment in accelrt.memory_snapshot()} == {(0, 0)}


def beside_each_call(capture, synchronize):
    """Has a capture stop at each of its calls of the driver, and another thread synchronise meanwhile."""
    interleaver = Interleaver()
    capture()
    for number, _ in interleaver.places(capture):
        for when in ("before", "after"):
            for outcome in interleaver.run_beside(capture, synchronize, number, when):
                assert outcome.error is None
    interleaver.close()
    capture()


def holds(segment, address):
    return segment["address"] <= address < segment["address"] + segment["total_size"]


@in_own_process
def test_a_capture_broken_as_soon_as_it_began_is_an_error_and_nothing_else():
    # By a user's synchronize(), which is refused beside a capture and breaks it whenever it comes.
    wrap_host(posing=True)
    told, buffer, texts, pools = Counter(), accelrt.Buffer(4096), [], []

    def synchronize():
        try:
            accelrt.synchronize()
        except accelrt.CaptureError:
            told["refused"] += 1

    def capture():
        graph = accelrt.CUDAGraph()
        try:
            with accelrt.graph(graph, capture_error_mode="thread_local"):
                buffer.fill(1)
        except accelrt.CaptureError as error:
            told[error.call] += 1
            if error.call == "capture_begin":
                texts.append(str(error))
                with accelrt.stream(accelrt.default_stream()), accelrt.Buffer(3 * MIB) as common:
                    segments = [each for each in accelrt.memory_snapshot() if holds(each, common.ptr)]
                    pools.extend(each["segment_pool_id"] for each in segments)
        assert not graph.is_capturing
        graph.reset()

    beside_each_call(capture, synchronize)
    assert told["refused"] > 0
    assert told["capture_begin"] > 0
    assert told["capture_end"] > 0
    accelrt.memory.audit()
    assert all("another thread broke the capture as soon as it began" in text for text in texts)
    assert set(pools) == {(0, 0)}
    assert accelrt.memory_stats()["active.all.current"] == 1
