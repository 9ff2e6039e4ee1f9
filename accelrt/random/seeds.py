"""Seeds, offsets and states, as users give them."""

from __future__ import annotations

import operator
import os
import sys

import numpy

DEFAULT_SEED = 67280421310721  # torch's of a new generator
STATE_BYTES = 16


def seed_of(seed: object) -> int:
    """A seed as 64 bits; a negative one counts from 2**64 down, as in torch."""
    number = operator.index(int(seed) if isinstance(seed, float) else seed)  # type: ignore[arg-type]
    if not -(1 << 63) <= number < 1 << 64:
        raise ValueError(f"seed is {number}; it goes from -2**63 to 2**64 - 1")
    return number % (1 << 64)


def random_seed() -> int:
    return int.from_bytes(os.urandom(8), sys.byteorder) >> 11  # 53 bits, which a double holds too


def read_state(state: object) -> tuple[int, int]:
    """(seed, offset) of a state in torch's format.

    Raises:
        TypeError: it is neither bytes-like nor an array of uint8.
        ValueError: it has not 16 bytes, nor 8, or its offset is no multiple of 4.
    """
    try:
        data = memoryview(state).tobytes()  # type: ignore[arg-type]
    except TypeError:
        array = numpy.asarray(state)
        if array.dtype != numpy.uint8:
            raise TypeError(
                f"state is {type(state).__name__}; pass what get_rng_state returned, bytes or uint8"
            ) from None
        data = array.tobytes()
    if len(data) not in (STATE_BYTES // 2, STATE_BYTES):
        raise ValueError(f"state has {len(data)} bytes; one of a CUDA generator has {STATE_BYTES}")
    return int.from_bytes(data[:8], "little"), checked_offset(int.from_bytes(data[8:], "little"))


def checked_offset(offset: object) -> int:
    number = operator.index(offset)  # type: ignore[arg-type]
    if number % 4 or not 0 <= number < 1 << 64:
        raise ValueError(f"offset is {number}; it is a multiple of 4 from 0 to 2**64 - 4")
    return number
