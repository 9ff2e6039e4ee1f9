"""A capture that Python has no memory to begin is over, and its stream and graph can be used again."""

import itertools

import pytest
from child import in_own_process

import accelrt

_testcapi = pytest.importorskip("_testcapi")
pytestmark = pytest.mark.host


def refuse_each(begin, check):
    """How many of a call's allocations of Python's can fail; each is made to."""
    for number in itertools.count():
        _testcapi.set_nomemory(number, number + 1)
        try:
            begin()
        except MemoryError:
            pass
        else:
            return number
        finally:
            _testcapi.remove_mem_hooks()
        check()
    return None


@in_own_process
def test_a_capture():
    stream, graph, array = accelrt.Stream(), accelrt.CUDAGraph(), accelrt.zeros(8, "u1")

    def check():
        assert not stream.is_capturing
        accelrt.synchronize()

    with accelrt.stream(stream):
        assert refuse_each(graph.capture_begin, check) > 0
        array.fill_(3)
        graph.capture_end()
    graph.replay()
    assert (array.numpy() == 3).all()


@in_own_process
def test_the_body_of_a_condition():
    stream, array, flag = accelrt.Stream(), accelrt.zeros(8, "u1"), accelrt.ones(1, "i4")
    graph = accelrt.CUDAGraph()
    with (
        accelrt.graph(graph, stream=stream),
        graph.if_(flag),
    ):  # imports first: CPython 3.13, where memory fails as it
        array.fill_(3)  # compiles a module, frees a symbol table twice, and may never end
    fewest = 0
    for number in itertools.count():
        graph = accelrt.CUDAGraph()
        try:
            with accelrt.graph(graph, stream=stream):
                body = graph.if_(flag)
                _testcapi.set_nomemory(number, number + 1)
                try:
                    body.__enter__()
                finally:
                    _testcapi.remove_mem_hooks()
                array.fill_(3)
                body.__exit__(None, None, None)
            break
        except MemoryError:
            fewest += 1
        assert not stream.is_capturing
        accelrt.synchronize()
    assert fewest > 0
    graph.replay()
    assert (array.numpy() == 3).all()
