"""Rows about graphs made by hand: nodes and edges, replays, changes, clones, memory and conditions."""

import ctypes

import numpy as np
import pytest
from capturing import INVALID_VALUE, UPDATE_FAILURE, run
from kernel_sources import numbers, read
from made_graphs import (
    ALLOCATE,
    CHILD,
    CONDITION,
    EMPTY,
    FREE,
    HOST,
    IF,
    KERNEL,
    RECORD,
    SWITCH,
    WAIT,
    WHILE,
    NodeParams,
    array,
    carrying,
    change,
    copied,
    edges,
    edges_told,
    filled,
    kernel,
    told,
)

from accelrt.driver.host import driver as host

NOT_SUPPORTED, OUT_OF_MEMORY, NOT_READY = 801, 2, 600
AUTO_FREE = 1
USED, MOST_USED, HELD, MOST_HELD = range(4)
BYTES = 4096


def add(rows, graph, params, *after):
    """A node that the graph takes; answers its handle."""
    nodes = array(after)
    given = ctypes.addressof(nodes), ctypes.addressof(params)
    return rows.ok("graph_node_add", 0, graph, len(after), *given)


def add_code(rows, graph, params, *after):
    nodes = array(after)
    return rows.graph_node_add(0, graph, len(after), ctypes.addressof(nodes), ctypes.addressof(params))[0]


def condition(rows, graph, value, kind, count, *after, handle=None):
    """(node, its bodies) of a condition with that first value, or of one that there is."""
    bodies = array([0] * count)
    params = NodeParams(type=CONDITION, kind=kind, count=count, bodies=ctypes.addressof(bodies))
    params.condition = rows.ok("graph_condition", 0, graph, value, 0) if handle is None else handle
    node = add(rows, graph, params, *after)
    return node, list(bodies)


@pytest.fixture
def graph(rows):
    code, made = rows.graph_create(0)
    if code == NOT_SUPPORTED:
        pytest.skip("the driver makes no graphs by hand")
    yield made
    rows.ok("graph_destroy", made)


def instance(rows, graph, flags=0):
    return rows.kept("graph_instantiate", 0, graph, flags)


def test_nodes_run_behind_those_that_they_come_after(rows, graph, device, stream, function):
    first = add(rows, graph, filled(device, 3, BYTES))
    second = add(rows, graph, copied(device + BYTES, device, BYTES), first)
    third = add(rows, graph, NodeParams(type=EMPTY), second)
    fourth = add(rows, graph, kernel(function, device, 7), third)
    assert rows.ok("graph_node_count", graph) == 4
    kinds = [rows.ok("graph_node_type", graph, node) for node in (first, second, third, fourth)]
    assert kinds == [2, 1, EMPTY, KERNEL]
    run(rows, instance(rows, graph), stream)
    assert (rows.read(device + BYTES, BYTES) == 3).all()
    assert (read(rows, device) == numbers(7)).all()


def test_edges_decide_the_order_and_not_the_nodes_numbers(rows, graph, device, stream):
    last = add(rows, graph, filled(device, 2, BYTES))
    middle = add(rows, graph, copied(device + BYTES, device, BYTES))
    first = add(rows, graph, filled(device, 1, BYTES))
    assert edges(rows, "graph_edges_add", graph, (first, middle), (middle, last)) == 0
    run(rows, instance(rows, graph), stream)
    assert (rows.read(device, BYTES) == 2).all()
    assert (rows.read(device + BYTES, BYTES) == 1).all()
    assert edges(rows, "graph_edges_remove", graph, (first, middle), (middle, last)) == 0
    assert edges(rows, "graph_edges_add", graph, (last, middle), (middle, first)) == 0
    run(rows, instance(rows, graph), stream)
    assert (rows.read(device, BYTES) == 1).all()
    assert (rows.read(device + BYTES, BYTES) == 2).all()


def test_a_circle_is_refused_when_it_is_instantiated(rows, graph, device):
    one, other = add(rows, graph, filled(device, 1, 8)), add(rows, graph, filled(device, 2, 8))
    assert edges(rows, "graph_edges_add", graph, (one, other), (other, one)) == 0
    assert rows.graph_instantiate(0, graph, 0)[0] == INVALID_VALUE


DEFAULT, PROGRAMMATIC = 0, 1
PROGRAMMATIC_PORT, LAUNCH_ORDER = 1, 2


def launches(rows, graph, function, device, count):
    """Kernel nodes that no edge connects."""
    return [add(rows, graph, kernel(function, device + 4096 * place, place)) for place in range(count)]


def test_edges_carry_what_they_were_added_with(rows, graph, device, stream, function):
    one, two, three, four = launches(rows, graph, function, device, 4)
    pairs = (one, two), (two, three), (one, three), (three, four)
    kinds = (PROGRAMMATIC, PROGRAMMATIC_PORT), (PROGRAMMATIC, LAUNCH_ORDER)
    assert edges(rows, "graph_edges_add", graph, *pairs[:2], data=carrying(*kinds)) == 0
    assert edges(rows, "graph_edges_add", graph, pairs[2], data=carrying((DEFAULT, 0))) == 0
    assert edges(rows, "graph_edges_add", graph, pairs[3]) == 0
    told = dict(zip(pairs, (*kinds, (0, 0), (0, 0)), strict=True))
    listed = edges_told(rows, graph)
    # NVIDIA's driver tells the port of a programmatic edge as the programmatic one.
    assert listed in (told, {**told, pairs[1]: (PROGRAMMATIC, PROGRAMMATIC_PORT)})
    told = listed
    assert rows.ok("graph_edges", graph, 0, 0, 0, 0) == 4
    clone = rows.kept("graph_clone", graph)
    names = {node: rows.ok("graph_find_in_clone", clone, node) for node in (one, two, three, four)}
    cloned = {(names[first], names[second]): kind for (first, second), kind in told.items()}
    assert edges_told(rows, clone) == cloned
    run(rows, instance(rows, graph), stream)
    assert (read(rows, device + 3 * 4096) == numbers(3)).all()
    rows.ok("graph_node_destroy", graph, two)
    assert edges_told(rows, graph) == {pairs[2]: (0, 0), pairs[3]: (0, 0)}


def test_an_edge_is_removed_by_what_it_carries(rows, graph, device, function):
    pair = tuple(launches(rows, graph, function, device, 2))
    kind = carrying((PROGRAMMATIC, PROGRAMMATIC_PORT))
    assert edges(rows, "graph_edges_add", graph, pair, data=kind) == 0
    assert edges(rows, "graph_edges_add", graph, pair) == INVALID_VALUE
    assert edges(rows, "graph_edges_remove", graph, pair) == 0  # whatever it carries
    assert edges_told(rows, graph) == {}
    assert edges(rows, "graph_edges_add", graph, pair, data=kind) == 0
    code = edges(rows, "graph_edges_remove", graph, pair, data=carrying((0, 0)))
    if code == 0 and rows.driver == "cuda":  # to which these may be no data
        code = edges(rows, "graph_edges_remove", graph, pair, data=carrying((0, 0)))
        assert edges(rows, "graph_edges_add", graph, pair, data=kind) == 0
    assert code == INVALID_VALUE
    assert edges_told(rows, graph) == {pair: (PROGRAMMATIC, PROGRAMMATIC_PORT)}
    assert edges(rows, "graph_edges_remove", graph, pair, data=kind) == 0
    assert edges_told(rows, graph) == {}


def test_programmatic_edges_are_between_kernels(rows, graph, device, function):
    (launch,) = launches(rows, graph, function, device, 1)
    other = add(rows, graph, filled(device, 1, 8))
    for kind, port in ((PROGRAMMATIC, PROGRAMMATIC_PORT), (PROGRAMMATIC, LAUNCH_ORDER)):
        for pair in ((launch, other), (other, launch)):
            code = edges(rows, "graph_edges_add", graph, pair, data=carrying((kind, port)))
            assert code == INVALID_VALUE
    assert edges_told(rows, graph) == {}


@pytest.mark.host
def test_edges_of_no_kind_are_refused_all_together(rows, on_host, graph, device, function):
    one, two, three = launches(rows, graph, function, device, 3)
    for kind, port in ((PROGRAMMATIC, 0), (DEFAULT, PROGRAMMATIC_PORT), (2, 1), (PROGRAMMATIC, 3)):
        data = carrying((PROGRAMMATIC, LAUNCH_ORDER), (kind, port))
        pairs = (one, two), (two, three)
        assert edges(rows, "graph_edges_add", graph, *pairs, data=data) == INVALID_VALUE
        assert edges_told(rows, graph) == {}
    assert rows.graph_edges(12345, 0, 0, 0, 0)[0] == INVALID_VALUE


def test_an_instance_is_not_updated_to_edges_of_another_kind(rows, graph, device, function):
    pair = tuple(launches(rows, graph, function, device, 2))
    assert edges(rows, "graph_edges_add", graph, pair) == 0
    exec_ = instance(rows, graph)
    assert rows.graph_update(exec_, graph)[0] == 0
    assert edges(rows, "graph_edges_remove", graph, pair) == 0
    kind = carrying((PROGRAMMATIC, PROGRAMMATIC_PORT))
    assert edges(rows, "graph_edges_add", graph, pair, data=kind) == 0
    assert rows.graph_update(exec_, graph)[0] == UPDATE_FAILURE


def test_tools_name_nodes_and_instances_by_numbers(rows, graph, device):
    first = add(rows, graph, filled(device, 1, 8))
    second = add(rows, graph, filled(device, 2, 8), first)
    code, number = rows.graph_node_tools_id(graph, first)
    if code == NOT_SUPPORTED:
        pytest.skip("the driver tells no such numbers")
    other = rows.ok("graph_node_tools_id", graph, second)
    assert number != other
    assert number >> 32 == other >> 32
    execs = [instance(rows, graph), instance(rows, graph)]
    told = {rows.ok("graph_exec_id", each) for each in execs}
    assert len(told) == 2
    assert number >> 32 not in told


@pytest.mark.host
def test_edges_and_nodes_that_are_none_are_refused(rows, on_host, graph, device):
    one, other = add(rows, graph, filled(device, 1, 8)), add(rows, graph, filled(device, 2, 8))
    assert edges(rows, "graph_edges_add", graph, (one, other), (one, 12345)) == INVALID_VALUE
    assert edges(rows, "graph_edges_remove", graph, (one, other)) == INVALID_VALUE  # none was added
    assert edges(rows, "graph_edges_add", graph, (one, one)) == INVALID_VALUE
    assert add_code(rows, graph, filled(device, 1, 8), 12345) == INVALID_VALUE
    assert add_code(rows, graph, filled(device, 1, 8), one, one) == INVALID_VALUE
    assert add_code(rows, graph, filled(device, 1, 8, element=3)) == INVALID_VALUE
    assert add_code(rows, graph, NodeParams(type=99)) == NOT_SUPPORTED
    assert add_code(rows, graph, NodeParams(type=RECORD, event=12345)) == 400
    assert rows.graph_node_destroy(graph, 12345) == INVALID_VALUE
    assert rows.ok("graph_edges", graph, 0, 0, 0, 0) == 0


def test_a_node_is_taken_out_with_its_edges(rows, graph, device, stream):
    first = add(rows, graph, filled(device, 1, BYTES))
    middle = add(rows, graph, filled(device, 2, BYTES), first)
    last = add(rows, graph, copied(device + BYTES, device, BYTES), middle)
    rows.ok("graph_node_destroy", graph, middle)
    assert rows.ok("graph_edges", graph, 0, 0, 0, 0) == 0
    assert edges(rows, "graph_edges_add", graph, (first, last)) == 0
    run(rows, instance(rows, graph), stream)
    assert (rows.read(device, 2 * BYTES) == 1).all()


def test_rows_of_copies_and_fills(rows, graph, device, stream):
    first = add(rows, graph, filled(device, 0, 2 * BYTES))
    second = add(rows, graph, filled(device + 8, 0x0201, 4, element=2, height=3, pitch=64), first)
    params = NodeParams(type=1, dst=device + BYTES, src=device + 8, width=8, height=3, depth=1)
    params.dst_pitch, params.src_pitch = 16, 64
    add(rows, graph, params, second)
    run(rows, instance(rows, graph), stream)
    found = rows.read(device, BYTES).view(np.uint16)
    assert np.flatnonzero(found).tolist() == [4, 5, 6, 7, 36, 37, 38, 39, 68, 69, 70, 71]
    assert set(found[found != 0]) == {0x0201}
    assert np.flatnonzero(rows.read(device + BYTES, 64)).tolist() == [
        *range(8),
        *range(16, 24),
        *range(32, 40),
    ]


def test_host_functions_and_events_are_nodes(rows, graph, device, stream, other, event):
    seen = []
    made = rows.ok("event_create", 0, 2)
    gate = rows.gate(other)
    rows.ok("event_record", 0, made, other)
    callback = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: seen.append(1))
    waits = add(rows, graph, NodeParams(type=WAIT, event=made))
    fn = ctypes.cast(callback, ctypes.c_void_p).value
    calls = add(rows, graph, NodeParams(type=HOST, fn=fn), waits)
    add(rows, graph, NodeParams(type=RECORD, event=event), calls)
    exec_ = instance(rows, graph)
    rows.ok("graph_launch", 0, exec_, stream)
    assert rows.event_query(0, event) == NOT_READY
    assert not seen
    gate.set()
    rows.ok("stream_synchronize", 0, stream)
    assert seen == [1]
    assert rows.event_query(0, event) == 0
    rows.ok("event_destroy", 0, made)


def test_a_child_is_a_copy_of_a_graph_and_its_events_are_the_launchs(rows, graph, device, stream, event):
    child = rows.ok("graph_create", 0)
    first = add(rows, child, filled(device, 5, BYTES))
    add(rows, child, NodeParams(type=RECORD, event=event), first)
    before = add(rows, graph, filled(device, 1, BYTES))
    node = add(rows, graph, NodeParams(type=CHILD, graph=child), before)
    add(rows, graph, copied(device + BYTES, device, BYTES), node)
    rows.ok("graph_destroy", child)
    assert rows.ok("graph_node_count", told(rows, graph, node).graph) == 2
    run(rows, instance(rows, graph), stream)
    assert (rows.read(device, 2 * BYTES) == 5).all()
    assert rows.event_query(0, event) == 0


def test_nodes_tell_what_they_do(rows, graph, device, event):
    one = told(rows, graph, add(rows, graph, copied(device + 64, device, 32)))
    assert (one.type, one.dst, one.src, one.width, one.height, one.depth) == (
        1,
        device + 64,
        device,
        32,
        1,
        1,
    )
    two = told(rows, graph, add(rows, graph, filled(device, 9, 4, element=4, height=2, pitch=64)))
    assert (two.type, two.dst, two.value, two.element) == (2, device, 9, 4)
    assert (two.width, two.height, two.dst_pitch) == (4, 2, 64)
    assert told(rows, graph, add(rows, graph, NodeParams(type=RECORD, event=event))).event == event
    assert told(rows, graph, add(rows, graph, NodeParams(type=EMPTY))).type == EMPTY


def test_an_instance_is_changed_and_nodes_left_out(rows, graph, device, stream):
    fill = add(rows, graph, filled(device, 1, BYTES))
    copy = add(rows, graph, copied(device + BYTES, device, BYTES), fill)
    exec_ = instance(rows, graph)
    run(rows, exec_, stream)
    assert change(rows, graph, exec_, fill, filled(device, 4, BYTES)) == 0
    run(rows, exec_, stream)
    assert (rows.read(device, 2 * BYTES) == 4).all()
    assert told(rows, graph, fill).value == 1
    rows.ok("graph_node_enable", 0, graph, exec_, copy, 0, 0)
    assert rows.ok("graph_node_enabled", graph, exec_, copy) == 0
    assert change(rows, graph, exec_, fill, filled(device, 6, BYTES)) == 0
    run(rows, exec_, stream)
    assert (rows.read(device, BYTES) == 6).all()
    assert (rows.read(device + BYTES, BYTES) == 4).all()
    rows.ok("graph_node_enable", 0, graph, exec_, copy, 1, 0)
    run(rows, exec_, stream)
    assert (rows.read(device + BYTES, BYTES) == 6).all()
    assert change(rows, graph, 0, fill, filled(device, 8, BYTES)) == 0
    run(rows, instance(rows, graph), stream)
    assert (rows.read(device, 2 * BYTES) == 8).all()


@pytest.mark.host
def test_the_host_device_leaves_no_fill_out(rows, on_host, graph, device):
    # A GPU's driver takes it, and launches lose their order; the guard asks none.
    fill = add(rows, graph, filled(device, 1, BYTES))
    exec_ = instance(rows, graph)
    assert rows.graph_node_enable(0, graph, exec_, fill, 0, 0) == INVALID_VALUE
    assert rows.ok("graph_node_enabled", graph, exec_, fill) == 1


def test_what_runs_is_left_alone_by_a_change(rows, graph, device, stream):
    fill = add(rows, graph, filled(device, 1, BYTES))
    exec_ = instance(rows, graph)
    gate = rows.gate(stream)
    rows.ok("graph_launch", 0, exec_, stream)
    assert change(rows, graph, exec_, fill, filled(device + BYTES, 2, BYTES)) == 0
    gate.set()
    rows.ok("stream_synchronize", 0, stream)
    assert (rows.read(device, BYTES) == 1).all()
    run(rows, exec_, stream)
    assert (rows.read(device + BYTES, BYTES) == 2).all()


def test_an_update_of_all_leaves_the_nodes_their_handles(rows, graph, device, stream):
    fill = add(rows, graph, filled(device, 1, BYTES))
    other, longer = rows.ok("graph_create", 0), rows.ok("graph_create", 0)
    add(rows, other, filled(device, 2, BYTES))
    node = add(rows, longer, filled(device, 2, BYTES))
    add(rows, longer, filled(device, 3, BYTES), node)
    exec_ = instance(rows, graph)
    assert rows.graph_update(exec_, longer)[0] == UPDATE_FAILURE
    assert rows.graph_update(exec_, other)[0] == 0
    run(rows, exec_, stream)
    assert (rows.read(device, BYTES) == 2).all()
    assert change(rows, graph, exec_, fill, filled(device, 7, BYTES)) == 0
    run(rows, exec_, stream)
    assert (rows.read(device, BYTES) == 7).all()
    for made in (other, longer):
        rows.ok("graph_destroy", made)


def test_a_clone_has_nodes_of_its_own(rows, graph, device, stream, function):
    fill = add(rows, graph, filled(device, 1, BYTES))
    run_ = add(rows, graph, kernel(function, device + BYTES, 3), fill)
    clone = rows.ok("graph_clone", graph)
    found = rows.ok("graph_find_in_clone", clone, fill)
    assert rows.ok("graph_find_in_clone", clone, run_) != run_
    assert change(rows, clone, 0, found, filled(device, 2, BYTES)) == 0
    assert told(rows, graph, fill).value == 1
    run(rows, instance(rows, clone), stream)
    assert (rows.read(device, BYTES) == 2).all()
    assert (read(rows, device + BYTES) == numbers(3)).all()
    rows.ok("graph_destroy", clone)


@pytest.mark.parametrize(("value", "expected"), [(0, 20), (1, 10), (7, 10)])
def test_a_condition_chooses_one_of_two_bodies(rows, graph, device, stream, value, expected):
    before = add(rows, graph, filled(device, 1, BYTES))
    _, (then, otherwise) = condition(rows, graph, value, IF, 2, before)
    add(rows, then, filled(device, 10, BYTES))
    add(rows, otherwise, filled(device, 20, BYTES))
    exec_ = instance(rows, graph)
    for _ in range(2):
        run(rows, exec_, stream)
        assert (rows.read(device, BYTES) == expected).all()


@pytest.mark.parametrize(("value", "expected"), [(0, 10), (1, 11), (2, 12), (3, 1), (99, 1)])
def test_a_switch_chooses_the_body_with_the_number(rows, graph, device, stream, value, expected):
    before = add(rows, graph, filled(device, 1, BYTES))
    _, bodies = condition(rows, graph, value, SWITCH, 3, before)
    for number, body in enumerate(bodies):
        add(rows, body, filled(device, 10 + number, BYTES))
    run(rows, instance(rows, graph), stream)
    assert (rows.read(device, BYTES) == expected).all()


def test_a_loop_ends_when_its_condition_is_set_and_conditions_nest(rows, graph, device, stream):
    handle = rows.ok("graph_condition", 0, graph, 1, 0)
    start = add(rows, graph, filled(device, 0, BYTES))
    _, (body,) = condition(rows, graph, 0, WHILE, 1, start, handle=handle)
    inner = rows.ok("graph_condition", 0, body, 1, 0)
    _, (once,) = condition(rows, body, 0, IF, 1, handle=inner)
    fill = add(rows, once, filled(device, 9, 8))
    sets = NodeParams(type=KERNEL, condition=handle, src=device + 64)
    add(rows, once, sets, fill)
    run(rows, instance(rows, graph), stream)
    assert rows.read(device, 9).tolist() == [9] * 8 + [0]


def test_memory_of_a_graph_comes_and_goes_with_launches(rows, graph, device, stream):
    params = NodeParams(type=ALLOCATE, size=BYTES, device=0)
    allocated = add(rows, graph, params)
    address = params.address
    assert told(rows, graph, allocated).address == address != 0
    assert told(rows, graph, allocated).size == BYTES
    fill = add(rows, graph, filled(address, 6, BYTES), allocated)
    copy = add(rows, graph, copied(device, address, BYTES), fill)
    add(rows, graph, NodeParams(type=FREE, address=address), copy)
    exec_ = instance(rows, graph)
    for _ in range(3):
        run(rows, exec_, stream)
    assert (rows.read(device, BYTES) == 6).all()
    held = rows.ok("graph_memory_get", 0, HELD)
    assert held >= BYTES
    assert rows.ok("graph_memory_get", 0, MOST_HELD) >= held
    assert rows.graph_node_destroy(graph, copy) != 0
    assert rows.graph_clone(graph)[0] != 0
    rows.ok("graph_exec_destroy", exec_)
    rows.keeps.remove(("graph_exec_destroy", exec_))
    rows.ok("graph_memory_trim", 0)
    assert rows.ok("graph_memory_get", 0, HELD) == 0
    rows.ok("graph_memory_reset", 0, MOST_HELD)
    assert rows.ok("graph_memory_get", 0, MOST_HELD) == 0
    rows.ok("graph_memory_reset", 0, MOST_USED)
    assert rows.graph_memory_reset(0, HELD) == INVALID_VALUE


def test_what_a_launch_leaves_allocated_is_freed_by_hand_or_by_the_next(rows, graph, device, stream):
    params = NodeParams(type=ALLOCATE, size=BYTES, device=0)
    add(rows, graph, filled(device, 1, 8), add(rows, graph, params))
    exec_ = rows.ok("graph_instantiate", 0, graph, 0)
    run(rows, exec_, stream)
    assert rows.graph_launch(0, exec_, stream) == INVALID_VALUE
    rows.alive["memory_alloc"] += 1
    rows.ok("memory_free", 0, params.address)
    run(rows, exec_, stream)
    rows.alive["memory_alloc"] += 1
    rows.ok("memory_free", 0, params.address)
    rows.ok("graph_exec_destroy", exec_)
    exec_ = rows.ok("graph_instantiate", 0, graph, AUTO_FREE)
    for _ in range(3):
        run(rows, exec_, stream)
    rows.ok("graph_exec_destroy", exec_)
    rows.alive["memory_alloc"] += 1
    rows.ok("memory_free", 0, params.address)


def test_a_graph_with_conditions_has_one_instance_at_a_time(rows, graph, device, stream):
    _, (body,) = condition(rows, graph, 1, IF, 1)
    add(rows, body, filled(device, 5, BYTES))
    first = rows.ok("graph_instantiate", 0, graph, 0)
    assert rows.graph_instantiate(0, graph, 0)[0] == NOT_SUPPORTED
    rows.ok("graph_exec_destroy", first)
    run(rows, instance(rows, graph), stream)
    assert (rows.read(device, BYTES) == 5).all()


@pytest.mark.host
@pytest.mark.children_of_themselves
def test_a_graph_is_no_child_of_itself_on_the_host(rows, on_host, graph, device):
    before = host.children_of_themselves()
    other = rows.ok("graph_create", 0)
    add(rows, other, filled(device, 5, BYTES))
    node = add(rows, graph, NodeParams(type=CHILD, graph=other))
    inner = told(rows, graph, node).graph
    for part, child in ((graph, graph), (inner, graph), (inner, inner)):
        assert add_code(rows, part, NodeParams(type=CHILD, graph=child)) == INVALID_VALUE
    assert host.children_of_themselves() == before + 3
    rows.ok("graph_destroy", other)


@pytest.mark.host
def test_edges_are_removed_all_or_none_on_the_host(rows, on_host, graph, device, function):
    one, two, three = launches(rows, graph, function, device, 3)
    kind = (PROGRAMMATIC, PROGRAMMATIC_PORT)
    assert edges(rows, "graph_edges_add", graph, (one, two), data=carrying(kind)) == 0
    assert edges(rows, "graph_edges_remove", graph, (one, two), (two, three)) == INVALID_VALUE
    assert edges_told(rows, graph) == {(one, two): kind}


@pytest.mark.host
def test_refusals_of_memory_and_conditions_on_the_host(rows, on_host, graph, device, stream):
    params = NodeParams(type=ALLOCATE, size=1 << 44, device=0)
    add(rows, graph, params)
    exec_ = instance(rows, graph)
    assert rows.graph_launch(0, exec_, stream) == OUT_OF_MEMORY
    assert rows.graph_instantiate(0, graph, 0)[0] == NOT_SUPPORTED  # one instance at a time
    assert add_code(rows, graph, NodeParams(type=ALLOCATE, size=8, device=9)) == INVALID_VALUE
    assert add_code(rows, graph, NodeParams(type=FREE, address=device)) == INVALID_VALUE
    assert rows.copy(0, stream, params.address, device, 64) == INVALID_VALUE  # no launch has it
    other = rows.ok("graph_create", 0)
    handle = rows.ok("graph_condition", 0, other, 0, 0)
    bodies = (ctypes.c_size_t * 3)()
    given = {"type": 13, "bodies": ctypes.addressof(bodies)}
    assert add_code(rows, graph, NodeParams(condition=handle, kind=IF, count=1, **given)) == INVALID_VALUE
    assert add_code(rows, other, NodeParams(condition=handle, kind=IF, count=3, **given)) == INVALID_VALUE
    assert add_code(rows, other, NodeParams(condition=handle, kind=WHILE, count=2, **given)) == INVALID_VALUE
    assert add_code(rows, other, NodeParams(condition=handle, kind=3, count=1, **given)) == INVALID_VALUE
    _, (body,) = condition(rows, other, 0, IF, 1, handle=handle)
    second = NodeParams(condition=handle, kind=WHILE, count=1, **given)
    for part in (other, body):  # a condition has one node, as NVIDIA's driver has it
        assert add_code(rows, part, second) == INVALID_VALUE
    assert add_code(rows, body, NodeParams(type=HOST, fn=1)) == NOT_SUPPORTED
    assert rows.graph_clone(other)[0] == NOT_SUPPORTED
    rows.ok("graph_destroy", other)
