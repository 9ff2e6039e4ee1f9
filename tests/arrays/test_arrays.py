"""Arrays own their memory with their views; what they are made of, and what they refuse."""

import gc
import weakref

import numpy as np
import pytest
from beside import on_a_thread

import accelrt

LAST = accelrt.device_count() - 1


def test_the_last_view_frees_the_memory():
    before = accelrt.memory_allocated()
    array = accelrt.empty((1000,), "u1")
    assert accelrt.memory_allocated() == before + 1024
    view, buffer = array[10:20].view("u2"), weakref.ref(array.base)
    del array
    assert accelrt.memory_allocated() == before + 1024
    del view
    assert (accelrt.memory_allocated(), buffer()) == (before, None)


def test_an_empty_array_takes_numpys_defaults():
    array = accelrt.empty(3)
    assert (array.dtype, array.shape, array.nbytes) == (np.dtype(float), (3,), 24)
    assert accelrt.empty(()).size == 1
    assert (accelrt.empty((0, 5)).ptr, accelrt.empty((0, 5)).size) == (0, 0)
    assert accelrt.empty([np.int64(2), 3], np.int8).shape == (2, 3)


def test_a_shape_may_be_an_array_of_ints():
    for shape, expected in (
        (np.array([2, 3]), (2, 3)), (np.array([4], np.uint8), (4,)), (np.array(6), (6,)), (np.int64(5), (5,)),
    ):  # fmt: skip
        assert accelrt.empty(shape).shape == expected
    for shape in (np.array([1.5]), np.array(1.5), np.array([[2, 3]]), np.float64(2)):
        with pytest.raises(TypeError, match="pass an int or a tuple of ints"):
            accelrt.empty(shape)


def test_an_array_belongs_to_a_device_and_a_stream():
    stream = accelrt.Stream(LAST)
    array = accelrt.empty(8, stream=stream)
    assert (array.device_index, array.stream, array.device) == (LAST, stream, accelrt.device(LAST))
    assert accelrt.empty(8, device=0).stream == accelrt.current_stream(0)
    assert array[2:].T.stream is stream
    array.record_stream(accelrt.Stream())


def test_pinned_arrays_are_host_memory():
    array = accelrt.empty((4, 4), "f4", pin_memory=True)
    assert (array.device_index, array.device, array.stream) == (-1, "cpu", None)
    assert accelrt.is_pinned(array.ptr)
    array.record_stream(accelrt.Stream())
    with pytest.raises(ValueError, match="follows no stream's order"):
        accelrt.empty(4, stream=accelrt.Stream(), pin_memory=True)


def test_zeros_are_zero_bytes():
    buffer = accelrt.Buffer(64)
    buffer.fill(7)
    buffer.free()
    array, found = accelrt.zeros(64, "u1"), np.ones(64, np.uint8)
    array.base.copy_to(found)
    assert not found.any()
    assert accelrt.zeros_like(array).shape == (64,)
    with pytest.raises(ValueError, match="other is in host memory"):
        accelrt.zeros_like(accelrt.empty(3, pin_memory=True))


def test_arrays_like_another_keep_its_order_of_axes():
    array = accelrt.empty((2, 3, 4), "f4", LAST)
    for other in (array, array.T, array.permute(1, 0, 2)):
        like = accelrt.empty_like(other)
        assert (like.shape, like.strides, like.device_index) == (other.shape, other.strides, LAST)
    assert accelrt.empty_like(array[..., ::2]).is_contiguous
    assert accelrt.empty_like(array.T, "f8").is_contiguous
    assert accelrt.empty_like(accelrt.empty(3, pin_memory=True)).device_index == -1
    assert accelrt.empty_like(accelrt.empty(3, pin_memory=True), device=0).device_index == 0


def test_slices_of_a_buffer_are_its_bytes():
    buffer = accelrt.Buffer(100)
    part = buffer[10:20]
    assert (part.ptr, part.shape, part.dtype, part.base) == (buffer.ptr + 10, (10,), np.uint8, buffer)
    assert buffer[-1].shape == ()
    assert buffer[::2].strides == (2,)
    for failing in (list, lambda memory: next(iter(memory))):
        with pytest.raises(TypeError, match="not read one by one"):
            failing(buffer)
    with pytest.raises(IndexError, match="outside axis 0"):
        buffer[100]
    buffer.free()
    with pytest.raises(ValueError, match="was freed"):
        buffer[0:1]


def test_an_array_is_a_view_of_memory_that_it_is_given():
    buffer = accelrt.Buffer(100)
    array = accelrt.Array(buffer, (3, 4), "f4", offset=52)
    assert (array.ptr, array.strides) == (buffer.ptr + 52, (16, 4))
    assert accelrt.Array(buffer, dtype="f4", offset=4).shape == (24,)
    back = accelrt.Array(buffer, 10, "u1", strides=(-2,), offset=18)
    assert (back.ptr, back.strides) == (buffer.ptr + 18, (-2,))
    assert accelrt.Array(array, (12,), "f4").base is buffer
    assert accelrt.Array(accelrt.PinnedBuffer(16), 4, "f4", readonly=True).readonly


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"shape": 26, "dtype": "f4"}, ValueError, "takes bytes 0 to 104 of the memory, which has 100"),
        ({"shape": 25, "dtype": "f4", "offset": 1}, ValueError, "takes bytes 1 to 101"),
        ({"shape": 3, "dtype": "f4", "strides": (-4,)}, ValueError, "takes bytes -8 to 4"),
        ({"shape": (3, 3), "dtype": "f4", "strides": (1 << 62, 4)}, ValueError, "reach beyond all memory"),
        ({"shape": (1 << 40, 1 << 40), "dtype": "f4"}, ValueError, "larger than any memory"),
        ({"shape": 3, "strides": (1, 2)}, ValueError, "of 2 axes; the shape has 1"),
        ({"shape": -1}, ValueError, "a length goes from 0"),
        ({"shape": 1 << 63}, ValueError, "a length goes from 0"),
        ({"shape": (1,) * 65}, ValueError, "an array has at most 64"),
        ({"shape": 1.5}, TypeError, "pass an int or a tuple"),
        ({"shape": True}, TypeError, "not a bool"),
        ({"shape": 3, "strides": "abc"}, TypeError, "pass a tuple of ints, in bytes"),
        ({"dtype": "f8"}, ValueError, "a multiple of"),
        ({"offset": 101}, ValueError, "goes from 0 to the 100 bytes"),
        ({"dtype": object}, TypeError, "holds Python objects"),
        ({"dtype": "S"}, TypeError, "no type of single elements"),
        ({"dtype": "(3,)f4"}, TypeError, "no type of single elements"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(arguments, error, text):
    with pytest.raises(error, match=text):
        accelrt.Array(accelrt.Buffer(100), **arguments)


def test_other_memory_is_refused():
    pool = accelrt.memory.DriverPool(max_size=1 << 20)
    for memory in (np.zeros(3), bytearray(3), None, pool.allocate(512)):
        with pytest.raises(TypeError, match="pass a Buffer, a PinnedBuffer or an Array"):
            accelrt.Array(memory)
    with pytest.raises(ValueError, match="pass a contiguous one"):
        accelrt.Array(accelrt.empty((2, 3)).T)


def test_memory_that_was_freed_is_refused_by_every_view():
    buffer = accelrt.Buffer(64)
    view = buffer[2:8]
    buffer.free()
    for use in (lambda: view[0], lambda: view.reshape(-1), lambda: view.view("i1"), lambda: view.T):
        with pytest.raises(ValueError, match="the memory of this is a Buffer that was freed"):
            use()
    array = accelrt.empty(3)
    with array as same:
        part = same[1:]
    for dead in (array, part):
        with pytest.raises(ValueError, match="was freed"):
            dead[0]
    array.free()


def test_page_locked_memory_is_not_freed_under_a_view():
    pinned = accelrt.PinnedBuffer(64)
    first = accelrt.Array(pinned)
    second = first[1:]
    with pytest.raises(BufferError, match="2 views"):
        pinned.free()
    with pytest.raises(BufferError, match="1 views"):
        first.free()
    assert first.shape == (64,)
    del second
    first.free()
    assert pinned.ptr == 0


def test_a_cycle_through_an_array_is_collected():
    class Holder(accelrt.PinnedBuffer):
        pass

    holder = Holder(64)
    holder.array = accelrt.Array(holder)
    reference = weakref.ref(holder)
    del holder
    gc.collect()
    assert reference() is None


def test_threads_that_never_chose_a_device_make_arrays():
    assert on_a_thread(lambda: accelrt.zeros((5, 5))[1:]).shape == (4, 5)
