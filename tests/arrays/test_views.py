"""Arrays as views: shapes, strides, indexing and reshaping agree with NumPy's; nothing is read."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import accelrt

DTYPES = st.sampled_from(["u1", "<i2", "<f4", "<f8", "<c16", "?", "V3"])
SHAPES = hnp.array_shapes(min_dims=0, max_dims=5, min_side=0, max_side=4)


def pair(shape, dtype):
    """A NumPy array and an Array of the same layout."""
    return np.zeros(shape, dtype), accelrt.empty(shape, dtype)


def assert_alike(array, view, whole, model):
    """The Array `view` of `array` is what the NumPy array `model` is of `whole`."""
    assert (view.shape, view.dtype, view.size, view.nbytes) == (
        model.shape,
        model.dtype,
        model.size,
        model.nbytes,
    )
    if model.size:
        start = model.__array_interface__["data"][0] - whole.__array_interface__["data"][0]
        assert view.ptr - array.ptr == start
        real = [axis for axis in range(model.ndim) if model.shape[axis] > 1]
        assert [view.strides[axis] for axis in real] == [model.strides[axis] for axis in real]
    else:
        assert view.ptr == 0
    assert view.is_contiguous == model.flags.c_contiguous


@settings(max_examples=200, deadline=None)
@given(st.data(), SHAPES, DTYPES)
def test_basic_indexing_is_numpys(data, shape, dtype):
    model, array = pair(shape, dtype)
    key = data.draw(hnp.basic_indices(shape, min_dims=0, max_dims=8, allow_newaxis=True))
    expected = model[key]
    if isinstance(expected, np.ndarray):
        assert_alike(array, array[key], model, expected)
    else:  # NumPy answers a scalar, which a device cannot
        assert array[key].shape == ()
    twice = data.draw(hnp.basic_indices(np.shape(expected), min_dims=0, max_dims=8, allow_newaxis=True))
    if isinstance(expected, np.ndarray) and isinstance(expected[twice], np.ndarray):
        assert_alike(array, array[key][twice], model, expected[twice])


@settings(max_examples=200, deadline=None)
@given(st.data(), SHAPES, st.integers(0, 3))
def test_reshape_is_a_view_where_numpys_is(data, shape, cut):
    whole, array = pair(shape, "i4")
    model = whole
    if shape and cut:
        model, array = whole[..., ::cut], array[..., ::cut]
    order = data.draw(st.permutations(range(model.ndim)))
    model, view = model.transpose(order), array.permute(order)
    new = data.draw(hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=12))
    open_ = data.draw(st.integers(-1, len(new) - 1))
    if open_ >= 0:
        new = (*new[:open_], -1, *new[open_ + 1 :])
    try:
        expected = model.reshape(new)
    except ValueError:
        with pytest.raises(ValueError, match=r"reshape|shape is"):
            view.reshape(new)
        return
    if expected.size > 1 and not np.shares_memory(expected, whole):
        with pytest.raises(ValueError, match=r"copy it first: array.copy\(\).reshape"):
            view.reshape(new)
        return
    assert_alike(array, view.reshape(new), model, expected)
    assert view.reshape(*new).shape == expected.shape


@settings(max_examples=100, deadline=None)
@given(SHAPES, DTYPES, DTYPES)
def test_views_of_another_type_are_numpys(shape, dtype, other):
    model, array = pair(shape, dtype)
    try:
        expected = model.view(other)
    except ValueError:
        with pytest.raises(ValueError, match="last axis"):
            array.view(other)
        return
    assert_alike(array, array.view(other), model, expected)


def test_axes_are_permuted():
    array = accelrt.empty((2, 3, 4), "f4")
    assert array.T.shape == array.transpose().shape == (4, 3, 2)
    assert array.permute(2, 0, 1).strides == (4, 48, 16)
    assert array.transpose(-1, 0, 1).shape == (4, 2, 3)
    assert array.permute([1, 0, 2]).T.T.shape == (3, 2, 4)
    for axes in ((0, 1), (0, 0, 1), (0, 1, 3)):
        with pytest.raises(ValueError, match="takes each from 0 to 2 once"):
            array.permute(axes)


@pytest.mark.parametrize("key", [True, 1.5, "a", [0, 1], np.array([0, 1]), np.array([True, False]), b"0"])
def test_other_indices_are_refused(key):
    array = accelrt.empty((2, 3))
    with pytest.raises(TypeError, match="an Array takes ints, slices, Ellipsis and None"):
        array[key]
    with pytest.raises(TypeError, match="an Array takes ints"):
        array[0, key]


def test_indices_that_are_outside_are_refused():
    array = accelrt.empty((2, 3))
    assert array[np.int64(1), np.array(2)].shape == ()
    for key in (2, -3, (0, 3), (0, 1 << 80)):
        with pytest.raises(IndexError, match=r"is outside axis \d, of \d elements"):
            array[key]
    with pytest.raises(IndexError, match="of 2 axes has no 3 indices"):
        array[0, 0, 0]
    with pytest.raises(IndexError, match="at most one Ellipsis"):
        array[..., ...]
    with pytest.raises(IndexError, match="at most 64 axes"):
        array[(None,) * 63]
    with pytest.raises(ValueError, match="slice step cannot be zero"):
        array[::0]


def test_an_array_is_a_sequence_of_its_first_axis():
    array = accelrt.empty((3, 2), "u1")
    assert len(array) == 3
    assert [row.ptr - array.ptr for row in array] == [0, 2, 4]
    with pytest.raises(TypeError, match="no axes"):
        len(array[0, 0])


def test_repr_names_what_it_is():
    array = accelrt.zeros((2, 3), "f4")
    assert repr(array).startswith("<accelrt.Array float32 shape=(2, 3) at 0x")
    assert "strides=(4, 12)" in repr(array.T)
    array.free()
    assert repr(array) == "<accelrt.Array float32, freed>"
    assert "in host memory" in repr(accelrt.empty(3, pin_memory=True))
