"""Philox 4x32-10 and what torch's kernels make of it, in NumPy: the oracle of the tests of random numbers."""

import numpy as np

MULTIPLIERS = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
WEYL = 0x9E3779B9, 0xBB67AE85
LOW = np.uint64(0xFFFFFFFF)
H200 = (132, 2048)


def philox(counter, key):
    """The four words of each counter: arrays of 32-bit words, and two of the key."""
    a, b, c, d = (np.asarray(word, np.uint64) for word in counter)
    for number in range(10):
        left, right = ((int(word) + number * step) & 0xFFFFFFFF for word, step in zip(key, WEYL, strict=True))
        one, two = a * MULTIPLIERS[0], c * MULTIPLIERS[1]
        high = np.uint64(32)
        a, b, c, d = (
            two >> high ^ b ^ np.uint64(left),
            two & LOW,
            one >> high ^ d ^ np.uint64(right),
            one & LOW,
        )
    return [word.astype(np.uint32) for word in (a, b, c, d)]


def blocks_of(count, geometry):
    return min(geometry[0] * (geometry[1] // 256), -(-count // 256))


def used(count, width, geometry):
    """How far a launch for so many elements moves the offset."""
    return ((count - 1) // (256 * blocks_of(count, geometry) * width) + 1) * 4


def drawn(count, seed, offset, geometry, width):
    """The words of each element's group, and its place in the group: element e is of thread e % threads."""
    threads = 256 * blocks_of(count, geometry)
    element = np.arange(count, dtype=np.uint64)
    thread, turn = element % np.uint64(threads), element // np.uint64(threads)
    group = np.uint64(offset // 4) + turn // np.uint64(width)
    counter = group & LOW, group >> np.uint64(32), thread & LOW, thread >> np.uint64(32)
    return np.array(philox(counter, (seed & 0xFFFFFFFF, seed >> 32))), (turn % np.uint64(width)).astype(int)


def once_rounded(words, scale):
    """A float of each word, times scale, and half of scale: rounded as one operation."""
    factor = np.longdouble(np.float32(scale))
    return (words.astype(np.float32).astype(np.longdouble) * factor + factor / 2).astype(np.float32)


def doubles(low, high, scale):
    whole = low.astype(np.uint64) ^ high.astype(np.uint64) << np.uint64(21)
    return (whole.astype(np.longdouble) * np.longdouble(scale) + np.longdouble(scale) / 2).astype(np.float64)


def uniform(count, seed, offset=0, geometry=H200, dtype="float32"):
    """torch.rand's numbers, of float32 or float64."""
    wide = dtype == "float64"
    words, place = drawn(count, seed, offset, geometry, 2 if wide else 4)
    if wide:
        pairs = np.array([doubles(words[0], words[1], 2.0**-53), doubles(words[2], words[3], 2.0**-53)])
        numbers = pairs[place, np.arange(count)]
    else:
        numbers = once_rounded(words[place, np.arange(count)], 2.0**-32)
    return np.where(numbers == 1, numbers.dtype.type(0), numbers)


def normal(count, seed, offset=0, geometry=H200, dtype="float32"):
    """torch.randn's numbers, computed in double: near, not equal to the bit."""
    wide = dtype == "float64"
    words, place = drawn(count, seed, offset, geometry, 2 if wide else 4)
    if wide:
        first, turn = doubles(words[0], words[1], 2.0**-53), doubles(words[2], words[3], 2.0**-52) / 2
        odd = place % 2 == 1
    else:
        element, pair, odd = np.arange(count), place // 2 * 2, place % 2 == 1
        first = once_rounded(words[pair, element], 2.0**-32).astype(np.float64)
        turn = (words[pair + 1, element].astype(np.float64) + 0.5) / 2.0**32
    angle = 2 * np.pi * turn
    return np.sqrt(-2 * np.log(first)) * np.where(odd, np.cos(angle), np.sin(angle))


def words32(count, seed, offset=0, geometry=H200):
    words, place = drawn(count, seed, offset, geometry, 4)
    return words[place, np.arange(count)]


def words64(count, seed, offset=0, geometry=H200):
    words, place = drawn(count, seed, offset, geometry, 2)
    element = np.arange(count)
    return words[2 * place, element].astype(np.uint64) << np.uint64(32) | words[2 * place + 1, element]
