"""Another project's extension: captures, graphs and leases in code without the GIL."""

import gc
import threading

import pytest
from beside import on_a_thread
from device_arrays import bytes_of, read

import accelrt

GLOBAL, THREAD_LOCAL, RELAXED = 0, 1, 2
NOT_CAPTURING, ACTIVE, BROKEN = 0, 1, 2
EMPTY, CAPTURING, CAPTURED, READY = 0, 1, 2, 3


def works_again(graphs, stream):
    graph = graphs.BareGraph()
    with accelrt.Buffer(512) as buffer:
        graph.begin(0, stream)
        graphs.set_bytes(0, stream, buffer.ptr, 5, 512)
        graph.end()
        graph.instantiate()
        graph.launch(stream)
        accelrt.ExternalStream(stream).synchronize()
        graph.destroy()
        return (bytes_of(buffer) == 5).all()


def test_threads_that_python_never_sees_capture_and_launch(graphs):
    accelrt.init()
    answers = graphs.on_threads(0, 4, 200, 4096)
    assert [(name, wrong) for name, _, wrong in answers] == [("SUCCESS", 0)] * 4
    assert {nodes for _, nodes, _ in answers} == {3}


def test_python_captures_while_such_threads_do(graphs):
    accelrt.init()
    answers, buffer = [], accelrt.Buffer(4096)
    thread = threading.Thread(target=lambda: answers.extend(graphs.on_threads(0, 2, 200, 4096)))
    thread.start()
    for value in range(20):
        graph = accelrt.CUDAGraph()
        with accelrt.graph(graph, capture_error_mode="thread_local"):
            between = accelrt.Buffer(4096)
            between.fill(value)
            accelrt.copy(buffer, between, blocking=False)
        graph.replay()
        assert (bytes_of(buffer) == value).all()
        accelrt.empty_cache()
    thread.join()
    assert [(name, wrong) for name, _, wrong in answers] == [("SUCCESS", 0)] * 2
    del between


def test_memory_of_a_capture_comes_from_a_pool_of_its_own(graphs, stream):
    graph = graphs.BareGraph()
    graph.begin(0, stream)
    address = graphs.take(0, 4096, stream)
    graphs.set_bytes(0, stream, address, 1, 4096)
    graphs.give(0, address)
    assert graphs.take(0, 4096, stream) == address
    graphs.give(0, address)
    outside = accelrt.Buffer(4096)
    graph.end()
    pools = {segment["segment_pool_id"] for segment in accelrt.memory_snapshot(0)}
    assert pools == {(0, 0), graph.pool()}
    accelrt.empty_cache()
    assert graph.pool() in {segment["segment_pool_id"] for segment in accelrt.memory_snapshot(0)}
    graph.destroy()
    del outside
    accelrt.empty_cache()
    assert accelrt.memory_reserved(0) == 0


def test_nodes_of_an_instance_are_changed_in_nogil_code(downstream, image):
    kernels, stream = downstream("kernels"), accelrt.Stream()
    kernel = accelrt.Module(image).function("number", "uint32_t* at, uint32_t value")
    captured = accelrt.CUDAGraph(keep_graph=True)
    memory = [accelrt.zeros(64, "uint32", stream=stream) for _ in range(5)]
    x, y, spare, at, to = memory
    with accelrt.graph(captured, stream=stream):
        x.fill_(1)
        kernel[1, 64](x, 10)
        y.copy_(x)
    captured.instantiate()
    handles = captured.raw_cuda_graph(), captured.raw_cuda_graph_exec()
    nodes = [node.id for node in captured.nodes()]
    changed = kernels.replay_changed(
        0, stream.cuda_stream, *handles, nodes, kernel.handle, spare.ptr, at.ptr, to.ptr, 7
    )
    assert changed == [0, 0, 0, 0]
    first = [read(each)[:5].tolist() for each in memory]
    written = [7, 8, 9, 10, 0]
    assert first == [[0] * 5, [0] * 5, [5, 5, 5, 5, 0], written, written]
    captured.instantiate()  # of the graph, whose nodes stayed
    captured.replay()
    assert [read(each)[:2].tolist() for each in (x, y)] == [[10, 11]] * 2
    fill, launch, copy = nodes
    handles = handles[0], captured.raw_cuda_graph_exec()
    refused = kernels.replay_changed(
        *(0, stream.cuda_stream, *handles, (launch, copy, fill)),
        *(kernel.handle, spare.ptr, at.ptr, to.ptr, 7),
    )
    assert 0 not in refused[:3]
    assert refused[3] == 0


def test_a_pool_is_shared_by_its_numbers(graphs, stream):
    pool = accelrt.MemPool()
    one, other = graphs.BareGraph(), graphs.BareGraph()
    addresses = []
    for graph in (one, other):
        graph.begin(0, stream, THREAD_LOCAL, *pool.id)
        addresses.append(graphs.take(0, 4096, stream))
        graphs.set_bytes(0, stream, addresses[-1], 1, 4096)
        graphs.give(0, addresses[-1])
        graph.end()
        assert graph.pool() == pool.id
    assert addresses[0] == addresses[1]
    assert pool.use_count() == 3
    one.destroy()
    other.destroy()
    assert pool.use_count() == 1


def test_a_graph_says_what_it_is(graphs, stream):
    graph, buffer = graphs.BareGraph(), accelrt.Buffer(512)
    assert graphs.status_of(0, stream) == (NOT_CAPTURING, 0)
    graph.begin(0, stream)
    status, capture = graphs.status_of(0, stream)
    assert (status, graph.status()) == (ACTIVE, (CAPTURING, 0))
    assert capture
    graphs.set_bytes(0, stream, buffer.ptr, 1, 512)
    graph.end()
    assert graph.status() == (CAPTURED, 1)
    assert graph.raw()[1] == 0
    with pytest.raises(accelrt.CudaError, match=r"graph_launch\(\) answered ILLEGAL_STATE"):
        graph.launch(stream)
    graph.instantiate()
    assert graph.status() == (READY, 1)
    assert all(graph.raw())
    for call in (graph.instantiate, graph.end):
        with pytest.raises(accelrt.CudaError, match="ILLEGAL_STATE"):
            call()
    graph.destroy()
    for call in (graph.status, graph.destroy, graph.end, graph.instantiate, graph.pool, graph.raw):
        with pytest.raises(accelrt.CudaError, match="INVALID_HANDLE"):
            call()


def test_the_default_stream_cannot_be_captured(graphs, stream):
    graph = graphs.BareGraph()
    with pytest.raises(accelrt.CaptureError, match=r"capture_begin\(\) answered STREAM_CAPTURE_UNSUPPORTED"):
        graph.begin(0, 0)
    with pytest.raises(accelrt.CudaError, match="INVALID_DEVICE"):
        graph.begin(-1, stream)
    assert works_again(graphs, stream)


def test_a_capture_that_was_broken_leaves_nothing_behind(graphs, stream):
    graph = graphs.BareGraph()
    graph.begin(0, stream)
    address = graphs.take(0, 4096, stream)
    graphs.set_bytes(0, stream, address, 1, 4096)
    with pytest.raises(accelrt.CaptureError):
        accelrt.ExternalStream(stream).synchronize()
    assert graphs.status_of(0, stream)[0] == BROKEN
    graphs.give(0, address)
    with pytest.raises(accelrt.CaptureError, match=r"capture_end\(\) answered STREAM_CAPTURE_INVALIDATED"):
        graph.end()
    assert graph.status() == (EMPTY, 0)
    assert graphs.status_of(0, stream)[0] == NOT_CAPTURING
    graph.destroy()
    assert works_again(graphs, stream)


def test_a_capture_ended_by_another_thread_is_told(graphs, stream):
    graph = graphs.BareGraph()
    graph.begin(0, stream)
    with pytest.raises(accelrt.CaptureError) as caught:
        on_a_thread(graph.end)
    assert caught.value.name == "STREAM_CAPTURE_WRONG_THREAD"
    assert graph.status() == (EMPTY, 0)
    graph.destroy()
    assert works_again(graphs, stream)


def test_a_stream_that_was_not_joined_back_is_told(graphs, stream):
    graph, other = graphs.BareGraph(), graphs.lease(0)
    with accelrt.Buffer(512) as buffer:
        graph.begin(0, stream)
        graphs.set_bytes(0, stream, buffer.ptr, 1, 512)
        graphs.wait_for(0, other, 0, stream)
        graphs.set_bytes(0, other, buffer.ptr, 1, 512)
        with pytest.raises(accelrt.CaptureError, match="STREAM_CAPTURE_UNJOINED"):
            graph.end()
        graph.destroy()
    accelrt.ExternalStream(other).synchronize()
    graphs.give_stream(0, other)
    assert works_again(graphs, stream)


def test_a_graph_destroyed_in_its_capture_ends_it(graphs, stream):
    graph = graphs.BareGraph()
    with accelrt.Buffer(512) as buffer:
        graph.begin(0, stream)
        graphs.set_bytes(0, stream, buffer.ptr, 1, 512)
        graph.destroy()
        assert graphs.status_of(0, stream) == (NOT_CAPTURING, 0)
    assert works_again(graphs, stream)


def test_what_dies_in_python_beside_such_a_capture_does_not_break_it(graphs, stream):
    graph, dying, buffer = graphs.BareGraph(), accelrt.CUDAGraph(), accelrt.Buffer(512)
    with accelrt.graph(dying):
        buffer.fill(1)
    pinned, array = accelrt.PinnedBuffer(64), accelrt.register_host(bytearray(1 << 16))
    graph.begin(0, stream, GLOBAL)
    graphs.set_bytes(0, stream, buffer.ptr, 7, 512)
    del dying, pinned, array
    gc.collect()
    accelrt.empty_cache()
    accelrt.host_empty_cache()
    graph.end()
    graph.instantiate()
    graph.launch(stream)
    accelrt.ExternalStream(stream).synchronize()
    assert (bytes_of(buffer) == 7).all()
    graph.destroy()


def test_the_capture_mode_is_the_threads(graphs):
    accelrt.init()
    before = graphs.exchange_mode(RELAXED)
    assert (before, on_a_thread(lambda: graphs.exchange_mode(GLOBAL))) == (GLOBAL, GLOBAL)
    assert graphs.exchange_mode(before) == RELAXED
