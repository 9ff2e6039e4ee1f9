"""Starts processes with the variables that a launcher sets, and gives what they printed."""

import functools
import os
import socket
import subprocess
import sys

SECONDS = 300
LAUNCHERS = ("RANK", "OMPI_", "PMI", "MPI_", "SLURM_", "TORCHELASTIC", "MASTER_", "LOCAL_", "WORLD_SIZE")


def free_port():
    """A port that nothing listens on, nor on those after it that a rendezvous may try."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return min(found.getsockname()[1], 65000)


def clean_environment():
    """This process's environment without a launcher's variables."""
    return {name: text for name, text in os.environ.items() if not name.startswith(LAUNCHERS)}


def variables_of(text, rank, size, port):
    """Variables of a launcher's, of a text such as "RANK=rank WORLD_SIZE=size"."""
    values = {"rank": str(rank), "size": str(size), "port": str(port)}
    pairs = (pair.split("=") for pair in text.split())
    return {name: values.get(value, value) for name, value in pairs}


torchrun_variables = functools.partial(
    variables_of,
    "RANK=rank WORLD_SIZE=size LOCAL_RANK=rank LOCAL_WORLD_SIZE=size MASTER_ADDR=127.0.0.1 MASTER_PORT=port",
)
slurm_variables = functools.partial(
    variables_of,
    "SLURM_PROCID=rank SLURM_NTASKS=size SLURM_LOCALID=rank SLURM_STEP_TASKS_PER_NODE=size "
    "SLURM_JOB_NODELIST=gpu[003-004] SLURM_JOB_ID=123 MASTER_PORT=port",
)
open_mpi_variables = functools.partial(
    variables_of,
    "OMPI_COMM_WORLD_RANK=rank OMPI_COMM_WORLD_SIZE=size OMPI_COMM_WORLD_LOCAL_RANK=rank "
    "OMPI_COMM_WORLD_LOCAL_SIZE=size MASTER_PORT=port",
)


def start(function, rank, size, port, *arguments, variables=torchrun_variables, **environment):
    """A process that calls a function of a test file with these arguments."""
    code = f"from {function.__module__} import {function.__name__} as scenario; scenario(*{arguments!r})"
    given = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "ACCELRT_DEBUG": "2"}
    return subprocess.Popen(
        [sys.executable, "-P", "-c", code],
        env=clean_environment() | given | variables(rank, size, port) | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(process):
    """(exit status, what it printed)."""
    try:
        out, _ = process.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    return process.returncode, out


def in_ranks(function, size, *arguments, variables=torchrun_variables, **environment):
    """Runs a function in so many processes, each with its place among them, and returns what each printed.

    Raises:
        AssertionError: one failed; with what all printed.
    """
    port = free_port()
    ranks = [
        start(function, rank, size, port, *arguments, variables=variables, **environment)
        for rank in range(size)
    ]
    found = [finish(each) for each in ranks]
    assert all(status == 0 for status, _ in found), found
    return [out for _, out in found]
