"""Graphs whose driver's graph is kept: looked at, dumped, instantiated later, and updated from each other."""

import re

import numpy as np
import pytest
from device_arrays import bytes_of

import accelrt


def kept(work, stream=None):
    made = accelrt.CUDAGraph(keep_graph=True)
    with accelrt.graph(made, stream=stream):
        work()
    return made


def forked(buffer, first, second):
    """Two fills, on two streams, between two others."""
    fork, join = accelrt.Event(), accelrt.Event()
    buffer.fill(1, 1024, stream=first)
    fork.record(first)
    second.wait_event(fork)
    buffer.fill(2, 1024, offset=1024, stream=second)
    buffer.fill(3, 1024, offset=2048, stream=first)
    join.record(second)
    first.wait_event(join)
    accelrt.copy(buffer, buffer, 1024, dst_offset=3072, stream=first, blocking=False)


def value(buffer):
    return int(bytes_of(buffer)[0])


def test_nodes_and_edges_of_two_streams_are_listed():
    first, second = accelrt.Stream(), accelrt.Stream()
    with accelrt.Buffer(4096, stream=first) as buffer:
        graph = kept(lambda: forked(buffer, first, second), first)
    nodes = graph.nodes()
    assert graph.node_count == len(nodes) == 4
    assert sorted(node.type for node in nodes) == ["memcpy", "memset", "memset", "memset"]
    assert len({node.id for node in nodes}) == 4
    by_count = sorted(len(node.dependencies) for node in nodes)
    assert by_count == [0, 1, 1, 2]
    root = next(node for node in nodes if not node.dependencies)
    last = next(node for node in nodes if len(node.dependencies) == 2)
    middle = {node.id for node in nodes} - {root.id, last.id}
    assert set(last.dependencies) == middle
    assert last.type == "memcpy"
    assert set(graph.edges()) == {(root.id, m) for m in middle} | {(m, last.id) for m in middle}


def test_an_empty_graph_has_no_nodes():
    with pytest.warns(UserWarning, match="The CUDA Graph is empty"):
        graph = kept(lambda: None)
    assert graph.nodes() == []
    assert graph.edges() == []
    graph.replay()


def test_a_drawing_holds_every_node_and_edge(tmp_path):
    first, second = accelrt.Stream(), accelrt.Stream()
    with accelrt.Buffer(4096, stream=first) as buffer:
        graph = kept(lambda: forked(buffer, first, second), first)
    graph.debug_dump(tmp_path / "plain.dot")
    graph.debug_dump(str(tmp_path / "verbose.dot"), verbose=True)
    text = (tmp_path / "plain.dot").read_text()
    assert text.startswith("digraph")
    assert len(re.findall(r'^"\S+" -> "\S+"', text, re.MULTILINE)) == 4
    assert text.rstrip().endswith("}")
    assert (tmp_path / "verbose.dot").read_text().startswith("digraph")
    with pytest.raises(accelrt.CudaError, match="graph_dot"):
        graph.debug_dump(tmp_path / "no such folder" / "graph.dot")


def test_a_drawing_names_kernels(tmp_path):
    kernel, numbers = accelrt.elementwise("T x", "T z", "z = x + 1", name="add_one"), accelrt.ones(8, "f4")
    kernel(numbers)
    graph = kept(lambda: kernel(numbers, out=numbers))
    graph.debug_dump(tmp_path / "plain.dot")
    graph.debug_dump(tmp_path / "verbose.dot", verbose=True)
    plain, verbose = (tmp_path / "plain.dot").read_text(), (tmp_path / "verbose.dot").read_text()
    assert "add_one" in plain
    assert "add_one" in verbose
    assert len(verbose) > len(plain)


def test_a_path_with_a_null_character_is_refused_and_nothing_is_written(tmp_path):
    graph, buffer = accelrt.CUDAGraph(keep_graph=True), accelrt.Buffer(64)
    with accelrt.graph(graph):
        buffer.fill(1)
    for path in (f"{tmp_path}/a\0b", f"{tmp_path}/a\0b".encode()):
        with pytest.raises(ValueError, match="embedded null character"):
            graph.debug_dump(path)
    assert not list(tmp_path.iterdir())


def test_debug_mode_keeps_the_graph(tmp_path):
    graph = accelrt.CUDAGraph()
    graph.enable_debug_mode()
    with accelrt.Buffer(512) as buffer:
        with accelrt.graph(graph):
            buffer.fill(1)
        graph.debug_dump(tmp_path / "graph.dot")
        graph.replay()
        accelrt.synchronize()


def test_what_is_not_kept_is_refused_with_advice():
    graph = accelrt.CUDAGraph()
    with accelrt.Buffer(512) as buffer, accelrt.graph(graph):
        buffer.fill(1)
    for ask in (graph.raw_cuda_graph, graph.nodes, graph.edges, graph.instantiate):
        with pytest.raises(RuntimeError, match="keep_graph=True"):
            ask()
    assert graph.raw_cuda_graph_exec() != 0
    empty = accelrt.CUDAGraph(keep_graph=True)
    for ask in (empty.raw_cuda_graph, empty.raw_cuda_graph_exec, empty.upload, empty.replay):
        with pytest.raises(RuntimeError, match="capture first"):
            ask()


def test_a_kept_graph_is_instantiated_by_hand_or_by_its_first_replay():
    with accelrt.Buffer(512) as buffer:
        by_hand, by_replay = kept(lambda: buffer.fill(1)), kept(lambda: buffer.fill(2))
        assert by_hand.raw_cuda_graph() != by_replay.raw_cuda_graph()
        with pytest.raises(RuntimeError, match="instantiate"):
            by_hand.raw_cuda_graph_exec()
        by_hand.instantiate()
        assert by_hand.raw_cuda_graph_exec() != 0
        by_hand.replay()
        assert value(buffer) == 1
        by_replay.replay()
        assert value(buffer) == 2
        by_hand.instantiate()
        by_hand.replay()
        assert value(buffer) == 1


def test_upload_before_the_first_replay():
    stream = accelrt.Stream()
    with accelrt.Buffer(512) as buffer:
        graph = kept(lambda: buffer.fill(4))
        graph.upload(stream)
        graph.upload()
        stream.synchronize()
        graph.replay()
        assert value(buffer) == 4


def test_an_update_takes_the_others_parameters_and_memory():
    stream = accelrt.Stream()
    with accelrt.Buffer(512, stream=stream) as buffer:
        graph = accelrt.CUDAGraph()
        with accelrt.graph(graph, stream=stream):
            buffer.fill(1)
        handle, pool = graph.raw_cuda_graph_exec(), graph.pool()
        other = kept(lambda: buffer.fill(2), stream)
        graph.update(other)
        assert graph.raw_cuda_graph_exec() == handle
        assert graph.pool() == other.pool() != pool
        assert len(other.nodes()) == 1
        del other
        with accelrt.stream(stream):
            graph.replay()
        stream.synchronize()
        assert value(buffer) == 2


def test_an_update_keeps_what_the_new_nodes_point_at():
    stream = accelrt.Stream()
    data = np.full(512, 6, np.uint8)
    with accelrt.Buffer(512, stream=stream) as buffer, accelrt.stream(stream):
        graph = kept(lambda: accelrt.copy(buffer, np.zeros(512, np.uint8), blocking=False), stream)
        graph.replay()
        graph.update(kept(lambda: accelrt.copy(buffer, data.copy(), blocking=False), stream))
        graph.replay()
        stream.synchronize()
        assert value(buffer) == 6
        with pytest.raises(RuntimeError, match="update"):
            graph.raw_cuda_graph()


@pytest.mark.parametrize("nodes", [1, 3])
def test_an_update_of_another_shape_says_why_it_cannot_be(nodes):
    with accelrt.Buffer(512) as buffer:
        graph = kept(lambda: [buffer.fill(1) for _ in range(2)])
        graph.instantiate()
        with pytest.raises(accelrt.CudaError, match="ERROR_TOPOLOGY_CHANGED: the number of nodes") as caught:
            graph.update(kept(lambda: [buffer.fill(5) for _ in range(nodes)]))
        assert caught.value.name == "GRAPH_EXEC_UPDATE_FAILURE"
        graph.replay()
        assert value(buffer) == 1


def test_an_update_by_another_kind_of_node_names_the_node():
    with accelrt.Buffer(512) as buffer, accelrt.Buffer(512) as source:
        graph = kept(lambda: (buffer.fill(1), buffer.fill(1)))
        graph.instantiate()
        other = kept(lambda: (buffer.fill(1), accelrt.copy(buffer, source, blocking=False)))
        with pytest.raises(accelrt.CudaError, match="ERROR_NODE_TYPE_CHANGED") as caught:
            graph.update(other)
        assert f"at node 1 of 2, {other.nodes()[1].id:#x}, a memcpy node" in str(caught.value)


def test_updates_that_cannot_be_are_refused_before_the_driver():
    graph = accelrt.CUDAGraph()
    with accelrt.Buffer(512) as buffer:
        other = kept(lambda: buffer.fill(1))
        with pytest.raises(RuntimeError, match="ready to replay"):
            graph.update(other)
        with accelrt.graph(graph):
            buffer.fill(2)
        with pytest.raises(RuntimeError, match="keep_graph=True"):
            other.update(graph)
        with pytest.raises(TypeError):
            graph.update(None)
        graph.replay()
        assert value(buffer) == 2


def test_the_memory_of_each_graphs_pool_is_reported():
    small, large = accelrt.CUDAGraph(), accelrt.CUDAGraph()
    for graph, size in ((small, 4096), (large, 4 << 20)):
        with accelrt.graph(graph), accelrt.Buffer(size) as buffer:
            buffer.fill(1)
            assert graph.memory_stats()["allocated_bytes.current"] == size
    for graph, size in ((small, 4096), (large, 4 << 20)):
        stats = graph.memory_stats()
        assert stats["allocated_bytes.current"] == 0
        assert stats["allocated_bytes.peak"] == size
        assert stats["reserved_bytes.current"] >= size
    reserved = [graph.memory_stats()["reserved_bytes.current"] for graph in (small, large)]
    assert sum(reserved) == accelrt.memory_reserved()
    small.reset()
    assert accelrt.CUDAGraph().memory_stats()["reserved_bytes.current"] == 0
