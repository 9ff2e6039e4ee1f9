"""Rows that list what a graph is made of, and rows for its conditional nodes."""

import ctypes

import numpy as np
import pytest
from capturing import GLOBAL, ILLEGAL_STATE, INVALID_VALUE, UPDATE_FAILURE, captured, fills, run
from made_graphs import edges_told

KERNEL, MEMCPY, MEMSET, CONDITIONAL = 0, 1, 2, 13
IF, WHILE = 0, 1
NOT_SUPPORTED = 801
NODE_TYPE_CHANGED = 3


def nodes_of(rows, graph):
    count = rows.ok("graph_nodes", graph, 0, 0)
    handles = (ctypes.c_size_t * max(count, 1))()
    assert not count or rows.ok("graph_nodes", graph, count, ctypes.addressof(handles)) == count
    return list(handles)[:count]


@pytest.fixture
def condition(rows, stream):
    """A function that begins a capture and answers a condition of it."""

    def begin():
        rows.ok("capture_begin", 0, stream, GLOBAL)
        code, made = rows.conditional_create(0, stream)
        if code == NOT_SUPPORTED:
            rows.capture_end(0, stream)
            pytest.skip("the driver has no conditional nodes")
        assert code == 0
        return made

    return begin


def branch(rows, stream, other, condition, kind, work):
    body = rows.ok("conditional_add", 0, stream, condition, kind)
    rows.ok("capture_begin_to", 0, other, body, GLOBAL)
    work()
    code, ended = rows.raw.capture_end(0, other)
    assert (code, ended) == (0, body)


def launched(rows, exec_, stream):
    run(rows, exec_, stream)


def test_nodes_and_edges_are_listed(rows, device, stream, other, event):
    join = rows.kept("event_create", 0, 2)

    def work():
        rows.ok("fill", 0, stream, device, 1, 1, 64)
        rows.ok("event_record", 0, event, stream)
        rows.ok("stream_wait_event", 0, other, event)
        rows.ok("fill", 0, other, device + 64, 2, 1, 64)
        rows.ok("fill", 0, stream, device + 128, 3, 1, 64)
        rows.ok("event_record", 0, join, other)
        rows.ok("stream_wait_event", 0, stream, join)
        rows.ok("copy", 0, stream, device + 192, device, 64)

    graph = captured(rows, stream, work)
    nodes, edges = nodes_of(rows, graph), list(edges_told(rows, graph))
    assert len(set(nodes)) == 4
    assert len(set(edges)) == len(edges) == 4
    assert {end for edge in edges for end in edge} == set(nodes)
    kinds = {node: rows.ok("graph_node_type", graph, node) for node in nodes}
    assert sorted(kinds.values()) == [MEMCPY, MEMSET, MEMSET, MEMSET]
    targets = [target for _, target in edges]
    (last,) = {target for target in targets if targets.count(target) == 2}
    assert kinds[last] == MEMCPY
    handles = (ctypes.c_size_t * 2)()
    assert rows.ok("graph_nodes", graph, 2, ctypes.addressof(handles)) == 2
    assert set(handles) <= set(nodes)
    rows.ok("graph_destroy", graph)


def test_an_empty_graph_lists_nothing(rows, stream):
    graph = captured(rows, stream, lambda: None)
    assert nodes_of(rows, graph) == list(edges_told(rows, graph)) == []
    rows.ok("graph_destroy", graph)


def test_an_update_names_the_node_that_is_of_another_type(rows, device, stream):
    first = captured(rows, stream, lambda: fills(rows, stream, device, 1, 2))

    def work():
        rows.ok("fill", 0, stream, device, 1, 1, 4096)
        rows.ok("copy", 0, stream, device + 4096, device, 4096)

    second = captured(rows, stream, work)
    exec_ = rows.kept("graph_instantiate", 0, first, 0)
    code, result, node = rows.graph_update(exec_, second)
    assert (code, result) == (UPDATE_FAILURE, NODE_TYPE_CHANGED)
    assert node in nodes_of(rows, second)
    assert rows.ok("graph_node_type", second, node) == MEMCPY
    for graph in (first, second):
        rows.ok("graph_destroy", graph)


def test_a_branch_runs_if_memory_says_so(rows, device, stream, other, condition):
    made = condition()
    rows.ok("conditional_set", 0, stream, made, device)
    branch(rows, stream, other, made, IF, lambda: rows.ok("fill", 0, other, device + 64, 7, 1, 64))
    graph = rows.ok("capture_end", 0, stream)
    kinds = sorted(rows.ok("graph_node_type", graph, node) for node in nodes_of(rows, graph))
    assert kinds == [KERNEL, CONDITIONAL]
    exec_ = rows.kept("graph_instantiate", 0, graph, 0)
    for flag, expected in ((0, 0), (3, 7), (0, 0)):
        rows.ok("fill", 0, stream, device, flag, 4, 1)
        rows.ok("fill", 0, stream, device + 64, 0, 1, 64)
        launched(rows, exec_, stream)
        assert (rows.read(device + 64, 64) == expected).all()
    rows.ok("graph_destroy", graph)


def test_a_branch_repeats_while_memory_says_so(rows, device, stream, other, condition):
    """Each round copies all but the first of a row of integers one place down; the flag is the first."""
    steps, spare = device, device + 4096
    made = condition()

    def round_():
        rows.ok("copy", 0, other, spare, steps + 4, 256)
        rows.ok("copy", 0, other, steps, spare, 256)
        rows.ok("conditional_set", 0, other, made, steps)

    rows.ok("conditional_set", 0, stream, made, steps)
    branch(rows, stream, other, made, WHILE, round_)
    graph = rows.ok("capture_end", 0, stream)
    exec_ = rows.kept("graph_instantiate", 0, graph, 0)
    given = np.array([1, 1, 1, 0] + [9] * 61, np.int32)
    rows.ok("copy", 0, stream, steps, given.ctypes.data, given.nbytes)
    launched(rows, exec_, stream)
    found = rows.read(steps, 16).view(np.int32)
    assert list(found) == [0, 9, 9, 9]
    rows.ok("graph_destroy", graph)


def test_a_condition_is_0_when_a_launch_begins(rows, device, stream, other, condition):
    made = condition()
    branch(rows, stream, other, made, IF, lambda: rows.ok("fill", 0, other, device, 7, 1, 64))
    rows.ok("conditional_set", 0, stream, made, device)
    graph = rows.ok("capture_end", 0, stream)
    exec_ = rows.kept("graph_instantiate", 0, graph, 0)
    rows.ok("fill", 0, stream, device, 1, 1, 64)
    for _ in range(2):
        launched(rows, exec_, stream)
    assert (rows.read(device, 64) == 1).all()
    rows.ok("graph_destroy", graph)


def test_a_body_belongs_to_its_node(rows, device, stream, other, condition):
    made = condition()
    body = rows.ok("conditional_add", 0, stream, made, IF)
    rows.ok("capture_begin_to", 0, other, body, GLOBAL)
    rows.ok("fill", 0, other, device, 7, 1, 64)
    assert rows.raw.capture_end(0, other) == (0, body)
    assert len(nodes_of(rows, body)) == 1
    graph = rows.ok("capture_end", 0, stream)
    rows.ok("graph_destroy", graph)


def test_conditions_outside_captures_are_refused(rows, device, stream):
    code, _ = rows.conditional_create(0, stream)
    assert code in (ILLEGAL_STATE, NOT_SUPPORTED)
    assert rows.conditional_set(0, stream, 1, device) in (ILLEGAL_STATE, NOT_SUPPORTED)
    code, body = rows.conditional_add(0, stream, 1, IF)
    assert code in (ILLEGAL_STATE, NOT_SUPPORTED)
    assert body == 0


def test_lists_of_graphs_that_are_not(rows):
    assert rows.graph_nodes(0, 0, 0)[0] == INVALID_VALUE
    assert rows.graph_edges(0, 0, 0, 0, 0)[0] == INVALID_VALUE
    assert rows.graph_node_type(0, 0)[0] == INVALID_VALUE
