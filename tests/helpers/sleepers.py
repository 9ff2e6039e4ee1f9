"""Memory pools with known contents, for the tests of sleep and wake."""

import numpy as np

import accelrt

MIB = 1 << 20


def free_bytes(device=None):
    return accelrt.mem_get_info(device)[0]


def random_bytes(count, seed=1):
    return np.random.default_rng(seed).integers(0, 256, count, np.uint8)


def fill_buffers(pool, sizes):
    """Buffers of the pool with random contents, and these."""
    with accelrt.use_mem_pool(pool):
        buffers = [accelrt.Buffer(size) for size in sizes]
    return buffers, write_contents(buffers)


def write_contents(buffers):
    """Random contents, which the buffers have from now on."""
    contents = [random_bytes(len(buffer), seed) for seed, buffer in enumerate(buffers)]
    for buffer, content in zip(buffers, contents, strict=True):
        buffer.copy_from(content)
    return contents


def assert_contents(buffers, contents):
    for buffer, content in zip(buffers, contents, strict=True):
        out = np.empty_like(content)
        buffer.copy_to(out)
        assert (out == content).all()
