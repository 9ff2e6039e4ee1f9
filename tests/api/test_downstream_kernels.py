"""Another project's extension: kernels launched without the GIL, and one written for the host device."""

import numpy as np
import pytest
from beside import on_threads

import accelrt

INVALID_VALUE, INVALID_HANDLE = 1, 400
COUNT = 256

pytestmark = pytest.mark.host


@pytest.fixture(scope="module")
def kernels(downstream):
    return downstream("kernels")


def test_a_kernel_of_cython_is_launched_from_nogil_code(kernels):
    kernel = accelrt.host_kernel(kernels.address_of_add(), "uint32_t* at, uint32_t number", name="add")
    stream, out = accelrt.Stream(), np.zeros(COUNT, np.uint32)
    with accelrt.Buffer(4 * COUNT, stream=stream) as buffer:
        buffer.fill(0, stream=stream)
        assert kernels.launch(0, stream.cuda_stream, kernel.handle, buffer.ptr, 3, 4, 100) == 0
        buffer.copy_to(out, stream=stream)
    assert (out == 300).all()


def test_threads_launch_at_once_on_streams_of_their_own(kernels):
    kernel = accelrt.host_kernel(kernels.address_of_add(), "uint32_t*, uint32_t")
    streams = [accelrt.Stream() for _ in range(4)]
    buffers = [accelrt.Buffer(4 * COUNT, stream=stream) for stream in streams]

    def work(index):
        buffers[index].fill(0, stream=streams[index])
        at = buffers[index].ptr
        assert kernels.launch(0, streams[index].cuda_stream, kernel.handle, at, 1, 4, 500) == 0

    on_threads(work, range(4))
    for stream, buffer in zip(streams, buffers, strict=True):
        out = np.zeros(COUNT, np.uint32)
        buffer.copy_to(out, stream=stream)
        assert (out == 500).all()


def test_what_a_driver_refuses_is_a_status_and_an_exception_if_asked(kernels):
    kernel = accelrt.host_kernel(kernels.address_of_add(), "uint32_t*, uint32_t")
    with accelrt.Buffer(4 * COUNT) as buffer:
        assert kernels.launch(0, 0, kernel.handle, buffer.ptr, 1, 0, 1) == INVALID_VALUE
        assert kernels.launch(0, 0, 12345, buffer.ptr, 1, 1, 1) == INVALID_HANDLE
        with pytest.raises(accelrt.CudaError, match="kernel_launch"):
            kernels.launch_checked(0, 0, 12345, buffer.ptr)
        kernels.launch_checked(0, 0, kernel.handle, buffer.ptr)


def test_a_launch_from_nogil_code_is_captured(kernels):
    kernel = accelrt.host_kernel(kernels.address_of_add(), "uint32_t*, uint32_t")
    stream, graph, out = accelrt.Stream(), accelrt.CUDAGraph(), np.zeros(1, np.uint32)
    with accelrt.Buffer(4, stream=stream) as buffer:
        buffer.fill(0, stream=stream, blocking=True)
        with accelrt.graph(graph, stream=stream):
            kernels.launch_checked(0, stream.cuda_stream, kernel.handle, buffer.ptr)
        for _ in range(3):
            graph.replay()
        accelrt.synchronize()
        buffer.copy_to(out, stream=stream)
    assert out[0] == 3
