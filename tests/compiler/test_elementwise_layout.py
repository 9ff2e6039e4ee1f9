"""Broadcasting, axes put together, and overlaps, against NumPy."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from accelrt.kernels import elementwise_layout as layout

LENGTHS = st.integers(0, 4)
SHAPES = st.lists(LENGTHS, max_size=4).map(tuple)


@st.composite
def views(draw, memory):
    """A view of memory by steps, offsets, transposes and broadcasts."""
    view = memory
    for _ in range(draw(st.integers(0, 3))):
        axis = draw(st.integers(0, view.ndim - 1))
        index = [slice(None)] * view.ndim
        index[axis] = slice(draw(st.integers(0, 3)), None, draw(st.sampled_from([1, 2, 3, -1, -2])))
        view = view[tuple(index)]
        if draw(st.booleans()):
            view = view.transpose(draw(st.permutations(range(view.ndim))))
    return view


def piece(array):
    return layout.Piece(array.ctypes.data, array.shape, array.strides, array.itemsize)


@given(st.lists(SHAPES, max_size=4))
def test_shapes_are_broadcast_as_numpy_does(shapes):
    try:
        expected = np.broadcast_shapes(*shapes)
    except ValueError:
        expected = None
    assert layout.broadcast(shapes) == expected


@given(st.data())
def test_collapsed_axes_visit_the_same_elements_together(data):
    memory = np.arange(6 * 5 * 4).reshape(6, 5, 4)
    one = data.draw(views(memory))
    shape = one.shape
    other = np.broadcast_to(np.arange(100)[: shape[-1]], shape)
    in_order = data.draw(st.booleans())
    made = layout.collapse(shape, [one.strides, other.strides], in_order)
    assert np.prod(made.lengths, dtype=int) == one.size
    visited = [
        np.lib.stride_tricks.as_strided(array, made.lengths, strides).ravel().tolist()
        for array, strides in zip((one, other), made.strides, strict=True)
    ]
    expected = [one.ravel().tolist(), other.ravel().tolist()]
    if in_order:
        assert visited == expected
    else:
        assert sorted(zip(*visited, strict=True)) == sorted(zip(*expected, strict=True))


def test_contiguous_and_transposed_arrays_become_one_axis():
    memory = np.zeros((3, 4, 5), np.float32)
    for view in (memory, memory.T, memory.transpose(1, 0, 2), memory[:, :1].transpose(2, 1, 0)[:, 0]):
        made = layout.collapse(view.shape, [view.strides], False)
        assert len(made.lengths) == (1 if view.size == 60 else 2)
    assert layout.collapse((3, 4, 5), [memory.strides], True) == ([60], [[4]])
    assert layout.collapse((1, 1), [(4, 4)], True) == ([], [[]])


@given(st.data())
def test_no_overlap_is_missed(data):
    memory = np.zeros((6, 5, 4), np.int16)
    one, other = data.draw(views(memory)), data.draw(views(memory))
    if not layout.overlap(piece(one), piece(other)):
        assert not np.shares_memory(one, other)


def test_what_lies_apart_or_between_does_not_overlap():
    memory = np.zeros(64, np.float32)
    for one, other in ((memory[:8], memory[8:]), (memory[::2], memory[1::2]), (memory[::3], memory[2::-3])):
        assert not layout.overlap(piece(one), piece(other))
    assert layout.overlap(piece(memory[::2]), piece(memory[2::4]))
    assert layout.overlap(piece(memory), piece(memory[5:6]))
    assert not layout.overlap(piece(memory[:0]), piece(memory))


def test_elements_that_share_memory_are_found():
    memory = np.zeros((4, 6), np.int32)
    for view in (memory, memory.T, memory[::2, ::-1], memory[:0]):
        assert not layout.overlaps_itself(piece(view))
    assert layout.overlaps_itself(piece(np.broadcast_to(memory[0], (3, 6))))
    assert layout.overlaps_itself(piece(np.lib.stride_tricks.sliding_window_view(memory[0], 3)))
