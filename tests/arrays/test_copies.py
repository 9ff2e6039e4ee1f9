"""Copies and fills of Arrays of any strides agree with NumPy's assignments."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import accelrt

LAST = accelrt.device_count() - 1
SHAPES = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5)
PLACES = st.sampled_from(["device", "pinned", "numpy"])


def filled(shape, place, seed=0):
    """An Array, or a NumPy array, and a NumPy copy of it."""
    model = np.random.default_rng(seed).integers(1, 1 << 30, shape, dtype=np.int32)
    if place == "numpy":
        return model.copy(), model
    return accelrt.empty(shape, "i4", pin_memory=place == "pinned").copy_(model), model


def seen(array):
    return array if isinstance(array, np.ndarray) else array.numpy()


@settings(max_examples=300, deadline=None)
@given(st.data(), SHAPES, PLACES, PLACES)
def test_copies_between_views_are_numpys(data, shape, to, origin):
    dst, dst_model = filled(shape, to, 1)
    src, src_model = filled(shape, origin, 2)
    axes = data.draw(st.permutations(range(len(shape))))
    dst_view, dst_model_view = dst.transpose(axes), dst_model.transpose(axes)
    key = data.draw(hnp.basic_indices(dst_model_view.shape))
    src_key = data.draw(hnp.basic_indices(shape))
    expected = dst_model_view[key], src_model[src_key]
    if not all(isinstance(part, np.ndarray) for part in expected):
        return
    dst_part = dst_view[key] if to != "numpy" else accelrt.asarray(dst_view[key], device="cpu")
    try:
        expected[0][...] = expected[1]
    except ValueError:
        with pytest.raises(ValueError, match="cannot be broadcast to shape"):
            dst_part.copy_(src[src_key])
        return
    assert dst_part.copy_(src[src_key]) is dst_part
    assert (seen(dst) == dst_model).all()


@settings(max_examples=300, deadline=None)
@given(st.data(), SHAPES, PLACES)
def test_copies_within_one_array_are_as_if_by_a_copy(data, shape, place):
    array, model = filled(shape, place)
    array = accelrt.asarray(array, device="cpu") if place == "numpy" else array
    first, second = data.draw(hnp.basic_indices(shape)), data.draw(hnp.basic_indices(shape))
    if isinstance(model[first], np.ndarray) and isinstance(model[second], np.ndarray):
        try:
            model[first] = model[second].copy()
        except ValueError:
            return
        array[first].copy_(array[second])
        assert (array.numpy() == model).all()


@pytest.mark.parametrize("place", ["device", "pinned", "numpy"])
@pytest.mark.parametrize(
    ("to", "origin"),
    [
        (np.s_[0:40:2], np.s_[8:28]),
        (np.s_[0:38], np.s_[2:40]),
        (np.s_[2:40], np.s_[0:38]),
        (np.s_[::-1], np.s_[:]),
        (np.s_[0:20], np.s_[3:4]),
    ],
)
def test_ranges_that_share_elements_are_copied_as_they_were(place, to, origin):
    model = np.arange(40.0)
    array = accelrt.asarray(model.copy(), device="cpu" if place == "numpy" else None)
    if place == "pinned":
        array = accelrt.empty(40, "f8", pin_memory=True).copy_(model)
    array[to].copy_(array[origin])
    model[to] = model[origin].copy()
    assert array.numpy().tolist() == model.tolist()
    if place == "pinned":
        array.copy_(np.arange(40.0))
        array[to] = array.numpy()[origin]
        assert array.numpy().tolist() == model.tolist()


@settings(max_examples=150, deadline=None)
@given(
    st.data(),
    SHAPES,
    st.sampled_from(["u1", "<i2", "<f4", "<f8", "<c16", "?"]),
    st.integers(0, 1) | st.integers(2, 100),
    st.booleans(),
)
def test_fills_are_numpys(data, shape, dtype, value, pinned):
    array = accelrt.empty(shape, dtype, pin_memory=pinned).fill_(0)
    model = np.zeros(shape, dtype)
    key = data.draw(hnp.basic_indices(shape))
    model[key] = value
    array[key] = value
    assert (array.numpy() == model).all()
    assert (array.fill_(value).numpy() == np.full(shape, value, dtype)).all()


def test_broadcasts_double_what_is_there():
    array = accelrt.empty((1000, 3, 7), "i4")
    row = np.arange(7, dtype=np.int32)
    assert (array.copy_(row).numpy() == row).all()
    column = accelrt.asarray(np.arange(3000, dtype=np.int32).reshape(1000, 3, 1))
    assert (array.copy_(column).numpy() == column.numpy()).all()


def test_a_transpose_is_copied():
    model = np.arange(30 * 17, dtype=np.float64).reshape(30, 17)
    array = accelrt.asarray(model)
    assert (array.T.copy().numpy() == model.T).all()
    assert (array[::-1, 1::3].copy().numpy() == model[::-1, 1::3]).all()


def test_lists_and_scalars_are_converted_and_arrays_are_not():
    array = accelrt.empty((2, 2), "f4")
    array[0] = [1, 2]
    array[1] = 3
    assert array.numpy().tolist() == [[1, 2], [3, 3]]
    with pytest.raises(TypeError, match="takes no elements of float64: nothing is converted"):
        array.copy_(np.zeros((2, 2)))
    with pytest.raises(TypeError, match="takes no elements of float64"):
        array[0] = accelrt.zeros(2)
    with pytest.raises(TypeError, match="holds Python objects"):
        array.copy_(np.array([None, None]))


def test_what_cannot_be_written_is_refused():
    buffer = accelrt.Buffer(64)
    fixed = accelrt.Array(buffer, 4, "f4", readonly=True)
    for work in (lambda: fixed.copy_(np.zeros(4, "f4")), lambda: fixed.fill_(1), lambda: fixed[1:].fill_(1)):
        with pytest.raises(ValueError, match="read-only Array"):
            work()
    with pytest.raises(ValueError, match="read-only"):
        accelrt.copy(fixed, b"1234")
    over = accelrt.Array(buffer, (4, 4), "f4", strides=(4, 4))
    for work in (lambda: over.copy_(np.zeros(4, "f4")), lambda: over.fill_(1)):
        with pytest.raises(ValueError, match="lie on each other"):
            work()
    assert over.copy().shape == (4, 4)
    buffer.free()
    with pytest.raises(ValueError, match="was freed"):
        over.copy_(fixed)


def test_arrays_are_copied_between_devices():
    if LAST == 0:
        pytest.skip("there is one device")
    model = np.arange(60, dtype=np.int32).reshape(5, 12)
    near, far = accelrt.asarray(model, device=0), accelrt.zeros((5, 12), "i4", LAST)
    far.copy_(near)
    assert (far.numpy() == model).all()
    far[:, ::2].copy_(near[:, 1::2])
    far[0].copy_(near[1, :1])
    expected = model.copy()
    expected[:, ::2] = model[:, 1::2]
    expected[0] = model[1, 0]
    accelrt.synchronize(0)
    assert (far.numpy() == expected).all()
    moved = accelrt.asarray(near, device=LAST)
    assert (moved.device_index, moved.numpy().tolist()) == (LAST, model.tolist())
    with pytest.raises(ValueError, match="works on a stream of each; pass no stream"):
        far[:, ::2].copy_(near[:, ::2], stream=accelrt.Stream(0))


def test_arrays_are_taken_by_copies_and_fills_of_bytes():
    array = accelrt.zeros((4, 4), "u1")
    accelrt.fill(array[1], 7)
    accelrt.copy(array[2], array[1])
    out = np.zeros((4, 4), np.uint8)
    accelrt.copy(out, array)
    assert out.tolist() == [[0] * 4, [7] * 4, [7] * 4, [0] * 4]
    buffer = accelrt.Buffer(16)
    buffer.copy_from(array)
    buffer.copy_to(out)
    for scattered in (array.T, array[:, 1]):
        with pytest.raises(ValueError, match="whose bytes are not one piece"):
            accelrt.copy(out, scattered)
        with pytest.raises(ValueError, match="whose bytes are not one piece"):
            accelrt.fill(scattered, 0)


TYPED = {
    "array": lambda dtype: accelrt.zeros(12, dtype),
    "pinned": lambda dtype: accelrt.empty(12, dtype, pin_memory=True),
    "numpy": lambda dtype: np.zeros(12, dtype),
    "memoryview": lambda dtype: memoryview(np.zeros(12, dtype)),
    "bytes": lambda dtype: bytearray(48),
    "buffer": lambda dtype: accelrt.Buffer(48),
}


@pytest.mark.parametrize("to", TYPED)
@pytest.mark.parametrize("origin", TYPED)
def test_copies_of_bytes_refuse_sides_whose_types_differ(to, origin):
    if {to, origin}.isdisjoint({"array", "buffer"}):
        return
    typed = {"array", "pinned", "numpy", "memoryview"}.issuperset({to, origin})
    for dst, src in (("f8", "f4"), ("f4", "i4"), ("f4", ">f4"), ("f4", "f2")):
        sides = TYPED[to](dst), TYPED[origin](src)
        if typed:
            text = "dst holds elements of .* and src of .*: nothing is converted here"
            with pytest.raises(TypeError, match=text):
                accelrt.copy(*sides)
        accelrt.copy(*sides, nbytes=24)
    for dst, src in (("f4", "f4"), ("f4", "u1"), ("u1", "u1")):
        accelrt.copy(TYPED[to](dst), TYPED[origin](src), **({"nbytes": 12} if dst == "u1" else {}))


def test_memory_that_was_freed_is_no_array():
    array = accelrt.zeros(3)
    array.free()
    for make in (accelrt.asarray, accelrt.from_dlpack, lambda freed: accelrt.asarray(freed, copy=False)):
        with pytest.raises(ValueError, match="was freed"):
            make(array)
    buffer = accelrt.Buffer(8)
    buffer.free()
    with pytest.raises(ValueError, match="was freed"):
        accelrt.asarray(buffer)


def test_arrays_are_made_of_what_is_given():
    model = np.arange(6, dtype=np.float32).reshape(2, 3)
    array = accelrt.asarray(model.T)
    assert (array.device_index, array.strides) == (accelrt.current_device(), model.T.strides)
    assert accelrt.asarray(array) is array
    assert accelrt.asarray(array, copy=True).ptr != array.ptr
    host = accelrt.asarray(model, device="cpu")
    assert (host.device_index, host.ptr, host.base is model) == (-1, model.ctypes.data, True)
    assert host.numpy().ctypes.data == model.ctypes.data
    assert accelrt.asarray(array, device="cpu").numpy().tolist() == model.T.tolist()
    assert accelrt.asarray([1, 2], "u1").numpy().tolist() == [1, 2]
    assert accelrt.asarray(accelrt.Buffer(8)).dtype == np.uint8
    with pytest.raises(ValueError, match="the elements are elsewhere"):
        accelrt.asarray(model, copy=False)
    with pytest.raises(TypeError, match="dtype is int8, but source has float32"):
        accelrt.asarray(model, "i1")
    assert accelrt.full((2, 2), 3, "u1").numpy().tolist() == [[3, 3], [3, 3]]
    assert accelrt.full((2,), 1.5).dtype == np.float64
    assert accelrt.full_like(array, 2).numpy().tolist() == [[2, 2]] * 3


def test_numpy_reads_host_arrays_and_copies_of_others():
    pinned = accelrt.empty(4, "i4", pin_memory=True).fill_(3)
    assert np.asarray(pinned).tolist() == [3] * 4
    view = pinned.numpy()
    view[0] = 1
    assert pinned.copy().numpy().tolist() == [1, 3, 3, 3]
    assert pinned.numpy()[0] == 1
    with pytest.raises(BufferError):
        pinned.base.free()
    with pytest.raises(TypeError, match=r"through a copy: array.numpy\(\)"):
        np.asarray(accelrt.empty(4))
    assert accelrt.zeros((0, 3)).numpy().shape == (0, 3)
