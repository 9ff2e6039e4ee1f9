"""Another project's extension: memory, streams and events in loops without the GIL."""

import numpy as np
import pytest
from beside import Gate, on_threads

import accelrt


@pytest.fixture(scope="module")
def loops(downstream):
    return downstream("loops")


def test_allocating_in_a_loop_without_the_gil_from_eight_threads(loops):
    rounds, totals = 2000, []
    streams = [accelrt.Stream() for _ in range(8)]

    def work(stream):
        totals.append(loops.churn(0, stream.cuda_stream, rounds, 4096))

    on_threads(work, streams)
    expected = sum(4096 + 512 * (index & 3) for index in range(rounds))
    assert totals == [expected] * 8
    stats = accelrt.memory_stats(0)
    assert stats["allocation.all.current"] == 0
    assert stats["allocation.all.allocated"] >= 8 * rounds


def test_a_refusal_is_explained_to_nogil_code(loops):
    assert loops.why_refused(0, 1000) == ""
    text = loops.why_refused(0, 1 << 50)
    assert "Tried to allocate 1048576.00 GiB" in text
    assert "has a total capacity of" in text


def test_the_place_is_what_python_set(loops):
    stream = accelrt.Stream()
    assert loops.place() == (0, 0, 0)
    with accelrt.stream(stream):
        assert loops.place() == (0, 0, stream.cuda_stream)


def test_work_on_two_streams_in_nogil_code(loops):
    data, out = np.arange(4096, dtype=np.uint8), np.zeros(4096, np.uint8)
    first, second = accelrt.Stream(), accelrt.Stream()
    arguments = (first.cuda_stream, second.cuda_stream, data.ctypes.data, out.ctypes.data, 4096, 9)
    assert loops.ordered_copy(0, *arguments) == 0
    assert (out[:2048] == 9).all()
    assert (out[2048:] == data[2048:]).all()


def test_a_graph_replays_from_nogil_code(loops):
    graph, out = accelrt.CUDAGraph(), np.zeros(512, np.uint8)
    stream, seen = accelrt.Stream(), []
    with accelrt.Buffer(512) as buffer:
        with accelrt.graph(graph, stream=stream):
            buffer.fill(6)
            stream.launch_host_func(lambda: seen.append(1))
        assert loops.replay(0, graph.raw_cuda_graph_exec(), stream.cuda_stream, 10) == 0
        buffer.copy_to(out)
    assert len(seen) == 10
    assert (out == 6).all()


def test_page_locked_memory_is_given_back_with_its_copy_under_way(loops):
    stream, out = accelrt.Stream(), np.zeros((20, 1000), np.uint8)
    with accelrt.Buffer(out.nbytes, stream=stream) as buffer:
        with Gate(stream):
            again = loops.through_pinned(0, stream.cuda_stream, buffer.ptr, 1000, 20)
        buffer.copy_to(out, stream=stream)
    assert (again[0], accelrt.status.name_of(again[1])) == (0, "NOT_ALLOCATED")
    assert (out == np.arange(20, dtype=np.uint8)[:, None]).all()


def test_bad_calls_are_told(loops):
    assert loops.refusals() == ("INVALID_DEVICE", "INVALID_DEVICE", "NOT_ALLOCATED", "NOT_READY")
