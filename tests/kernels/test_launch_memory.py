"""Memory of launches: not handed out under a kernel, kept by graphs, and told to the race detector."""

import contextlib
import gc
import os
import weakref

import numpy as np
import pytest
from beside import Gate
from child import in_own_process
from kernel_sources import numbers

import accelrt
from accelrt.driver.host import driver as host

COUNT = 256
LATE = 30_000_000  # cycles that a stream is behind


def read(memory, count=COUNT):
    out = np.zeros(count, np.uint32)
    accelrt.copy(out, memory, out.nbytes)
    return out


@pytest.mark.parametrize("is_slice", [False, True])
def test_memory_of_another_stream_is_not_reused_under_a_kernel(number, is_slice):
    busy = accelrt.Stream()
    memory = accelrt.empty(2 * COUNT, np.uint32) if is_slice else accelrt.Buffer(8 * COUNT)
    argument, address = memory[COUNT:] if is_slice else memory, memory.ptr
    accelrt.sleep(LATE, busy)
    number[4, 64, busy](argument, 1)
    del argument, memory
    assert address not in [other.ptr for other in [accelrt.Buffer(8 * COUNT) for _ in range(4)]]
    busy.synchronize()


@pytest.mark.host
def test_a_module_outlives_a_kernel_in_a_cycle_that_is_collected_under_a_launch(image):
    before = host.live_objects()["modules"]
    memory, owner = accelrt.Buffer(4 * COUNT), accelrt.Stream()
    stream = accelrt.Stream.from_any(owner.handle, owner.device_index)
    with accelrt.Module(image) as module:
        kernel = module.function("number")
    with Gate(stream):
        kernel[4, 64, stream](memory, 7)
        cycle = [kernel]  # the collection comes to it behind what the kernel has
        cycle.append(cycle)
        del kernel, cycle, module
        gc.collect()
        assert host.live_objects()["modules"] == before + 1
    stream.synchronize()
    assert (read(memory) == numbers(7)).all()


def test_page_locked_memory_is_not_reused_under_a_kernel(number):
    busy, pinned = accelrt.Stream(), accelrt.PinnedBuffer(4 * COUNT)
    accelrt.sleep(LATE, busy)
    number[4, 64, busy](pinned, 7)
    address = pinned.ptr
    del pinned
    gc.collect()
    assert address not in [accelrt.PinnedBuffer(4 * COUNT).ptr for _ in range(4)]
    busy.synchronize()


def test_a_kernel_writes_page_locked_memory(number):
    pinned = accelrt.PinnedBuffer(4 * COUNT)
    number[4, 64](pinned, 7)
    accelrt.synchronize()
    assert (np.frombuffer(pinned, np.uint32) == numbers(7)).all()


class Foreign:
    """A CUDA array on a Buffer, which names the stream that wrote it."""

    def __init__(self, buffer, stream=None, strides=None):
        self.buffer = buffer
        self.__cuda_array_interface__ = {
            "version": 3,
            "shape": (COUNT // 2 if strides else COUNT,),
            "strides": strides,
            "typestr": "<u4",
            "data": (buffer.ptr, False),
            "stream": stream,
        }


def test_arrays_of_others_are_passed_by_address_behind_their_stream(number):
    writer, reader = accelrt.Stream(), accelrt.Stream()
    buffer = accelrt.Buffer(4 * COUNT)
    accelrt.sleep(LATE, writer)
    buffer.fill(1, stream=writer)
    number[4, 64, reader](Foreign(buffer, writer.handle), 5)
    reader.synchronize()
    assert (read(buffer) == numbers(5)).all()
    number[4, 64](Foreign(buffer, strides=(8,)), 6)
    assert (read(buffer) == numbers(6)).all()


def test_a_graph_keeps_what_its_kernels_use(image):
    module = accelrt.Module(image)
    kernel, buffer = module.function("number"), accelrt.Buffer(4 * COUNT)
    graph = accelrt.CUDAGraph()
    with accelrt.graph(graph):
        kernel[4, 64](buffer, 11)
    out, address, gone = accelrt.Buffer(4 * COUNT), buffer.ptr, weakref.ref(buffer)
    module.unload()
    del kernel, buffer, module
    gc.collect()
    assert gone() is not None
    graph.replay()
    out.copy_from(Foreign(gone()))
    assert (read(out) == numbers(11)).all()
    graph.reset()
    del graph
    gc.collect()
    assert gone() is None
    assert address


def test_a_graph_that_dies_under_its_replay_keeps_the_code(image):
    buffer, stream = accelrt.Buffer(4 * COUNT), accelrt.Stream()
    graph = accelrt.CUDAGraph()
    with accelrt.graph(graph, stream=stream):
        accelrt.sleep(LATE)
        accelrt.Module(image).function("number")[4, 64](buffer, 12)
    with accelrt.stream(stream):
        graph.replay()
        graph.reset()
    del graph
    gc.collect()
    stream.synchronize()
    assert (read(buffer) == numbers(12)).all()


def test_a_replay_on_another_stream_holds_the_memory(number):
    buffer, graph, busy = accelrt.Buffer(4 * COUNT), accelrt.CUDAGraph(), accelrt.Stream()
    with accelrt.graph(graph):
        accelrt.sleep(LATE)
        number[4, 64](buffer, 13)
    with accelrt.stream(busy):
        graph.replay()
    address = buffer.ptr
    graph.reset()
    buffer.free()
    assert address not in [other.ptr for other in [accelrt.Buffer(4 * COUNT) for _ in range(4)]]
    busy.synchronize()


@pytest.mark.host
@pytest.mark.parametrize(
    ("signature", "clashes"),
    [("float, const float*, float*, int", True), ("float, const float*, const float*, int", False)],
)
@in_own_process
def test_the_race_detector_learns_reads_from_const_pointers(signature, clashes):
    """A read of y by a copy on another stream races with a kernel only where the kernel may write y."""
    from kernel_sources import image_for

    accelrt.sanitizer.enable()
    kernel = accelrt.Module(image_for(os.environ.get("ACCELRT_DRIVER", "host"))).function("saxpy", signature)
    x, y, first, second = accelrt.Buffer(1024), accelrt.Buffer(1024), accelrt.Stream(), accelrt.Stream()
    x.fill(0, blocking=True)
    y.fill(0, blocking=True)
    kernel[4, 64, first](1.0, x, y, 256)
    pinned = accelrt.PinnedBuffer(1024)
    accelrt.copy(pinned, x, stream=second, blocking=False)
    with pytest.raises(accelrt.RaceError, match="saxpy") if clashes else contextlib.nullcontext():
        accelrt.copy(pinned, y, stream=second, blocking=False)


@pytest.mark.host
@in_own_process
def test_without_a_signature_all_memory_counts_as_written():
    from kernel_sources import image_for

    accelrt.sanitizer.enable()
    kernel = accelrt.Module(image_for("host")).function("saxpy")
    x, y, first, second = accelrt.Buffer(1024), accelrt.Buffer(1024), accelrt.Stream(), accelrt.Stream()
    kernel[1, 1, first](1.0, x, y, 0)
    with pytest.raises(accelrt.RaceError, match="saxpy"):
        kernel[1, 1, second](1.0, x, y, 0)
