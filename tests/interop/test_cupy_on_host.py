"""accelrt.interop.cupy, with a stand-in for CuPy on the host device: what needs no kernels of CuPy's."""

import gc
import pickle
import sys
import threading

import numpy as np
import pytest
import stand_in_cupy
from beside import on_a_thread

import accelrt
from accelrt.interop import cupy as interop
from accelrt.interop import cupy_memory, peers
from accelrt.testing.interleavings import HAS_GIL

pytestmark = pytest.mark.host
MIB = 1 << 20


@pytest.fixture
def cupy(monkeypatch):
    found = stand_in_cupy.put_in_place(monkeypatch)
    interop.install()
    yield found
    interop.uninstall()
    gc.collect()


@pytest.fixture
def held():
    """A stream that does nothing until the test lets it go on."""
    stream, go = accelrt.Stream(), threading.Event()
    stream.launch_host_func(go.wait)
    yield stand_in_cupy._BaseStream(stream)
    go.set()
    stream.synchronize()


def test_device_memory_comes_from_accelrt_and_goes_back_when_it_is_dropped(cupy):
    pointer = cupy.cuda.alloc(1000)
    assert accelrt.memory_allocated(0) == 1024
    assert (pointer.mem.size, pointer.device_id) == (1000, 0)
    assert pointer.ptr % 512 == 0
    del pointer
    assert accelrt.memory_allocated(0) == 0


def test_memory_is_reused_on_its_own_stream_at_once(cupy):
    stream = cupy.cuda.Stream(accelrt.Stream())
    with stream:
        first = cupy.cuda.alloc(MIB).ptr
        second = cupy.cuda.alloc(MIB)
    assert second.ptr == first
    other = cupy.cuda.alloc(MIB)
    assert other.ptr != first


def test_memory_that_is_dropped_under_another_stream_waits_for_that_one(cupy, held):
    with cupy.cuda.Stream(accelrt.Stream()) as own:
        pointer = cupy.cuda.alloc(MIB)
        address = pointer.ptr
    with held:
        del pointer
    with own:
        busy = cupy.cuda.alloc(MIB)
        assert busy.ptr != address


@pytest.mark.skipif(not HAS_GIL, reason="without a GIL an object dies on the thread that made it")
def test_memory_that_another_thread_drops_waits_for_that_threads_stream(cupy, held):
    with cupy.cuda.Stream(accelrt.Stream()) as own:
        pointers = [cupy.cuda.alloc(MIB)]
        address = pointers[0].ptr

    def drop():
        with held:
            pointers.clear()

    on_a_thread(drop)
    assert accelrt.memory_allocated(0) == 0
    with own:
        assert cupy.cuda.alloc(MIB).ptr != address


def test_no_bytes_are_no_memory(cupy):
    pointer = cupy.cuda.alloc(0)
    assert (pointer.ptr, pointer.mem.size) == (0, 0)
    assert cupy.cuda.alloc_pinned_memory(0).ptr == 0
    assert accelrt.memory_allocated(0) == 0


@pytest.mark.parametrize(("size", "error"), [(-1, ValueError), (1.5, TypeError), (True, TypeError)])
def test_a_size_that_is_none_is_refused(cupy, size, error):
    with pytest.raises(error, match="size is"):
        cupy.cuda.alloc(size)


@pytest.mark.parametrize("size", [1 << 46, 1 << 70])
def test_no_room_is_accelrts_error_and_cupys(cupy, size):
    with pytest.raises(accelrt.OutOfMemoryError, match=r"out of memory|does not have") as caught:
        cupy.cuda.alloc(size)
    assert isinstance(caught.value, cupy.cuda.memory.OutOfMemoryError)
    assert caught.value.requested == size == caught.value._size
    sent = pickle.loads(pickle.dumps(caught.value))
    assert (type(sent), sent.requested) == (accelrt.OutOfMemoryError, size)
    assert str(sent) == str(caught.value)


def test_page_locked_memory_comes_from_accelrt_and_waits_for_the_current_stream(cupy, held):
    with held:
        pointer = cupy.cuda.alloc_pinned_memory(MIB)
        address = pointer.ptr
        assert accelrt.memory.is_pinned(address)
        assert pointer.size() == pointer.mem.size == MIB
        del pointer
    stats = accelrt.host_memory_stats()
    assert stats["active_requests.current"] == 1
    again = cupy.cuda.alloc_pinned_memory(MIB)
    assert again.ptr != address


def test_install_and_uninstall_are_done_once_and_undone(cupy):
    allocator = cupy.cuda.get_allocator()
    interop.install()
    assert cupy.cuda.get_allocator() is allocator
    assert interop.is_installed()
    pointer = cupy.cuda.alloc(MIB)
    interop.uninstall()
    interop.uninstall()
    assert not interop.is_installed()
    assert cupy.cuda.get_allocator() == cupy.get_default_memory_pool().malloc
    with pytest.raises(AssertionError, match="own pool was asked"):
        cupy.cuda.alloc_pinned_memory(1)
    assert accelrt.memory_allocated(0) == MIB
    del pointer
    assert accelrt.memory_allocated(0) == 0


def test_another_allocator_that_was_set_since_stays(cupy):
    cupy.cuda.set_allocator(len)
    assert not interop.is_installed()
    interop.uninstall()
    assert cupy.cuda.get_allocator() is len


def test_inside_another_allocators_context_nothing_is_undone(cupy, monkeypatch):
    def refuse(function):
        raise ValueError("inside `using_allocator`")

    with monkeypatch.context() as patch:
        patch.setattr(cupy.cuda, "set_allocator", refuse)
        patch.setattr(cupy.cuda, "get_allocator", lambda: len)
        with pytest.raises(ValueError, match="using_allocator"):
            interop.uninstall()
    assert interop.is_installed()
    assert cupy.cuda.alloc_pinned_memory(16).ptr


def test_idle_memory_of_cupys_own_pools_goes_back(cupy):
    assert cupy.get_default_memory_pool().freed == 1
    assert cupy.get_default_pinned_memory_pool().freed == 1


def test_a_capture_of_cupys_has_a_private_pool_as_long_as_its_graph_lives(cupy):
    stream = cupy.cuda.Stream(accelrt.Stream())
    eager = accelrt.Buffer(MIB, stream=stream.ptr)
    seen = np.zeros(4, np.uint8)
    with stream:
        stream.begin_capture()
        pointer = cupy.cuda.alloc(4)
        assert stream.rows.fill(0, stream.ptr, pointer.ptr, 7, 1, 4) == 0
        assert stream.rows.copy(0, stream.ptr, eager.ptr, pointer.ptr, 4) == 0
        address = pointer.ptr
        del pointer
        graph = stream.end_capture()
        # What the capture used serves nothing else, so that a replay finds it.
        others = [cupy.cuda.alloc(4) for _ in range(64)]
    assert address not in {other.ptr for other in others}
    graph.launch(stream)
    stream.stream.synchronize()
    eager.copy_to(seen, 4)
    assert seen.tolist() == [7] * 4
    reserved = accelrt.memory_reserved(0)
    del graph, others, eager
    accelrt.synchronize()
    accelrt.empty_cache()
    assert accelrt.memory_reserved(0) == 0 < reserved


def test_a_capture_that_fails_or_is_given_up_leaves_nothing(cupy):
    stream = cupy.cuda.Stream(accelrt.Stream())
    stream.begin_capture()
    with pytest.raises(RuntimeError, match="begin_capture answered"):
        stream.begin_capture()
    graph = stream.end_capture()
    assert [type(thing).__name__ for thing in graph.host_funcargs] == ["ExternalCapture"]
    assert "over" in repr(graph.host_funcargs[0])
    with pytest.raises(RuntimeError, match="end_capture answered"):
        stream.end_capture()
    stream.begin_capture()
    raw = stream.rows.capture_end(0, stream.ptr)[1]  # behind CuPy's back
    assert stream.rows.graph_destroy(raw) == 0
    del stream, graph
    gc.collect()
    with accelrt.graph(accelrt.CUDAGraph()):
        accelrt.Buffer(64).fill(0)


def test_a_capture_that_the_collector_finds_is_over(cupy):
    stream = accelrt.Stream()
    capture = interop.ExternalCapture(0, stream.cuda_stream)
    assert cupy.cuda.Stream.rows.capture_begin(0, stream.cuda_stream, 2) == 0
    capture.begun()
    graph = cupy.cuda.Stream.rows.capture_end(0, stream.cuda_stream)[1]
    assert cupy.cuda.Stream.rows.graph_destroy(graph) == 0
    cycle = [capture]  # younger, so that the collector clears the capture first
    cycle.append(cycle)
    del cycle, capture
    gc.collect()
    assert not [each for each in gc.get_objects() if type(each).__name__ == "Record"]


def test_cupys_methods_come_back_with_their_texts(cupy):
    kind = cupy.cuda.Stream
    watched = kind.begin_capture
    assert watched.__doc__ == "CuPy's text."
    interop.uninstall()
    assert kind.begin_capture is not watched


def test_memory_of_graphs_of_accelrts_on_cupys_streams_is_the_graphs(cupy):
    stream, graph = cupy.cuda.Stream(accelrt.Stream()), accelrt.CUDAGraph()
    with stream, accelrt.graph(graph, stream=accelrt.Stream.from_any(stream.ptr)):
        pointer = cupy.cuda.alloc(MIB)
        assert stream.rows.fill(0, stream.ptr, pointer.ptr, 1, 1, MIB) == 0
    assert graph.memory_stats()["allocated_bytes.current"] == MIB
    del pointer


def test_the_host_device_is_refused():
    with pytest.raises(accelrt.NotSupportedError, match=r"interop\.cupy.*host device.*ACCELRT_DRIVER"):
        interop.install()
    assert not interop.is_installed()


def test_a_cupy_that_is_missing_old_or_of_another_vendor_is_refused(monkeypatch):
    found = stand_in_cupy.put_in_place(monkeypatch)
    found.__version__ = "13.6.0"
    with pytest.raises(accelrt.NotSupportedError, match=r"is 13\.6\.0; install 14 or later"):
        interop.install()
    found.cuda.runtime.is_hip = True
    with pytest.raises(accelrt.NotSupportedError, match="AMD"):
        interop.install()
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(ModuleNotFoundError, match="pip install cupy-cuda13x"):
        interop.install()
    assert not interop.is_installed()


def test_the_c_functions_of_an_installed_cupy_are_those_that_are_expected():
    pytest.importorskip("cupy_backends.cuda.stream", reason="CuPy is not installed")
    device, stream = (
        interop._functions_of("cupy.cuda.device"),
        interop._functions_of("cupy_backends.cuda.stream"),
    )
    three = (None,) * 3
    assert cupy_memory.connect(three, (None, None), None, device, stream)
    assert not cupy_memory.connect(three, (None, None), None, {**device, "get_device_id": None}, stream)
    assert not cupy_memory.connect(
        three, (None, None), None, device, {"get_stream_ptr": device["get_device_id"]}
    )


def test_classes_of_an_installed_cupy_take_what_they_are_given():
    memory = pytest.importorskip("cupy.cuda.memory", reason="CuPy is not installed")
    cupy = pytest.importorskip("cupy")
    kinds = memory.UnownedMemory, memory.MemoryPointer, cupy.cuda.PinnedMemoryPointer
    accelrt.init()
    cupy_memory.connect(
        kinds,
        (lambda: 0, lambda device: 0),
        peers.out_of_memory_class(memory.OutOfMemoryError, interop._fields),
        {},
        {},
    )
    pointer, pinned = cupy_memory.allocate(1000), cupy_memory.allocate_pinned(1000)
    assert accelrt.memory_allocated(0) == 1024
    assert (pointer.device_id, pointer.mem.size) == (0, 1000)
    np.frombuffer(pinned, np.uint8, 1000)[:] = 1
    part = pointer + 512
    del pointer
    assert accelrt.memory_allocated(0) == 1024
    del part, pinned
    assert accelrt.memory_allocated(0) == 0
    with pytest.raises(memory.OutOfMemoryError, match=r"does not have|out of memory"):
        cupy_memory.allocate(1 << 46)
    assert {"begin_capture", "end_capture"} <= vars(cupy.cuda.stream._BaseStream).keys()
    assert "_graph_host_funcargs" in vars(cupy.cuda.stream._BaseStream(0, 0))
