"""The distributions, by statistics of fixed seeds: no number here is ever drawn anew."""

from math import erf, exp, sqrt

import numpy as np
import pytest
from device_arrays import read

import accelrt
from accelrt.random import Generator

COUNT = 50_000


def drawn(name, dtype, *arguments):
    out = accelrt.empty(COUNT, dtype)
    getattr(Generator(0).manual_seed(20261122), name)(out, *arguments)
    return read(out).astype(np.float64)


def chi_square(observed, expected):
    return float(((observed - expected) ** 2 / expected).sum())


def most_likely(freedom):
    """What chi-square exceeds once in 10,000 times (Wilson and Hilferty's approximation)."""
    return freedom * (1 - 2 / (9 * freedom) + 3.719 * sqrt(2 / (9 * freedom))) ** 3


def kolmogorov(values, distribution):
    """The probability of a distance as great as the one between the values and a distribution, in (0, 1)."""
    values = np.sort(values)
    below = np.array([distribution(value) for value in values])
    places = np.arange(len(values) + 1) / len(values)
    distance = max((below - places[:-1]).max(), (places[1:] - below).max()) * sqrt(len(values))
    return 2 * sum((-1) ** (k - 1) * exp(-2 * (k * distance) ** 2) for k in range(1, 100))


def test_the_statistics_tell_other_distributions_apart():
    values = np.linspace(0, 1, 1000) ** 1.2
    assert kolmogorov(values, lambda x: x) < 1e-3
    assert kolmogorov(np.linspace(0.0005, 0.9995, 1000), lambda x: x) > 0.99
    assert most_likely(10) == pytest.approx(35.56, rel=0.02)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_uniform(dtype):
    values = drawn("uniform", dtype)
    assert 0 <= values.min() < values.max() < 1
    assert 1e-3 < kolmogorov(values[:5000], lambda x: x) <= 1
    observed = np.histogram(values, 100, (0, 1))[0]
    assert chi_square(observed, np.full(100, COUNT / 100)) < most_likely(99)
    pairs = np.histogram2d(values[::2], values[1::2], 10, ((0, 1), (0, 1)))[0]
    assert chi_square(pairs, np.full((10, 10), COUNT / 200)) < most_likely(99)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_normal(dtype):
    values = (drawn("normal", dtype, 3.0, 2.0) - 3) / 2
    assert 1e-3 < kolmogorov(values[:5000], lambda x: (1 + erf(x / sqrt(2))) / 2) <= 1
    assert abs(values.mean()) < 4 / sqrt(COUNT)
    assert abs(values.var() - 1) < 4 * sqrt(2 / COUNT)
    assert abs((values**3).mean()) < 4 * sqrt(15 / COUNT)
    assert abs((values**4).mean() - 3) < 4 * sqrt(96 / COUNT)


def test_integers():
    for low, high in ((-3, 7), (0, 97)):
        values = drawn("integers", "int32", low, high).astype(int) - low
        observed = np.bincount(values, minlength=high - low)
        assert len(observed) == high - low
        assert chi_square(observed, np.full(high - low, COUNT / (high - low))) < most_likely(high - low - 1)


def test_bernoulli():
    for p in (0.0, 0.1, 0.5, 1.0):
        ones = drawn("bernoulli", "uint8", p).sum()
        assert abs(ones - p * COUNT) <= 4 * sqrt(p * (1 - p) * COUNT)


def test_every_order_of_few_numbers_is_as_likely():
    generator, out, seen = Generator(0).manual_seed(1), accelrt.empty((600, 4), "int32"), {}
    for row in range(600):
        generator.permutation(out[row])
    for order in map(tuple, read(out)):
        seen[order] = seen.get(order, 0) + 1
    observed = np.array([*seen.values(), *[0] * (24 - len(seen))])
    assert chi_square(observed, np.full(24, 25)) < most_likely(23)


def test_every_place_of_many_numbers_is_as_likely():
    generator, out = Generator(0).manual_seed(2), accelrt.empty((40, 2000), "int32")
    for row in range(40):
        generator.permutation(out[row])
    values = read(out)
    table = np.zeros((20, 20))
    np.add.at(table, (np.arange(2000)[None, :] // 100, values // 100), 1)
    assert chi_square(table, np.full((20, 20), 40 * 2000 / 400)) < most_likely(19 * 19)
    fixed = (values == np.arange(2000)).sum()
    follow = (np.diff(values, axis=1) == 1).sum()
    assert abs(fixed - 40) < 4 * sqrt(40)
    assert abs(follow - 40) < 4 * sqrt(40)
