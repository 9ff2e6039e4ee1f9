"""DeviceBuffer: bytes of a resource that can be resized."""

import copy
import pickle
import sys

import numpy as np
import pytest
from beside import on_threads

import accelrt
from accelrt import resources


@pytest.mark.parametrize("nbytes", [0, 5])
def test_a_buffer_has_the_bytes_that_were_asked_for(nbytes):
    made = resources.DeviceBuffer(nbytes)
    assert (made.nbytes, len(made), made.__sizeof__(), made.capacity) == (nbytes,) * 4
    assert (made.ptr != 0) is (nbytes > 0)
    assert len(made.to_bytes()) == nbytes


@pytest.mark.parametrize(
    "source", [b"abc", bytearray(b"abc"), memoryview(b"abc"), np.arange(3, dtype="u1"), b""]
)
def test_bytes_of_the_host_go_and_come(source):
    made = resources.DeviceBuffer.from_host(source)
    expected = bytes(memoryview(source))
    assert bytes(made) == made.to_bytes() == expected
    target = bytearray(len(expected))
    assert made.copy_to(target) is target
    assert bytes(target) == expected
    assert made.copy_to().tobytes() == expected


@pytest.mark.parametrize("source", [np.ones(2, "u2"), np.ones((2, 2), "u1"), np.ones(4, "u1")[::2]])
def test_other_elements_are_refused(source):
    with pytest.raises(ValueError, match="pass unsigned bytes"):
        resources.DeviceBuffer.from_host(source)


@pytest.mark.parametrize("source", [None, "abc", 123])
def test_what_is_no_buffer_is_refused(source):
    with pytest.raises(TypeError):
        resources.DeviceBuffer.from_host(source)


def test_resizing_keeps_the_bytes():
    statistics = resources.StatisticsAdaptor(resources.DeviceResource())
    made = resources.DeviceBuffer.from_host(b"abcdef", resource=statistics)
    address = made.ptr
    made.resize(3)
    assert (made.nbytes, made.capacity, made.ptr) == (3, 6, address)
    made.resize(6)
    assert made.ptr == address
    assert made.to_bytes() == b"abcdef"
    made.resize(1000, accelrt.Stream())
    assert made.to_bytes()[:6] == b"abcdef"
    assert made.capacity == 1000
    made.reserve(2000)
    assert (made.nbytes, made.capacity) == (1000, 2000)
    made.resize(2)
    made.shrink_to_fit()
    assert (made.to_bytes(), made.capacity) == (b"ab", 2)
    assert statistics.counts.current_bytes == 2
    made.resize(0)
    made.shrink_to_fit()
    assert (made.ptr, statistics.counts.current_count) == (0, 0)
    with pytest.raises(ValueError, match="nbytes is -1"):
        made.resize(-1)


def test_a_resize_without_room_leaves_the_buffer_as_it_was():
    limited = resources.LimitingAdaptor(resources.DeviceResource(), 100)
    made = resources.DeviceBuffer.from_host(b"a" * 60, resource=limited)
    with pytest.raises(MemoryError):
        made.resize(61)
    assert made.to_bytes() == b"a" * 60
    assert limited.allocated_bytes == 60


def test_copies_have_to_fit():
    made = resources.DeviceBuffer.from_host(b"0123456789")
    made.copy_from(b"abc")
    made.copy_from(accelrt.asarray(np.frombuffer(b"xyz", "u1")), offset=7)
    assert made.to_bytes() == b"abc3456xyz"
    made.copy_from(resources.DeviceBuffer.from_host(b"--"), offset=3)
    assert made.to_bytes() == b"abc--56xyz"
    with pytest.raises(ValueError, match="source has 11 bytes"):
        made.copy_from(bytes(11))
    with pytest.raises(ValueError, match="room for 1 from offset 9"):
        made.copy_from(b"ab", offset=9)
    with pytest.raises(ValueError, match="target has 9 bytes"):
        made.copy_to(bytearray(9))


def test_a_clone_is_other_memory():
    made = resources.DeviceBuffer.from_host(b"abc")
    cloned = made.clone(accelrt.Stream())
    assert cloned.ptr != made.ptr
    assert cloned.to_bytes() == b"abc"
    for refused in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="clone"):
            refused(made)


def test_managed_memory_is_prefetched():
    made = resources.DeviceBuffer.from_host(b"abc", resource=resources.ManagedResource())
    assert accelrt.memory.managed_attributes(made.buffer).last_prefetch_location is None
    made.prefetch()
    assert (
        accelrt.memory.managed_attributes(made.buffer).last_prefetch_location.index
        == accelrt.current_device()
    )
    resources.DeviceBuffer(16).prefetch()  # other memory stays


def test_memory_is_the_current_resources():
    statistics = resources.StatisticsAdaptor(resources.PoolResource())
    with resources.use_resource(statistics):
        made = resources.DeviceBuffer(100)
        assert made.resource is statistics
        assert statistics.counts.current_bytes == 100
        made.free()
        assert (made.nbytes, made.capacity, statistics.counts.current_bytes) == (0, 0, 0)
    with pytest.raises(TypeError, match="resource is 7"):
        resources.DeviceBuffer(1, resource=7)


def test_sizes_and_offsets_are_whole_numbers():
    made = resources.DeviceBuffer.from_host(b"abcdef")
    for wrong in (1.5, "4", None, True):
        for call in (made.reserve, made.resize, lambda offset: made.copy_from(b"x", offset=offset)):
            with pytest.raises(TypeError, match="pass bytes as int"):
                call(wrong)
    for call in (made.reserve, made.resize, lambda offset: made.copy_from(b"x", offset=offset)):
        with pytest.raises(ValueError, match="is -5; pass 0 or more"):
            call(-5)
    with pytest.raises(TypeError, match="pass a Resource"):
        made.clone(resource=0)
    assert (made.nbytes, made.to_bytes()) == (6, b"abcdef")
    made.resize(np.int64(4))
    assert type(made.nbytes) is int


def test_threads_that_resize_and_write_at_once():
    made = resources.DeviceBuffer.from_host(b"old")

    def grow(_):
        for _ in range(1500):
            made.resize(5000)
            made.resize(10)

    def shrink(_):
        for _ in range(3000):
            made.shrink_to_fit()

    def write(number):
        for turn in range(1500):
            written = bytes([number, turn % 256, number])
            made.copy_from(written, offset=3 * number)
            found = made.to_bytes()
            assert found[3 * number : 3 * number + 3] == written
            assert len(found) in (10, 5000)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        made.resize(10)
        on_threads(lambda call: call[0](call[1]), [(grow, 0), (shrink, 0), (write, 1), (write, 2)])
    finally:
        sys.setswitchinterval(before)
    assert made.capacity >= made.nbytes == 10


def test_a_resource_that_changes_the_buffer_it_is_asked_for():
    class Between(resources.Adaptor):
        work = None

        def take(self, nbytes, stream):
            work, self.work = self.work, None
            if work is not None:
                work()
            return super().take(nbytes, stream)

    between = Between(resources.PoolResource())
    made = resources.DeviceBuffer(10, resource=between)
    between.work = lambda: made.resize(50)
    made.resize(20)
    assert (made.nbytes, made.capacity) == (20, 50)
    between.work = made.free
    made.resize(100)
    assert (made.nbytes, made.capacity) == (100, 100)


def test_a_buffer_that_others_have_keeps_its_bytes_where_it_is_freed():
    buffer = accelrt.resources.DeviceBuffer.from_host(bytes(range(64)))
    tensor = buffer.__dlpack__()
    with pytest.raises(BufferError, match="1 DLPack tensors"):
        buffer.free()
    assert (buffer.nbytes, buffer.to_bytes()) == (64, bytes(range(64)))
    del tensor
    buffer.free()
    assert buffer.nbytes == buffer.capacity == 0


def test_other_libraries_take_the_bytes_by_dlpack():
    growing = resources.DeviceBuffer.from_host(b"abcde")
    growing.reserve(100)
    shared = accelrt.from_dlpack(growing)
    assert (shared.ptr, shared.shape) == (growing.ptr, (5,))
    assert growing.__dlpack_device__() == shared.__dlpack_device__()
    assert bytes(accelrt.asarray(growing).numpy()) == b"abcde"
    growing.resize(1000)  # moves the bytes; those that were given away stay
    assert shared.ptr != growing.ptr
    assert bytes(shared.numpy()) == b"abcde"


def test_a_block_frees_the_memory():
    with resources.DeviceBuffer(100) as growing:
        assert growing.capacity == 100
    assert (growing.nbytes, growing.ptr) == (0, 0)


SOURCES = {
    "device": resources.DeviceResource,
    "managed": resources.ManagedResource,
    "pool": resources.PoolResource,
    "driver pool": resources.DriverPoolResource,
}


@pytest.mark.parametrize("name", SOURCES)
def test_copies_fills_and_kernels_take_the_buffer_itself(name):
    growing = resources.DeviceBuffer(16, accelrt.Stream(), SOURCES[name]())
    accelrt.fill(growing, 3)
    accelrt.copy(growing, b"abcd")
    back = bytearray(16)
    accelrt.copy(back, growing)
    assert bytes(back) == b"abcd" + bytes([3]) * 12
    growing.resize(1000)
    doubled = accelrt.elementwise("uint8 x", "uint8 y", "y = x + x")(accelrt.asarray(growing))
    assert doubled.numpy()[:16].tolist() == [2 * byte for byte in b"abcd" + bytes([3]) * 12]
    with pytest.raises(ValueError, match="1000"):
        accelrt.copy(growing, bytes(1001))


def test_moves_of_managed_memory_take_the_buffer_itself():
    growing = resources.DeviceBuffer(1 << 16, resource=resources.ManagedResource())
    accelrt.memory.prefetch(growing, "cpu")
    assert accelrt.memory.managed_attributes(growing).last_prefetch_location == "cpu"


@pytest.mark.parametrize("name", SOURCES)
def test_an_array_on_the_buffer_has_its_bytes_and_outlives_a_move(name):
    growing = resources.DeviceBuffer.from_host(b"abc", resource=SOURCES[name]())
    array = accelrt.asarray(growing, copy=False)
    assert array.ptr == growing.ptr
    array.fill_(7)
    assert growing.to_bytes() == bytes([7]) * 3
    growing.resize(100_000)
    accelrt.fill(growing, 1)
    assert array.tolist() == [7, 7, 7]
