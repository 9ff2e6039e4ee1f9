"""Memory that the tests' graphs read and write, a replay that is over, and whether captures still work."""

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


def works_again():
    """A capture right after: the process is usable."""
    graph, memory = accelrt.CUDAGraph(), accelrt.Buffer(512)
    with accelrt.graph(graph):
        memory.fill(5)
    graph.replay()
    return (read(memory) == 5).all()


def options(node):
    """What a kernel node has beside its arguments: its cluster, whether it is cooperative, its priority."""
    params = node.params
    return params.cluster, params.cooperative, params.priority
