"""accelrt.interop.numba on a GPU: numba-cuda's arrays in memory of accelrt's."""

import gc
import multiprocessing

import numba_found
import numpy as np
import pytest
from beside import on_a_thread
from child import in_child

import accelrt
from accelrt.interop import numba as interop

pytestmark = pytest.mark.gpu
MIB = 1 << 20
LATE = 20_000_000  # cycles: some 10 ms


@pytest.fixture
def cuda():
    found = pytest.importorskip("numba.cuda")
    interop.install()
    yield found
    interop.uninstall()
    gc.collect()


def fill(array, value, stream):
    from numba.cuda.cudadrv.driver import device_memset

    device_memset(array, value, array.nbytes, stream=stream)


def test_arrays_are_in_accelrts_memory(cuda):
    before = accelrt.memory_allocated(0)
    values = np.arange(MIB, dtype=np.float32)
    array = cuda.to_device(values)
    assert accelrt.memory_allocated(0) - before == values.nbytes
    part = array[100:200]
    del array
    gc.collect()
    assert accelrt.memory_allocated(0) - before == values.nbytes
    np.testing.assert_array_equal(part.copy_to_host(), values[100:200])
    del part
    assert accelrt.memory_allocated(0) == before


def test_kernels_compute_in_it_and_take_accelrts_arrays(cuda):
    if not numba_found.compiles():
        pytest.skip("this numba-cuda compiles nothing with this NumPy")

    @cuda.jit
    def add(x, y):
        i = cuda.grid(1)
        if i < x.size:
            y[i] += x[i]

    x, y = cuda.to_device(np.arange(1000, dtype=np.float32)), accelrt.zeros(1000, np.float32)
    accelrt.synchronize()
    add[4, 256](x, y)
    add[4, 256](x, y)
    cuda.synchronize()
    np.testing.assert_array_equal(y.numpy(), 2 * np.arange(1000, dtype=np.float32))


@pytest.mark.parametrize("kind", ["numba's", "accelrt's"])
def test_dropped_memory_is_not_overwritten_under_a_stream(cuda, kind):
    owner = accelrt.Stream()
    user = cuda.stream() if kind == "numba's" else cuda.external_stream(owner.cuda_stream)
    other = cuda.stream()
    out = cuda.device_array(4 * MIB, np.uint8)
    for _ in range(3):
        x = cuda.device_array(4 * MIB, np.uint8)
        fill(x, 7, 0)
        fill(out, 0, 0)
        cuda.synchronize()
        accelrt.sleep(LATE, accelrt.Stream.from_any(int(user.handle)))
        out.copy_to_device(x, stream=user)
        address = x.device_ctypes_pointer.value
        del x
        y = cuda.device_array(4 * MIB, np.uint8)
        assert y.device_ctypes_pointer.value != address
        fill(y, 9, other)
        user.synchronize()
        other.synchronize()
        assert (out.copy_to_host() == 7).all()
        del y


def test_page_locked_memory_is_accelrts_and_the_rest_is_numbas(cuda):
    pinned = cuda.pinned_array(MIB, np.uint8)
    assert accelrt.memory.is_pinned(pinned)
    assert accelrt.host_memory_stats()["active_bytes.current"] == MIB
    pinned[:] = 5
    stream = cuda.stream()
    array = cuda.to_device(pinned, stream=stream)
    del pinned
    again = cuda.pinned_array(MIB, np.uint8)
    again[:] = 6
    stream.synchronize()
    assert (array.copy_to_host() == 5).all()
    mapped = cuda.mapped_array(16, np.uint8)
    mapped[:] = 3
    assert mapped.tolist() == [3] * 16
    with cuda.pinned(np.zeros(1 << 16, np.uint8)):
        pass
    del mapped, again, array


def test_figures_and_refusals(cuda):
    info = cuda.current_context().get_memory_info()
    assert 0 < info.free <= info.total == accelrt.mem_get_info()[1]
    with pytest.raises(accelrt.OutOfMemoryError) as caught:
        cuda.device_array(1 << 44, np.uint8)
    from numba.cuda.cudadrv.driver import CudaAPIError

    assert isinstance(caught.value, CudaAPIError)
    array = cuda.device_array(16, np.uint8)
    with pytest.raises(accelrt.NotSupportedError, match="expandable_segments:False"):
        array.get_ipc_handle()


def test_another_thread_may_drop_the_last_array(cuda):
    arrays = [cuda.to_device(np.arange(100))]
    on_a_thread(arrays.clear)
    gc.collect()
    assert accelrt.memory_allocated(0) == 0


def test_uninstall_gives_numba_its_own_memory_back(cuda):
    array = cuda.to_device(np.arange(100))
    interop.uninstall()
    own = cuda.to_device(np.arange(100))
    assert accelrt.memory_allocated(0) == 1024
    np.testing.assert_array_equal(array.copy_to_host(), own.copy_to_host())
    del array
    assert accelrt.memory_allocated(0) == 0
    interop.install()
    array = cuda.to_device(np.arange(100))
    assert accelrt.memory_allocated(0) == 1024
    del array, own


def use_by_the_environment():
    from numba import cuda

    array = cuda.to_device(np.arange(100))
    print(accelrt.memory_allocated(0), interop.is_installed(), array.copy_to_host()[-1])
    interop.kept = array, cuda.pinned_array(10)


def test_the_environment_is_enough_and_a_process_ends_quietly_with_arrays_alive():
    pytest.importorskip("numba.cuda")
    said = in_child(
        use_by_the_environment, ACCELRT_DRIVER="cuda", NUMBA_CUDA_MEMORY_MANAGER="accelrt.interop.numba"
    )
    assert said == "1024 True 99\n"


def read_shared(handle, answers):

    with handle as array:
        answers.put(int(array.copy_to_host().sum()))


def share_between_processes():
    from numba import cuda

    interop.install()
    array = cuda.to_device(np.arange(100))
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    reader = context.Process(target=read_shared, args=(array.get_ipc_handle(), answers))
    reader.start()
    print(answers.get(timeout=120))
    reader.join()


def test_plain_segments_are_shared_between_processes():
    pytest.importorskip("numba.cuda")
    said = in_child(
        share_between_processes, ACCELRT_DRIVER="cuda", ACCELRT_ALLOC_CONF="expandable_segments:False"
    )
    assert said == "4950\n"
