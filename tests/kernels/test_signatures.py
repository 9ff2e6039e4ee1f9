"""Signatures: what each parameter is, in the words of C; and integers as the parameters' sizes hold them."""

import ctypes

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import accelrt
from accelrt.kernels.signature import KINDS, parse_pointees, parse_signature

POINTER, SIGNED, UNSIGNED, FLOAT = (KINDS[name] for name in ("pointer", "signed", "unsigned", "float"))


def test_what_a_pointer_is_to_is_told_where_it_is_known():
    given = "const float* x, int n, void* v, unsigned char *c, double** d, thing* t, std::int64_t const* i"
    kinds = [(FLOAT, 4), (0, 0), (0, 0), (UNSIGNED, 1), (0, 0), (0, 0), (SIGNED, 8)]
    assert parse_pointees(given) == kinds
    assert parse_pointees(["half*", "void"]) == [(FLOAT, 2), (0, 0)]
    assert parse_pointees("void") == []


@pytest.mark.parametrize(
    ("text", "kind", "size", "writes"),
    [
        ("float*", POINTER, 8, True),
        ("const float* x", POINTER, 8, False),
        ("float const *__restrict__ x", POINTER, 8, False),
        ("const float* const x", POINTER, 8, False),
        ("float* const x", POINTER, 8, True),
        ("const float** x", POINTER, 8, True),
        ("constant* x", POINTER, 8, True),
        ("void *", POINTER, 8, True),
        ("int", SIGNED, 4, False),
        ("const int n", SIGNED, 4, False),
        ("unsigned long long n", UNSIGNED, 8, False),
        ("unsigned", UNSIGNED, 4, False),
        ("size_t n", UNSIGNED, 8, False),
        ("std::int64_t n", SIGNED, 8, False),
        ("double", FLOAT, 8, False),
        ("half h", FLOAT, 2, False),
        ("__nv_bfloat16 b", KINDS["bytes"], 2, False),
        ("bool flag", KINDS["bool"], 1, False),
        ("complex<double> z", KINDS["complex"], 16, False),
        ("struct[24] s", KINDS["bytes"], 24, False),
    ],
)
def test_a_parameter_is_read_as_c_declares_it(text, kind, size, writes):
    assert parse_signature(text) == parse_signature([text]) == [(kind, size, writes)]


def test_parameters_are_separated_by_commas_or_given_one_by_one():
    assert parse_signature("") == parse_signature("void") == parse_signature(()) == []
    assert len(parse_signature("float a, const float* x, float* y, int n")) == 4


@pytest.mark.parametrize("text", ["foo", "float x y", "int,", "struct", "struct[x]", ","])
def test_a_type_that_is_not_known_is_named(text):
    with pytest.raises(ValueError, match=r"parameter \d of the signature, "):
        parse_signature(text)


def test_what_is_no_text_is_refused():
    with pytest.raises(TypeError, match="parameter 1 of the signature is 4"):
        parse_signature(["int", 4])


INTEGERS = {f"{sign}int{8 * size}_t": (sign, size) for sign in ("", "u") for size in (1, 2, 4, 8)}


@pytest.mark.host
@settings(max_examples=60, deadline=None)
@given(st.integers(-(1 << 65), 1 << 65), st.sampled_from(sorted(INTEGERS)))
def test_an_integer_arrives_or_is_refused_as_numpy_would(number, name):
    @ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p))
    def run(where, arguments):
        seen.append(ctypes.string_at(arguments[0], INTEGERS[name][1]))

    seen = []
    kernel = accelrt.host_kernel(run, name)
    limits = np.iinfo(name.removesuffix("_t"))
    if limits.min <= number <= limits.max:
        kernel[1, 1](number)
        accelrt.synchronize()
        assert seen == [np.array(number, limits.dtype).tobytes()]
    else:
        told = f"is the int {number}; .*an int from {limits.min} to {limits.max}"
        with pytest.raises(ValueError, match=told):
            kernel[1, 1](number)
