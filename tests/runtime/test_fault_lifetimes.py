"""Captures, graphs and memory whose owner goes, or fails, at an awkward moment."""

import gc
import weakref

import pytest
from beside import Gate
from child import in_own_process, wrap_host

import accelrt
from accelrt.driver.registry import Rows

RELAXED = 2


class Counter:
    """A host function that can be seen to die."""

    def __init__(self):
        self.calls = 0

    def __call__(self):
        self.calls += 1


def captured(function, stream):
    graph = accelrt.CUDAGraph()
    with accelrt.graph(graph, stream=stream):
        stream.launch_host_func(function)
    return graph


@pytest.mark.parametrize("how", ["deleted", "reset"])
def test_host_functions_run_although_their_graph_went_while_launches_were_under_way(how):
    calls, stream = [], accelrt.Stream()
    graph = captured(lambda: calls.append(1), stream)
    with Gate(stream):
        with accelrt.stream(stream):
            graph.replay()
            graph.replay()
        if how == "reset":
            graph.reset()
        del graph
        gc.collect()
    stream.synchronize()
    assert calls == [1, 1]


def test_a_host_function_dies_with_its_graph_and_not_before():
    counter, stream = Counter(), accelrt.Stream()
    seen = weakref.ref(counter)
    graph = captured(counter, stream)
    del counter
    with accelrt.stream(stream):
        graph.replay()
        graph.replay()
    stream.synchronize()
    assert seen().calls == 2
    del graph
    gc.collect()
    assert seen() is None


def test_memory_used_on_a_stream_that_another_library_captures_waits_for_the_capture_to_end():
    rows, own, other = Rows(), accelrt.Stream(), accelrt.Stream()
    used = accelrt.Buffer(1 << 21, stream=own)
    used.record_stream(other)
    address = used.ptr
    assert rows.capture_begin(0, other.cuda_stream, RELAXED) == 0
    used.free()
    with accelrt.Buffer(1 << 21, stream=own) as meanwhile:
        assert meanwhile.ptr != address
    code, graph = rows.capture_end(0, other.cuda_stream)
    assert code == 0
    assert rows.graph_destroy(graph) == 0
    accelrt.empty_cache()
    assert accelrt.memory_reserved() == 0


@in_own_process(printing="UNKNOWN graph_launch\n")
def test_a_launch_that_is_refused_lets_go_of_its_host_functions():
    faults = wrap_host()
    counter, stream = Counter(), accelrt.Stream()
    seen = weakref.ref(counter)
    graph = captured(counter, stream)
    del counter
    faults.arm(call=1, code=999, rows=["graph_launch"])
    try:
        graph.replay()
    except accelrt.CudaError as error:
        print(error.name, error.call)
    del graph
    gc.collect()
    assert seen() is None
