"""Kernel nodes: what a captured launch was given, and how that is changed without a new capture."""

import ctypes

import pytest
from capturing import run
from kernel_sources import BLOCKS, THREADS, launch, numbers, read, with_arguments
from made_graphs import EMPTY, NodeParams, array, change, kernel, told

INVALID_VALUE, INVALID_HANDLE, TOO_LARGE, INVALID_CLUSTERS = 1, 400, 720, 912
COOPERATIVE, CLUSTER, PRIORITY = 2, 4, 8


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


def set_attribute(rows, graph, node, attribute, x, y=0, z=0):
    return rows.kernel_node_attribute_set(graph, node, attribute, x, y, z)


def attributes(rows, graph, node):
    """(cooperative, cluster, priority) of a kernel node."""
    cooperative, cluster, priority = (
        rows.ok("kernel_node_attribute_get", graph, node, each) for each in (COOPERATIVE, CLUSTER, PRIORITY)
    )
    return cooperative[0] != 0, cluster, priority[0]


def has_clusters(rows):
    return rows.driver == "host" or rows.ok("device_attribute", 0, 75) >= 9


def test_attributes_of_a_node_are_set_and_stay_in_changes_and_clones(rows, graph, function, stream, device):
    first, second = nodes_of(rows, graph)
    cluster = (2, 1, 1) if has_clusters(rows) else (1, 1, 1)
    before = attributes(rows, graph, second)
    assert set_attribute(rows, graph, first, COOPERATIVE, 1) == 0
    assert set_attribute(rows, graph, first, PRIORITY, -1) == 0
    if has_clusters(rows):
        assert set_attribute(rows, graph, first, CLUSTER, *cluster) == 0
        assert attributes(rows, graph, first) == (True, cluster, -1)
    told_before = attributes(rows, graph, first)
    assert change(rows, graph, 0, first, kernel(function, device, 60)) == 0
    assert attributes(rows, graph, first) == told_before
    clone = rows.kept("graph_clone", graph)
    copied = rows.ok("graph_find_in_clone", clone, first)
    assert attributes(rows, clone, copied) == told_before
    assert attributes(rows, graph, second) == before == (False, before[1], 0)
    exec_ = rows.kept("graph_instantiate", 0, graph, 0)
    assert (replayed(rows, exec_, stream, device) == numbers(60)).all()
    assert change(rows, graph, exec_, first, kernel(function, device, 61)) == 0
    assert (replayed(rows, exec_, stream, device) == numbers(61)).all()
    assert set_attribute(rows, graph, first, COOPERATIVE, 0) == 0
    assert attributes(rows, graph, first)[0] is False


def test_a_captured_launch_tells_its_attributes(rows, function, device):
    at_once = rows.ok("stream_create", 0, 1, -1)
    rows.ok("capture_begin", 0, at_once, 0)
    cluster = (2, 1, 1) if has_clusters(rows) else (0, 0, 0)
    with_arguments(
        device,
        4,
        lambda pointers: rows.ok(
            "kernel_launch_with", 0, at_once, function, *(4, 1, 1), *(64, 1, 1), 0, pointers, 1, *cluster
        ),
    )
    captured = rows.ok("capture_end", 0, at_once)
    node = array([0])
    rows.ok("graph_nodes", captured, 1, ctypes.addressof(node))
    cooperative, told_cluster, priority = attributes(rows, captured, node[0])
    assert (cooperative, priority) == (True, -1)
    assert told_cluster == cluster or not has_clusters(rows)
    rows.ok("graph_destroy", captured)
    rows.ok("stream_destroy", 0, at_once)


def test_what_is_no_kernel_and_no_attribute_is_refused(rows, graph):
    first, _ = nodes_of(rows, graph)
    assert set_attribute(rows, graph, first, 99, 1) == INVALID_VALUE
    assert rows.kernel_node_attribute_get(graph, first, 99)[0] == INVALID_VALUE
    empty, after = NodeParams(type=EMPTY), array([])
    other = rows.ok("graph_node_add", 0, graph, 0, ctypes.addressof(after), ctypes.addressof(empty))
    assert set_attribute(rows, graph, other, COOPERATIVE, 1) != 0
    assert rows.kernel_node_attribute_get(graph, other, COOPERATIVE)[0] != 0


@pytest.mark.host
def test_the_host_makes_no_instance_of_what_no_launch_takes(rows, on_host, graph, exec_, function, device):
    first, _ = nodes_of(rows, graph)
    assert set_attribute(rows, graph, first, CLUSTER, 0, 1, 1) == INVALID_VALUE
    for cluster in ((3, 1, 1), (16, 1, 1), (1, 2, 1)):
        assert set_attribute(rows, graph, first, CLUSTER, *cluster) == INVALID_CLUSTERS
    assert set_attribute(rows, graph, first, CLUSTER, 2, 1, 1) == 0
    assert change(rows, graph, 0, first, kernel(function, device, 1, blocks=3)) == 0
    assert rows.graph_instantiate(0, graph, 0)[0] == INVALID_CLUSTERS
    assert rows.graph_update(exec_, graph)[0] == INVALID_CLUSTERS
    assert change(rows, graph, 0, first, kernel(function, device, 1)) == 0
    other = rows.kept("graph_instantiate", 0, graph, 0)
    assert change(rows, graph, other, first, kernel(function, device, 1, blocks=3)) == INVALID_CLUSTERS
    assert change(rows, graph, exec_, first, kernel(function, device, 1, blocks=3)) == 0
    assert set_attribute(rows, graph, first, COOPERATIVE, 1) == 0
    assert change(rows, graph, 0, first, kernel(function, device, 1, blocks=1 << 20)) == 0
    assert rows.graph_instantiate(0, graph, 0)[0] == TOO_LARGE
