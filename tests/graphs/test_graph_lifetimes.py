"""Graphs, streams and memory that die before, during and after each other."""

import gc
import sys
import threading
import weakref

import numpy as np
import pytest
from beside import Gate
from child import in_own_process, wrap_host
from device_arrays import bytes_of

import accelrt
from accelrt.testing import settle

SECONDS = 300


class Bytes(np.ndarray):
    """An array that can be watched dying."""


def filling(buffer, value, stream):
    graph = accelrt.CUDAGraph()
    with accelrt.graph(graph, stream=stream):
        buffer.fill(value, stream=stream)
    return graph


@pytest.mark.parametrize("alternate", [False, True])
def test_memory_of_a_dead_graph_is_not_used_again_while_a_replay_elsewhere_runs(alternate):
    captured, other = accelrt.Stream(), accelrt.Stream()
    target = accelrt.Buffer(4096, stream=captured)
    address = target.ptr
    graph = filling(target, 7, captured)
    if alternate:
        for stream in (captured, other, captured):
            with accelrt.stream(stream):
                graph.replay()
    with accelrt.stream(other):
        other.synchronize()
        captured.synchronize()
        with Gate(other):
            graph.replay()
            del graph, target
            with accelrt.Buffer(4096, stream=captured) as fresh:
                assert fresh.ptr != address
    other.synchronize()


@pytest.mark.parametrize("by_hand", [False, True])
def test_memory_of_others_outlives_a_graph_in_a_cycle_that_is_collected_under_a_replay(by_hand):
    stream, target, source = accelrt.Stream(), accelrt.Buffer(4096), np.full(4096, 7, np.uint8)
    if by_hand:
        definition = accelrt.GraphDefinition()
        definition.copy(target, source)
        graph = definition.instantiate()
        cycle = [graph, definition]
        del definition
    else:
        graph = accelrt.CUDAGraph()
        with accelrt.graph(graph, stream=stream):
            target.copy_from(source, stream=stream, blocking=False)
        cycle = [graph]
    cycle.append(cycle)
    watched = weakref.ref(source)  # a plain array is none that collections look at
    with accelrt.stream(stream), Gate(stream):
        graph.replay()
        del graph, cycle, source
        gc.collect()
        assert watched() is not None
    stream.synchronize()
    assert (bytes_of(target) == 7).all()
    settle()
    assert watched() is None


def test_each_of_many_sources_is_kept_once_however_its_copies_follow_each_other():
    stream = accelrt.Stream()
    target = accelrt.Buffer(64, stream=stream)
    arrays = [np.full(64, index, np.uint8).view(Bytes) for index in range(5)]
    before = [sys.getrefcount(array) for array in arrays]
    dead = [weakref.ref(array) for array in arrays]
    graph = accelrt.CUDAGraph()
    with accelrt.graph(graph, stream=stream):
        for index in (0, 1, 0, 1, 2, 0, 3, 3, 4, 1, 2, 4):
            accelrt.copy(target, arrays[index], stream=stream, blocking=False)
    held = [sys.getrefcount(array) - count for array, count in zip(arrays, before, strict=True)]
    assert min(held) >= 1
    assert len(set(held)) == 1
    del arrays
    gc.collect()
    assert all(reference() is not None for reference in dead)
    with accelrt.stream(stream):
        graph.replay()
    assert (bytes_of(target, stream) == 4).all()
    del graph
    gc.collect()
    assert not any(reference() is not None for reference in dead)


def test_memory_of_a_dead_graph_serves_at_once_where_its_replays_are_in_order():
    stream = accelrt.Stream()
    target = accelrt.Buffer(4096, stream=stream)
    address = target.ptr
    graph = filling(target, 7, stream)
    with accelrt.stream(stream):
        graph.replay()
        del graph, target
        with accelrt.Buffer(4096, stream=stream) as fresh:
            assert fresh.ptr == address
            assert (bytes_of(fresh, stream) == 7).all()


def test_an_array_lives_until_the_last_replay_of_its_dead_graph_is_past():
    stream = accelrt.Stream()
    data = np.full(4096, 9, np.uint8).view(Bytes)
    gone = weakref.ref(data)
    with accelrt.Buffer(4096, stream=stream) as target:
        graph = accelrt.CUDAGraph()
        with accelrt.graph(graph):
            accelrt.copy(target, data, blocking=False)
        del data
        with accelrt.stream(stream):
            with Gate(stream):
                graph.replay()
                del graph
                gc.collect()
                assert gone() is not None
            stream.synchronize()
        accelrt.empty_cache()
        assert gone() is None
        assert (bytes_of(target, stream) == 9).all()


def test_an_array_goes_with_its_graph_where_nothing_runs():
    data = np.full(512, 9, np.uint8).view(Bytes)
    gone = weakref.ref(data)
    with accelrt.Buffer(512) as target:
        graph = accelrt.CUDAGraph()
        with accelrt.graph(graph):
            accelrt.copy(target, data, blocking=False)
        graph.replay()
        accelrt.synchronize()
        del data, graph
        assert gone() is None


def test_a_graph_outlives_the_stream_that_it_was_captured_on():
    stream = accelrt.Stream()
    with accelrt.Buffer(512) as target:
        graph = filling(target, 3, stream)
        del stream
        gc.collect()
        for _ in range(3):
            graph.replay()
        accelrt.synchronize()
        assert (bytes_of(target) == 3).all()


def test_two_graphs_replay_on_two_streams():
    streams = [accelrt.Stream(), accelrt.Stream()]
    buffers = [accelrt.Buffer(1 << 16, stream=stream) for stream in streams]
    graphs = [filling(buffers[n], n + 1, streams[n]) for n in range(2)]
    for _ in range(100):
        for graph, stream in zip(graphs, streams, strict=True):
            with accelrt.stream(stream):
                graph.replay()
    for n, (buffer, stream) in enumerate(zip(buffers, streams, strict=True)):
        assert (bytes_of(buffer, stream) == n + 1).all()
        buffer.free()


def test_one_graph_replays_on_two_streams_in_turn():
    first, second = accelrt.Stream(), accelrt.Stream()
    calls = []
    with accelrt.Buffer(512, stream=first) as target:
        graph = accelrt.CUDAGraph()
        with accelrt.graph(graph, stream=first):
            target.fill(1)
            first.launch_host_func(lambda: calls.append(1))
        for _ in range(10):
            for stream in (first, second):
                with accelrt.stream(stream):
                    graph.replay()
        first.synchronize()
        second.synchronize()
    assert len(calls) == 20


def test_reset_and_recapture_many_times():
    graph, stream = accelrt.CUDAGraph(), accelrt.Stream()
    with accelrt.Buffer(512, stream=stream) as target, accelrt.stream(stream):
        for n in range(100):
            with accelrt.graph(graph, stream=stream), accelrt.Buffer(1024) as inner:
                inner.fill(n)
                accelrt.copy(target, inner, 512, blocking=False)
            graph.replay()
            assert (bytes_of(target, stream) == n).all()
            graph.reset()
            assert graph.memory_stats()["allocated_bytes.current"] == 0


def test_a_graph_dies_while_another_one_captures():
    stream = accelrt.Stream()
    with accelrt.Buffer(512, stream=stream) as target:
        dying = filling(target, 1, stream)
        with accelrt.stream(stream):
            dying.replay()
        graph = accelrt.CUDAGraph()
        with accelrt.graph(graph):
            target.fill(2)
            del dying
            gc.collect()
        stream.synchronize()
        graph.replay()
        accelrt.synchronize()
        assert (bytes_of(target) == 2).all()


def test_a_capture_may_wait_and_give_memory_back_first_if_asked():
    stream, done = accelrt.Stream(), []
    stream.launch_host_func(lambda: done.append(1))
    accelrt.Buffer(1 << 20).free()
    graph = accelrt.CUDAGraph()
    with accelrt.Buffer(512) as target:
        with accelrt.graph(graph, synchronize=True, empty_cache=True):
            assert done == [1]
            target.fill(1)
        graph.replay()
        accelrt.synchronize()


def test_entering_a_capture_waits_for_nothing():
    stream = accelrt.Stream()
    graph = accelrt.CUDAGraph()
    with accelrt.Buffer(512) as target, Gate(stream):
        with accelrt.graph(graph):
            target.fill(1)
        assert not stream.query()
    stream.synchronize()


@pytest.mark.host
@in_own_process(printing="130 2\n")
def test_memory_that_was_in_use_goes_back_with_the_wait_for_its_use():
    """What is reserved before and after a capture that finds much idle memory of dead graphs: in MiB."""
    faults, other, gate = wrap_host(), accelrt.Stream(), threading.Event()

    def open_gate():
        assert faults.await_parked(SECONDS) == "device_synchronize"
        gate.set()
        assert faults.go_on()

    other.launch_host_func(lambda: gate.wait(SECONDS))
    for _ in range(65):  # 130 MiB: the next capture gives it back
        graph = accelrt.CUDAGraph()
        with accelrt.graph(graph):
            buffer = accelrt.Buffer(1000)
            buffer.fill(1)
        buffer.record_stream(other)
        del buffer, graph
    reserved = accelrt.memory_reserved() >> 20
    faults.park("device_synchronize", limit=SECONDS)
    opener = threading.Thread(target=open_gate)
    opener.start()
    graph = accelrt.CUDAGraph()
    with accelrt.graph(graph):
        accelrt.Buffer(1000).fill(1)
    opener.join()
    print(reserved, accelrt.memory_reserved() >> 20)


class Call:
    def __call__(self):
        pass


@pytest.mark.parametrize("end", ["update", "reset"])
def test_an_instance_gives_up_the_functions_of_nodes_that_it_has_no_more(end):
    definition, other, call = accelrt.GraphDefinition(), accelrt.GraphDefinition(), Call()
    definition.host_function(call)
    other.host_function(int)
    instance, kept = definition.instantiate(), weakref.ref(call)
    instance.replay()
    accelrt.synchronize()
    del definition, call
    gc.collect()
    assert kept() is not None
    if end == "update":
        instance.update(other.graph)
    else:
        instance.reset()
    gc.collect()
    assert kept() is None
