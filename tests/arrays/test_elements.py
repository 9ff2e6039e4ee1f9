"""Elements as Python's numbers, conversions, values in repr(), and what is said of what is not there."""

import operator

import numpy as np
import pytest

import accelrt

OPERATORS = ["add", "sub", "mul", "truediv", "floordiv", "mod", "matmul", "pow", "and_", "or_", "xor"]
COMPARISONS = ["eq", "ne", "lt", "le", "gt", "ge"]


def numbers(dtype="f4"):
    return accelrt.arange(6, dtype=dtype).reshape(2, 3)


@pytest.mark.parametrize("bounds", [(5,), (2, 7), (7, 2, -2), (0, 1, 0.25), (3, 3)])
def test_arange_is_numpys(bounds):
    array, model = accelrt.arange(*bounds), np.arange(*bounds)
    assert array.dtype == model.dtype
    assert array.numpy().tolist() == model.tolist()
    assert array.device_index == 0


@pytest.mark.parametrize("bounds", [(1 << 40,), (0, 1, 2**-40), (np.float32(1e12),), (1 << 20, 0, -(2**-20))])
def test_a_range_is_refused_by_the_device_before_numpy_computes_it(bounds, monkeypatch):
    monkeypatch.setattr(np, "arange", lambda *_, **__: pytest.fail("the host has it before the device"))
    with pytest.raises(accelrt.OutOfMemoryError):
        accelrt.arange(*bounds)


def test_a_range_of_many_numbers_is_numpys():
    assert (accelrt.arange(9_000_000).numpy() == np.arange(9_000_000)).all()


@pytest.mark.parametrize("bounds", [(1, 2, 0), (1, float("nan")), (2**80,), ("a",)])
def test_what_is_wrong_with_a_range_numpy_says(bounds):
    with pytest.raises(Exception) as model:  # noqa: PT011 - whatever it is
        np.arange(*bounds)
    with pytest.raises(model.type):
        accelrt.arange(*bounds)


@pytest.mark.parametrize("bounds", [(), (1, 2, 3, 4)])
def test_arange_takes_one_to_three_numbers(bounds):
    with pytest.raises(TypeError, match=f"{len(bounds)} given"):
        accelrt.arange(*bounds)


def test_ones():
    assert accelrt.ones((2, 2), "i2").tolist() == [[1, 1], [1, 1]]
    like = accelrt.ones_like(numbers().T)
    assert like.shape == (3, 2)
    assert like.tolist() == [[1.0, 1.0]] * 3


@pytest.mark.parametrize("pinned", [False, True])
def test_elements_are_pythons_numbers(pinned):
    array = accelrt.empty((2, 3), "f4", pin_memory=pinned).copy_(numbers())
    assert array.tolist() == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]
    assert array[1, 2].item() == 5.0
    assert type(array[1, 2].item()) is float
    assert (float(array[1, 2]), int(array[1, 2]), complex(array[1:, 2:])) == (5.0, 5, 5 + 0j)
    assert [bool(array[0, at]) for at in range(2)] == [False, True]
    assert accelrt.full((), 3, "i8").tolist() == 3


def test_several_elements_are_no_number():
    for call in (operator.methodcaller("item"), float, int):
        with pytest.raises(ValueError, match="Array of 6 elements is no single number"):
            call(numbers())
    with pytest.raises(ValueError, match="6 elements is true is ambiguous"):
        bool(numbers())
    with pytest.raises(ValueError, match="Array of 0 elements"):
        accelrt.empty(0).item()


@pytest.mark.parametrize("to", ["f8", "f2", "i1", "u8", "?", "c8", "S3"])
@pytest.mark.parametrize("of", ["f4", "i4", "c16"])
@pytest.mark.filterwarnings("ignore::numpy.exceptions.ComplexWarning")
def test_astype_converts_as_numpy(of, to):
    model = np.arange(6).astype(of).reshape(2, 3)
    array = accelrt.asarray(model).T.astype(to)
    assert array.dtype == np.dtype(to)
    assert array.is_contiguous
    assert array.tolist() == model.T.astype(to).tolist()
    assert array.device_index == 0


def test_astype_works_where_nothing_compiles(monkeypatch):
    from accelrt.kernels import conversion

    def missing(*arguments, **more):
        raise accelrt.CompilerNotFoundError("none is installed")

    monkeypatch.setattr(conversion, "_kernel", lambda: missing)
    assert numbers().astype("i8").tolist() == [[0, 1, 2], [3, 4, 5]]


def test_astype_of_the_same_type_copies_unless_told_otherwise():
    array = numbers()
    assert array.astype("f4").ptr != array.ptr
    assert array.astype("f4", copy=False) is array
    assert array.T.astype("f4", copy=False).is_contiguous
    pinned = accelrt.empty(2, "f4", pin_memory=True).fill_(1)
    assert pinned.astype("i4").device == "cpu"


def test_clone_and_contiguous():
    array = numbers()
    assert array.contiguous() is array
    assert array.clone().ptr != array.ptr
    assert array.T.contiguous().tolist() == array.T.tolist()
    assert array.T.contiguous().is_contiguous


def test_repr_shows_few_values():
    text = repr(numbers())
    assert text.endswith("on host:0\n[[0., 1., 2.],\n [3., 4., 5.]]>") or "cuda:0\n[[0., 1., 2.]" in text
    assert "\n" not in repr(accelrt.zeros(1001))
    assert "\n" not in repr(accelrt.empty(0))
    assert "\n1>" in repr(accelrt.full((), 1, "i4", stream=None)[...])


def test_repr_reads_nothing_into_a_capture():
    array, other, graph = numbers(), accelrt.empty((2, 3), "f4"), accelrt.CUDAGraph()
    with accelrt.graph(graph):
        other.copy_(array)
        assert "\n" not in repr(array)
    graph.replay()
    assert other.tolist() == array.tolist()


@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("other", [2, 2.5, np.float32(3), "array"])
def test_operators_say_what_computes(name, other):
    array = numbers()
    other = numbers() if other == "array" else other
    with pytest.raises(TypeError, match=r"Arrays have no arithmetic.*elementwise.*from_dlpack"):
        getattr(operator, name)(array, other)
    if not isinstance(other, np.generic):
        with pytest.raises(TypeError, match=r"Arrays have no arithmetic.*elementwise.*from_dlpack"):
            getattr(operator, name)(other, array)


@pytest.mark.parametrize("name", COMPARISONS)
def test_comparisons_say_what_computes(name):
    with pytest.raises(TypeError, match="no comparison"):
        getattr(operator, name)(numbers(), numbers())
    with pytest.raises(TypeError, match="no comparison"):
        getattr(operator, name)(numbers(), 3)


@pytest.mark.parametrize("name", ["neg", "pos", "invert", "abs"])
def test_unary_operators_say_what_computes(name):
    with pytest.raises(TypeError, match="of Array: Arrays have no arithmetic"):
        getattr(operator, name)(numbers())


def test_other_types_answer_themselves():
    class Other:
        def __radd__(self, array):
            return "added"

        def __eq__(self, other):
            return "equal"

        __hash__ = None

    array = numbers()
    assert array + Other() == "added"
    assert (array == Other()) == "equal"
    assert (array == None, array != None, array == "x") == (False, True, False)  # noqa: E711
    assert {array: 1}[array] == 1
    with pytest.raises(TypeError):
        operator.add(array, [1])


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("mean", "no reductions"),
        ("exp", "elementwise"),
        ("data_ptr", "ptr is"),
        ("cpu", r"numpy\(\)"),
        ("copy_from", r"copy_\(source\)"),
        ("copy_to", r"accelrt\.copy\(target, array\)"),
    ],
)
def test_a_missing_attribute_names_the_substitute(name, text):
    with pytest.raises(AttributeError, match=text) as caught:
        getattr(numbers(), name)
    assert caught.value.name == name
    assert not hasattr(numbers(), name)


@pytest.mark.parametrize(
    ("name", "text"),
    [("tensor", "asarray"), ("RawKernel", "compile"), ("sum", "no reductions"), ("cat", "empty")],
)
def test_a_missing_name_of_accelrt_names_the_substitute(name, text):
    with pytest.raises(AttributeError, match=text):
        getattr(accelrt, name)


def test_substitutes_are_for_names_that_are_not_there():
    from accelrt.core import instead

    array = numbers()
    assert [name for name in instead.OF_ARRAYS if hasattr(array, name)] == []
    assert [name for name in instead.OF_ACCELRT if hasattr(accelrt, name)] == []
    with pytest.raises(AttributeError) as caught:
        accelrt.no_such_name  # noqa: B018
    assert str(caught.value) == "module 'accelrt' has no attribute 'no_such_name'"
