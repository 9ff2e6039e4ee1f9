"""What torch answers before the first use of a device, accelrt answers; what torch raises, accelrt's
exception is an instance of too, with the words that programs look for."""

import ast
import importlib.util
import json
import os
import pickle
import sys

import pytest
import torch_behaviour
from child import output_of, run_code

import accelrt
from accelrt import errors


@pytest.mark.parametrize(("expression", "family", "words", "_gpu"), torch_behaviour.MISTAKES)
def test_a_mistake_raises_what_torch_raises(expression, family, words, _gpu):
    error = torch_behaviour.raised(expression, accelrt)
    assert family in torch_behaviour.families(error), repr(error)
    assert words in str(error)
    assert len(str(error)) > len(words) + 10  # what was given, and what to do


@pytest.fixture(scope="module")
def torchs():
    """What torch answers, and what it raises."""
    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed")
    return json.loads(output_of(torch_behaviour.__file__).splitlines()[-1])


def warnings_of(expression):
    return ["FutureWarning"] if "cached(" in expression else []


def test_answers_before_the_first_use_are_torchs(torchs):
    expected = {
        expression: [answer, warnings_of(expression)] for expression, answer in torch_behaviour.ANSWERS
    }
    told = dict(torchs[0])
    if told.pop("cuda.is_initialized()")[0] == "True":  # on a GPU torch's stream(None) initialises
        assert torchs[2] == "cuda.stream(None).__enter__()"
    del expected["cuda.is_initialized()"]
    assert told == expected


@pytest.mark.own_process
def test_answers_before_the_first_use():
    code = (
        "import accelrt, torch_behaviour as t\n"
        "print({one: t.answered(one, accelrt) for one, _ in t.ANSWERS})\n"
        "assert 'libcuda' not in open('/proc/self/maps').read()"
    )
    paths = os.pathsep.join([os.path.dirname(torch_behaviour.__file__), *filter(None, sys.path)])
    for environment in ({"ACCELRT_DRIVER": "host"}, {"ACCELRT_DRIVER": "cuda", "CUDA_VISIBLE_DEVICES": ""}):
        told = ast.literal_eval(run_code(code, PYTHONPATH=paths, **environment))
        assert told == {one: (answer, warnings_of(one)) for one, answer in torch_behaviour.ANSWERS}


def test_torch_raises_what_the_list_says(torchs):
    found = torchs[1]
    expected = {expression: (family, words) for expression, family, words, _ in torch_behaviour.MISTAKES}
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
