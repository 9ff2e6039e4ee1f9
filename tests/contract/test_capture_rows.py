"""Rows about capture and graphs: what a graph does again, and what breaks a capture."""

import threading

import numpy as np
import pytest

GLOBAL, THREAD_LOCAL, RELAXED = 0, 1, 2
NONE, ACTIVE, INVALIDATED = 0, 1, 2
INVALID_VALUE, ILLEGAL_STATE, NOT_READY = 1, 401, 600
UNSUPPORTED, INVALID, MERGE, UNMATCHED, UNJOINED, ISOLATION, IMPLICIT, CAPTURED_EVENT, WRONG_THREAD = range(
    900, 909
)
UPDATE_FAILURE = 910


@pytest.fixture
def device(rows):
    address = rows.ok("memory_alloc", 0, 1 << 20)
    yield address
    rows.ok("memory_free", 0, address)


@pytest.fixture
def stream(rows):
    made = rows.stream()
    yield made
    assert rows.ok("capture_status", 0, made)[0] == NONE
    rows.ok("stream_destroy", 0, made)


@pytest.fixture
def other(rows):
    made = rows.stream()
    yield made
    assert rows.ok("capture_status", 0, made)[0] == NONE
    rows.ok("stream_destroy", 0, made)


@pytest.fixture
def event(rows):
    made = rows.ok("event_create", 0, 2)
    yield made
    rows.ok("event_destroy", 0, made)


def captured(rows, stream, work, mode=GLOBAL):
    """A graph of what work() puts into the stream."""
    rows.ok("capture_begin", 0, stream, mode)
    work()
    return rows.ok("capture_end", 0, stream)


def fills(rows, stream, device, *values):
    for index, value in enumerate(values):
        rows.ok("fill", 0, stream, device + 4096 * index, value, 1, 4096)


def broken(rows, stream):
    """Ends a capture that an earlier call broke; the process is as before."""
    assert rows.ok("capture_status", 0, stream)[0] == INVALIDATED
    code, graph = rows.capture_end(0, stream)
    assert (code, graph) == (INVALID, 0)
    assert rows.ok("capture_status", 0, stream)[0] == NONE


def test_a_graph_replays_what_was_captured(rows, device, stream, tmp_path):
    rows.ok("fill", 0, stream, device, 1, 1, 8192)
    rows.ok("stream_synchronize", 0, stream)
    graph = captured(rows, stream, lambda: fills(rows, stream, device, 5, 6))
    rows.ok("device_synchronize", 0)
    assert (rows.read(device, 8192) == 1).all()
    assert rows.ok("graph_node_count", graph) == 2
    rows.ok("graph_dot", graph, str(tmp_path / "graph.dot").encode(), 0)
    assert (tmp_path / "graph.dot").read_text().startswith("digraph")
    exec_ = rows.ok("graph_instantiate", 0, graph, 0)
    rows.ok("graph_destroy", graph)
    rows.ok("graph_upload", 0, exec_, stream)
    for _ in range(3):
        rows.ok("graph_launch", 0, exec_, stream)
    rows.ok("stream_synchronize", 0, stream)
    found = rows.read(device, 8192)
    assert (found[:4096] == 5).all()
    assert (found[4096:] == 6).all()
    rows.ok("graph_exec_destroy", exec_)


def test_status_names_the_capture(rows, device, stream):
    assert rows.ok("capture_status", 0, stream) == (NONE, 0)
    rows.ok("capture_begin", 0, stream, GLOBAL)
    status, first = rows.ok("capture_status", 0, stream)
    assert status == ACTIVE
    rows.ok("graph_destroy", rows.ok("capture_end", 0, stream))
    rows.ok("capture_begin", 0, stream, GLOBAL)
    assert rows.ok("capture_status", 0, stream)[1] != first
    rows.ok("graph_destroy", rows.ok("capture_end", 0, stream))


def test_an_empty_graph_can_be_launched(rows, stream):
    graph = captured(rows, stream, lambda: None)
    assert rows.ok("graph_node_count", graph) == 0
    exec_ = rows.ok("graph_instantiate", 0, graph, 0)
    rows.ok("graph_destroy", graph)
    rows.ok("graph_launch", 0, exec_, stream)
    rows.ok("stream_synchronize", 0, stream)
    rows.ok("graph_exec_destroy", exec_)


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
    exec_ = rows.ok("graph_instantiate", 0, graph, 0)
    rows.ok("graph_destroy", graph)
    for _ in range(5):
        rows.ok("graph_launch", 0, exec_, stream)
    rows.ok("stream_synchronize", 0, stream)
    assert (rows.read(device, 12288) == 2).all()
    assert len(seen) == 5
    rows.ok("graph_exec_destroy", exec_)
    rows.ok("event_destroy", 0, join)


def test_an_update_changes_parameters_but_not_the_shape(rows, device, stream):
    first = captured(rows, stream, lambda: fills(rows, stream, device, 3))
    same = captured(rows, stream, lambda: fills(rows, stream, device, 4))
    longer = captured(rows, stream, lambda: fills(rows, stream, device, 4, 4))
    exec_ = rows.ok("graph_instantiate", 0, first, 0)
    assert rows.graph_update(exec_, longer)[0] == UPDATE_FAILURE
    assert rows.graph_update(exec_, same)[0] == 0
    rows.ok("graph_launch", 0, exec_, stream)
    rows.ok("stream_synchronize", 0, stream)
    assert (rows.read(device, 4096) == 4).all()
    for graph in (first, same, longer):
        rows.ok("graph_destroy", graph)
    rows.ok("graph_exec_destroy", exec_)


def test_an_exec_may_be_destroyed_while_it_runs(rows, device, stream):
    gate = threading.Event()
    graph = captured(rows, stream, lambda: fills(rows, stream, device, 9))
    exec_ = rows.ok("graph_instantiate", 0, graph, 0)
    rows.ok("graph_destroy", graph)
    rows.gate(stream, gate)
    rows.ok("graph_launch", 0, exec_, stream)
    gate.set()
    rows.ok("graph_exec_destroy", exec_)
    rows.ok("stream_synchronize", 0, stream)
    assert (rows.read(device, 4096) == 9).all()


def test_the_legacy_stream_cannot_be_captured(rows):
    assert rows.capture_begin(0, 0, GLOBAL) == UNSUPPORTED


def test_ending_without_a_beginning(rows, stream):
    assert rows.capture_end(0, stream)[0] == ILLEGAL_STATE


@pytest.mark.parametrize("row", ["stream_synchronize", "stream_query"])
def test_asking_a_capturing_stream_breaks_the_capture(rows, stream, row):
    rows.ok("capture_begin", 0, stream, GLOBAL)
    assert getattr(rows, row)(0, stream) == UNSUPPORTED
    broken(rows, stream)


def test_synchronizing_the_device_breaks_the_capture(rows, stream):
    rows.ok("capture_begin", 0, stream, GLOBAL)
    assert rows.device_synchronize(0) == UNSUPPORTED
    broken(rows, stream)


def test_work_put_into_a_broken_capture_is_refused(rows, device, stream):
    rows.ok("capture_begin", 0, stream, GLOBAL)
    rows.stream_synchronize(0, stream)
    assert rows.fill(0, stream, device, 1, 1, 16) == INVALID
    broken(rows, stream)


@pytest.mark.parametrize("row", ["event_query", "event_synchronize"])
def test_a_captured_event_has_no_state(rows, stream, event, row):
    rows.ok("capture_begin", 0, stream, GLOBAL)
    rows.ok("event_record", 0, event, stream)
    assert getattr(rows, row)(0, event) == CAPTURED_EVENT
    code, graph = rows.capture_end(0, stream)
    if code == 0:
        rows.ok("graph_destroy", graph)
    assert getattr(rows, row)(0, event) == INVALID_VALUE  # nor has it one afterwards
    rows.ok("event_record", 0, event, stream)
    rows.ok("event_synchronize", 0, event)


def test_a_stream_that_is_not_joined_back(rows, device, stream, other, event):
    rows.ok("capture_begin", 0, stream, GLOBAL)
    rows.ok("event_record", 0, event, stream)
    rows.ok("stream_wait_event", 0, other, event)
    rows.ok("fill", 0, other, device, 1, 1, 16)
    assert rows.capture_end(0, stream) == (UNJOINED, 0)
    rows.ok("stream_synchronize", 0, other)


def test_ending_on_a_stream_that_joined(rows, stream, other, event):
    rows.ok("capture_begin", 0, stream, GLOBAL)
    rows.ok("event_record", 0, event, stream)
    rows.ok("stream_wait_event", 0, other, event)
    assert rows.capture_end(0, other)[0] == UNMATCHED
    code, graph = rows.capture_end(0, stream)
    if code == 0:
        rows.ok("graph_destroy", graph)


def test_two_captures_do_not_merge(rows, stream, other, event):
    rows.ok("capture_begin", 0, stream, THREAD_LOCAL)
    rows.ok("capture_begin", 0, other, THREAD_LOCAL)
    rows.ok("event_record", 0, event, stream)
    assert rows.stream_wait_event(0, other, event) == MERGE
    broken(rows, stream)
    broken(rows, other)


def test_work_outside_cannot_be_waited_for(rows, stream, other, event):
    rows.ok("event_record", 0, event, other)
    rows.ok("capture_begin", 0, stream, GLOBAL)
    assert rows.stream_wait_event(0, stream, event) == ISOLATION
    broken(rows, stream)
    rows.ok("stream_synchronize", 0, other)


def test_the_legacy_stream_beside_a_blocking_capture(rows, device):
    blocking = rows.stream(0)
    rows.ok("capture_begin", 0, blocking, GLOBAL)
    assert rows.fill(0, 0, device, 1, 1, 16) == IMPLICIT
    broken(rows, blocking)
    rows.ok("stream_destroy", 0, blocking)


def ended_elsewhere(rows, stream):
    """What another thread is answered when it ends the capture."""
    answers = []

    def end():
        rows.ok("set_device", 0)
        answers.append(rows.capture_end(0, stream))

    thread = threading.Thread(target=end)
    thread.start()
    thread.join()
    return answers[0]


def test_another_thread_cannot_end_a_capture_but_ends_it(rows, stream):
    rows.ok("capture_begin", 0, stream, GLOBAL)
    assert ended_elsewhere(rows, stream) == (WRONG_THREAD, 0)
    assert rows.ok("capture_status", 0, stream)[0] == NONE
    assert rows.capture_end(0, stream)[0] == ILLEGAL_STATE


def test_a_replay_cannot_be_captured(rows, device, stream):
    graph = captured(rows, stream, lambda: fills(rows, stream, device, 1))
    exec_ = rows.ok("graph_instantiate", 0, graph, 0)
    rows.ok("graph_destroy", graph)
    rows.ok("capture_begin", 0, stream, GLOBAL)
    assert rows.graph_launch(0, exec_, stream) == UNSUPPORTED
    broken(rows, stream)
    rows.ok("graph_exec_destroy", exec_)


@pytest.mark.parametrize(("mode", "refused"), [(GLOBAL, True), (THREAD_LOCAL, True), (RELAXED, False)])
def test_asking_another_stream_goes_by_the_modes(rows, stream, other, mode, refused):
    for row in ("stream_query", "stream_synchronize"):
        rows.ok("capture_begin", 0, stream, mode)
        assert getattr(rows, row)(0, other) == (UNSUPPORTED if refused else 0)
        if refused:
            broken(rows, stream)
        else:
            rows.ok("graph_destroy", rows.ok("capture_end", 0, stream))


def test_another_thread_may_end_a_relaxed_capture(rows, stream):
    rows.ok("capture_begin", 0, stream, RELAXED)
    code, graph = ended_elsewhere(rows, stream)
    assert code == 0
    rows.ok("graph_destroy", graph)


@pytest.mark.parametrize(
    ("mode", "exchanged", "expected"),
    [
        (GLOBAL, GLOBAL, UNSUPPORTED),
        (GLOBAL, RELAXED, 0),
        (THREAD_LOCAL, THREAD_LOCAL, UNSUPPORTED),
        (RELAXED, GLOBAL, 0),
    ],
)
def test_allocation_beside_a_capture_goes_by_the_modes(rows, stream, mode, exchanged, expected):
    rows.ok("capture_begin", 0, stream, mode)
    before = rows.ok("capture_mode_exchange", exchanged)
    code, address = rows.memory_alloc(0, 1 << 20)
    rows.ok("capture_mode_exchange", before)
    assert code == expected
    if code:
        broken(rows, stream)
    else:
        rows.ok("graph_destroy", rows.ok("capture_end", 0, stream))
        rows.ok("memory_free", 0, address)


def test_another_threads_allocation_goes_by_the_capture(rows, stream):
    codes = []

    def allocate():
        rows.ok("set_device", 0)
        codes.append(rows.memory_alloc(0, 1 << 20))

    for mode in (THREAD_LOCAL, GLOBAL):
        rows.ok("capture_begin", 0, stream, mode)
        thread = threading.Thread(target=allocate)
        thread.start()
        thread.join()
        if mode == THREAD_LOCAL:
            rows.ok("graph_destroy", rows.ok("capture_end", 0, stream))
    assert [code for code, _ in codes] == [0, UNSUPPORTED]
    broken(rows, stream)
    rows.ok("memory_free", 0, codes[0][1])


def test_pageable_memory_in_a_capture(rows, device, stream):
    data = np.full(4096, 3, np.uint8)
    graph = captured(rows, stream, lambda: rows.ok("copy", 0, stream, device, data.ctypes.data, 4096))
    exec_ = rows.ok("graph_instantiate", 0, graph, 0)
    rows.ok("graph_destroy", graph)
    data[:] = 4
    rows.ok("graph_launch", 0, exec_, stream)
    rows.ok("stream_synchronize", 0, stream)
    assert (rows.read(device, 4096) == 4).all()
    rows.ok("graph_exec_destroy", exec_)
