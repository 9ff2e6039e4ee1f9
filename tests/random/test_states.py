"""Seeds, offsets and states of generators, and the devices' default ones."""

import copy
import pickle

import numpy as np
import philox
import pytest
from beside import on_threads
from device_arrays import read

import accelrt
from accelrt.random import Generator

RANDOM = accelrt.random
LAST = accelrt.device_count() - 1
two_devices = pytest.mark.skipif(LAST < 1, reason="needs two devices")
SEED = 67280421310721  # of a new generator in torch


def numbers(generator, count=8):
    out = accelrt.empty(count, "float32", generator.device)
    generator.uniform(out)
    return read(out).tolist()


def test_a_new_generator_has_torchs_seed():
    generator = Generator()
    assert (generator.initial_seed(), generator.get_offset()) == (SEED, 0)
    assert generator.device == accelrt.device(accelrt.current_device())
    assert generator.get_state() == SEED.to_bytes(8, "little") + bytes(8)


def test_a_seed_starts_anew_and_negative_ones_count_down():
    generator = Generator(0)
    assert generator.manual_seed(5) is generator
    first = numbers(generator)
    assert generator.get_offset() == 4
    assert numbers(generator) != first
    assert numbers(generator.manual_seed(5)) == first
    assert generator.manual_seed(-1).initial_seed() == 2**64 - 1
    assert generator.manual_seed(-(2**63)).initial_seed() == 2**63
    assert generator.manual_seed(np.int64(7)).initial_seed() == 7
    assert 0 <= generator.seed() == generator.initial_seed() < 2**53
    assert generator.seed() != generator.seed()


@pytest.mark.parametrize("form", [bytes, bytearray, memoryview, lambda state: np.frombuffer(state, np.uint8)])
def test_a_state_is_taken_up_again_in_every_form(form):
    generator = Generator(0).manual_seed(2**63 + 5)
    numbers(generator)
    state = generator.get_state()
    expected = numbers(generator)
    other = Generator(0)
    assert other.set_state(form(state)) is other
    assert numbers(other) == expected
    assert other.set_state(form(state[:8])).get_offset() == 0


def test_generators_are_copied_pickled_and_shared():
    generator = Generator(LAST).manual_seed(12)
    generator.geometry = (2, 512)
    numbers(generator)
    copies = copy.copy(generator), copy.deepcopy(generator), pickle.loads(pickle.dumps(generator))
    copies += (generator.clone_state(),)
    shared = generator.graphsafe_get_state()
    other = Generator(LAST).graphsafe_set_state(generator)
    expected = numbers(generator)
    assert shared.get_offset() == other.get_offset() == 8
    for each in copies:
        assert each.get_offset() == 4
        assert each.geometry == (2, 512)
        assert each.device.index == LAST
        assert numbers(each) == expected
    with pytest.raises(TypeError, match="pass a Generator"):
        generator.graphsafe_set_state(3)


@two_devices
def test_generators_of_two_devices_share_and_fill_nothing_of_each_other():
    one, two = Generator(0), Generator(1)
    with pytest.raises(ValueError, match="generator is of device 1, and this one of 0"):
        one.graphsafe_set_state(two)
    with pytest.raises(ValueError, match="out is on device 1, and the generator is of device 0; use one of"):
        one.normal(floats(device=1))
    with pytest.raises(ValueError, match="device 1"):
        one.uniform(floats(), stream=accelrt.Stream(1))
    assert one.get_offset() == two.get_offset() == 0
    assert numbers(one) == numbers(two)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda g: g.manual_seed(2**64), ValueError, "seed is 18446744073709551616; it goes from"),
        (lambda g: g.manual_seed("1"), TypeError, "str"),
        (lambda g: g.set_offset(6), ValueError, "offset is 6; it is a multiple of 4"),
        (lambda g: g.set_offset(-4), ValueError, "offset is -4"),
        (lambda g: g.set_state(b"123"), ValueError, "state has 3 bytes; one of a CUDA generator has 16"),
        (lambda g: g.set_state(bytes(8) + b"\1" + bytes(7)), ValueError, "offset is 1;"),
        (lambda g: g.set_state(np.zeros(2, np.int64).tolist()), TypeError, "state is list; pass what"),
        (lambda g: setattr(g, "geometry", (0, 2048)), ValueError, "pass multiprocessors, 1 or more"),
        (lambda g: Generator(-1), ValueError, "device -1 does not exist"),
        (lambda g: Generator(99), ValueError, "device 99 does not exist"),
    ],
)
def test_what_is_no_seed_offset_or_state_is_refused_and_changes_nothing(call, error, text):
    generator = Generator(0).manual_seed(1)
    with pytest.raises(error, match=text):
        call(generator)
    assert (generator.initial_seed(), generator.get_offset()) == (1, 0)


def floats(count=4, dtype="float32", device=0):
    return accelrt.empty(count, dtype, device)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (
            lambda g: g.uniform(floats(dtype="int32")),
            TypeError,
            "out is of int32; these numbers are of float16",
        ),
        (
            lambda g: g.uniform(floats(dtype="complex64")),
            TypeError,
            "out is of complex64, of which no random",
        ),
        (lambda g: g.uniform(accelrt.empty(3, "f4", pin_memory=True)), ValueError, "out is in host memory"),
        (lambda g: g.uniform(np.zeros(3, "f4")), TypeError, "out is of type ndarray; pass an Array"),
        (lambda g: g.uniform(floats(), 2, 1), ValueError, "low is 2 and high is 1; low is at most high"),
        (lambda g: g.uniform(floats(), 0, float("inf")), ValueError, "high is inf; pass a finite number"),
        (lambda g: g.uniform(floats(), -3e38, 3e38), ValueError, "both are of float32"),
        (lambda g: g.normal(floats(), 0, -1), ValueError, "std is -1; it is 0 or more"),
        (lambda g: g.bernoulli(floats(), 1.5), ValueError, "p is 1.5; a probability goes from 0 to 1"),
        (lambda g: g.integers(floats(dtype="uint8"), 0, 257), ValueError, "it holds 0 to 255"),
        (lambda g: g.integers(floats(dtype="int32"), 3, 3), ValueError, "low is below high"),
        (lambda g: g.integers(floats(), 1.5), TypeError, "float"),
        (
            lambda g: g.permutation(floats(300, "uint8")),
            ValueError,
            "300 elements, and uint8 holds .* up to 255",
        ),
        (
            lambda g: g.uniform(accelrt.Array(accelrt.Buffer(16), (4, 4), "float32", strides=(0, 4))),
            ValueError,
            "elements of out share memory",
        ),
    ],
)
def test_what_cannot_be_filled_is_refused_and_moves_no_offset(call, error, text):
    generator = Generator(0).manual_seed(1)
    with pytest.raises(error, match=text):
        call(generator)
    assert generator.get_offset() == 0


def test_arrays_without_elements_move_no_offset():
    generator = Generator(0)
    for name in ("uniform", "normal", "bernoulli", "permutation"):
        getattr(generator, name)(accelrt.empty((3, 0), "float32"))
    assert generator.get_offset() == 0


def test_threads_draw_no_number_twice():
    generator, outs = Generator(0).manual_seed(3), [accelrt.empty((50, 4), "float32") for _ in range(4)]

    def work(out):
        for row in range(50):
            generator.uniform(out[row], stream=accelrt.default_stream(0))

    on_threads(work, outs)
    assert generator.get_offset() == 800
    seen = {tuple(row) for out in outs for row in read(out)}
    assert seen == {tuple(philox.uniform(4, 3, 4 * number)) for number in range(200)}


@two_devices
def test_the_default_generators_are_the_devices():
    defaults = accelrt.default_generators
    assert len(defaults) == accelrt.device_count()
    assert [each.device.index for each in defaults] == list(range(len(defaults)))
    assert defaults[-1] is defaults[len(defaults) - 1]
    with pytest.raises(IndexError, match=f"there are {LAST + 1} devices"):
        defaults[LAST + 1]
    accelrt.manual_seed_all(7)
    assert {each.initial_seed() for each in defaults} == {7}
    with accelrt.device(1):
        accelrt.manual_seed(8)
        assert accelrt.initial_seed() == 8
        accelrt.seed()
        assert accelrt.initial_seed() != 8
    assert accelrt.initial_seed() == 7
    accelrt.seed_all()
    assert len({each.initial_seed() for each in defaults}) == 1
    assert accelrt.initial_seed() != 7


@two_devices
def test_states_of_all_devices_are_kept_and_put_back():
    accelrt.manual_seed_all(9)
    before = accelrt.get_rng_state_all()
    assert [len(state) for state in before] == [16] * accelrt.device_count()
    with RANDOM.fork_rng():
        numbers(accelrt.default_generators[0])
        accelrt.manual_seed(1)
    assert accelrt.get_rng_state_all() == before
    with pytest.raises(ZeroDivisionError), RANDOM.fork_rng([1]):
        numbers(accelrt.default_generators[0])
        numbers(accelrt.default_generators[1])
        raise ZeroDivisionError
    assert accelrt.get_rng_state(0) != before[0]
    assert accelrt.get_rng_state(1) == before[1]
    with RANDOM.fork_rng(enabled=False):
        numbers(accelrt.default_generators[1])
    assert accelrt.get_rng_state("cuda") == accelrt.get_rng_state(1) != before[1]
    accelrt.set_rng_state_all(before)
    assert accelrt.get_rng_state_all() == before
    accelrt.set_rng_state(np.frombuffer(before[0][:8] + (12).to_bytes(8, "little"), np.uint8), 1)
    assert accelrt.default_generators[1].get_offset() == 12


def test_the_default_generators_are_a_tuple():
    defaults, count = accelrt.default_generators, accelrt.device_count()
    assert isinstance(defaults, tuple)
    assert (len(defaults), len([*defaults]), len(tuple(defaults))) == (count, count, count)
    assert defaults[:1] == (defaults[0],)
    assert defaults == tuple(defaults)
    assert defaults != ()
    assert defaults[0] in defaults
    assert accelrt.random.Generator(0) not in defaults
    assert (defaults.index(defaults[-1]), defaults.count(defaults[0])) == (count - 1, 1)
    assert defaults.__add__((None,)) == (*defaults, None)
    assert next(reversed(defaults)) is defaults[-1]


def test_the_offset_of_a_default_generator_is_read_and_set():
    accelrt.manual_seed(5)
    accelrt.random._set_rng_state_offset(8)
    assert accelrt.random._get_rng_state_offset() == accelrt.default_generators[0].get_offset() == 8
    assert accelrt.initial_seed() == 5
    with pytest.raises(ValueError, match="offset"):
        accelrt.random._set_rng_state_offset(3)
    accelrt.manual_seed(5)
