"""What torch raises, accelrt's exception is an instance of too, with the words that programs look for."""

import importlib.util
import json
import pickle
import subprocess
import sys

import pytest
import torch_errors

import accelrt
from accelrt import errors


@pytest.mark.parametrize(("expression", "family", "words", "_gpu"), torch_errors.MISTAKES)
def test_a_mistake_raises_what_torch_raises(expression, family, words, _gpu):
    error = torch_errors.raised(expression, accelrt)
    assert family in torch_errors.families(error), repr(error)
    assert words in str(error)
    assert len(str(error)) > len(words) + 10  # what was given, and what to do


@pytest.mark.own_process
def test_torch_raises_what_the_list_says():
    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed")
    done = subprocess.run(
        [sys.executable, torch_errors.__file__], capture_output=True, text=True, timeout=120, check=True
    )
    found = json.loads(done.stdout.splitlines()[-1])
    expected = {expression: (family, words) for expression, family, words, _ in torch_errors.MISTAKES}
    assert len(found) >= 14
    for expression, (families, text) in found.items():
        family, words = expected[expression]
        assert family in families, (expression, families, text)
        assert words in text, (expression, text)


def test_errors_keep_what_they_are_across_processes():
    for kind in (errors.ArgumentError, errors.ArgumentTypeError, errors.InvalidDeviceTypeError):
        same = pickle.loads(pickle.dumps(kind("text")))
        assert type(same) is kind
        assert str(same) == "text"
    error = pickle.loads(pickle.dumps(accelrt.AcceleratorError("text", 700, "ILLEGAL_ADDRESS", "row")))
    assert (error.error_code, error.name) == (700, "ILLEGAL_ADDRESS")


def test_a_device_error_is_caught_by_each_of_torchs_kinds_and_by_pythons():
    for given, kinds in (("cuda:77", ()), (1.5, (TypeError,))):
        for kind in (ValueError, RuntimeError, AssertionError, accelrt.InvalidDeviceError, *kinds):
            with pytest.raises(kind):
                accelrt.get_device_properties(given)
    assert not issubclass(accelrt.InvalidDeviceError, TypeError)
