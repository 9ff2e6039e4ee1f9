"""Rows about graphs: what a replay does again."""

import numpy as np
from capturing import (
    ACTIVE,
    GLOBAL,
    INVALID_VALUE,
    NOT_READY,
    UNSUPPORTED,
    UPDATE_FAILURE,
    broken,
    captured,
    fills,
    instantiated,
    run,
)


def test_a_graph_replays_what_was_captured(rows, device, stream, tmp_path):
    rows.ok("fill", 0, stream, device, 1, 1, 8192)
    rows.ok("stream_synchronize", 0, stream)
    graph = captured(rows, stream, lambda: fills(rows, stream, device, 5, 6))
    rows.ok("device_synchronize", 0)
    assert (rows.read(device, 8192) == 1).all()
    assert rows.ok("graph_node_count", graph) == 2
    rows.ok("graph_dot", graph, str(tmp_path / "graph.dot").encode(), 0)
    assert (tmp_path / "graph.dot").read_text().startswith("digraph")
    exec_ = instantiated(rows, graph)
    rows.ok("graph_upload", 0, exec_, stream)
    for _ in range(3):
        rows.ok("graph_launch", 0, exec_, stream)
    rows.ok("stream_synchronize", 0, stream)
    found = rows.read(device, 8192)
    assert (found[:4096] == 5).all()
    assert (found[4096:] == 6).all()


def test_an_empty_graph_can_be_launched(rows, stream):
    graph = captured(rows, stream, lambda: None)
    assert rows.ok("graph_node_count", graph) == 0
    exec_ = instantiated(rows, graph)
    run(rows, exec_, stream)


def test_streams_join_by_events_and_are_joined_back(rows, device, stream, other, event):
    seen, join = [], rows.ok("event_create", 0, 2)

    def work():
        rows.ok("fill", 0, stream, device, 2, 1, 4096)
        rows.ok("event_record", 0, event, stream)
        rows.ok("stream_wait_event", 0, other, event)
        assert rows.ok("capture_status", 0, other)[0] == ACTIVE
        rows.ok("copy", 0, other, device + 4096, device, 4096)
        rows.call(other, lambda: seen.append(1))
        rows.ok("event_record", 0, join, other)
        rows.ok("stream_wait_event", 0, stream, join)
        rows.ok("copy", 0, stream, device + 8192, device + 4096, 4096)

    graph = captured(rows, stream, work)
    assert rows.ok("graph_node_count", graph) == 4
    exec_ = instantiated(rows, graph)
    for _ in range(5):
        rows.ok("graph_launch", 0, exec_, stream)
    rows.ok("stream_synchronize", 0, stream)
    assert (rows.read(device, 12288) == 2).all()
    assert len(seen) == 5
    rows.ok("event_destroy", 0, join)


def test_an_update_changes_parameters_but_not_the_shape(rows, device, stream):
    first = captured(rows, stream, lambda: fills(rows, stream, device, 3))
    same = captured(rows, stream, lambda: fills(rows, stream, device, 4))
    longer = captured(rows, stream, lambda: fills(rows, stream, device, 4, 4))
    exec_ = rows.kept("graph_instantiate", 0, first, 0)
    code, result, _ = rows.graph_update(exec_, longer)
    assert (code, result) == (UPDATE_FAILURE, 2)  # CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED
    assert rows.graph_update(exec_, same)[0] == 0
    run(rows, exec_, stream)
    assert (rows.read(device, 4096) == 4).all()
    for graph in (first, same, longer):
        rows.ok("graph_destroy", graph)


def test_an_exec_may_be_destroyed_while_it_runs(rows, device, stream):
    graph = captured(rows, stream, lambda: fills(rows, stream, device, 9))
    exec_ = rows.ok("graph_instantiate", 0, graph, 0)
    gate = rows.gate(stream)
    rows.ok("graph_launch", 0, exec_, stream)
    gate.set()
    rows.ok("graph_exec_destroy", exec_)
    rows.ok("graph_destroy", graph)
    rows.ok("stream_synchronize", 0, stream)
    assert (rows.read(device, 4096) == 9).all()


def test_a_replay_cannot_be_captured(rows, device, stream):
    graph = captured(rows, stream, lambda: fills(rows, stream, device, 1))
    exec_ = instantiated(rows, graph)
    rows.ok("capture_begin", 0, stream, GLOBAL)
    assert rows.graph_launch(0, exec_, stream) == UNSUPPORTED
    broken(rows, stream)


def test_pageable_memory_in_a_capture(rows, device, stream):
    data = np.full(4096, 3, np.uint8)
    graph = captured(rows, stream, lambda: rows.ok("copy", 0, stream, device, data.ctypes.data, 4096))
    exec_ = instantiated(rows, graph)
    data[:] = 4
    run(rows, exec_, stream)
    assert (rows.read(device, 4096) == 4).all()


def test_one_launch_of_a_graph_runs_at_a_time(rows, device, stream, other):
    graph = captured(rows, stream, lambda: fills(rows, stream, device, 9))
    exec_ = instantiated(rows, graph)
    gate = rows.gate(stream)
    rows.ok("graph_launch", 0, exec_, stream)
    rows.ok("graph_launch", 0, exec_, other)
    assert rows.stream_query(0, other) == NOT_READY
    gate.set()
    rows.ok("stream_synchronize", 0, other)
    assert rows.stream_query(0, stream) == 0


def test_handles_of_graphs_that_are_not(rows):
    assert rows.graph_node_count(0)[0] == INVALID_VALUE
    assert rows.graph_launch(0, 0, 0) == INVALID_VALUE
    assert rows.graph_instantiate(0, 0, 0)[0] == INVALID_VALUE
    assert rows.graph_destroy(0) == INVALID_VALUE
