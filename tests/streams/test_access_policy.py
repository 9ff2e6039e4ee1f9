"""Limits of a device and access policy windows, of which the host device says that it has none."""

import gc

import numpy as np
import pytest
from beside import on_a_thread
from device_arrays import bytes_of

import accelrt

MIB = 1 << 20
MANY = 10_000  # streams, more than a process had


@pytest.mark.host
def test_the_host_device_says_that_it_has_none():
    with accelrt.Buffer(64) as buffer:
        stream = accelrt.Stream()
        for attempt in (
            lambda: accelrt.get_limit("persisting_l2_cache_size"),
            lambda: accelrt.set_limit("persisting_l2_cache_size", 4096),
            lambda: accelrt.reset_persisting_l2_cache(),
            lambda: stream.set_access_policy_window(buffer.ptr, 64),
            lambda: stream.get_access_policy_window(),
            lambda: accelrt.access_policy_window(buffer).__enter__(),
        ):
            with pytest.raises(accelrt.NotSupportedError, match="device"):
                attempt()


def test_a_window_needs_device_memory_on_the_streams_device():
    for memory in (np.zeros(4), 4096, None):
        with pytest.raises(TypeError, match="memory"):
            accelrt.access_policy_window(memory).__enter__()


@pytest.fixture
def device():
    if not accelrt.get_device_properties().attributes.get("max_access_policy_window_size"):
        pytest.skip("this device has no persisting L2 cache")
    before = accelrt.get_limit("persisting_l2_cache_size")
    yield accelrt.current_device()
    accelrt.set_limit("persisting_l2_cache_size", before)
    accelrt.reset_persisting_l2_cache()


def test_limits_are_read_and_set():
    before = accelrt.get_limit("stack_size")
    assert before > 0
    assert accelrt.set_limit("stack_size", 2048) >= 2048
    assert accelrt.set_limit("stack_size", before) == before
    assert accelrt.get_limit("printf_fifo_size") > 0
    assert accelrt.get_limit("malloc_heap_size") > 0
    with pytest.raises(accelrt.CudaError, match="limit_set"):
        accelrt.set_limit("stack_size", 1 << 40)
    # A thread that never chose a device.
    assert on_a_thread(lambda: accelrt.get_limit("stack_size", 0)) == accelrt.get_limit("stack_size", 0)


@pytest.mark.gpu
def test_launches_are_right_after_the_stacks_became_smaller():
    source = """extern "C" __global__ void fold(int* out, int step) {
        int held[1024];
        for (int i = 0; i < 1024; ++i) held[i] = i;
        for (int i = 0; i < 64; ++i) held[i * step % 1024] += held[(i * step + 1) % 1024];
        int sum = 0;
        for (int i = 0; i < 1024; ++i) sum += held[i];
        out[threadIdx.x] = sum;
    }"""
    fold = accelrt.compile(source).function("fold", "int* out, int step")
    before = accelrt.get_limit("stack_size")
    stream, graph = accelrt.Stream(), accelrt.CUDAGraph()
    with accelrt.stream(stream):
        out = accelrt.zeros(32, "int32")
        fold[1, 32](out, 7)
        grown = accelrt.get_limit("stack_size")
        with accelrt.graph(graph):
            fold[1, 32](out, 7)
        wanted = out.numpy()
        assert (wanted > 1023 * 512).all()
        for again in (lambda: fold[1, 32](out, 7), graph.replay):
            assert accelrt.set_limit("stack_size", 0) == 0
            out.fill_(0)
            again()
            assert (out.numpy() == wanted).all()
            assert accelrt.get_limit("stack_size") == grown >= 4096
    accelrt.set_limit("stack_size", before)


@pytest.mark.gpu
def test_a_window_is_set_used_and_put_back(device):
    most = accelrt.get_device_properties().attributes["max_persisting_l2_cache_size"]
    assert 0 < accelrt.set_limit("persisting_l2_cache_size", 4 * MIB) <= most
    stream = accelrt.Stream()
    with accelrt.Buffer(MIB, stream=stream) as buffer:
        with accelrt.access_policy_window(buffer, 0.5, stream=stream) as window:
            inside = stream.get_access_policy_window()
            assert inside == window == (buffer.ptr, MIB, 0.5, "persisting", "streaming")
            buffer.fill(3, stream=stream)
            with accelrt.access_policy_window(buffer[: MIB // 2], stream=stream):
                assert stream.get_access_policy_window().num_bytes == MIB // 2
            assert stream.get_access_policy_window() == inside
        assert stream.get_access_policy_window() is None
        stream.synchronize()


@pytest.mark.gpu
def test_a_stream_that_dies_leaves_no_window_to_the_next(device):
    stream = accelrt.Stream()
    with accelrt.Buffer(MIB) as buffer:
        stream.set_access_policy_window(buffer.ptr, buffer.nbytes)
        handle, others = stream.handle, []
        del stream
        gc.collect()
        accelrt.synchronize()  # so that all streams that other tests gave back come out again, and this one
        while not others or others[-1].handle != handle:
            others.append(accelrt.Stream())
            assert len(others) < MANY
        assert others[-1].get_access_policy_window() is None


@pytest.mark.gpu
def test_a_capture_takes_place_inside_of_a_window(device):
    graph = accelrt.CUDAGraph()
    with accelrt.Buffer(MIB) as buffer:
        with accelrt.graph(graph), accelrt.access_policy_window(buffer):
            buffer.fill(7)
        graph.replay()
        assert (bytes_of(buffer) == 7).all()
        graph.reset()
