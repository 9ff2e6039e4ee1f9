"""Buffers, copies and fills: what they own, what they move, and what they refuse."""

import gc
import pickle
import threading

import numpy as np
import pytest
from beside import Gate, on_threads
from device_arrays import pattern

import accelrt

LAST = accelrt.device_count() - 1


def test_a_buffer_owns_its_bytes_until_it_dies():
    before = accelrt.memory_allocated()
    buffer = accelrt.Buffer(1000)
    assert (buffer.nbytes, len(buffer), buffer.ptr % 512) == (1000, 1000, 0)
    assert accelrt.memory_allocated() == before + 1024
    del buffer
    assert accelrt.memory_allocated() == before


def test_a_buffer_may_be_freed_early_and_again():
    with accelrt.Buffer(4096) as buffer:
        assert buffer.ptr
    assert (buffer.ptr, buffer.nbytes) == (0, 0)
    buffer.free()


def test_no_bytes_are_no_memory():
    with accelrt.Buffer(0) as buffer:
        assert (buffer.ptr, buffer.nbytes) == (0, 0)
        buffer.copy_from(b"")
        buffer.fill(1)


@pytest.mark.parametrize(("size", "error"), [(-1, ValueError), (1.5, TypeError), ("1", TypeError)])
def test_sizes_that_are_none_are_refused(size, error):
    with pytest.raises(error, match="nbytes is"):
        accelrt.Buffer(size)
    with pytest.raises(error, match="nbytes is"):
        accelrt.PinnedBuffer(size)


@pytest.mark.parametrize("size", [1 << 60, (1 << 64) - 1, 1 << 64, 10**30])
@pytest.mark.parametrize("make", [accelrt.Buffer, accelrt.caching_allocator_alloc], ids=["Buffer", "pointer"])
def test_a_size_that_no_device_has_is_out_of_memory_with_all_figures(make, size):
    text = rf"out of memory\. Tried to allocate \d+\.00 GiB\. .*\nRequested: {size} bytes"
    with accelrt.Buffer(512, LAST), pytest.raises(MemoryError, match=text) as told:
        make(size, LAST)
    error = told.value
    assert isinstance(error, accelrt.OutOfMemoryError)
    assert (error.requested, error.capacity) == (size, accelrt.mem_get_info(LAST)[1])
    assert 0 < error.free <= error.capacity
    assert error.reserved >= error.live >= 512
    again = pickle.loads(pickle.dumps(error))
    assert (vars(again), str(again)) == (vars(error), str(error))


def test_out_of_memory_is_every_kind_of_error_that_programs_expect():
    assert issubclass(accelrt.OutOfMemoryError, (accelrt.CudaError, RuntimeError))
    assert issubclass(accelrt.OutOfMemoryError, MemoryError)
    with pytest.raises(MemoryError, match=r"out of memory\. Tried to allocate \d+ bytes: nbytes is"):
        accelrt.PinnedBuffer(1 << 60)


def test_a_buffer_of_a_stream_is_on_its_device():
    stream = accelrt.Stream(LAST)
    with accelrt.Buffer(512, stream=stream) as buffer:
        assert buffer.device == accelrt.device(LAST)
        assert buffer.stream is stream
    if LAST:
        with pytest.raises(ValueError, match=f"stream is on device {LAST}, the buffer on 0"):
            accelrt.Buffer(512, device=0, stream=stream)


def test_an_address_of_a_stream_is_on_its_device():
    stream = accelrt.Stream(LAST)
    address = accelrt.caching_allocator_alloc(512, stream=stream)
    assert accelrt.memory_allocated(LAST) == 512
    accelrt.caching_allocator_delete(address)
    with pytest.raises(accelrt.OutOfMemoryError) as refused:
        accelrt.caching_allocator_alloc(1 << 60, stream=stream)
    assert refused.value.device == LAST
    if LAST:
        with pytest.raises(ValueError, match=f"stream is on device {LAST}, the memory on 0"):
            accelrt.caching_allocator_alloc(512, device=0, stream=stream)


@pytest.mark.parametrize(
    "make", [bytes, bytearray, memoryview, np.asarray], ids=["bytes", "bytearray", "view", "array"]
)
def test_copies_take_everything_with_the_buffer_protocol(make):
    data = pattern(5000)
    source = make(data if make is np.asarray else data.tobytes())
    out = bytearray(5000)
    with accelrt.Buffer(5000) as buffer:
        buffer.copy_from(source)
        buffer.copy_to(out)
    assert out == data.tobytes()


def test_offsets_and_lengths_choose_the_bytes():
    data, out = pattern(1000), np.zeros(1000, np.uint8)
    with accelrt.Buffer(1000) as buffer:
        buffer.fill(7, blocking=True)
        buffer.copy_from(data, 100, offset=50, src_offset=10)
        buffer.copy_to(out, 300, offset=40, dst_offset=5)
    expected = np.full(1000, 7, np.uint8)
    expected[50:150] = data[10:110]
    assert (out[5:305] == expected[40:340]).all()
    assert not out[305:].any()


@pytest.mark.parametrize(
    "arguments",
    [{"nbytes": 1001}, {"offset": 1001}, {"offset": -1}, {"src_offset": 5, "nbytes": 996}, {"offset": 1}],
)
def test_what_does_not_fit_is_refused_before_anything_is_copied(arguments):
    with accelrt.Buffer(1000) as buffer:
        buffer.fill(9, blocking=True)
        with pytest.raises(ValueError, match=r"goes from 0 to \d+"):
            buffer.copy_from(bytes(1000), **arguments)
        out = bytearray(1000)
        buffer.copy_to(out)
    assert out == b"\x09" * 1000


@pytest.mark.parametrize("thing", [3, "text", None, [1, 2], np.zeros((4, 4))[:, 1]])
def test_what_is_no_contiguous_memory_is_refused(thing):
    with accelrt.Buffer(64) as buffer, pytest.raises(TypeError, match="pass a Buffer, an object with"):
        buffer.copy_from(thing)


def test_read_only_memory_is_no_destination():
    with accelrt.Buffer(64) as buffer, pytest.raises(TypeError, match="writable"):
        buffer.copy_to(bytes(64))


def test_two_sides_of_host_memory_are_refused():
    with pytest.raises(ValueError, match="both sides are host memory"):
        accelrt.copy(bytearray(4), b"abcd")


def test_copies_within_and_between_devices():
    data, out = pattern(1 << 20), np.zeros(1 << 20, np.uint8)
    with accelrt.Buffer(data.nbytes, device=0) as a, accelrt.Buffer(data.nbytes, device=LAST) as b:
        a.copy_from(data)
        accelrt.copy(b, a, blocking=False)
        b.copy_to(out)
    assert (out == data).all()


@pytest.mark.parametrize(("width", "value"), [(1, 0xAB), (2, 0xABCD), (4, 0xDEADBEEF)])
def test_fills_set_every_element(width, value):
    out = np.zeros(64, f"<u{width}")
    with accelrt.Buffer(out.nbytes) as buffer:
        buffer.fill(0)
        buffer.fill(value, 60, width=width, offset=2 * width)
        buffer.copy_to(out)
    assert (out[2:62] == value).all()
    assert not out[[0, 1, 62, 63]].any()


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"value": 256}, ValueError),
        ({"value": -1}, ValueError),
        ({"value": 1.5}, ValueError),
        ({"width": 3}, ValueError),
        ({"width": 4, "offset": 2}, ValueError),
        ({"count": 65}, ValueError),
        ({"offset": 65}, ValueError),
        ({"count": "all"}, TypeError),
    ],
)
def test_fills_that_do_not_fit_are_refused(arguments, error):
    with accelrt.Buffer(64) as buffer, pytest.raises(error):
        buffer.fill(**arguments)


def test_fill_takes_device_memory_only():
    with pytest.raises(TypeError, match="host memory"):
        accelrt.fill(bytearray(8))


def test_page_locked_memory_is_an_array():
    data, out = pattern(4096), np.zeros(4096, np.uint8)
    stream = accelrt.Stream()
    with accelrt.Buffer(4096, stream=stream) as buffer:
        pinned = accelrt.PinnedBuffer(4096)
        array = np.frombuffer(pinned, np.uint8)
        array[:] = data
        buffer.copy_from(pinned, stream=stream, blocking=False)
        buffer.copy_to(out, stream=stream)
        with pytest.raises(BufferError, match="1 views"):
            pinned.free()
        del array
        gc.collect()
        pinned.free()
        assert pinned.nbytes == 0
    assert (out == data).all()


def test_pageable_memory_may_change_after_an_asynchronous_copy():
    stream, gate = accelrt.Stream(), threading.Event()
    data, out = pattern(1 << 12), np.zeros(1 << 12, np.uint8)
    expected = data.copy()
    with accelrt.Buffer(data.nbytes, stream=stream) as buffer:
        stream.launch_host_func(gate.wait)
        opener = threading.Timer(0.05, gate.set)  # a GPU may stage only once the stream gets there
        opener.start()
        buffer.copy_from(data, stream=stream, blocking=False)
        data[:] = 0
        opener.join()
        buffer.copy_to(out, stream=stream)
    assert (out == expected).all()


def test_memory_used_on_another_stream_is_not_handed_out_before_it_is_done():
    owner, user = accelrt.Stream(), accelrt.Stream()
    with Gate(user):
        buffer = accelrt.Buffer(1 << 20, stream=owner)
        address = buffer.ptr
        buffer.fill(1, stream=user)
        buffer.free()
        with accelrt.Buffer(1 << 20, stream=owner) as other:
            assert other.ptr != address
    user.synchronize()
    with accelrt.Buffer(1 << 20, stream=owner) as again:
        assert again.ptr == address


def test_eight_threads_each_see_their_own_bytes():
    def work(seed):
        stream = accelrt.Stream()
        with accelrt.stream(stream):
            for round_ in range(20):
                data = pattern(1 << 14, seed * 100 + round_)
                out = np.empty_like(data)
                with accelrt.Buffer(data.nbytes) as buffer:
                    buffer.copy_from(data)
                    buffer.copy_to(out)
                assert (out == data).all()

    on_threads(work, range(8))


def test_the_cuda_array_interface_is_there_on_a_gpu_only():
    with accelrt.Buffer(64) as buffer:
        if accelrt.device(0).type == "host":
            assert not hasattr(buffer, "__cuda_array_interface__")
        else:
            assert buffer.__cuda_array_interface__["data"] == (buffer.ptr, False)
