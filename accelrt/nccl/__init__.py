"""Collectives between devices, by NCCL through nccl4py (pip install "accelrt[nccl]"): torch.cuda.nccl's
functions, for a process with several devices, and communicators, for one device a process too.

    comm = accelrt.nccl.init_from_environment()      # under torchrun, mpirun or srun
    comm.all_reduce(gradients)                       # in place, on the current stream

Where accelrt runs on the host device, so do these: by a backend for tests alone, over shared memory.

all_ranks        what a process with several ranks of a communicator does with all of them at once
codes            NCCL's operations, and its numbers: elements, reductions, and what its calls answer
collectives      torch.cuda.nccl's functions: lists of arrays, one a device
communicator     one rank of a communicator: its operations, errors and end
config           settings of a communicator, by NCCL's names
groups           how operations are put into streams, alone or in groups
host_for_tests   the host backend: ranks on host devices, over shared memory
launcher         what torchrun, mpirun and Slurm say of this process's place
limits           how long other ranks are waited for
nvidia           NCCL: nccl4py and the library that it finds
process_end      the interpreter's exit with communicators open, and forks
ranks            what a group uses until it has ended: arrays, communicators' handles, the group itself; and
                 ranks on host devices
rendezvous       the exchange of a communicator's id between processes, over TCP
splitting        communicators of parts of another one's ranks
suspending       communicators that give their devices NCCL's memory back until they are resumed
"""

from accelrt.nccl.all_ranks import init_all, resume_all, shrink_all, split_all, suspend_all
from accelrt.nccl.codes import AVG, MAX, MIN, PROD, SUM
from accelrt.nccl.collectives import (
    all_gather,
    all_reduce,
    broadcast,
    init_rank,
    is_available,
    reduce,
    reduce_scatter,
    unique_id,
    version,
)
from accelrt.nccl.communicator import Communicator
from accelrt.nccl.config import Config
from accelrt.nccl.launcher import Place, place_from_environment
from accelrt.nccl.ranks import group, group_end, group_start
from accelrt.nccl.rendezvous import exchange, init_from_environment

__all__ = [
    "AVG",
    "MAX",
    "MIN",
    "PROD",
    "SUM",
    "Communicator",
    "Config",
    "Place",
    "all_gather",
    "all_reduce",
    "broadcast",
    "exchange",
    "group",
    "group_end",
    "group_start",
    "init_all",
    "init_from_environment",
    "init_rank",
    "is_available",
    "place_from_environment",
    "reduce",
    "reduce_scatter",
    "resume_all",
    "shrink_all",
    "split_all",
    "suspend_all",
    "unique_id",
    "version",
]
