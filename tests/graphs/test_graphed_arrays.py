"""make_graphed_callables with Arrays: their elements are copied in, whatever their dtype."""

import numpy as np
import pytest

import accelrt


def turned(array):
    return accelrt.empty((4, 3), "f4").copy_(array.T)


def test_arrays_are_arguments_and_results():
    sample = accelrt.zeros((3, 4), "f4")
    graphed = accelrt.make_graphed_callables(turned, (sample,))
    for seed in range(3):
        model = np.random.default_rng(seed).random((3, 4), dtype=np.float32)
        found = graphed(accelrt.asarray(model))
        assert (found.numpy() == model.T).all()
    with pytest.raises(ValueError, match="can take no other"):
        graphed(accelrt.zeros((4, 3), "f4"))


def test_scattered_arrays_are_no_arguments():
    with pytest.raises(TypeError, match="pass a contiguous one"):
        accelrt.make_graphed_callables(turned, (accelrt.zeros((4, 3), "f4").T,))
