"""accelrt.interop.cupy on a GPU: CuPy computes in memory of accelrt's."""

import gc

import numpy as np
import pytest
from beside import on_threads
from child import in_child

import accelrt
from accelrt.interop import cupy as interop

pytestmark = pytest.mark.gpu
MIB = 1 << 20
LATE = 20_000_000  # cycles: some 10 ms


@pytest.fixture
def cupy():
    found = pytest.importorskip("cupy")
    interop.install()
    yield found
    interop.uninstall()
    gc.collect()


def side_stream(cupy):
    return cupy.cuda.Stream(non_blocking=True)


def test_cupy_computes_in_accelrts_memory(cupy):
    before = accelrt.memory_allocated(0)
    x = cupy.arange(MIB, dtype=cupy.float32)
    assert accelrt.memory_allocated(0) - before == 4 * MIB
    assert interop.is_installed()
    total = float((x * 2 + 1).sum(dtype=cupy.float64))
    assert total == MIB * (MIB - 1) + MIB
    del x
    assert accelrt.memory_allocated(0) == before
    assert cupy.get_default_memory_pool().total_bytes() == 0


def test_memory_dropped_under_another_stream_is_not_overwritten(cupy):
    own, user = side_stream(cupy), side_stream(cupy)
    out = cupy.zeros(4 * MIB, cupy.uint8)
    cupy.cuda.Device().synchronize()
    for _ in range(3):
        with own:
            x = cupy.full(4 * MIB, 7, cupy.uint8)
            own.synchronize()
        with user:
            accelrt.sleep(LATE, accelrt.Stream.from_any(user))
            out.data.copy_from_device_async(x.data, x.nbytes)
            address = x.data.ptr
            del x
        with own:
            y = cupy.full(4 * MIB, 9, cupy.uint8)
            assert y.data.ptr != address
        user.synchronize()
        assert bool((out == 7).all())
        out.fill(0)
        cupy.cuda.Device().synchronize()
        del y


def test_threads_with_streams_of_their_own_do_not_meet(cupy):
    def work(seed):
        stream = side_stream(cupy)
        numbers = np.random.default_rng(seed)
        with stream:
            for step in range(150):
                size = int(numbers.integers(1, 1 << 18))
                x = cupy.full(size, step % 100, cupy.int32)
                y = x * 2 + seed
                if step % 10 == 0:
                    assert (y == 2 * (step % 100) + seed).all(), (seed, step)
            stream.synchronize()

    on_threads(work, range(6))


def test_page_locked_memory_is_accelrts(cupy):
    pointer = cupy.cuda.alloc_pinned_memory(MIB)
    host = np.frombuffer(pointer, np.uint8, MIB)
    assert accelrt.memory.is_pinned(host)
    host[:] = 5
    stream = side_stream(cupy)
    x = cupy.zeros(MIB, cupy.uint8)
    cupy.cuda.Device().synchronize()
    with stream:
        accelrt.sleep(LATE, accelrt.Stream.from_any(stream))
        x.set(host)
        del host, pointer
        again = cupy.cuda.alloc_pinned_memory(MIB)
        np.frombuffer(again, np.uint8, MIB)[:] = 6
        stream.synchronize()
    assert bool((x == 5).all())
    big = cupy.asarray(
        np.arange(4 * MIB, dtype=np.int32)
    )  # staged through page-locked memory of CuPy's choice
    assert int(big[-1]) == 4 * MIB - 1
    cupy.cuda.Device().synchronize()
    cupy.cuda.alloc_pinned_memory(1)  # CuPy drops what its copies are done with at its next allocation


def test_no_room_is_an_error_that_users_of_either_catch(cupy):
    with pytest.raises(cupy.cuda.memory.OutOfMemoryError, match=r"out of memory|does not have") as caught:
        cupy.empty(1 << 44, cupy.uint8)
    assert isinstance(caught.value, accelrt.OutOfMemoryError)
    accelrt.set_per_process_memory_fraction(0.01)
    try:
        with pytest.raises(accelrt.OutOfMemoryError, match="set_per_process_memory_fraction"):
            cupy.empty(int(accelrt.mem_get_info()[1] * 0.02), cupy.uint8)
    finally:
        accelrt.set_per_process_memory_fraction(1.0)


def captured_by_cupy(cupy, stream, x, out):
    stream.begin_capture()
    y = x * 2
    z = y + 1
    cupy.add(z, y, out=out)
    del y, z
    return stream.end_capture()


def test_a_graph_of_cupys_keeps_the_memory_of_its_capture(cupy):
    stream = side_stream(cupy)
    with stream:
        x, out = cupy.full(MIB, 3, cupy.float32), cupy.zeros(MIB, cupy.float32)
        cupy.add(x * 2 + 1, x, out=out)  # compiled before the capture
        stream.synchronize()
        graph = captured_by_cupy(cupy, stream, x, out)
        others = [cupy.full(MIB, 100, cupy.float32) for _ in range(8)]
        for value in (1, 5, 9):
            x.fill(value)
            graph.launch()
            stream.synchronize()
            assert bool((out == 4 * value + 1).all())
        assert all(bool((other == 100).all()) for other in others)
    held = accelrt.memory_reserved(0)
    del graph, others
    accelrt.synchronize()
    accelrt.empty_cache()
    assert accelrt.memory_reserved(0) < held


def test_a_graph_of_accelrts_captures_cupys_work(cupy):
    stream, graph = side_stream(cupy), accelrt.CUDAGraph()
    with stream:
        x, out = cupy.full(MIB, 3, cupy.float32), cupy.zeros(MIB, cupy.float32)
        cupy.add(x * 2, x, out=out)
        stream.synchronize()
        with accelrt.graph(graph, stream=accelrt.Stream.from_any(stream)):
            y = x * 2
            cupy.add(y, x, out=out)
            del y
        x.fill(5)
        stream.synchronize()
    graph.replay()
    accelrt.synchronize()
    assert bool((out == 15).all())
    assert graph.memory_stats()["reserved_bytes.current"] > 0


def test_a_capture_that_fails_leaves_cupy_and_accelrt_as_they_were(cupy):
    stream = side_stream(cupy)
    with stream:
        stream.begin_capture()
        x = cupy.zeros(16, cupy.uint8)
        with pytest.raises(Exception, match=r"capturing|disallowed|Capture"):
            x.data.copy_to_host(np.empty(16, np.uint8).ctypes.data, 16)
        del x
        graph = stream.end_capture()
        del graph
        with pytest.raises(cupy.cuda.runtime.CUDARuntimeError):
            stream.end_capture()
        assert bool((cupy.ones(16) == 1).all())
    with accelrt.graph(accelrt.CUDAGraph()):
        accelrt.Buffer(64).fill(0)


def fork_and_join(cupy):
    one, two = side_stream(cupy), side_stream(cupy)
    forked, joined = cupy.cuda.Event(), cupy.cuda.Event()
    x, shared = cupy.arange(1000.0), cupy.ones(1000)
    with one:
        one.begin_capture()
        y = x * 100
        forked.record(one)
        two.wait_event(forked)
        with two:
            z = 3 * y + 1
            del shared  # beside a capture of the stream that it waits for
            joined.record(two)
        one.wait_event(joined)
        graph = one.end_capture()
    graph.launch(one)
    one.synchronize()
    assert bool((z == 3 * (x * 100) + 1).all())


def test_streams_that_took_part_in_captures_go_with_what_they_used(cupy):
    fork_and_join(cupy)
    bound = accelrt.memory_reserved(0) + 160 * MIB
    for _ in range(150):
        fork_and_join(cupy)
        assert accelrt.memory_reserved(0) <= bound


def test_raw_kernels_and_accelrts_arrays_share_memory(cupy):
    kernel = cupy.RawKernel(
        'extern "C" __global__ void twice(int* x, int n) { int i = blockIdx.x * blockDim.x + threadIdx.x; '
        "if (i < n) x[i] *= 2; }",
        "twice",
    )
    x = cupy.arange(1000, dtype=cupy.int32)
    ours = accelrt.from_dlpack(x)
    kernel((4,), (256,), (x, np.int32(1000)))
    cupy.cuda.get_current_stream().synchronize()
    assert ours.numpy().tolist() == list(range(0, 2000, 2))
    back = cupy.from_dlpack(ours)
    assert back.data.ptr == x.data.ptr


def test_another_allocator_of_a_thread_is_left_alone(cupy):
    pool = cupy.cuda.MemoryPool()
    with cupy.cuda.using_allocator(pool.malloc):
        x = cupy.zeros(MIB, cupy.uint8)
        assert accelrt.memory_allocated(0) == 0
        assert not interop.is_installed()
        with pytest.raises(ValueError, match="using_allocator"):
            interop.uninstall()
    assert interop.is_installed()
    del x
    pool.free_all_blocks()


def test_uninstall_gives_cupy_its_own_pool_back(cupy):
    x = cupy.ones(MIB, cupy.uint8)
    interop.uninstall()
    y = x + 1
    assert accelrt.memory_allocated(0) == MIB
    assert cupy.get_default_memory_pool().used_bytes() >= MIB
    assert bool((y == 2).all())
    del x, y
    assert accelrt.memory_allocated(0) == 0
    cupy.get_default_memory_pool().free_all_blocks()


def use_and_exit():
    import cupy

    interop.install()
    interop.kept = [cupy.arange(1000), cupy.cuda.alloc_pinned_memory(1000), side_stream(cupy)]
    with interop.kept[-1]:
        interop.kept.append(cupy.ones(1000))
    interop.kept.append(captured_by_cupy_in(cupy, interop.kept[2]))
    print("used")


def captured_by_cupy_in(cupy, stream):
    with stream:
        x, out = cupy.ones(16, cupy.float32), cupy.ones(16, cupy.float32)
        cupy.add(x * 2 + 1, x, out=out)
        return captured_by_cupy(cupy, stream, x, out)


def test_a_process_ends_quietly_with_arrays_and_graphs_alive():
    pytest.importorskip("cupy")
    assert in_child(use_and_exit, ACCELRT_DRIVER="cuda") == "used\n"
