"""Nodes of an instance that are changed, while the definition goes other ways."""

import ctypes
import gc
import os
import weakref

import pytest
from child import in_own_process
from graph_memory import filled, read, read_numbers, replay

import accelrt
from accelrt import testing

pytestmark = pytest.mark.usefixtures("by_hand")
COUNT = 64
ON_HOST = os.environ.get("ACCELRT_DRIVER", "host") == "host"
SIZES = """
extern "C" __global__ void sizes(unsigned* to, unsigned value) {
    *to = gridDim.x * 10000 + blockDim.x * 100 + value;
}
"""


@pytest.fixture(scope="module")
def sizes():
    return accelrt.compile(SIZES).function("sizes", "unsigned* to, unsigned value")


def bytes_of(value=0):
    return filled(COUNT, value)


def size_of(graph, memory):
    replay(graph)
    return read_numbers(memory)[0]


def test_an_instance_keeps_the_launch_that_it_has_where_the_definition_changes(sizes):
    definition, x = accelrt.GraphDefinition(), bytes_of()
    node = definition.kernel(sizes, 1, 2, (x, 3))
    first = definition.instantiate()
    node.update(grid=4)
    second = definition.instantiate()
    node.update(block=5, args=(x, 6))
    third = definition.instantiate()
    node.update(grid=7)
    for instance in (first, second, third):
        node.update(instance=instance, shared=16)
    assert [size_of(graph, x) for graph in (first, second, third)] == [10203, 40203, 40506]
    node.update(instance=first, args=(x, 8))
    node.update(instance=second, grid=9)
    assert [size_of(graph, x) for graph in (first, second, third)] == [10208, 90203, 40506]
    assert size_of(definition.instantiate(), x) == 70506


def test_a_launch_that_was_changed_before_is_changed_in_an_instance(sizes):
    definition, x = accelrt.GraphDefinition(), bytes_of()
    node = definition.kernel(sizes, 1, 2, (x, 3))
    node.update(grid=4)
    instance = definition.instantiate()
    node.update(instance=instance, block=5)
    assert size_of(instance, x) == 40503


@pytest.mark.host
@in_own_process
def test_what_an_instance_does_since_it_was_changed_is_not_asked_of_the_driver_again():
    testing.use_device()
    nothing = accelrt.host_kernel(ctypes.cast(ctypes.CDLL(None).getpid, ctypes.c_void_p).value, ["char*"])
    definition = accelrt.GraphDefinition()
    x, y, z = bytes_of(1), bytes_of(2), bytes_of()
    launch = definition.kernel(nothing, 1, 1, (x,))
    copied = definition.copy(z, x, 8, after=launch)
    filled = definition.fill(y, 3, 8, after=copied)
    instance = definition.instantiate()
    changes = {launch: {"args": (y,)}, copied: {"src": y}, filled: {"value": 4}}
    for node, change in changes.items():
        with testing.failing(rows=["graph_node_params"]), pytest.raises(accelrt.CudaError, match="params"):
            node.update(instance=instance, **change)
        node.update(instance=instance, **change)
    with testing.failing(rows=["graph_node_params"]):
        launch.update(instance=instance, args=(x,))
        copied.update(instance=instance, dst=y, src=z)
        filled.update(instance=instance, dst=z)
    replay(instance)
    assert read(z).tobytes() == bytes([4] * 8 + [0] * (COUNT - 8))
    assert read(y).tobytes() == bytes([0] * 8 + [2] * (COUNT - 8))


@pytest.mark.parametrize("name", ["update", "set_kernel_node_params"])
def test_a_node_that_was_taken_out_is_changed_in_no_instance_that_changed_it(sizes, name):
    definition, x = accelrt.GraphDefinition(), bytes_of()
    node = definition.kernel(sizes, 1, 2, (x, 3))
    handle, instance = node.id, definition.instantiate()
    node.update(instance=instance, args=(x, 4))
    node.remove()
    with pytest.raises(accelrt.CudaError, match="INVALID_VALUE"):
        if name == "update":
            node.update(instance=instance, args=(x, 5))
        else:
            instance.set_kernel_node_params(handle, args=(x, 5))
    assert size_of(instance, x) == 10204


def test_an_instance_keeps_the_copy_and_the_fill_that_it_has():
    definition = accelrt.GraphDefinition()
    x, y, z = bytes_of(1), bytes_of(), bytes_of()
    copied = definition.copy(y, x, 8)
    filled = definition.fill(z, 2, 8)
    instance = definition.instantiate()
    copied.update(nbytes=16)
    filled.update(count=16)
    filled.update(value=3)
    w = bytes_of(4)
    copied.update(instance=instance, src=w)
    filled.update(instance=instance, value=5)
    replay(instance)
    assert read(y).tolist() == [4] * 8 + [0] * (COUNT - 8)
    assert read(z).tolist() == [5] * 8 + [0] * (COUNT - 8)
    replay(definition.instantiate())
    assert read(y).tolist() == [1] * 16 + [0] * (COUNT - 16)
    assert read(z).tolist() == [3] * 16 + [0] * (COUNT - 16)


def test_what_no_instance_does_any_more_is_forgotten(sizes):
    definition, x = accelrt.GraphDefinition(), bytes_of()
    node = definition.kernel(sizes, 1, 2, (x, 3))
    first = definition.instantiate()
    kernels = []
    for value in range(4):
        kernel = accelrt.compile(SIZES).function("sizes", "unsigned* to, unsigned value")
        kernels.append(weakref.ref(kernel))
        node.update(kernel=kernel, args=(x, value))
        del kernel
        size_of(definition.instantiate(), x)
    node.update(kernel=sizes, args=(x, 4))
    accelrt.synchronize()
    gc.collect()
    assert [kernel() for kernel in kernels] == [None] * 4
    node.update(instance=first, block=5)
    assert size_of(first, x) == 10503


class Calls:
    """Functions for host nodes, each known by its name once it ran, and weakly."""

    def __init__(self):
        self.seen, self.alive = [], {}

    def definition(self, *names):
        definition, last = accelrt.GraphDefinition(), ()
        for name in names:
            last = definition.host_function(self.function(name), after=last)
        return definition

    def function(self, name):
        def function():
            self.seen.append(name)

        self.alive[name] = weakref.ref(function)
        return function

    def take(self):
        seen, self.seen = self.seen, []
        return seen

    def left(self):
        accelrt.synchronize()
        gc.collect()
        return [name for name, function in self.alive.items() if function() is not None]


@pytest.mark.parametrize("own", [False, True])
def test_an_instances_child_calls_the_functions_of_the_graph_that_it_is_now(own):
    calls = Calls()
    definition = calls.definition("outer")
    node = definition.child(calls.definition("a", "b"), after=definition.nodes())
    if own:
        definition.graph.instantiate()
    instance = definition.graph if own else definition.instantiate()
    replay(instance)
    assert calls.take() == ["outer", "a", "b"]
    for names in (("c", "d"), ("e", "f")):
        child = calls.definition(*names)
        node.update(instance=instance, graph=child)
        del child
        replay(instance)
        replay(instance)
        assert calls.take() == 2 * ["outer", *names]
    assert {"c", "d"}.isdisjoint(calls.left())
    del instance, node, definition
    assert calls.left() == []


def test_a_child_that_the_definition_replaced_is_replaced_in_an_instance():
    calls = Calls()
    definition = accelrt.GraphDefinition()
    node = definition.child(calls.definition("a"))
    first = definition.instantiate()
    node.update(graph=calls.definition("b"))
    second = definition.instantiate()
    for instance, name in ((first, "c"), (second, "d")):
        node.update(instance=instance, graph=calls.definition(name))
        replay(instance)
    assert calls.take() == ["c", "d"]
    replay(definition.instantiate())
    assert calls.take() == ["b"]
    del first, second, instance, node, definition
    assert calls.left() == []


@pytest.mark.skipif(not ON_HOST, reason="the driver changes no node of a child in an instance")
def test_a_child_within_a_child_calls_what_it_is_now():
    calls = Calls()
    inner, middle = calls.definition("a"), calls.definition("b")
    middle.child(inner, after=middle.nodes())
    definition = accelrt.GraphDefinition()
    node = definition.child(middle)
    called, nested = node.params.nodes()
    instance = definition.instantiate()
    nested.update(instance=instance, graph=calls.definition("c"))
    called.update(instance=instance, function=calls.function("d"))
    replay(instance)
    assert calls.take() == ["d", "c"]
    nested.update(instance=instance, graph=calls.definition("e"))
    other = calls.definition("f")
    other.child(calls.definition("g"), after=other.nodes())
    node.update(instance=instance, graph=other)
    replay(instance)
    assert calls.take() == ["f", "g"]
    with pytest.raises(RuntimeError, match="another graph for the child"):
        nested.update(instance=instance, graph=calls.definition("h"))
    with pytest.raises(RuntimeError, match="another graph for the child"):
        called.update(instance=instance, function=calls.function("i"))
    replay(instance)
    assert calls.take() == ["f", "g"]
    del instance, node, called, nested, definition, inner, middle, other
    assert calls.left() == []


def test_what_is_within_a_child_that_an_instance_was_given_anew_is_changed_there_no_more():
    x, y, calls = bytes_of(1), bytes_of(2), []
    inner, other = accelrt.GraphDefinition(), accelrt.GraphDefinition()
    for graph, memory in ((inner, x), (other, y)):
        graph.fill(memory, 3)
        graph.host_function(lambda memory=memory: calls.append(memory is y))
    definition = accelrt.GraphDefinition()
    child = definition.child(inner)
    first = definition.instantiate()
    changed, called = child.params.nodes()
    called.update(instance=first, function=print)
    child.update(instance=first, graph=other)
    for node, change in ((changed, {"value": 4}), (called, {"function": print})):
        with pytest.raises(RuntimeError, match="another graph for the child"):
            node.update(instance=first, **change)
    replay(first)
    assert calls == [True]
    assert (read(y) == 3).all()
    assert (read(x) == 1).all()
    child.update(graph=other)
    second = definition.instantiate()
    child.params.nodes()[0].update(instance=second, dst=x)
    replay(second)
    assert (read(x) == 3).all()
