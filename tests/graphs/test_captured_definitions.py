"""Nodes by hand in a graph that is being captured, and bodies of its conditions."""

import gc
import threading
import weakref

import numpy as np
import pytest
from graph_memory import filled, read, replay

import accelrt

pytestmark = pytest.mark.usefixtures("by_hand")
COUNT = 64
SET = """
extern "C" __device__ __cudart_builtin__ void CUDARTAPI
cudaGraphSetConditional(cudaGraphConditionalHandle condition, unsigned int value);

__global__ void set(cudaGraphConditionalHandle condition, unsigned* value) {
    cudaGraphSetConditional(condition, *value);
}
__global__ void count_down(cudaGraphConditionalHandle condition, unsigned* left) {
    *left -= 1;
    cudaGraphSetConditional(condition, *left);
}
__global__ void put(unsigned char* to, int value) {
    to[threadIdx.x] = value;
}
"""


@pytest.fixture(scope="module")
def kernels():
    return accelrt.compile(SET, name_expressions=["set", "count_down", "put"])


def bytes_of(value=0):
    return filled(COUNT, value)


def number(value):
    made = accelrt.Buffer(4)
    accelrt.copy(made, np.array([value], np.uint32))
    return made


def condition_or_skip(definition, value=0, **more):
    try:
        return definition.condition(value, **more)
    except accelrt.NotSupportedError:
        pytest.skip("the driver has no conditional nodes")


def test_a_node_goes_between_the_work_before_and_after():
    graph, x, y = accelrt.CUDAGraph(keep_graph=True), bytes_of(), bytes_of()
    with accelrt.graph(graph):
        x.fill(1)
        definition = accelrt.GraphDefinition(graph)
        middle = definition.copy(y, x)
        x.fill(2)
    (before,) = middle.predecessors
    (after,) = middle.successors
    assert [node.type for node in (before, middle, after)] == ["memset", "memcpy", "memset"]
    assert len(definition.edges()) == 2
    replay(graph)
    assert (read(x) == 2).all()
    assert (read(y) == 1).all()


def test_a_node_that_names_others_leaves_the_stream_alone():
    graph, x, y = accelrt.CUDAGraph(keep_graph=True), bytes_of(), bytes_of()
    with accelrt.graph(graph):
        definition = accelrt.GraphDefinition(graph)
        first = definition.fill(x, 1)
        second = definition.fill(x, 2)
        beside = definition.fill(y, 3, after=first)
        x.fill(4)
    assert set(first.successors) == {second, beside}
    assert beside.successors == ()
    replay(graph)
    assert (read(x) == 4).all()
    assert (read(y) == 3).all()


def test_a_stream_that_joined_has_a_place_of_its_own():
    graph, x, y = accelrt.CUDAGraph(keep_graph=True), bytes_of(), bytes_of()
    side = accelrt.Stream()
    with accelrt.graph(graph):
        origin = accelrt.current_stream()
        definition = accelrt.GraphDefinition(graph)
        first = definition.fill(x, 1)
        side.wait_stream(origin)
        with accelrt.stream(side):
            aside = definition.fill(y, 2)
        here = definition.fill(x, 3)
        origin.wait_stream(side)
        last = definition.empty()
    assert aside.predecessors == (first,)
    assert here.predecessors == (first,)
    assert set(last.predecessors) == {aside, here}
    replay(graph)
    assert (read(x) == 3).all()
    assert (read(y) == 2).all()


def test_a_node_outside_the_capture_comes_after_nothing():
    graph, x = accelrt.CUDAGraph(keep_graph=True), bytes_of()
    with accelrt.graph(graph):
        x.fill(1)
        definition = accelrt.GraphDefinition(graph)
        with accelrt.stream(accelrt.Stream()):
            apart = definition.empty()
    assert apart.predecessors == apart.successors == ()
    replay(graph)


def test_a_kernel_ends_a_loop_that_is_captured(kernels):
    graph, x, left = accelrt.CUDAGraph(), bytes_of(), number(0)
    count_down = kernels.function("count_down")  # loaded before the capture
    with accelrt.graph(graph):
        accelrt.fill(left, 5, width=4)
        definition = accelrt.GraphDefinition(graph)
        condition = condition_or_skip(definition, 1)
        loop = definition.while_(condition)
        with loop.bodies[0].capture():
            x.fill(7)
            count_down[1, 1](np.uint64(condition.handle), left)
        accelrt.copy(x[:1], x[1:2], blocking=False)
    replay(graph)
    assert read(left, np.uint32)[0] == 0
    assert (read(x) == 7).all()


@pytest.mark.parametrize("chosen", [0, 1, 5])
def test_an_if_with_an_else_is_captured(kernels, chosen):
    graph, x, y, flag = accelrt.CUDAGraph(), bytes_of(), bytes_of(), number(chosen)
    set_condition = kernels.function("set")
    with accelrt.graph(graph):
        definition = accelrt.GraphDefinition(graph)
        condition = condition_or_skip(definition)
        set_condition[1, 1](np.uint64(condition.handle), flag)
        node = definition.if_(condition, else_=True)
        for body, value in zip(node.bodies, (1, 2), strict=True):
            with body.capture():
                x.fill(value)
        y.fill(3)
    replay(graph)
    assert (read(x) == (1 if chosen else 2)).all()
    assert (read(y) == 3).all()


@pytest.mark.parametrize("chosen", [0, 1, 2, 3])
def test_a_switch_is_captured(chosen):
    graph, x = accelrt.CUDAGraph(keep_graph=True), bytes_of()
    with accelrt.graph(graph):
        definition = accelrt.GraphDefinition(graph)
        node = definition.switch(condition_or_skip(definition, chosen), 3)
        for value, body in enumerate(node.bodies):
            with body.capture():
                x.fill(value + 1)
    assert [body.nodes()[0].type for body in node.bodies] == ["memset"] * 3
    replay(graph)
    assert (read(x) == (chosen + 1) % 4).all()


def test_a_flag_sets_a_condition_of_a_capture():
    graph, x, flag = accelrt.CUDAGraph(), bytes_of(), number(1)
    with accelrt.graph(graph):
        definition = accelrt.GraphDefinition(graph)
        condition = condition_or_skip(definition)
        definition.set_condition(condition, flag)
        with definition.if_(condition).bodies[0].capture():
            x.fill(9)
    replay(graph)
    assert (read(x) == 9).all()
    accelrt.fill(flag, 0)
    x.fill(0)
    replay(graph)
    assert (read(x) == 0).all()


def test_a_body_takes_nodes_by_hand_while_its_graph_is_captured():
    graph, x, y = accelrt.CUDAGraph(keep_graph=True), bytes_of(), bytes_of()
    with accelrt.graph(graph):
        definition = accelrt.GraphDefinition(graph)
        body = definition.if_(condition_or_skip(definition, 1)).bodies[0]
        first = body.fill(x, 1)
        with body.capture():
            y.fill(2)
            inner = body.fill(y, 3)
    assert first.predecessors == first.successors == ()
    assert [node.type for node in inner.predecessors] == ["memset"]
    body.copy(x, y, after=[first, inner])  # and once the capture has ended
    replay(graph)
    assert (read(x) == 3).all()


def test_conditions_within_bodies_are_captured():
    graph, x = accelrt.CUDAGraph(), bytes_of()
    with accelrt.graph(graph):
        definition = accelrt.GraphDefinition(graph)
        outer = definition.if_(condition_or_skip(definition, 1)).bodies[0]
        with outer.capture():
            x.fill(1)
            inner = outer.if_(outer.condition(1)).bodies[0]
            with inner.capture():
                x.fill(2)
    replay(graph)
    assert (read(x) == 2).all()


def test_a_condition_on_a_forked_stream():
    graph, x = accelrt.CUDAGraph(), bytes_of()
    side = accelrt.Stream()
    with accelrt.graph(graph):
        origin = accelrt.current_stream()
        x.fill(1)
        side.wait_stream(origin)
        definition = accelrt.GraphDefinition(graph)
        condition = condition_or_skip(definition, 1)
        with accelrt.stream(side):
            node = definition.if_(condition)
            with node.bodies[0].capture():
                x.fill(2)
        origin.wait_stream(side)
    replay(graph)
    assert (read(x) == 2).all()


def test_a_child_is_captured():
    inner, graph, x = accelrt.CUDAGraph(keep_graph=True), accelrt.CUDAGraph(keep_graph=True), bytes_of()
    with accelrt.graph(inner):
        x.fill(5)
    with accelrt.graph(graph):
        x.fill(1)
        child = accelrt.GraphDefinition(graph).child(inner)
        accelrt.copy(x[:1], x[1:2], blocking=False)
    assert child.type == "graph"
    assert len(child.predecessors) == len(child.successors) == 1
    replay(graph)
    assert (read(x) == 5).all()


def test_an_allocation_is_captured_and_freed_behind_its_launch():
    graph, x = accelrt.CUDAGraph(keep_graph=True), bytes_of()
    used = accelrt.graph_memory_stats()["used"]
    with accelrt.graph(graph):
        definition = accelrt.GraphDefinition(graph)
        node = definition.allocate(COUNT)
        definition.fill(node.address, 6, COUNT)
        definition.copy(x, node.address, COUNT)
    assert node.params.kind == "device"
    replay(graph)
    assert (read(x) == 6).all()
    assert accelrt.graph_memory_stats()["used"] > used
    stream = accelrt.Stream()
    with pytest.raises(accelrt.CudaError):  # it is allocated still
        graph.replay()
    accelrt.free_graph_memory(node, stream)
    replay(graph)
    accelrt.free_graph_memory(node.address, stream)
    stream.synchronize()
    accelrt.graph_memory_trim()
    assert accelrt.graph_memory_stats()["used"] == used


def test_captured_work_uses_memory_that_the_graph_allocates(kernels):
    put = kernels.function("put")
    graph, x = accelrt.CUDAGraph(keep_graph=True), bytes_of()
    with accelrt.graph(graph):
        definition = accelrt.GraphDefinition(graph)
        node = definition.allocate(COUNT)
        with pytest.raises(
            accelrt.CudaError, match="pointer_device"
        ):  # which no driver knows before a launch
            accelrt.asarray(At(node.address))
        put[1, COUNT](node.address, 4)
        definition.copy(x, node.address, COUNT)
        definition.free(node)
    for _ in range(2):
        x.fill(0)
        replay(graph)
        assert (read(x) == 4).all()


class At:
    """COUNT bytes at an address."""

    def __init__(self, address):
        self.__cuda_array_interface__ = {
            "shape": (COUNT,), "typestr": "|u1", "data": (address, False), "version": 3
        }  # fmt: skip


def test_memory_that_no_launch_has_is_not_freed():
    definition = accelrt.GraphDefinition()
    node = definition.allocate(COUNT)
    with pytest.raises(accelrt.CudaError):
        accelrt.free_graph_memory(node)
    with pytest.raises(TypeError, match="memset node allocates nothing"):
        accelrt.free_graph_memory(definition.fill(bytes_of(), 1))


@pytest.mark.parametrize("kind", ["device", "host", "managed"])
def test_kinds_of_allocations(kind):
    definition = accelrt.GraphDefinition()
    try:
        node = definition.allocate(COUNT, device=0, kind=kind)
    except accelrt.CudaError:
        assert kind != "device"
        pytest.skip("the driver has graphs allocate device memory alone")
    params = node.params
    assert (params.kind, params.nbytes, params.peers) == (kind, COUNT, ())
    assert params.device == (-1 if kind == "host" and params.device < 0 else 0)
    filled = definition.fill(node.address, 3, COUNT, after=node)
    x = bytes_of()
    copied = definition.copy(x, node.address, COUNT, after=filled)
    definition.free(node, after=copied)
    replay(definition.instantiate())
    assert (read(x) == 3).all()


def test_other_kinds_and_devices_are_refused():
    definition = accelrt.GraphDefinition()
    with pytest.raises(ValueError, match="'device', 'host', 'managed'"):
        definition.allocate(COUNT, kind="unified")
    with pytest.raises(ValueError, match="99"):
        definition.allocate(COUNT, device=99)
    assert definition.nodes() == []


def test_what_nodes_use_lives_as_long_as_the_graph():
    graph, x = accelrt.CUDAGraph(), bytes_of()
    calls = []
    source = bytes_of(8)
    gone = weakref.ref(source)
    with accelrt.graph(graph):
        definition = accelrt.GraphDefinition(graph)
        definition.copy(x, source)
        definition.host_function(lambda: calls.append(1))
    del source, definition
    gc.collect()
    assert gone() is not None
    replay(graph)
    assert (read(x) == 8).all()
    assert calls == [1]
    graph.reset()
    gc.collect()
    assert gone() is None


def test_nodes_and_edges_stay_until_the_capture_has_ended():
    graph, x = accelrt.CUDAGraph(keep_graph=True), bytes_of()
    with accelrt.graph(graph):
        definition = accelrt.GraphDefinition(graph)
        first, second = definition.fill(x, 1), definition.fill(x, 2)
        for refused in (first.remove, lambda: definition.remove_edge(first, second)):
            with pytest.raises(RuntimeError, match="once the capture has ended"):
                refused()
    assert first.is_valid
    first.remove()
    assert not first.is_valid
    assert first.predecessors == first.successors == ()
    assert definition.nodes() == [second]
    replay(graph)
    assert (read(x) == 2).all()


def test_bodies_alone_are_captured_into_and_only_in_a_capture():
    definition = accelrt.GraphDefinition()
    with pytest.raises(RuntimeError, match="only the body of a condition"):
        definition.capture()
    body = definition.if_(condition_or_skip(definition)).bodies[0]
    with pytest.raises(RuntimeError, match="belongs into a capture"), body.capture():
        pass
    graph = accelrt.CUDAGraph(keep_graph=True)
    with accelrt.graph(graph):
        captured = accelrt.GraphDefinition(graph)
        context = captured.if_(captured.condition(1)).bodies[0].capture()
        other = accelrt.Stream()
        with accelrt.stream(other), pytest.raises(RuntimeError, match="does not capture"), context:
            pass
    with pytest.raises(RuntimeError, match="belongs into a capture"), context:
        pass


def test_a_graph_that_was_not_kept_has_no_definition_after_its_capture():
    graph, x = accelrt.CUDAGraph(), bytes_of()
    with accelrt.graph(graph):
        definition = accelrt.GraphDefinition(graph)
        definition.fill(x, 1)
    with pytest.raises(RuntimeError, match="keep_graph"):
        definition.nodes()
    with pytest.raises(RuntimeError, match="keep_graph"):
        definition.raw_cuda_graph()
    replay(graph)
    assert (read(x) == 1).all()


def test_a_broken_capture_takes_no_nodes():
    graph, x = accelrt.CUDAGraph(), bytes_of()
    stream = accelrt.Stream()
    with pytest.raises(accelrt.CaptureError), accelrt.graph(graph, stream=stream):
        definition = accelrt.GraphDefinition(graph)
        with pytest.raises(accelrt.CaptureError):
            stream.query()
        with pytest.raises(accelrt.CudaError):
            definition.fill(x, 1)
        raise_none = definition  # the capture's own error ends the block
    assert raise_none is definition
    assert not graph.is_captured


def test_two_threads_add_to_one_capture():
    graph, x = accelrt.CUDAGraph(keep_graph=True), bytes_of()
    refused = []

    def add():
        try:
            for _ in range(20):
                definition.empty()
        except RuntimeError as error:  # one of them at a time
            refused.append(str(error))

    with accelrt.graph(graph, capture_error_mode="relaxed"):
        x.fill(1)
        definition = accelrt.GraphDefinition(graph)
        threads = [threading.Thread(target=add) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert all("give each thread a CUDAGraph of its own" in text for text in refused)
    assert len(definition.nodes()) >= 21 if not refused else definition.nodes()
    replay(graph)
    assert (read(x) == 1).all()


def test_the_graph_under_capture_is_the_one_that_is_kept():
    graph, x = accelrt.CUDAGraph(keep_graph=True), bytes_of()
    with accelrt.graph(graph):
        x.fill(1)
        definition = accelrt.GraphDefinition(graph)
        handle = definition.raw_cuda_graph()
    assert handle == definition.raw_cuda_graph() == graph.raw_cuda_graph()
    body = None
    with accelrt.graph(other := accelrt.CUDAGraph(keep_graph=True)):
        captured = accelrt.GraphDefinition(other)
        body = captured.if_(condition_or_skip(captured)).bodies[0]
    assert body.raw_cuda_graph() not in (0, other.raw_cuda_graph())


def test_graphs_of_a_node_that_was_removed_are_gone():
    inner, middle, outer = (accelrt.GraphDefinition() for _ in range(3))
    x = bytes_of()
    inner.fill(x, 1)
    middle.child(inner)
    node = outer.child(middle)
    view = node.params
    deep = view.nodes()[0].params
    filled = deep.nodes()[0]
    body = outer.if_(condition_or_skip(outer)).bodies[0]
    node.remove()
    assert not filled.is_valid
    for gone in (view, deep):
        with pytest.raises(RuntimeError, match="taken out of its graph"):
            gone.nodes()
        with pytest.raises(RuntimeError, match="taken out of its graph"):
            gone.fill(x, 1)
        with pytest.raises(RuntimeError, match="taken out of its graph"):
            gone.raw_cuda_graph()
        assert "taken out" in repr(gone)
    assert body.nodes() == []


def test_the_graph_of_a_child_that_was_replaced_is_the_new_one():
    x = bytes_of()
    first, second, outer = (accelrt.GraphDefinition() for _ in range(3))
    first.fill(x, 1)
    second.fill(x, 2)
    node = outer.child(first)
    view = node.params
    filled = view.nodes()[0]
    instance = outer.instantiate()
    node.update(instance=instance, graph=second)
    assert view.nodes() == [filled]
    node.update(graph=second)
    assert not filled.is_valid
    for now in (view, node.params):  # what the node owns now
        assert now.nodes()[0].params.value == 2
    for graph in (instance, outer.instantiate()):
        x.fill(0)
        replay(graph)
        assert (read(x) == 2).all()


def function_of(definition):
    """A host function that a node of a definition calls, weakly."""

    def function():
        called.append(1)

    called = []
    return definition.host_function(function), weakref.ref(function), called


def test_nodes_within_a_child_let_go_of_what_they_used():
    inner, middle, outer = (accelrt.GraphDefinition() for _ in range(3))
    _, gone, called = function_of(inner)
    _, stays, _ = function_of(middle)
    middle.child(inner)
    node = outer.child(middle)
    clone = outer.clone()
    del inner, middle
    instance = outer.instantiate()
    replay(instance)
    assert called == [1]
    del instance
    (deep,) = (each for each in node.params.nodes() if each.type == "graph")
    deep.params.nodes()[0].remove()
    gc.collect()
    assert gone() is not None  # the clone has it
    del clone
    gc.collect()
    assert gone() is None
    assert stays() is not None
    replay(outer.instantiate())
    assert called == [1]
    node.remove()
    gc.collect()
    assert stays() is None


def test_a_captured_graph_as_a_child_keeps_its_functions():
    captured, outer = accelrt.CUDAGraph(keep_graph=True), accelrt.GraphDefinition()
    called = []
    with accelrt.graph(captured):
        accelrt.current_stream().launch_host_func(lambda: called.append(1))
    node = outer.child(captured)
    other = outer.child(captured, after=node)
    del captured
    gc.collect()
    replay(outer.instantiate())
    assert called == [1, 1]
    node.params.nodes()[0].remove()
    replay(outer.instantiate())
    assert called == [1, 1, 1]
    other.params.nodes()[0].remove()
    replay(outer.instantiate())
    assert called == [1, 1, 1]
