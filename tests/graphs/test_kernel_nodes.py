"""Kernel nodes of a captured graph: read, and changed without a new capture."""

import copy
import gc
import pickle
import threading
import weakref

import numpy as np
import pytest
from beside import Gate
from child import in_own_process, wrap_host
from graph_memory import read_numbers
from kernel_sources import image_for, numbers

import accelrt
from accelrt.driver import testing

COUNT = 256


def captured(image, instantiate=True):
    """A graph of a fill and a kernel, and the kernel's memory."""
    graph, buffer = accelrt.CUDAGraph(keep_graph=True), accelrt.Buffer(4 * COUNT)
    kernel = accelrt.Module(image).function("number", "uint32_t* at, uint32_t value")
    with accelrt.graph(graph):
        buffer.fill(0)
        kernel[4, 64](buffer, 5)
    if instantiate:
        graph.instantiate()
    return graph, buffer


def kernel_node(graph):
    return next(node for node in graph.nodes() if node.type == "kernel")


def test_a_kernel_node_tells_what_it_launches(image):
    graph, buffer = captured(image)
    params = kernel_node(graph).params
    assert params == graph.kernel_node_params(kernel_node(graph).id)
    assert (params.name, params.kernel.name) == ("number", "number")
    assert params.function == params.kernel.handle
    assert (params.grid, params.block, params.shared) == ((4, 1, 1), (64, 1, 1), 0)
    assert params.arguments == (buffer.ptr.to_bytes(8, "little"), (5).to_bytes(4, "little"))


@pytest.mark.parametrize("instantiate", [True, False])
def test_arguments_and_sizes_are_changed_without_a_new_capture(image, instantiate):
    graph, buffer = captured(image, instantiate)
    node = kernel_node(graph)
    graph.set_kernel_node_params(node, args=(buffer, 60))
    graph.replay()
    assert (read_numbers(buffer) == numbers(60)).all()
    node.params = node.params._replace(grid=(2, 1, 1), arguments=(buffer, 70))
    assert node.params.grid == (2, 1, 1)
    graph.replay()
    assert (read_numbers(buffer) == [*numbers(70, 128), *[0] * 128]).all()
    graph.set_kernel_node_params(node, block=32)
    graph.replay()
    assert (read_numbers(buffer)[:64] == numbers(70, 64)).all()
    graph.instantiate()
    graph.replay()
    assert (read_numbers(buffer)[:65] == [*numbers(70, 64), 0]).all()


def test_new_memory_is_kept_with_the_old(image):
    graph, buffer = captured(image)
    other, stream = accelrt.Buffer(4 * COUNT), accelrt.Stream()
    with accelrt.stream(stream):
        graph.replay()
    graph.set_kernel_node_params(kernel_node(graph), args=(other, 8))
    kept, old, address = weakref.ref(other), weakref.ref(buffer), other.ptr
    del other, buffer
    gc.collect()
    assert kept() is not None
    assert old() is not None
    with accelrt.stream(stream):
        accelrt.sleep(30_000_000)
        graph.replay()
    assert (read_late(kept(), stream) == numbers(8)).all()
    gate = threading.Event()
    stream.launch_host_func(gate.wait)  # the replay is not over before the memory is asked for
    with accelrt.stream(stream):
        graph.replay()
    graph.reset()
    del graph
    gc.collect()
    given = [block.ptr for block in [accelrt.Buffer(4 * COUNT) for _ in range(4)]]
    gate.set()
    assert address not in given
    stream.synchronize()
    accelrt.empty_cache()  # gives back what waited for the replays
    assert kept() is None


@pytest.mark.parametrize("replays", [False, True])
def test_what_a_change_used_goes_with_the_next_change(image, replays):
    graph, buffer = captured(image)
    node, live = kernel_node(graph), accelrt.memory_allocated()
    for value in range(50):
        graph.set_kernel_node_params(node, args=(accelrt.Buffer(1 << 20), value))
        if replays:
            graph.replay()
    accelrt.synchronize()
    accelrt.empty_cache()
    assert accelrt.memory_allocated() == live + (1 << 20)
    graph.set_kernel_node_params(node, args=(buffer, 9))
    graph.replay()
    assert (read_numbers(buffer) == numbers(9)).all()
    accelrt.empty_cache()
    assert accelrt.memory_allocated() == live


def test_what_a_change_used_stays_while_a_replay_uses_it(image):
    graph, buffer = captured(image)
    node, stream = kernel_node(graph), accelrt.Stream()
    first = accelrt.Buffer(4 * COUNT)
    graph.set_kernel_node_params(node, args=(first, 3))
    with Gate(stream):
        with accelrt.stream(stream):
            graph.replay()
        address, gone = first.ptr, weakref.ref(first)
        del first
        graph.set_kernel_node_params(node, args=(buffer, 4))
        gc.collect()
        assert gone() is None
        others = [accelrt.Buffer(4 * COUNT) for _ in range(8)]
        assert address not in {other.ptr for other in others}
    stream.synchronize()


def test_a_function_stays_loaded_while_a_replay_runs_it(image):
    graph, buffer = captured(image)
    node, stream = kernel_node(graph), accelrt.Stream()
    own = node.params.kernel
    other = accelrt.Module(image).function("number", "uint32_t* at, uint32_t value")
    try:
        graph.set_kernel_node_params(node, kernel=other, args=(buffer, 3))
    except accelrt.CudaError:
        pytest.skip("this driver takes no other function in an instance")
    function = weakref.ref(other)
    with Gate(stream):
        with accelrt.stream(stream):
            graph.replay()
        graph.set_kernel_node_params(node, kernel=own, args=(buffer, 4))
        del other
        gc.collect()
        assert function() is not None
    stream.synchronize()
    accelrt.empty_cache()
    gc.collect()
    assert function() is None
    graph.replay()
    assert (read_numbers(buffer) == numbers(4)).all()


def test_bytes_that_a_node_had_keep_what_they_point_at(image):
    graph, _ = captured(image)
    node, other = kernel_node(graph), accelrt.Buffer(4 * COUNT)
    graph.set_kernel_node_params(node, args=(other, 8))
    kept = weakref.ref(other)
    del other
    node.params = node.params._replace(grid=(2, 1, 1))
    graph.set_kernel_node_params(node, block=32)
    graph.set_kernel_node_params(node, args=(node.params.arguments[0], 7))
    gc.collect()
    assert kept() is not None
    graph.replay()
    assert (read_numbers(kept())[:64] == numbers(7, 64)).all()
    graph.set_kernel_node_params(node, args=(accelrt.Buffer(4 * COUNT), 7))
    gc.collect()
    assert kept() is None


@pytest.mark.host
@in_own_process(printing="(True, True) None None\n")
def test_a_change_that_only_the_instance_took_keeps_both_sides():
    """What becomes of the memory of two changes where the graph refuses what its instance took."""
    wrap_host()
    graph, buffer = captured(image_for("host"))
    node, other, third = kernel_node(graph), accelrt.Buffer(4 * COUNT), accelrt.Buffer(4 * COUNT)
    graph.set_kernel_node_params(node, args=(other, 8))
    before, after = weakref.ref(other), weakref.ref(third)
    testing.arm(2, 999, "once", ["graph_node_set"])
    with pytest.raises(accelrt.CudaError, match="graph_node_set"):
        graph.set_kernel_node_params(node, args=(third, 9))
    del other, third
    gc.collect()
    kept = before() is not None, after() is not None
    graph.set_kernel_node_params(node, args=(buffer, 1))
    gc.collect()
    print(kept, before(), after())


def test_nodes_of_a_large_graph_are_found_and_changed(image):
    graph, buffer = accelrt.CUDAGraph(keep_graph=True), accelrt.Buffer(4 * COUNT)
    kernel = accelrt.Module(image).function("number", "uint32_t* at, uint32_t value")
    with accelrt.graph(graph):
        for value in range(300):
            kernel[4, 64](buffer, value)
            buffer.fill(0)
    graph.instantiate()
    nodes = graph.nodes()
    assert [node.type for node in nodes] == ["kernel", "memset"] * 300
    for index, node in enumerate(nodes[::2]):
        assert node.params.arguments[1] == index.to_bytes(4, "little")
        graph.set_kernel_node_params(node, args=(buffer, index + 1))
        assert node.params.arguments[1] == (index + 1).to_bytes(4, "little")
    for memset in nodes[1::100]:
        with pytest.raises(accelrt.CudaError, match="it is no kernel node of this graph"):
            _ = memset.params


def read_late(memory, stream):
    out = np.zeros(COUNT, np.uint32)
    accelrt.copy(out, memory, stream=stream)
    return out


def test_another_kernel_takes_a_nodes_place(image):
    graph, buffer = captured(image)
    other = accelrt.Module(image).function("saxpy", "float a, const float* x, float* y, int n")
    x = accelrt.Buffer(4 * COUNT)
    accelrt.copy(x, np.ones(COUNT, np.float32))
    node = kernel_node(graph)
    try:
        graph.set_kernel_node_params(node, kernel=other, args=(2.5, x, buffer, COUNT))
    except accelrt.CudaError:
        pytest.skip("this driver takes no other function in an instance")
    assert node.params.name == "saxpy"
    graph.replay()
    assert (read_numbers(buffer).view(np.float32) == 2.5).all()


def test_a_change_that_does_not_fit_is_refused_and_changes_nothing(image):
    graph, buffer = captured(image)
    node, fill = kernel_node(graph), graph.nodes()[0]
    before = node.params
    for given, error in (
        ({"args": (buffer,)}, TypeError),
        ({"args": (buffer, None)}, TypeError),
        ({"grid": 0}, ValueError),
        ({"block": 2000}, accelrt.CudaError),
        ({"shared": 1 << 20}, accelrt.CudaError),
    ):
        with pytest.raises(error):
            graph.set_kernel_node_params(node, **given)
        assert node.params == before
    with pytest.raises(accelrt.CudaError, match="it is no kernel node of this graph"):
        _ = fill.params
    with pytest.raises(TypeError, match="node is 'text'"):
        graph.kernel_node_params("text")
    graph.replay()
    assert (read_numbers(buffer) == numbers(5)).all()


def test_a_kernel_of_another_device_is_refused(image):
    if accelrt.device_count() < 2:
        pytest.skip("needs two devices")
    graph, buffer = captured(image)
    other = accelrt.Module(image, device=1).function("number")
    with pytest.raises(ValueError, match="is on device 1, the graph on 0"):
        graph.set_kernel_node_params(kernel_node(graph), kernel=other, args=(buffer, 1))


def test_a_graph_that_was_not_kept_or_is_gone_tells_nothing(image):
    graph, _buffer = captured(image)
    node = kernel_node(graph)
    twin = copy.copy(node)
    assert pickle.loads(pickle.dumps(node)) == twin == node
    with pytest.raises(RuntimeError, match="the CUDAGraph of this node is gone"):
        _ = twin.params
    graph.reset()
    with pytest.raises(RuntimeError):
        _ = node.params
    del graph
    gc.collect()
    with pytest.raises(RuntimeError, match="the CUDAGraph of this node is gone"):
        _ = node.params


@pytest.mark.host
@in_own_process
def test_a_change_costs_as_many_calls_in_a_large_graph():
    """The driver's calls of 50 changes to a graph of two nodes, and to one of a thousand."""
    faults, found = wrap_host(), []
    kernel = accelrt.Module(image_for("host")).function("number", "uint32_t* at, uint32_t value")
    buffer = accelrt.Buffer(4 * COUNT)
    for nodes in (2, 1000):
        graph = accelrt.CUDAGraph(keep_graph=True)
        with accelrt.graph(graph):
            for _ in range(nodes):
                kernel[4, 64](buffer, 5)
        graph.instantiate()
        node = graph.nodes()[nodes // 2]
        faults.reset_call_counts()
        for value in range(50):
            graph.set_kernel_node_params(node, args=(buffer, value))
        found.append({row: count for row, count in faults.call_counts().items() if count})
    assert found[0] == found[1], found
    assert found[0]["graph_node_set"] == 100  # the node of the graph, and that of what is replayed
