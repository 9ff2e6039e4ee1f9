"""Rows about capture: what breaks one, and what it leaves behind."""

import ctypes

import pytest
from beside import on_a_thread
from capturing import (
    ACTIVE,
    CAPTURED_EVENT,
    GLOBAL,
    ILLEGAL_STATE,
    IMPLICIT,
    INVALID,
    INVALID_VALUE,
    ISOLATION,
    MERGE,
    NONE,
    RELAXED,
    THREAD_LOCAL,
    UNJOINED,
    UNMATCHED,
    UNSUPPORTED,
    WRONG_THREAD,
    broken,
)
from made_graphs import array, edges_told, filled

from accelrt.driver.host import driver as host

NOT_SUPPORTED = 801


def test_status_names_the_capture(rows, device, stream):
    assert rows.ok("capture_status", 0, stream) == (NONE, 0)
    assert rows.ok("stream_is_capturing", 0, stream) == NONE
    rows.ok("capture_begin", 0, stream, GLOBAL)
    status, first = rows.ok("capture_status", 0, stream)
    assert rows.ok("stream_is_capturing", 0, stream) == ACTIVE
    assert status == ACTIVE
    rows.ok("graph_destroy", rows.ok("capture_end", 0, stream))
    rows.ok("capture_begin", 0, stream, GLOBAL)
    assert rows.ok("capture_status", 0, stream)[1] != first
    rows.ok("graph_destroy", rows.ok("capture_end", 0, stream))


def test_the_legacy_stream_cannot_be_captured(rows):
    assert rows.capture_begin(0, 0, GLOBAL) == UNSUPPORTED


def test_ending_without_a_beginning(rows, stream):
    assert rows.capture_end(0, stream)[0] == ILLEGAL_STATE


@pytest.mark.parametrize(
    "ask",
    [
        lambda rows, stream: rows.stream_synchronize(0, stream),
        lambda rows, stream: rows.stream_query(0, stream),
        lambda rows, stream: rows.device_synchronize(0),
    ],
    ids=["stream_synchronize", "stream_query", "device_synchronize"],
)
def test_asking_a_capturing_stream_or_its_device_breaks_the_capture(rows, stream, ask):
    rows.ok("capture_begin", 0, stream, GLOBAL)
    assert ask(rows, stream) == UNSUPPORTED
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
    broken(rows, stream)
    assert getattr(rows, row)(0, event) == INVALID_VALUE  # nor has it one afterwards
    rows.ok("event_record", 0, event, stream)
    rows.ok("event_synchronize", 0, event)


@pytest.mark.parametrize("is_gone", [False, True])
def test_a_stream_that_joined_and_is_not_joined_back(rows, device, stream, event, is_gone):
    other = rows.stream()
    rows.ok("capture_begin", 0, stream, GLOBAL)
    rows.ok("event_record", 0, event, stream)
    rows.ok("stream_wait_event", 0, other, event)
    rows.ok("fill", 0, other, device, 1, 1, 16)
    if is_gone:
        rows.ok("stream_destroy", 0, other)
    assert rows.ok("capture_status", 0, stream)[0] == ACTIVE
    assert rows.capture_end(0, stream) == (UNJOINED, 0)
    if not is_gone:
        rows.ok("stream_synchronize", 0, other)
        rows.ok("stream_destroy", 0, other)


def test_ending_on_a_stream_that_joined(rows, stream, other, event):
    rows.ok("capture_begin", 0, stream, GLOBAL)
    rows.ok("event_record", 0, event, stream)
    rows.ok("stream_wait_event", 0, other, event)
    assert rows.capture_end(0, other)[0] == UNMATCHED
    broken(rows, stream)


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


@pytest.mark.parametrize("mode", [GLOBAL, THREAD_LOCAL, RELAXED])
@pytest.mark.parametrize("of", ["src", "dst"])
def test_a_copy_between_devices_breaks_the_capture(rows, device, mode, of):
    last = rows.ok("device_count") - 1
    if last == 0:
        pytest.skip("this driver has one device")
    far, on = rows.ok("memory_alloc", last, 4096), 0 if of == "src" else last
    stream = rows.ok("stream_create", on, 1, 0)
    calls = [lambda: rows.copy_across(on, stream, last, far, 0, device, 4096)]
    if of == "src":
        calls.append(lambda: rows.copy_peer(last, far, 0, device, 4096, stream))
    for call in calls:
        rows.ok("capture_begin", on, stream, mode)
        assert call() == UNSUPPORTED
        broken(rows, stream, on)
        assert call() == 0
        rows.ok("stream_synchronize", on, stream)
    rows.ok("stream_destroy", on, stream)
    rows.ok("memory_free", last, far)


@pytest.mark.parametrize("of", ["src", "dst"])
def test_a_copy_by_a_device_that_reaches_both_sides_is_captured(rows, device, of):
    last = rows.ok("device_count") - 1
    if last == 0 or not (rows.ok("can_access_peer", 0, last) and rows.ok("can_access_peer", last, 0)):
        pytest.skip("this driver has no two devices that reach each other's memory")
    for one, other in ((0, last), (last, 0)):
        rows.ok("enable_peer", one, other)
    far, on = rows.ok("memory_alloc", last, 4096), 0 if of == "src" else last
    stream = rows.ok("stream_create", on, 1, 0)
    rows.ok("capture_begin", on, stream, THREAD_LOCAL)
    rows.ok("copy_async", on, stream, far, device, 4096)
    graph = rows.ok("capture_end", on, stream)
    exec_ = rows.ok("graph_instantiate", on, graph, 0)
    rows.ok("fill", 0, 0, device, 9, 1, 4096)
    rows.ok("device_synchronize", 0)
    rows.ok("graph_launch", on, exec_, stream)
    rows.ok("stream_synchronize", on, stream)
    assert (rows.read(far, 4096) == 9).all()
    rows.ok("graph_exec_destroy", exec_)
    rows.ok("graph_destroy", graph)
    rows.ok("stream_destroy", on, stream)
    rows.ok("memory_free", last, far)


def ended_elsewhere(rows, stream):
    """What another thread is answered when it ends the capture."""

    def end():
        rows.ok("set_device", 0)
        return rows.capture_end(0, stream)

    return on_a_thread(end)


def test_another_thread_cannot_end_a_capture_but_ends_it(rows, stream):
    rows.ok("capture_begin", 0, stream, GLOBAL)
    assert ended_elsewhere(rows, stream) == (WRONG_THREAD, 0)
    assert rows.ok("capture_status", 0, stream)[0] == NONE
    assert rows.capture_end(0, stream)[0] == ILLEGAL_STATE


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
        return rows.memory_alloc(0, 1 << 20)

    for mode in (THREAD_LOCAL, GLOBAL):
        rows.ok("capture_begin", 0, stream, mode)
        codes.append(on_a_thread(allocate))
        if mode == THREAD_LOCAL:
            rows.ok("graph_destroy", rows.ok("capture_end", 0, stream))
    assert [code for code, _ in codes] == [0, UNSUPPORTED]
    broken(rows, stream)
    rows.ok("memory_free", 0, codes[0][1])


def site(rows, stream):
    """(graph that the stream captures into, nodes that its next one comes after)."""
    nodes = array([0] * 8)
    count, graph = rows.ok("capture_site", 0, stream, 8, ctypes.addressof(nodes))
    assert rows.ok("capture_site", 0, stream, 0, 0) == (count, graph)
    return graph, list(nodes)[:count]


def test_a_node_by_hand_in_a_capture(rows, device, stream):
    code, made = rows.graph_create(0)
    if code == NOT_SUPPORTED:
        pytest.skip("the driver makes no graphs by hand")
    rows.ok("graph_destroy", made)
    rows.ok("capture_begin", 0, stream, GLOBAL)
    graph, after = site(rows, stream)
    assert after == []
    rows.ok("fill", 0, stream, device, 1, 1, 4096)
    same, after = site(rows, stream)
    assert (same, len(after)) == (graph, 1)
    places, params = array(after), filled(device, 2, 4096)
    node = rows.ok("graph_node_add", 0, graph, 1, ctypes.addressof(places), ctypes.addressof(params))
    assert site(rows, stream) == (graph, after)
    rows.ok("capture_continue", 0, stream, node)
    assert site(rows, stream) == (graph, [node])
    rows.ok("fill", 0, stream, device + 4096, 3, 1, 4096)
    _, (last,) = site(rows, stream)
    assert rows.ok("capture_end", 0, stream) == graph
    assert edges_told(rows, graph).keys() == {(after[0], node), (node, last)}
    rows.ok("graph_destroy", graph)


def test_a_stream_that_does_not_capture_has_no_site(rows, device, stream):
    assert rows.capture_site(0, stream, 0, 0)[0] in (ILLEGAL_STATE, NOT_SUPPORTED)


@pytest.mark.host
@pytest.mark.continuations_of_others
def test_a_capture_goes_on_after_nodes_of_its_own_alone(rows, on_host, device, stream):
    before = host.continuations_of_others()
    rows.ok("capture_begin", 0, stream, GLOBAL)
    rows.ok("fill", 0, stream, device, 1, 1, 4096)
    assert rows.capture_continue(0, stream, 1 << 40) == INVALID_VALUE  # a GPU's driver dies
    assert host.continuations_of_others() == before + 1
    rows.ok("graph_destroy", rows.ok("capture_end", 0, stream))
