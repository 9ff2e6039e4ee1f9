"""Random graphs made by hand, for long_runs: a model in NumPy says what every replay has to leave in memory.

What two nodes of a graph both use, and one of them writes, is ordered by an edge, so that the order in which
the model does the nodes is one that the device may choose.
"""

import gc
import random
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np

import accelrt

BYTES = 256  # of each memory
MEMORIES = 8  # to choose from
MOST_NODES, MOST_DEFINITIONS, MOST_INSTANCES = 12, 3, 4
SOURCE = """
extern "C" __global__ void mix(unsigned char* to, const unsigned char* from, int count, int number) {
    for (int index = threadIdx.x; index < count; index += blockDim.x)
        to[index] = to[index] * 3 + from[index] + number;
}
"""
SIGNATURE = "unsigned char* to, const unsigned char* from, int count, int number"


class Wrong(Exception):
    """What a graph left in memory, or told of itself, differs from the model."""


def require(condition: bool, text: str) -> None:
    if not condition:
        raise Wrong(text)


class Memory:
    """Device memory, and what the model says is in it."""

    def __init__(self, chosen: random.Random) -> None:
        self.bytes = np.frombuffer(chosen.randbytes(BYTES), np.uint8).copy()
        self.buffer: accelrt.Buffer | None = accelrt.Buffer(BYTES)
        self.array = accelrt.Array(self.buffer)  # keeps the Buffer only where nothing else does
        accelrt.copy(self.buffer, self.bytes)

    def given(self) -> accelrt.Buffer:
        """The memory, as nodes are given it."""
        require(self.buffer is not None, "the memory was dropped")
        return self.buffer
