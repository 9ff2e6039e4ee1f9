"""Conditional nodes: work of a graph that a replay leaves out or repeats."""

import numpy as np
import pytest
from beside import on_a_thread
from device_arrays import bytes_of

import accelrt


@pytest.fixture
def flag():
    with accelrt.Buffer(4) as made:
        try:
            graph = accelrt.CUDAGraph()
            with accelrt.graph(graph), graph.if_(made):
                made.fill(0)
        except accelrt.NotSupportedError as error:
            pytest.skip(f"this driver has no conditional nodes: {error}")
        yield made


def test_if_is_decided_by_each_replay(flag):
    graph = accelrt.CUDAGraph(keep_graph=True)
    with accelrt.Buffer(64) as target:
        with accelrt.graph(graph):
            target.fill(1)
            with graph.if_(flag):
                target.fill(2)
            target.fill(9, 1)
        assert [node.type for node in graph.nodes()].count("conditional") == 1
        for number in (0, 1, 0, 77, -1):
            accelrt.copy(flag, np.array([number], np.int32))
            graph.replay()
            found = bytes_of(target)
            assert found[0] == 9
            assert (found[1:] == (2 if number else 1)).all()


def test_while_repeats_until_the_flag_is_0(flag):
    """Each round moves a window of bytes on by one; the first 0 in it ends the loop."""
    graph = accelrt.CUDAGraph()
    rounds = 5
    with accelrt.Buffer(256) as steps, accelrt.Buffer(256) as spare:
        with accelrt.graph(graph):
            accelrt.copy(flag, steps, 4, blocking=False)
            with graph.while_(flag):
                accelrt.copy(spare, steps, 252, src_offset=4, blocking=False)
                accelrt.copy(steps, spare, 252, blocking=False)
                accelrt.copy(flag, steps, 4, blocking=False)
        for count in (rounds, 0, 1):
            given = np.zeros(64, np.int32)
            given[:count] = 1
            given[count + 1 :] = 5
            accelrt.copy(steps, given)
            graph.replay()
            found = bytes_of(steps).view(np.int32)
            assert found[0] == 0
            assert (found[1:32] == 5).all()


def test_conditions_nest(flag):
    graph = accelrt.CUDAGraph()
    with accelrt.Buffer(4) as inner, accelrt.Buffer(16) as target:
        with accelrt.graph(graph):
            target.fill(0)
            with graph.if_(flag):
                target.fill(1)
                with graph.if_(inner):
                    target.fill(2)
        for outer_value, inner_value, expected in ((0, 1, 0), (1, 0, 1), (1, 1, 2)):
            flag.fill(outer_value)
            inner.fill(inner_value)
            graph.replay()
            assert (bytes_of(target) == expected).all()


def test_memory_of_a_body_comes_from_the_graphs_pool(flag):
    graph = accelrt.CUDAGraph()
    with accelrt.Buffer(4096) as target:
        with accelrt.graph(graph), graph.if_(flag):
            assert accelrt.is_current_stream_capturing()
            inner = accelrt.Buffer(4096)
            inner.fill(8)
            accelrt.copy(target, inner, blocking=False)
            assert graph.memory_stats()["allocated_bytes.current"] == 4096
            inner.free()
        flag.fill(1)
        graph.replay()
        assert (bytes_of(target) == 8).all()


def test_an_exception_in_a_body_drops_the_whole_capture(flag):
    graph = accelrt.CUDAGraph()
    with accelrt.Buffer(16) as target:
        with pytest.raises(KeyError), accelrt.graph(graph):
            target.fill(1)
            with graph.if_(flag):
                target.fill(2)
                raise KeyError
        assert accelrt.current_stream() == accelrt.default_stream()
        with pytest.raises(RuntimeError, match="nothing to replay"):
            graph.replay()
        with accelrt.graph(graph):
            target.fill(3)
        graph.replay()
        assert (bytes_of(target) == 3).all()


def test_a_graph_that_is_reset_in_a_body_ends_both_captures(flag):
    graph, stream = accelrt.CUDAGraph(), accelrt.Stream()
    with accelrt.stream(stream):
        graph.capture_begin()
        body = graph.if_(flag)
        body.__enter__()
        flag.fill(1)
        graph.reset()
        assert not accelrt.is_current_stream_capturing()
        with pytest.raises(RuntimeError, match="over already"):
            body.__exit__(None, None, None)
        assert not accelrt.is_current_stream_capturing()
        assert accelrt.current_stream() == stream


def test_conditions_are_refused_where_they_cannot_be(flag):
    graph, other = accelrt.CUDAGraph(), accelrt.CUDAGraph()
    with pytest.raises(RuntimeError, match="inside"), graph.if_(flag):
        pass
    with accelrt.Buffer(2) as short, accelrt.graph(graph):
        flag.fill(1)
        with pytest.raises(ValueError, match="4 bytes"), graph.if_(short):
            pass
        with pytest.raises(TypeError, match="device memory"), graph.while_(np.zeros(1, np.int32)):
            pass
        with pytest.raises(RuntimeError, match="inside"), other.if_(flag):
            pass
        with (
            pytest.raises(RuntimeError, match="does not capture"),
            accelrt.stream(accelrt.default_stream()),
            graph.if_(flag),
        ):
            pass
        again = graph.if_(flag)
        with again:
            flag.fill(0)
        with pytest.raises(RuntimeError, match="captured already"), again:
            pass
    graph.replay()
    accelrt.synchronize()


def errors_in_thread(*calls):
    """What each call raises on a thread of its own; None where it raises nothing."""
    found = []

    def run():
        for call in calls:
            try:
                call()
                found.append(None)
            except (RuntimeError, ValueError) as error:
                found.append(error)

    on_a_thread(run)
    return found


class Asked:
    """A flag that does something the first time that its address is asked for, as a condition is entered."""

    def __init__(self, buffer, action):
        self.buffer, self.action = buffer, action

    @property
    def __cuda_array_interface__(self):
        action, self.action = self.action, None
        if action:
            action()
        return {"shape": (1,), "typestr": "<i4", "data": (self.buffer.ptr, False), "version": 3}


MODES = ["global", "thread_local", "relaxed"]


def replayed(graph, flag, target):
    flag.fill(1)
    graph.replay()
    return set(bytes_of(target).tolist())


@pytest.mark.parametrize("mode", MODES)
def test_a_condition_that_one_thread_enters_is_refused_to_others(flag, mode):
    graph, stream, told = accelrt.CUDAGraph(), accelrt.Stream(), []

    def interfere():
        with accelrt.stream(stream):
            another = graph.while_(flag)
            told.extend(errors_in_thread(branch.__enter__, another.__enter__, graph.capture_end, graph.reset))

    branch = graph.if_(Asked(flag, interfere))
    with accelrt.Buffer(64) as target:
        with accelrt.graph(graph, stream=stream, capture_error_mode=mode):
            target.fill(1)
            with branch:
                target.fill(2)
        assert replayed(graph, flag, target) == {2}
    assert len(told) == 4
    for error in told:
        assert "another thread begins, ends or drops a capture of this CUDAGraph" in str(error)


@pytest.mark.parametrize("mode", MODES)
def test_a_body_that_one_thread_captures_is_left_alone_by_others(flag, mode):
    graph, stream = accelrt.CUDAGraph(), accelrt.Stream()
    with accelrt.Buffer(64) as target:
        with accelrt.graph(graph, stream=stream, capture_error_mode=mode):
            branch = graph.if_(flag)
            with branch:
                target.fill(1)
                told = errors_in_thread(branch.__enter__, lambda: branch.__exit__(None, None, None))
                target.fill(2)
        assert replayed(graph, flag, target) == {2}
    assert "was captured already" in str(told[0])
    assert "another thread captures the body of this condition" in str(told[1])
