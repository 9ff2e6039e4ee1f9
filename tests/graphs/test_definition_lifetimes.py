"""What nodes of graphs made by hand keep alive once they were changed, copied and taken out."""

import gc
import threading
import weakref

import numpy as np
import pytest
from child import in_own_process
from graph_memory import filled, read, replay

import accelrt

pytestmark = pytest.mark.usefixtures("by_hand")
COUNT = 256


def buffer(value=0):
    return filled(4 * COUNT, value)


@pytest.fixture
def number(image):
    return accelrt.Module(image).function("number", "uint32_t* at, uint32_t value")


def alive(references):
    gc.collect()
    return [each() is not None for each in references]


def captured(*functions, fills=()):
    graph = accelrt.CUDAGraph(keep_graph=True)
    with accelrt.graph(graph):
        for memory in fills:
            memory.fill(1)
        for function in functions:
            accelrt.current_stream().launch_host_func(function)
    return graph


SIDES = {
    "fill": (lambda d, x, y: d.fill(y, 3), lambda node, z: node.update(value=4), [False, True, False]),
    "dst": (lambda d, x, y: d.copy(y, x), lambda node, z: node.update(dst=z), [True, False, True]),
    "src": (lambda d, x, y: d.copy(y, x), lambda node, z: node.update(src=z), [False, True, True]),
    "rows": (
        lambda d, x, y: d.copy_3d(y, x, 8, 2, src_pitch=16),
        lambda node, z: node.update(src=z),
        [False, True, True],
    ),
}


@pytest.mark.parametrize("kind", SIDES)
def test_the_memory_of_a_side_that_a_change_does_not_name_stays(kind):
    add, change, kept = SIDES[kind]
    definition = accelrt.GraphDefinition()
    x, y, z = buffer(1), buffer(2), buffer(3)
    watched = [weakref.ref(each) for each in (x, y, z)]
    node = add(definition, x, y)
    change(node, z)
    del x, y, z
    assert alive(watched) == kept
    graph = definition.instantiate()
    del definition, node
    assert alive(watched) == kept
    replay(graph)


def test_the_side_that_an_instance_was_given_stays_where_the_other_is_changed():
    definition = accelrt.GraphDefinition()
    x, y = buffer(1), buffer(2)
    node = definition.copy(y, x)
    graph = definition.instantiate()
    others = [buffer(), buffer(9)]
    watched = [weakref.ref(each) for each in others]
    node.update(instance=graph, dst=others[0])
    node.update(instance=graph, src=others[1])
    others.clear()
    assert alive(watched) == [True, True]
    replay(graph)
    assert (read(watched[0]()) == 9).all()


class Changing:
    """An int, and memory, whose code changes a node."""

    def __init__(self, node, memory, **change):
        self.node, self.memory, self.change = node, memory, change

    def __index__(self):
        self.node.update(**self.change)
        return 7

    @property
    def __cuda_array_interface__(self):
        self.node.update(**self.change)
        return {"shape": (4 * COUNT,), "typestr": "|u1", "data": (self.memory.ptr, False), "version": 3}


@pytest.mark.parametrize("of_instance", [False, True])
@pytest.mark.parametrize("kind", ["fill", "copy"])
def test_a_change_beside_another_one_of_the_node_is_refused(kind, of_instance):
    """Else the node would go on with the side that it was given up for, and no longer kept."""
    definition, x, y, z = accelrt.GraphDefinition(), buffer(1), buffer(2), buffer(3)
    node = definition.fill(x, 5) if kind == "fill" else definition.copy(x, y)
    where = {"instance": definition.instantiate()} if of_instance else {}
    changing = Changing(node, y, dst=z, **where)
    with pytest.raises(RuntimeError, match="the node was changed by another thread, or by code of"):
        node.update(**{"value" if kind == "fill" else "src": changing}, **where)
    replay(where.get("instance") or definition.instantiate())
    assert (read(z, np.uint8) == (5 if kind == "fill" else 2)).all()
    assert (read(x, np.uint8) == 1).all()


def test_an_address_takes_the_place_of_memory_that_is_kept():
    definition = accelrt.GraphDefinition()
    x, y = buffer(1), buffer(2)
    watched = weakref.ref(x)
    node = definition.copy(y, x, 16)
    node.update(src=y.ptr, src_offset=16)
    del x
    assert alive([watched]) == [False]


def test_numbers_of_a_copy_and_a_fill_that_do_not_go_are_refused_and_not_left_as_they_are():
    definition = accelrt.GraphDefinition()
    x, y = buffer(1), buffer(2)
    rows, fill = definition.copy_3d(y, x, 8, 2), definition.fill(x, 1, 4, height=2, pitch=8)
    for name in ("width", "height", "depth", "dst_pitch", "src_lines"):
        with pytest.raises(ValueError, match=name):
            rows.update(**{name: 0})
    for name in ("count", "width", "height", "pitch"):
        with pytest.raises(ValueError, match=name):
            fill.update(**{name: 0})


def copies(definition, way):
    if way == "clone":
        return definition.clone()
    parent = accelrt.GraphDefinition()
    parent.child(definition)
    return parent


@pytest.mark.parametrize("way", ["clone", "child"])
def test_a_copy_of_a_graph_keeps_what_its_kernels_were_changed_to(number, way):
    definition = accelrt.GraphDefinition()
    x, y = buffer(), buffer()
    watched = weakref.ref(y)
    definition.kernel(number, 4, 64, (x, 5)).update(args=(y, 6))
    copy = copies(definition, way)
    del definition, y
    assert alive([watched]) == [True]
    replay(copy.instantiate())
    assert read(watched())[0] == 6


@pytest.mark.parametrize("way", ["clone", "child"])
def test_a_copy_of_a_graph_keeps_what_its_captured_nodes_were_changed_to(number, way):
    x, y, z = buffer(), buffer(), buffer()
    graph = captured(fills=[x])
    definition = accelrt.GraphDefinition(graph)
    definition.nodes()[0].update(dst=y)
    watched = [weakref.ref(each) for each in (y, z)]
    other = accelrt.CUDAGraph(keep_graph=True)
    with accelrt.graph(other):
        number.launch(4, 64, (x, 1))
    other.set_kernel_node_params(other.nodes()[0], args=(z, 7))  # before there is a definition
    both = [copies(definition, way), copies(accelrt.GraphDefinition(other), way)]
    del graph, definition, other, y, z
    assert alive(watched) == [True, True]
    for copy in both:
        replay(copy.instantiate())
    assert (read(watched[0]()) == 1).all()
    assert read(watched[1]())[0] == 7


def test_a_node_that_was_changed_lets_go_of_all_when_it_is_taken_out(number):
    definition = accelrt.GraphDefinition()
    x, y = buffer(), buffer()
    nodes = [definition.kernel(number, 4, 64, (x, 5)), definition.fill(x, 1)]
    nodes[0].update(args=(y, 6))
    nodes[1].update(dst=y)
    watched = [weakref.ref(each) for each in (x, y, number)]
    for node in nodes:
        node.remove()
    del x, y, nodes, node
    assert alive(watched)[:2] == [False, False]


def test_what_is_instantiated_of_a_graph_itself_keeps_what_a_node_had_that_is_taken_out():
    definition = accelrt.GraphDefinition()
    x, y = buffer(), buffer(1)
    node = definition.fill(x, 5)
    definition.graph.instantiate()
    node.update(dst=y)
    watched = weakref.ref(y)
    node.remove()
    del y
    assert alive([watched]) == [True]
    replay(definition.graph)
    assert (read(watched()) == 5).all()
    definition.fill(x, 1)
    definition.graph.instantiate()
    assert alive([watched]) == [False]


def test_memory_of_others_stays_until_replays_of_the_instance_before_are_over():
    definition = accelrt.GraphDefinition()
    x, ordinary = buffer(), np.full(4 * COUNT, 7, np.uint8)
    watched = weakref.ref(ordinary)
    node = definition.copy(x, ordinary)
    definition.graph.instantiate()
    stream, ready = accelrt.Stream(), threading.Event()
    with accelrt.stream(stream):
        stream.launch_host_func(ready.wait)
        definition.graph.replay()
        node.remove()
        definition.fill(buffer(), 1)
        definition.graph.instantiate()
    del ordinary
    assert alive([watched]) == [True]
    ready.set()
    stream.synchronize()
    assert (read(x) == 7).all()


def test_a_kernel_is_told_whenever_it_was_added(number, image):
    definition, x = accelrt.GraphDefinition(), buffer()
    first = definition.kernel(number, 4, 64, (x, 5))
    assert first.params.kernel is number
    other = accelrt.Module(image).function("number", "uint32_t* at, uint32_t value")
    second = definition.kernel(other, 4, 64, (x, 6), after=first)
    assert second.params.kernel is other
    inner = accelrt.GraphDefinition()
    third = accelrt.Module(image).function("number", "uint32_t* at, uint32_t value")
    child = definition.child(inner)
    inner.kernel(third, 4, 64, (x, 7))
    child.update(graph=inner)
    assert child.params.nodes()[0].params.kernel is third


def test_captured_functions_and_events_are_told_once_they_are_changed():
    calls, event = [], accelrt.Event(external=True)
    graph = accelrt.CUDAGraph(keep_graph=True)
    with accelrt.graph(graph):
        accelrt.current_stream().launch_host_func(lambda: calls.append(1))
        accelrt.Event(external=True).record()
    definition = accelrt.GraphDefinition(graph)
    called, recorded = definition.nodes()

    def function():
        calls.append(2)

    called.update(function=function)
    recorded.update(event=event)
    assert called.params is function
    assert recorded.params is event
    assert [node.params for node in definition.clone().nodes()] == [function, event]
    replay(definition.instantiate())
    assert calls == [2]


def test_an_instance_is_given_another_function_after_the_definition_was():
    calls = []
    definition = accelrt.GraphDefinition(captured(lambda: calls.append(1)))
    graph = definition.instantiate()
    (node,) = definition.nodes()
    node.update(function=lambda: calls.append(2))
    node.update(instance=graph, function=lambda: calls.append(3))
    replay(graph)
    replay(definition.instantiate())
    assert calls == [3, 2]


def test_a_function_within_a_child_that_was_captured_is_changed_in_the_instance_of_the_graph_itself():
    calls = []
    inner = accelrt.GraphDefinition()
    inner.host_function(lambda: calls.append(1))
    graph = accelrt.CUDAGraph(keep_graph=True)
    with accelrt.graph(graph):
        filled(16)
        accelrt.GraphDefinition(graph).child(inner)
    graph.instantiate()  # before a definition looks at its nodes
    definition = accelrt.GraphDefinition(graph)
    child = next(node for node in definition.nodes() if node.type == "graph")
    child.params.nodes()[0].update(function=lambda: calls.append(2))
    replay(graph)
    assert calls == [2]


def test_a_node_within_a_child_that_came_later_is_none_of_what_is_instantiated():
    definition, x = accelrt.GraphDefinition(), buffer()
    definition.fill(x, 1)
    definition.graph.instantiate()
    child = definition.child(captured(lambda: None, fills=[x]))
    for node, change in zip(child.params.nodes(), ({"value": 2}, {"function": print}), strict=True):
        with pytest.raises(RuntimeError, match="added after the graph was instantiated"):
            node.update(**change)


def with_memory_of_its_own(target, value, pool=None):
    graph = accelrt.CUDAGraph(keep_graph=True)
    with accelrt.graph(graph, pool=pool):
        inner = accelrt.Buffer(target.nbytes)
        inner.fill(value)
        accelrt.copy(target, inner, blocking=False)
    return graph


def test_a_child_keeps_the_pool_of_the_graph_that_was_captured():
    definition, target = accelrt.GraphDefinition(), buffer()
    child = definition.child(with_memory_of_its_own(target, 3))
    first = definition.instantiate()
    child.update(instance=first, graph=with_memory_of_its_own(target, 4))
    child.update(graph=with_memory_of_its_own(target, 5))
    second = definition.clone().instantiate()
    del definition, child
    gc.collect()
    accelrt.empty_cache()
    others = [buffer(1) for _ in range(4)]
    for graph, value in ((first, 4), (second, 5)):
        replay(graph)
        assert (read(target) == value).all()
    assert all((read(each) == 1).all() for each in others)


def test_a_child_whose_memory_sleeps_is_not_replayed():
    definition, target, pool = accelrt.GraphDefinition(), buffer(), accelrt.MemPool()
    definition.child(with_memory_of_its_own(target, 3, pool))
    graph = definition.instantiate()
    pool.sleep()
    with pytest.raises(accelrt.SleepingMemoryError):
        graph.replay()
    pool.wake()
    replay(graph)
    assert (read(target) == 3).all()


def test_what_draws_random_numbers_is_no_child():
    graph, numbers = accelrt.CUDAGraph(keep_graph=True), accelrt.empty(4, "float32")
    with accelrt.graph(graph):
        numbers.copy_(accelrt.random.rand(4))
    definition = accelrt.GraphDefinition()
    child = definition.child(accelrt.GraphDefinition())
    for refused in (lambda: definition.child(graph), lambda: child.update(graph=graph)):
        with pytest.raises(accelrt.NotSupportedError, match="random numbers"):
            refused()
    assert definition.nodes() == [child]


@in_own_process(printing="[2, 2, 2, 4]\n")
def test_the_exit_waits_for_no_function_that_captured_nodes_call_no_more():
    calls = []
    inner, other = accelrt.GraphDefinition(), accelrt.GraphDefinition()
    inner.host_function(lambda: calls.append(1))
    other.host_function(lambda: calls.append(2))
    graph = accelrt.CUDAGraph(keep_graph=True)
    with accelrt.graph(graph):
        filled(16)
        accelrt.GraphDefinition(graph).child(inner)
    definition = accelrt.GraphDefinition(graph)
    first, second = definition.instantiate(), accelrt.GraphDefinition(captured(lambda: calls.append(3)))
    child = next(node for node in definition.nodes() if node.type == "graph")
    child.update(instance=first, graph=other)
    replay(first)
    child.update(graph=other)
    replay(definition.instantiate())
    replay(definition.clone().instantiate())
    second.nodes()[0].update(function=lambda: calls.append(4))
    replay(second.instantiate())
    print(calls)
