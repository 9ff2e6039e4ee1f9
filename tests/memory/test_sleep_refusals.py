"""What is refused while memory sleeps, and pools that cannot."""

import ctypes
import os

import numpy as np
import pytest
from child import in_own_process
from sleepers import MIB, assert_contents, fill_buffers

import accelrt
from accelrt import memory

ON_HOST = os.environ.get("ACCELRT_DRIVER", "host") == "host"  # where nobody else uses the device meanwhile
alloc, delete = accelrt.caching_allocator_alloc, accelrt.caching_allocator_delete


def uses_of(buffer, other, array):
    """Every way to use memory that Python has."""
    out, kernel = np.empty(16, np.uint8), accelrt.elementwise("uint8 x", "uint8 y", "y = x")
    uses = [
        lambda: buffer.copy_to(out, 16),
        lambda: buffer.copy_from(out),
        lambda: accelrt.copy(other, buffer, 16),
        lambda: accelrt.copy(buffer, other, 16),
        lambda: buffer.fill(0),
        lambda: array.numpy(),
        lambda: array[3:].copy(),
        lambda: array.fill_(1),
        lambda: array.__dlpack__(),
        lambda: kernel(array),
        lambda: kernel(accelrt.empty(array.shape, "u1"), out=array),
    ]
    if accelrt.current_device() >= 0 and buffer.device.type == "cuda":
        uses += [lambda: buffer.__cuda_array_interface__, lambda: array.__cuda_array_interface__]
    return uses


def test_every_use_of_memory_that_sleeps_is_refused():
    pool, other = accelrt.MemPool(), accelrt.Buffer(4096)
    (buffer,), contents = fill_buffers(pool, [4096])
    array = buffer[64:128]
    uses = uses_of(buffer, other, array)
    pool.sleep()
    for use in uses:
        with pytest.raises(
            accelrt.SleepingMemoryError, match=r"belongs to a pool that sleeps.*wake the pool"
        ):
            use()
    for use in uses_of(other, accelrt.Buffer(16), other[64:128]):
        use()  # other memory is used as ever
    pool.wake()
    assert_contents([buffer], contents)
    for use in uses:
        use()


@pytest.mark.host
def test_a_launch_with_memory_that_sleeps_is_refused():
    @ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p))
    def run(where, arguments):
        ctypes.c_uint32.from_address(ctypes.c_size_t.from_address(arguments[0]).value).value = 7

    kernel, pool = accelrt.host_kernel(run, "uint32_t* at"), accelrt.MemPool()
    (buffer,), _ = fill_buffers(pool, [4096])
    pool.sleep()
    for argument in (buffer, buffer[:4], buffer.ptr + 8):
        with pytest.raises(accelrt.SleepingMemoryError, match="argument 0 of kernel"):
            kernel[1, 1](argument)
    pool.wake()
    kernel[1, 1](buffer)
    out = np.empty(1, np.uint32)
    buffer.copy_to(out, 4)
    assert out[0] == 7


def test_the_c_library_answers_that_memory_sleeps():
    library, size = ctypes.CDLL(accelrt.get_library()), ctypes.c_size_t
    pool, other = accelrt.MemPool(), accelrt.Buffer(4096)
    (buffer,), contents = fill_buffers(pool, [4096])
    stream, inside = size(buffer.stream.cuda_stream), size(buffer.ptr + 64)
    calls = [
        lambda: library.accelrt_copy(0, stream, size(other.ptr), inside, size(512)),
        lambda: library.accelrt_copy(0, stream, inside, size(other.ptr), size(512)),
        lambda: library.accelrt_fill(0, stream, inside, 0, 1, size(512)),
    ]
    other.copy_from(contents[0])
    pool.sleep()
    assert [call() for call in calls] == [-10, -10, -10]
    pool.wake()
    assert_contents([buffer, other], [contents[0], contents[0]])
    assert [call() for call in calls] == [0, 0, 0]
    accelrt.synchronize()


def test_an_allocation_from_a_pool_that_sleeps_is_refused():
    pool = accelrt.MemPool()
    kept, _ = fill_buffers(pool, [MIB])
    pool.sleep()
    with accelrt.use_mem_pool(pool), pytest.raises(accelrt.SleepingMemoryError, match="wake"):
        alloc(512)
    other = accelrt.Buffer(MIB)  # from the common heaps
    with accelrt.graph(accelrt.CUDAGraph(), pool=pool):
        other.fill(1)
        with pytest.raises(accelrt.SleepingMemoryError):
            accelrt.Buffer(512)
    pool.wake()
    with accelrt.use_mem_pool(pool):
        delete(alloc(512))
    del kept


def test_mistakes_are_named():
    pool = accelrt.MemPool()
    with accelrt.use_mem_pool(pool):
        address = alloc(MIB)
    with pytest.raises(ValueError, match=r"keep is 'disk'; it may be 'host'.*or 'discard'"):
        pool.sleep("disk")
    with pytest.raises(RuntimeError, match="it does not sleep"):
        pool.wake()
    pool.sleep()
    with pytest.raises(RuntimeError, match="sleeps already; wake it first"):
        pool.sleep()
    with pytest.raises(accelrt.SleepingMemoryError):
        memory.get_checkpoint_state(pool)
    pool.wake()
    with pytest.raises(ValueError, match=r"device 0 has no memory pool \(0, 987654321\) in use"):
        memory.sleep((0, 987654321))
    with pytest.raises(TypeError, match="pass a MemPool or its id"):
        memory.sleep(5)
    other = accelrt.Buffer(512)
    with accelrt.graph(accelrt.CUDAGraph()), pytest.raises(RuntimeError, match="a capture is under way"):
        other.fill(0)
        pool.sleep()
    state = memory.get_checkpoint_state(pool)
    pool.sleep()
    with pytest.raises(accelrt.SleepingMemoryError):
        memory.set_checkpoint_state(state)
    pool.wake()
    delete(address)


@in_own_process(ACCELRT_ALLOC_CONF="expandable_segments:False")
def test_plain_segments_cannot_sleep():
    pool = accelrt.MemPool()
    with accelrt.use_mem_pool(pool):
        address = alloc(MIB)
    with pytest.raises(accelrt.NotSupportedError, match=r"plain segments.*expandable_segments:True"):
        pool.sleep()
    assert not pool.is_asleep()
    delete(address)


# pools that end, idle memory, limits, other devices, threads


def test_contents_that_pass_the_limit_of_page_locked_memory_are_refused():
    pool = accelrt.MemPool()
    with accelrt.use_mem_pool(pool):
        array = accelrt.full(8 * MIB, 7, "u1")
    limited, text = accelrt.PinnedMemPool(limit=2 * MIB), "limit of the PinnedMemPool in use leaves no"
    with accelrt.use_mem_pool(limited), pytest.raises(accelrt.OutOfMemoryError, match=text):
        pool.sleep()
    assert not pool.is_asleep()
    assert (array.numpy() == 7).all()
