"""Kernel nodes: what a captured launch was given, and how that is changed without a new capture."""

import ctypes

import pytest
from capturing import run
from kernel_sources import BLOCKS, THREADS, launch, numbers, read
from made_graphs import NodeParams, change, kernel, told

INVALID_VALUE, INVALID_HANDLE = 1, 400


@pytest.fixture
def graph(rows, function, stream, device):
    """A graph of two launches, the second behind the first's memory."""
    rows.ok("capture_begin", 0, stream, 0)
    assert launch(rows, function, stream, device, 5) == 0
    assert launch(rows, function, stream, device + 4096, 6) == 0
    made = rows.ok("capture_end", 0, stream)
    yield made
    rows.ok("graph_destroy", made)


@pytest.fixture
def exec_(rows, graph):
    return rows.kept("graph_instantiate", 0, graph, 0)


def nodes_of(rows, graph):
    room = (ctypes.c_size_t * 2)()
    assert rows.ok("graph_nodes", graph, 2, ctypes.addressof(room)) == 2
    return list(room)


def asked(rows, graph, node):
    """(function, grid, block, shared bytes, address, value) of a kernel node."""
    params = told(rows, graph, node)
    pointers = ctypes.cast(params.arguments, ctypes.POINTER(ctypes.c_void_p))
    address = ctypes.c_uint64.from_address(pointers[0]).value
    value = ctypes.c_uint32.from_address(pointers[1]).value
    return params.function, tuple(params.grid), tuple(params.block), params.shared_bytes, address, value


def replayed(rows, exec_, stream, at):
    run(rows, exec_, stream)
    return read(rows, at)


def test_a_node_tells_what_it_was_launched_with(rows, graph, function, device):
    first, second = nodes_of(rows, graph)
    size = (BLOCKS, 1, 1), (THREADS, 1, 1), 0
    assert asked(rows, graph, first) == (function, *size, device, 5)
    assert asked(rows, graph, second) == (function, *size, device + 4096, 6)


def test_an_instance_is_changed_and_the_graph_stays(rows, graph, exec_, function, stream, device):
    first, _ = nodes_of(rows, graph)
    assert (replayed(rows, exec_, stream, device) == numbers(5)).all()
    assert change(rows, graph, exec_, first, kernel(function, device, 50)) == 0
    assert (replayed(rows, exec_, stream, device) == numbers(50)).all()
    assert (read(rows, device + 4096) == numbers(6)).all()
    assert asked(rows, graph, first)[5] == 5


def test_a_graph_is_changed_and_its_instances_stay(rows, graph, exec_, function, stream, device):
    first, _ = nodes_of(rows, graph)
    assert change(rows, graph, 0, first, kernel(function, device, 60, blocks=2)) == 0
    assert asked(rows, graph, first)[1:2] + asked(rows, graph, first)[5:] == ((2, 1, 1), 60)
    assert (replayed(rows, exec_, stream, device) == numbers(5)).all()
    other = rows.kept("graph_instantiate", 0, graph, 0)
    assert (replayed(rows, other, stream, device)[:128] == numbers(60, 128)).all()


def test_a_change_that_no_launch_takes_is_refused(rows, graph, exec_, function, stream, device):
    first, _ = nodes_of(rows, graph)
    assert change(rows, graph, exec_, first, kernel(function, device, 1, blocks=0)) != 0
    assert (replayed(rows, exec_, stream, device) == numbers(5)).all()


@pytest.mark.host
def test_nodes_of_the_host_that_are_none_are_refused(rows, on_host, graph, exec_, function, stream, device):
    first, _ = nodes_of(rows, graph)
    params = NodeParams()
    for wrong in ((graph, 12345), (12345, first)):
        assert rows.graph_node_params(*wrong, ctypes.addressof(params)) == INVALID_VALUE
    assert change(rows, graph, 12345, first, kernel(function, device, 1)) == INVALID_VALUE
    assert change(rows, graph, exec_, first, kernel(12345, device, 1)) == INVALID_HANDLE
    rows.ok("capture_begin", 0, stream, 0)
    rows.ok("fill", 0, stream, device, 1, 1, 16)
    filled = rows.ok("capture_end", 0, stream)
    room = (ctypes.c_size_t * 1)()
    rows.ok("graph_nodes", filled, 1, ctypes.addressof(room))
    assert change(rows, graph, exec_, room[0], kernel(function, device, 1)) == INVALID_VALUE
    rows.ok("graph_destroy", filled)
