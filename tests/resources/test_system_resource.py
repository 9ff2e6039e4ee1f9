"""SystemResource: memory of the system's allocator, on devices that reach it."""

import ctypes

import numpy as np
import pytest
from child import in_own_process
from compiled import compile_libcuda

import accelrt
from accelrt import resources

LARGE = 64 << 20  # bytes that malloc takes from the system and gives back to it


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """The folder of the stand-in for libcuda."""
    return compile_libcuda(tmp_path_factory.mktemp("libcuda"))


def is_mapped(address):
    with open("/proc/self/maps") as lines:
        ranges = [[int(end, 16) for end in line.split()[0].split("-")] for line in lines]
    return any(start <= address < end for start, end in ranges)


def test_the_host_and_the_device_use_the_memory():
    try:
        resource = resources.SystemResource()
    except accelrt.NotSupportedError:
        pytest.skip("the device does not reach memory of the system's allocator")
    stream = accelrt.Stream()
    buffer = resource.buffer(4000, stream)
    seen = np.frombuffer((ctypes.c_uint8 * 4000).from_address(buffer.ptr), np.float32)
    array = accelrt.Array(buffer, (1000,), "float32")
    array.copy_(np.arange(1000, dtype=np.float32))
    stream.synchronize()
    assert (seen == np.arange(1000)).all()
    seen[:] = 3
    assert (array.numpy() == 3).all()


@pytest.mark.host
def test_a_device_that_does_not_reach_it_says_what_to_use():
    with pytest.raises(accelrt.NotSupportedError, match="use a ManagedResource, or a PinnedResource"):
        resources.SystemResource()
    with pytest.raises(ValueError, match="device"):
        resources.SystemResource(64)


@in_own_process(ACCELRT_DRIVER="cuda", LD_LIBRARY_PATH="{library}", FAKE_PAGEABLE="1")
def test_memory_is_the_systems_and_goes_back_once_the_stream_is_past_it(library):
    fake = ctypes.CDLL("libcuda.so.1")
    resource = resources.SystemResource()
    assert resource.device_index == 0
    buffer = resource.buffer(LARGE)
    address = buffer.ptr
    assert address % 256 == 0
    ctypes.memset(address, 7, LARGE)
    fake.fake_busy(1)
    buffer.free()
    assert is_mapped(address)
    fake.fake_busy(0)
    accelrt.synchronize()
    del buffer
    resource.buffer(256).free()
    assert not is_mapped(address)
    with pytest.raises(ValueError, match="is not allocated from <accelrt"):
        resource.deallocate(address, LARGE)
    with pytest.raises(MemoryError, match="the system has no such memory"):
        resource.allocate(1 << 59)
