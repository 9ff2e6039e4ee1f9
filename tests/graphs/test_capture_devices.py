"""Captured copies between devices: recorded, replayed with what is there then, refused without harm."""

import gc
import weakref

import numpy as np
import pytest
from child import in_own_process, wrap_host
from device_arrays import bytes_of

import accelrt

SIZE, PEER_ACCESS_UNSUPPORTED, OUT_OF_MEMORY = 4096, 217, 2
LAST = accelrt.device_count() - 1
pytestmark = pytest.mark.skipif(LAST == 0, reason="one device")
# What captures, and which stream the copy is given, of one stream on the first device and one on the last.
CAPTURING = {
    "src's stream": lambda streams: (streams[0], streams[0]),
    "dst's stream": lambda streams: (streams[1], streams[1]),
    "src's current stream": lambda streams: (streams[0], None),
    "dst's current stream": lambda streams: (streams[1], None),
}


def reachable():
    return all(accelrt.can_device_access_peer(*pair) for pair in ((0, LAST), (LAST, 0)))


@pytest.fixture
def streams():
    if not reachable():
        pytest.skip("the devices do not reach each other's memory")
    yield accelrt.Stream(0), accelrt.Stream(LAST)
    for device in (LAST, 0):
        accelrt.set_stream(accelrt.default_stream(device))


def synchronize_both():
    accelrt.synchronize(0)
    accelrt.synchronize(LAST)


def run(graph, stream):
    """Replays it on the stream, and waits for its end."""
    with accelrt.stream(stream):
        graph.replay()
    stream.synchronize()


def replayed(graph, captured, src, dst, value):
    """Whether a replay brings what src holds now to dst."""
    out = np.zeros(SIZE, np.uint8)
    src.fill(value)
    dst.fill(0)
    synchronize_both()
    run(graph, captured)
    dst.copy_to(out)
    return (out == value).all()


@pytest.mark.parametrize("mode", ["global", "thread_local", "relaxed"])
@pytest.mark.parametrize("kind", CAPTURING)
def test_a_copy_between_devices_is_captured_and_replayed(streams, kind, mode):
    captured, chosen = CAPTURING[kind](streams)
    graph = accelrt.CUDAGraph()
    with accelrt.Buffer(SIZE, 0) as src, accelrt.Buffer(SIZE, LAST) as dst:
        accelrt.synchronize(0)
        with accelrt.graph(graph, stream=captured, capture_error_mode=mode):
            accelrt.copy(dst, src, stream=chosen, blocking=False)
        for value in (3, 200):
            assert replayed(graph, captured, src, dst, value)
        graph.reset()


def test_both_devices_streams_join_one_capture(streams):
    near, far = streams
    graph = accelrt.CUDAGraph()
    with accelrt.Buffer(SIZE, 0, stream=near) as src, accelrt.Buffer(SIZE, LAST, stream=far) as dst:
        synchronize_both()
        accelrt.set_stream(far)
        with accelrt.graph(graph, stream=near):
            src.fill(5, stream=near)
            far.wait_stream(near)
            accelrt.copy(dst, src, blocking=False)  # on near, ordered with far around it
            dst.fill(6, SIZE // 2, stream=far)
            near.wait_stream(far)
        run(graph, near)
        assert (bytes_of(dst, far) == np.repeat([6, 5], SIZE // 2)).all()
        graph.reset()


def test_arrays_of_two_devices_are_copied_in_a_capture(streams):
    near, _ = streams
    src, dst = accelrt.full(100, 7, "f4", device=0), accelrt.zeros(100, "f4", device=LAST)
    synchronize_both()
    graph = accelrt.CUDAGraph()
    with accelrt.graph(graph, stream=near):
        dst.copy_(src, stream=near)
    assert (dst.numpy() == 0).all()
    run(graph, near)
    assert (dst.numpy() == 7).all()


def test_scattered_elements_are_copied_where_both_devices_streams_are_in_the_capture(streams):
    near, far = streams
    src, dst = accelrt.full(100, 7, "f4", device=0), accelrt.zeros(100, "f4", device=LAST)
    synchronize_both()
    graph = accelrt.CUDAGraph()
    with accelrt.graph(graph, stream=near):
        with pytest.raises(ValueError, match="one of the two is not in the capture; have it wait"):
            dst[::2].copy_(src[::2])
        accelrt.set_stream(far)
        far.wait_stream(near)
        dst[::2].copy_(src[::2])
        near.wait_stream(far)
    far.synchronize()
    assert (dst.numpy() == 0).all()
    run(graph, near)
    assert (dst.numpy() == np.resize([7, 0], 100)).all()


def test_a_graph_keeps_both_sides_alive(streams):
    near, _ = streams
    src, dst = accelrt.Buffer(SIZE, 0), accelrt.Buffer(SIZE, LAST)
    sides = weakref.ref(src), weakref.ref(dst)
    graph = accelrt.CUDAGraph()
    with accelrt.graph(graph, stream=near):
        accelrt.copy(dst, src, stream=near, blocking=False)
    del src, dst
    gc.collect()
    assert all(side() is not None for side in sides)
    with accelrt.stream(near):
        graph.replay()
    graph.reset()
    gc.collect()
    synchronize_both()
    assert all(side() is None for side in sides)


def test_memory_that_slept_is_reached_by_a_replay(streams):
    near, _ = streams
    pool = accelrt.MemPool()
    with accelrt.use_mem_pool(pool, device=LAST):
        dst = accelrt.Buffer(SIZE, LAST)
    graph = accelrt.CUDAGraph()
    with accelrt.Buffer(SIZE, 0) as src:
        with accelrt.graph(graph, stream=near):
            accelrt.copy(dst, src, stream=near, blocking=False)
        pool.sleep(device=LAST)
        pool.wake(device=LAST)
        assert replayed(graph, near, src, dst, 9)
        graph.reset()
    dst.free()


@pytest.mark.host
@pytest.mark.parametrize(
    ("row", "code"),
    [
        ("can_access_peer", PEER_ACCESS_UNSUPPORTED),
        ("enable_peer", PEER_ACCESS_UNSUPPORTED),
        ("memory_access", OUT_OF_MEMORY),
        ("capture_mode_exchange", OUT_OF_MEMORY),
    ],
)
@in_own_process
def test_a_copy_between_devices_without_access_is_refused_and_the_capture_goes_on(row, code):
    faults = wrap_host()
    accelrt.init(driver="faults")
    stream, graph = accelrt.Stream(0), accelrt.CUDAGraph()
    src, dst = accelrt.Buffer(SIZE, 0), accelrt.Buffer(SIZE, LAST)
    src.fill(4, blocking=True)
    dst.fill(0, blocking=True)
    with accelrt.graph(graph, stream=stream):
        faults.arm(1, code, "once", [row])
        with pytest.raises(accelrt.CudaError) as caught:
            accelrt.copy(dst, src, stream=stream, blocking=False)
        faults.disarm()
        assert caught.value.code == code
        if code == PEER_ACCESS_UNSUPPORTED:
            assert "the capture goes on: capture a copy to a PinnedBuffer and one from it" in str(
                caught.value
            )
        src.fill(8, stream=stream)
        accelrt.copy(dst, src, stream=stream, blocking=False)  # the next try
    run(graph, stream)
    assert (bytes_of(dst) == 8).all()
    accelrt.memory.audit()


def test_copies_by_page_locked_memory_work_as_the_refusal_advises():
    out = np.zeros(64, np.uint8)
    with accelrt.Buffer(64, 0) as src, accelrt.Buffer(64, LAST) as dst, accelrt.PinnedBuffer(64) as between:
        graphs = {device: accelrt.CUDAGraph() for device in (0, LAST)}
        with accelrt.graph(graphs[0], stream=accelrt.Stream(0)):
            src.fill(3)
            src.copy_to(between, blocking=False)
        with accelrt.graph(graphs[LAST], stream=accelrt.Stream(LAST)):
            dst.copy_from(between, blocking=False)
        for device, graph in graphs.items():
            graph.replay()
            accelrt.synchronize(device)
        dst.copy_to(out)
        assert (out == 3).all()
