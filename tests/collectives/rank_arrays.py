"""Arrays of two ranks, one on each device, and their sum."""

import accelrt
from accelrt import nccl


def rank_arrays(size=1000):
    """An array of ones, and one of twos, that are there."""
    arrays = [accelrt.full(size, rank + 1.0, "float32", rank) for rank in range(2)]
    for rank in range(2):
        accelrt.current_stream(rank).synchronize()
    return arrays


def reduce_in_group(comms, arrays):
    with nccl.group():
        for comm, array in zip(comms, arrays, strict=True):
            comm.all_reduce(array)
