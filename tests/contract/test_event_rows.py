"""Rows about events that are nodes of graphs."""

import numpy as np
from capturing import instantiated

INVALID_HANDLE, ILLEGAL_STATE, NOT_READY = 400, 401, 600
THREAD_LOCAL = 1


def captured(rows, stream, *steps):
    """An instantiated graph of rows called with a capturing stream."""
    rows.ok("capture_begin", 0, stream, THREAD_LOCAL)
    for name, *arguments in steps:
        rows.ok(name, *arguments)
    graph = rows.ok("capture_end", 0, stream)
    assert rows.ok("graph_node_count", graph) == len(steps)
    return instantiated(rows, graph)


def test_a_launch_records_an_event_where_its_node_is(rows, device, stream, other, event):
    exec_ = captured(
        rows, stream, ("fill", 0, stream, device, 7, 1, 4096), ("event_record_external", 0, event, stream)
    )
    assert rows.event_query(0, event) == 0  # the capture recorded nothing
    for _ in range(2):
        gate = rows.gate(stream)
        rows.ok("graph_launch", 0, exec_, stream)
        assert rows.event_query(0, event) == NOT_READY
        rows.ok("stream_wait_event", 0, other, event)
        rows.ok("copy", 0, other, device + 4096, device, 4096)
        assert rows.stream_query(0, other) == NOT_READY
        gate.set()
        rows.ok("event_synchronize", 0, event)
        rows.ok("stream_synchronize", 0, other)
        assert (rows.read(device + 4096, 4096) == 7).all()


def test_a_launch_waits_where_its_node_is_for_what_was_recorded_before(rows, device, stream, other, event):
    exec_ = captured(
        rows,
        stream,
        ("stream_wait_external", 0, stream, event),
        ("copy", 0, stream, device + 4096, device, 4096),
    )
    rows.ok("graph_launch", 0, exec_, stream)  # never recorded: nothing to wait for
    rows.ok("stream_synchronize", 0, stream)
    for value in (1, 2):
        gate = rows.gate(other)
        rows.ok("fill", 0, other, device, value, 1, 4096)
        rows.ok("event_record", 0, event, other)
        rows.ok("graph_launch", 0, exec_, stream)
        assert rows.stream_query(0, stream) == NOT_READY
        gate.set()
        rows.ok("stream_synchronize", 0, stream)
        assert (rows.read(device + 4096, 4096) == np.uint8(value)).all()


def test_a_broken_capture_takes_no_event(rows, stream, event):
    rows.ok("capture_begin", 0, stream, THREAD_LOCAL)
    assert rows.stream_synchronize(0, stream) != 0
    assert rows.event_record_external(0, event, stream) == 901
    assert rows.stream_wait_external(0, stream, event) == 901
    assert rows.capture_end(0, stream)[0] == 901
    rows.ok("event_record", 0, event, stream)
    rows.ok("event_synchronize", 0, event)


def test_without_a_capture_there_is_nothing_to_become_a_node_of(rows, stream, event):
    assert rows.event_record_external(0, event, stream) == ILLEGAL_STATE
    assert rows.stream_wait_external(0, stream, event) == ILLEGAL_STATE
    if rows.driver == "host":  # a GPU's driver may crash on one
        assert rows.event_record_external(0, 0xBAD, stream) == INVALID_HANDLE
        assert rows.stream_wait_external(0, stream, 0xBAD) == INVALID_HANDLE
    rows.ok("stream_synchronize", 0, stream)
