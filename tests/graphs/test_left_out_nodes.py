"""Nodes that an instance leaves out: the rest keeps its order, and they do again what they did."""

import gc
import itertools

import pytest
from beside import Crowd
from child import in_own_process
from graph_memory import filled, read, replay

import accelrt
from accelrt import testing

pytestmark = pytest.mark.usefixtures("by_hand")
COUNT = 64
BEFORE, AFTER = 99, 55
SLOW = """
extern "C" __global__ void slow(unsigned char* to, int value) {
    for (volatile int turn = 0; turn < 20000; turn = turn + 1) {}
    to[threadIdx.x] = value;
}
"""


@pytest.fixture(scope="module")
def slow():
    return accelrt.compile(SLOW).function("slow", "unsigned char* to, int value")


def add(definition, kind, slow, memory, sources, number, after):
    if kind == "fill":
        return definition.fill(memory, number, after=after)
    if kind == "copy":
        return definition.copy(memory, sources[number], after=after)
    return definition.kernel(slow, 1, COUNT, (memory, number), after=after)


@pytest.mark.parametrize("was_launched", [False, True])
@pytest.mark.parametrize("kinds", list(itertools.product(("fill", "copy", "kernel"), repeat=3)))
def test_what_is_left_of_a_chain_is_in_the_order_of_its_stream(slow, kinds, was_launched):
    memory, sources, stream = filled(COUNT), [filled(COUNT, number) for number in range(4)], accelrt.Stream()
    accelrt.synchronize()
    for out in itertools.product((False, True), repeat=3):
        definition, nodes = accelrt.GraphDefinition(), []
        for number, kind in enumerate(kinds, 1):
            nodes.append(add(definition, kind, slow, memory, sources, number, nodes[-1:]))
        graph = definition.instantiate()
        if was_launched:
            replay(graph)
        for node, is_out in zip(nodes, out, strict=True):
            node.set_enabled(graph, not is_out)
        assert [node.is_enabled(graph) for node in nodes] == [not is_out for is_out in out]
        last = max((number for number, is_out in enumerate(out, 1) if not is_out), default=BEFORE)
        for follows in (False, True):
            with accelrt.stream(stream):
                slow[1, COUNT](memory, BEFORE)
                graph.replay()
                if follows:
                    memory.fill(AFTER)
            stream.synchronize()
            assert (read(memory) == (AFTER if follows else last)).all(), (out, follows)


def chain():
    """A definition of two fills, one after the other, their nodes and what they fill."""
    definition, x, y = accelrt.GraphDefinition(), filled(COUNT), filled(COUNT)
    first = definition.fill(x, 1)
    return definition, first, definition.fill(y, 2, after=first), x, y


def move_and_return(definition, first, second):
    """Takes an edge back and adds it again, which changes the order of nodes that a driver has."""
    definition.remove_edge(first, second)
    definition.add_edge(first, second)


def numbers(*memory):
    """What each is filled with."""
    contents = [set(read(each).tolist()) for each in memory]
    assert all(len(content) == 1 for content in contents)
    return [content.pop() for content in contents]


def test_a_fill_does_again_what_the_instance_has():
    definition, first, second, x, y = chain()
    instance, other = definition.instantiate(), definition.instantiate()
    first.update(value=9)  # the definition's, later
    for node in (first, second):
        node.set_enabled(instance, False)
        node.set_enabled(instance, False)
    replay(instance)
    assert numbers(x, y) == [0, 0]
    replay(other)
    assert numbers(x, y) == [1, 2]
    second.update(instance=instance, value=3)
    replay(instance)
    assert numbers(x, y) == [1, 2]
    for node in (first, second):
        node.set_enabled(instance, True)
        node.set_enabled(instance, True)
    x.fill(0)
    replay(instance)
    assert numbers(x, y) == [1, 3]
    replay(definition.instantiate())
    assert numbers(x, y) == [9, 2]


def test_other_memory_by_a_name_is_filled_once_the_fill_is_done_again():
    definition, first, _, x, y = chain()
    instance, z = definition.instantiate(), filled(COUNT)
    arguments = accelrt.GraphParameters(instance, x=x)
    first.set_enabled(instance, False)
    arguments.replay(x=z)
    accelrt.synchronize()
    assert numbers(x, y, z) == [0, 2, 0]
    first.set_enabled(instance, True)
    replay(instance)
    assert numbers(x, y, z) == [0, 2, 1]


@pytest.mark.host
@in_own_process
def test_other_memory_that_a_driver_refuses_is_not_filled_later():
    testing.use_device()
    definition, first, _, x, y = chain()
    instance, z = definition.instantiate(), filled(COUNT)
    arguments = accelrt.GraphParameters(instance, x=x)
    first.set_enabled(instance, False)
    with testing.failing(rows=["graph_node_set"]), pytest.raises(accelrt.CudaError):
        arguments.rebind(x=z)
    with testing.failing(rows=["graph_node_set"]), pytest.raises(accelrt.CudaError):
        first.update(instance=instance, value=7)
    first.set_enabled(instance, True)
    replay(instance)
    assert numbers(x, y, z) == [1, 2, 0]


def test_an_update_by_its_own_definition_leaves_out_what_was_left_out():
    definition, first, second, x, y = chain()
    instance = definition.instantiate()
    first.set_enabled(instance, False)
    for value in (3, 4):
        first.update(value=value)
        second.update(value=value)
        instance.update(definition.graph)
        replay(instance)
        assert numbers(x, y) == [0, value]


@pytest.mark.parametrize(
    "change",
    ["another", "a node", "the same node anew", "an edge", "an edge and back", "edges before", "a clone"],
)
def test_an_update_by_another_shape_is_refused_where_fills_are_left_out(change):
    definition, first, second, x, y = chain()
    instance, to = definition.instantiate(), definition
    if change == "edges before":
        move_and_return(definition, first, second)
    first.set_enabled(instance, False)
    if change == "the same node anew":
        second.remove()
        definition.fill(y, 2, after=first)
    elif change == "an edge and back":
        move_and_return(definition, first, second)
    elif change == "another":
        to = chain()[0]
    elif change == "a node":
        definition.fill(y, 5, after=first)
        second.remove()
    elif change == "an edge":
        definition.remove_edge(first, second)
        definition.add_edge(second, first)
    elif change == "a clone":
        to = definition.clone()
    with pytest.raises(accelrt.CudaError, match="have it do them again"):
        instance.update(to.graph)
    replay(instance)
    assert numbers(x, y) == [0, 2]
    first.set_enabled(instance, True)
    replay(instance)
    assert numbers(x, y) == [1, 2]


@pytest.mark.parametrize("kind", ["copy", "kernel"])
def test_edges_that_are_gone_again_move_no_node_that_is_left_out(slow, kind):
    definition, sources = accelrt.GraphDefinition(), [filled(COUNT, number) for number in range(3)]
    x, y = filled(COUNT), filled(COUNT)
    first, second = (add(definition, kind, slow, to, sources, n, ()) for n, to in ((1, x), (2, y)))
    instance = definition.instantiate()
    definition.add_edge(first, second)
    definition.remove_edge(first, second)
    first.set_enabled(instance, False)
    with pytest.raises(accelrt.CudaError, match="have it do them again"):
        instance.update(definition.graph)
    replay(instance)
    assert numbers(x, y) == [0, 2]
    first.set_enabled(instance, True)
    instance.update(definition.graph)
    x.fill(0)
    replay(instance)
    assert numbers(x, y) == [1, 2]
    with pytest.raises(RuntimeError, match="no node of the graph"):  # the driver may have made it the other
        first.update(instance=instance)


def test_an_update_by_its_own_definition_leaves_the_nodes_changeable():
    definition, first, second, x, y = chain()
    instance, z = definition.instantiate(), filled(COUNT)
    first.set_enabled(instance, False)
    second.update(value=5)
    second.update(instance=instance, value=6)
    instance.update(definition.graph)
    assert [node.is_enabled(instance) for node in (first, second)] == [False, True]
    replay(instance)
    assert numbers(x, y) == [0, 5]
    first.set_enabled(instance, True)
    second.update(instance=instance, value=7)
    replay(instance)
    assert numbers(x, y) == [1, 7]
    instance.update(definition.graph)
    accelrt.GraphParameters(instance, y=y).replay(y=z)
    accelrt.synchronize()
    assert numbers(x, y, z) == [1, 7, 5]


def test_an_update_by_its_own_definition_lets_go_of_what_the_instance_alone_used():
    definition, first, _, x, y = chain()
    instance, before = definition.instantiate(), accelrt.memory_allocated()
    first.update(instance=instance, dst=filled(COUNT))
    assert accelrt.memory_allocated() > before
    replay(instance)
    assert numbers(x, y) == [0, 2]
    instance.update(definition.graph)
    gc.collect()
    accelrt.synchronize()
    assert accelrt.memory_allocated() == before
    replay(instance)
    assert numbers(x, y) == [1, 2]


def test_an_instance_that_was_given_another_child_takes_no_update_that_leaves_nodes_out():
    inner, other, x, y = accelrt.GraphDefinition(), accelrt.GraphDefinition(), filled(COUNT), filled(COUNT)
    inner.fill(x, 1)
    other.fill(x, 3)
    definition = accelrt.GraphDefinition()
    child, fill = definition.child(inner), definition.fill(y, 2)
    instance = definition.instantiate()
    child.update(instance=instance, graph=other)
    fill.set_enabled(instance, False)
    with pytest.raises(accelrt.CudaError, match="have it do them again"):
        instance.update(definition.graph)
    replay(instance)
    assert numbers(x, y) == [3, 0]


def test_a_captured_graph_is_brought_up_to_date_by_itself():
    graph, x = accelrt.CUDAGraph(keep_graph=True), filled(COUNT)
    with accelrt.graph(graph):
        x.fill(1)
    graph.instantiate()
    definition = accelrt.GraphDefinition(graph)
    (node,) = definition.nodes()
    arguments, y = accelrt.GraphParameters(graph, x=x), filled(COUNT)
    arguments.rebind(x=y)
    graph.update(definition.graph)
    replay(graph)
    assert numbers(x, y) == [1, 0]
    node.update(value=2)
    replay(graph)
    assert numbers(x, y) == [2, 0]
    definition.remove_edge(node, definition.fill(y, 3, after=node))
    with pytest.raises(RuntimeError, match="instantiate"):
        graph.update(graph)
    graph.instantiate()
    graph.update(graph)
    replay(graph)
    assert numbers(x, y) == [2, 3]


def test_no_other_definition_decides_which_copy_is_left_out():
    definition, other, x, y = (
        accelrt.GraphDefinition(),
        accelrt.GraphDefinition(),
        filled(COUNT, 1),
        filled(COUNT),
    )
    definition.fill(y, 5, count=8)
    copy = definition.copy(y, x, 8, dst_offset=8)
    other.copy(y, x, 8, dst_offset=16)
    other.fill(y, 6, count=8)
    instance = definition.instantiate()
    copy.set_enabled(instance, False)
    with pytest.raises(accelrt.CudaError, match="have it do them again"):
        instance.update(other.graph)
    replay(instance)
    assert read(y)[:24].tolist() == [5] * 8 + [0] * 16
    copy.set_enabled(instance, True)
    replay(instance)
    assert read(y)[:24].tolist() == [5] * 8 + [1] * 8 + [0] * 8


def test_rows_are_not_left_out():
    definition, x = accelrt.GraphDefinition(), filled(COUNT)
    rows = definition.fill(x, 1, count=4, height=2, pitch=8)
    row = definition.fill(x, 2, count=4, after=rows)
    instance = definition.instantiate()
    with pytest.raises(accelrt.CudaError, match="a fill of several rows cannot be left out"):
        rows.set_enabled(instance, False)
    assert rows.is_enabled(instance)
    row.set_enabled(instance, False)
    with pytest.raises(accelrt.CudaError):
        row.update(instance=instance, count=4, height=2, pitch=8)
    replay(instance)
    assert read(x)[:12].tolist() == [1] * 4 + [0] * 4 + [1] * 4


def test_an_instance_that_dies_leaves_nothing_to_the_next():
    definition, first, _, x, y = chain()
    for _ in range(20):
        instance = definition.instantiate()
        first.set_enabled(instance, False)
        replay(instance)
        assert numbers(x, y) == [0, 2]
        del instance
    accelrt.empty_cache()
    for _ in range(20):
        instance = definition.instantiate()
        assert first.is_enabled(instance)
        x.fill(0)
        replay(instance)
        assert numbers(x, y) == [1, 2]


@pytest.mark.host
def test_memory_for_what_is_left_out_goes_back_where_no_fill_is():
    definition, first, second, _, _ = chain()
    instances = [definition.instantiate() for _ in range(2)]
    accelrt.empty_cache()
    before = testing.live_objects()["allocations"]
    for instance in instances:
        for node in (first, second):
            node.set_enabled(instance, False)
    assert testing.live_objects()["allocations"] == before + 1
    first.set_enabled(instances[0], True)
    accelrt.empty_cache()
    assert testing.live_objects()["allocations"] == before + 1
    second.set_enabled(instances[0], True)
    del instances, instance
    gc.collect()
    accelrt.empty_cache()
    assert testing.live_objects()["allocations"] == before


def test_threads_leave_fills_out_beside_an_emptied_cache():
    def leave_out():
        definition, first, _, x, y = chain()
        instance = definition.instantiate()
        first.set_enabled(instance, False)
        instance.replay()
        accelrt.current_stream().synchronize()
        assert numbers(x, y) == [0, 2]

    with Crowd(leave_out, leave_out, accelrt.empty_cache):
        for _ in range(100):
            leave_out()
