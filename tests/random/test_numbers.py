"""The numbers of a seed and an offset: Philox and torch's placing of them, against NumPy."""

import numpy as np
import philox
import pytest
from device_arrays import read, to_device

import accelrt
from accelrt.random import Generator, launches

SEEDS = [0, 3, 2**32 - 1, 0x243F6A8885A308D3, 2**64 - 1]
SIZES = [1, 2, 255, 256, 257, 1023, 2049, 5000]
SMALL = (1, 512)  # a geometry whose grid 5000 elements fill several times


def generator(seed, offset=0, geometry=SMALL):
    made = Generator(0).manual_seed(seed)
    made.set_offset(offset)
    made.geometry = geometry
    return made


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [  # of Random123's file of known answers
        ((0,) * 4, (0,) * 2, "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            "d16cfe09 94fdcceb 5001e420 24126ea1",
        ),
    ],
)
def test_the_oracle_gives_the_known_answers(counter, key, expected):
    assert [f"{int(word):08x}" for word in philox.philox(counter, key)] == expected.split()


def test_a_seed_gives_torchs_numbers():
    out = accelrt.empty(5, "float32")
    generator(3, geometry=philox.H200).uniform(out)
    assert np.round(read(out), 4).tolist() == [
        np.float32(x) for x in (0.8167, 0.2046, 0.1540, 0.0825, 0.4647)
    ]
    generator(0, geometry=philox.H200).normal(out)
    assert np.abs(read(out) - [-0.9247, -0.4253, -2.6438, 0.1452, -0.1209]).max() < 6e-5


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_uniform_numbers_are_the_oracles_to_the_bit(dtype):
    for seed in SEEDS:
        for size, offset in zip(SIZES, (0, 4, 8, 2**32 - 4, 2**34, 2**62, 12, 400), strict=True):
            drawer, out = generator(seed, offset), accelrt.empty(size, dtype)
            drawer.uniform(out)
            assert (read(out) == philox.uniform(size, seed, offset, SMALL, dtype)).all(), (seed, size)
            width = 2 if dtype == "float64" else 4
            assert drawer.get_offset() == offset + philox.used(size, width, SMALL)


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8"])
def test_numbers_do_not_depend_on_where_memory_begins(dtype):
    """A GPU writes four neighbours at once where they are aligned."""
    for size in (1, 3, 4, 5, 4099):
        whole = accelrt.full(size + 8, 77, dtype)
        draws = []
        for shift in (0, 1, 2, 3, 4):
            drawer, part = generator(7), whole[shift : shift + size]
            drawer.integers(part, 0, 50) if dtype == "int8" else drawer.uniform(part)
            draws.append(read(part).copy())
            assert (read(whole)[shift + size :] == 77).all()
            whole.fill_(77)
        assert all((each == draws[0]).all() for each in draws), (size, dtype)


@pytest.mark.parametrize(("dtype", "error"), [("float32", 1e-5), ("float64", 1e-14)])
def test_normal_numbers_are_the_oracles(dtype, error):
    for seed, size, offset in zip(SEEDS, SIZES[3:], (0, 4, 8, 2**32 - 4, 2**34), strict=True):
        drawer, out = generator(seed, offset), accelrt.empty(size, dtype)
        drawer.normal(out)
        expected = philox.normal(size, seed, offset, SMALL, dtype)
        assert np.abs(read(out) - expected).max() < error
        drawer.set_offset(offset)
        drawer.normal(out, 100.0, 0.5)
        assert np.abs(read(out) - (expected * 0.5 + 100)).max() < (1e-5 if dtype == "float32" else 3e-14)


def test_the_geometry_decides_where_numbers_go():
    for geometry in ((1, 256), (3, 768), philox.H200):
        out = accelrt.empty(4000, "float32")
        generator(7, geometry=geometry).uniform(out)
        assert (read(out) == philox.uniform(4000, 7, 0, geometry)).all()
    own = Generator(0)
    facts = accelrt.get_device_properties(0)
    assert own.geometry == (facts.multi_processor_count, facts.max_threads_per_multi_processor)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_narrow_types_round_the_same_numbers_and_leave_the_upper_limit_out(dtype):
    kind = np.dtype("float16") if dtype == "float16" else np.dtype(pytest.importorskip("ml_dtypes").bfloat16)
    out = accelrt.empty(5000, kind)
    generator(11).uniform(out)
    expected = np.asarray(philox.words32(5000, 11, 0, SMALL), np.float64) + 0.5
    expected = (expected / 2.0**32).astype(np.float32).astype(kind)
    expected = np.where(expected == kind.type(1), kind.type(0), expected)
    values = read(out)
    assert (values.view(np.uint16) == expected.astype(kind).view(np.uint16)).all()
    assert (values == kind.type(0)).any()  # numbers that round to 1


def test_limits_scale_the_numbers():
    out = accelrt.empty(3000, "float32")
    generator(5).uniform(out, -2.0, 6.0)
    plain = philox.once_rounded(philox.words32(3000, 5, 0, SMALL), 2.0**-32)
    assert (read(out) == (plain.astype(np.float64) * 8 - 2).astype(np.float32)).all()
    generator(5).uniform(out, 4.0, 4.0)
    assert (read(out) == 4).all()


class Changing:
    """A number that is another one later, as another library's tensor may be."""

    value = 0.0

    def __float__(self):
        return self.value


def test_limits_are_numbers_of_any_kind_and_looked_at_each_time():
    out = accelrt.empty(64, "float32")
    drawn = []
    for low, high in ((-1.0, 2.0), (-1, 2), (np.float32(-1), np.int64(2)), (np.array(-1.0), np.array(2.0))):
        generator(7).uniform(out, low, high)
        drawn.append(read(out))
    assert all((each == drawn[0]).all() for each in drawn)
    limit = Changing()
    for limit.value in (2.0, 8.0):
        generator(7).uniform(out, 0.0, limit)
        drawn.append(read(out))
        generator(7).bernoulli(out, np.array(limit.value / 8))
        assert ((read(out) == 1).all(), (read(out) == 0).any()) == (limit.value == 8, limit.value == 2)
    assert (drawn[-1] == 4 * drawn[-2]).all()
    numbers = accelrt.empty(64, "int32")
    generator(7).integers(numbers, 1, 5)
    with pytest.raises(TypeError):
        generator(7).integers(numbers, 1.0, 5.0)
    with pytest.raises(ValueError, match="none of uint8"):
        generator(7).integers(accelrt.empty(64, "uint8"), 1, 500)
    with pytest.raises(TypeError, match="out is of int32"):
        generator(7).uniform(numbers)


@pytest.mark.parametrize(
    ("dtype", "low", "high"),
    [("int32", -5, 17), ("uint8", 0, 256), ("bool", 0, 2), ("int64", 0, 2**28 - 1), ("float16", -2048, 2048)],
)
def test_integers_below_2_to_28_are_remainders_of_32_bits(dtype, low, high):
    out = accelrt.empty(2500, dtype)
    generator(9).integers(out, low, high)
    expected = philox.words32(2500, 9, 0, SMALL).astype(np.int64) % (high - low) + low
    assert (read(out) == expected.astype(dtype)).all()


@pytest.mark.parametrize(
    ("dtype", "low", "high"),
    [
        ("int64", -(2**63), 2**63),
        ("uint64", 0, 2**64),
        ("int64", -7, 2**28 - 7),
        ("uint64", 2**63, 2**64 - 1),
    ],
)
def test_integers_of_wide_ranges_are_remainders_of_64_bits(dtype, low, high):
    out = accelrt.empty(2500, dtype)
    drawer = generator(9)
    drawer.integers(out, low, high)
    expected = [int(word) % (high - low) + low for word in philox.words64(2500, 9, 0, SMALL)]
    assert read(out).tolist() == expected
    assert drawer.get_offset() == philox.used(2500, 2, SMALL)


def test_a_bernoulli_number_is_one_where_a_uniform_one_is_less():
    plain = philox.once_rounded(philox.words32(3000, 2, 0, SMALL), 2.0**-32)
    for dtype in ("bool", "int8", "float32", "float16"):
        out = accelrt.empty(3000, dtype)
        generator(2).bernoulli(out, 0.3)
        assert (read(out) == (plain < np.float32(0.3))).all()
    out = accelrt.empty(3000, "float64")
    generator(2).bernoulli(out, 0.3)
    assert (read(out) == (philox.uniform(3000, 2, 0, SMALL, "float64") < 0.3)).all()


def test_strided_arrays_are_filled_in_the_order_of_their_memory_and_nothing_else_is():
    for view in (np.s_[::2, 1:5], np.s_[:, ::-3], np.s_[1:2], np.s_[:0]):
        whole_array = to_device(np.full((6, 8), -1.0, np.float32))
        values = np.full((6, 8), -1.0, np.float32)
        part = whole_array[view]
        generator(4).uniform(part)
        values[view] = philox.uniform(part.size, 4, 0, SMALL).reshape(part.shape) if part.size else 0
        assert (read(whole_array) == values).all()
    turned = accelrt.empty((5, 7), "float32")
    generator(4).uniform(turned.T)
    assert (read(turned).ravel() == philox.uniform(35, 4, 0, SMALL)).all()


def test_other_libraries_arrays_are_filled_on_the_stream_that_is_given():
    class Theirs:
        def __init__(self, array):
            self.__cuda_array_interface__ = {
                "shape": array.shape,
                "typestr": array.dtype.str,
                "data": (array.ptr, False),
                "version": 3,
                "stream": 1,
            }

    out, stream = to_device(np.zeros(9, np.float32)), accelrt.Stream(0)
    theirs = Theirs(out)
    accelrt.synchronize(0)
    for given in (None, stream, stream.handle, 0):
        assert generator(4).uniform(theirs, stream=given) is theirs
        assert (read(out) == philox.uniform(9, 4, 0, SMALL)).all()
        out.fill_(0)
        accelrt.synchronize(0)


def test_large_arrays_are_split_as_torch_splits_them(monkeypatch):
    monkeypatch.setattr(launches, "MOST", 4 * 1000)
    drawer, out = generator(6), accelrt.empty(3001, "float32")
    drawer.uniform(out)
    offset, expected = 0, np.empty(3001, np.float32)

    def walk(first, count):
        nonlocal offset
        begin = offset
        offset += philox.used(count, 4, SMALL)
        if (count - 1) * 4 < 4000:
            expected[first : first + count] = philox.uniform(count, 6, begin, SMALL)
            return
        walk(first, count // 2)
        walk(first + count // 2, count - count // 2)

    walk(0, 3001)
    assert (read(out) == expected).all()
    assert drawer.get_offset() == offset


@pytest.mark.parametrize("size", [1, 2, 1000, 1025, 5003])
def test_a_permutation_has_every_number_once(size):
    out, other = accelrt.empty(size, "int32"), accelrt.empty(size, "float64")
    drawer = generator(8)
    drawer.permutation(out)
    assert drawer.get_offset() in (4, 24)
    drawer.permutation(other)
    assert sorted(read(out)) == sorted(read(other)) == list(range(size))
    assert size < 3 or (read(out) != read(other)).any()
    wide = accelrt.empty((size, 2), "int64")[:, 0]
    generator(8).permutation(wide)
    assert (read(wide) == read(out)).all()


@pytest.mark.parametrize(("function", "law"), [("rand", "uniform"), ("randn", "normal")])
@pytest.mark.parametrize("shape", [(), (3,), ((2, 3),), (2, 3)])
def test_new_arrays_have_the_generators_numbers(function, law, shape):
    array = getattr(accelrt.random, function)(*shape, generator=Generator(0, seed=3))
    out = accelrt.empty(shape[0] if len(shape) == 1 else shape, "f4")
    getattr(generator(3, geometry=None), law)(out)
    assert array.tolist() == out.tolist()
    assert array.dtype == np.float32


def test_new_arrays_are_of_the_default_generator():
    accelrt.random.manual_seed(7)
    array = accelrt.random.rand(4, dtype="f8")
    out = accelrt.empty(4, "f8")
    assert array.tolist() == generator(7, geometry=None).uniform(out).tolist()
