"""Memory that the tests' graphs read and write, and a replay that is over."""

import numpy as np

import accelrt


def filled(nbytes, value=0):
    memory = accelrt.Buffer(nbytes)
    memory.fill(value)
    return memory


def read(memory, dtype=np.uint8):
    out = np.zeros(memory.nbytes // np.dtype(dtype).itemsize, dtype)
    accelrt.copy(out, memory)
    return out


def read_numbers(memory):
    return read(memory, np.uint32)


def replay(graph):
    graph.replay()
    accelrt.synchronize()
