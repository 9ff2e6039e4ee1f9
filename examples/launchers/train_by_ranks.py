"""Training by several processes: each has a part of the data and a device, and all average their gradients.

One program for each launcher, whose variables accelrt.nccl.init_from_environment() reads:

    torchrun --nproc-per-node=2 train_by_ranks.py
    mpirun -n 2 python train_by_ranks.py
    srun -n 2 python train_by_ranks.py

On several machines torchrun takes --nnodes, --rdzv-backend=c10d and --rdzv-endpoint=HOST:PORT; mpirun takes
--hostfile and MASTER_ADDR, the first host's name; srun takes -N.  The model is a line, y = a*x + b; its
arithmetic is numpy's, so that the program needs no compiler.
"""

import os

import numpy as np

import accelrt as cuda

POINTS, STEPS, RATE = 1000, 200, 0.5
TRUE_LINE = (3.0, -1.0)


def part_of_the_data(rank):
    """Points of the line that this rank alone has."""
    x = np.random.default_rng(rank).uniform(-1, 1, POINTS).astype(np.float32)
    return x, np.float32(TRUE_LINE[0]) * x + np.float32(TRUE_LINE[1])


def train(comm):
    """The line that all ranks fit together."""
    x, y = part_of_the_data(comm.rank)
    start = (5, 5) if comm.rank == 0 else (0, 0)
    parameters = cuda.asarray(np.array(start, np.float32))
    comm.broadcast(parameters)  # the other ranks begin where rank 0 does
    for _ in range(STEPS):
        comm.synchronize(timeout=60)  # raises, where another rank died
        line = parameters.numpy()
        error = line[0] * x + line[1] - y
        gradient = cuda.asarray(np.array([(error * x).mean(), error.mean()], np.float32))
        comm.all_reduce(gradient, op="avg")
        comm.synchronize(timeout=60)
        parameters.copy_(line - np.float32(RATE) * gradient.numpy())
    return parameters


def main():
    with cuda.nccl.init_from_environment(timeout=60) as comm, cuda.device(comm.device_index):
        parameters = train(comm)
        of_all = cuda.zeros((comm.size, 2), "float32")
        comm.all_gather(parameters, of_all)
        comm.synchronize(timeout=60)
        line, lines = parameters.numpy(), of_all.numpy()
        del parameters, of_all
        rank = f"rank {comm.rank} of {comm.size} on device {comm.device_index}"
        left = f"{cuda.memory_allocated()} bytes are still allocated"
    assert (lines == line).all(), f"the ranks have different parameters: {lines}"
    assert np.allclose(line, TRUE_LINE, atol=1e-3), line
    text = f"{rank}: y = {line[0]:.3f}*x + {line[1]:.3f}; {left}\n"
    os.write(1, text.encode())  # in one piece, so that ranks' lines do not mix


if __name__ == "__main__":
    if not cuda.is_available():
        cuda.init(driver="host")
    main()
