"""Reads what torchrun, mpirun and Slurm say of a process's place among those that they started."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

DEFAULT_PORT = 29500  # torch's
LOCAL = "127.0.0.1"
JOB_PARTS = ("SLURM_STEP_ID", "TORCHELASTIC_RESTART_COUNT")


@dataclass(frozen=True)
class Place:
    """A process's place.

    Attributes:
        launcher: str, whose variables say so: "torchrun", "Open MPI", "MPICH" or "Slurm".
        rank, size: int, this process's number among all, and how many there are.
        local_rank, local_size: the same among those of this machine; local_size is None where nothing says
            it.
        address, port: where rank 0 can be reached.
        taken: bool, whether the launcher itself listens on that port.
        job: str, what tells this job from others.
    """

    launcher: str
    rank: int
    size: int
    local_rank: int
    local_size: int | None
    address: str
    port: int
    taken: bool
    job: str


@dataclass(frozen=True)
class Names:
    """The variables of a launcher."""

    launcher: str
    rank: str
    size: str
    local_rank: str
    local_size: str
    job: str


# The first whose rank is set counts: srun may start torchrun, or mpirun run in Slurm's allocation.
LAUNCHERS = (
    Names("torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "TORCHELASTIC_RUN_ID"),
    Names(
        "Open MPI",
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
        "PMIX_NAMESPACE",
    ),
    Names("MPICH", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", "PMI_KVS"),
    Names("Slurm", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE", "SLURM_JOB_ID"),
)


def place_from_environment(environ: Mapping[str, str] | None = None) -> Place:
    """Returns this process's place, from the variables that its launcher set.

    RANK, WORLD_SIZE and LOCAL_RANK (torchrun) count before OMPI_COMM_WORLD_* (Open MPI), PMI_* (MPICH) and
    SLURM_*. MASTER_ADDR and MASTER_PORT say where rank 0 is; without them it is this machine where all
    processes are on it, or the first node of Slurm's list.

    Arguments:
        environ: mapping of str to str; None is os.environ.
    Raises:
        ValueError: no launcher's variables are set, one is missing, or one is no number in range; the text
            names it.
    """
    variables = os.environ if environ is None else environ
    names = next((each for each in LAUNCHERS if variables.get(each.rank)), None)
    if names is None:
        raise ValueError(
            f"no launcher started this process: none of {', '.join(each.rank for each in LAUNCHERS)} is "
            "set; start it by torchrun, mpirun or srun, or set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT"
        )
    size = _number(variables, names.size, 1, 1 << 20, names)
    rank = _number(variables, names.rank, 0, size - 1, names)
    nodes = variables.get("SLURM_STEP_NODELIST") or variables.get("SLURM_JOB_NODELIST") or ""
    local_size = _local_size(variables, names, size)
    if variables.get(names.local_rank):
        local_rank = _number(variables, names.local_rank, 0, size - 1, names)
    elif size == 1 or local_size == size:
        local_rank = rank
    else:
        raise _missing(names.local_rank, names, "it says which of its machine's devices a process uses")
    port_text = variables.get("MASTER_PORT")
    port = _number(variables, "MASTER_PORT", 1, 65535, names) if port_text else _port(variables, names)
    return Place(
        names.launcher,
        rank,
        size,
        local_rank,
        local_size,
        variables.get("MASTER_ADDR") or _address(names, size, local_size, nodes),
        port,
        variables.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        ":".join((names.launcher, *(variables.get(each, "") for each in (names.job, *JOB_PARTS)))),
    )


def _missing(name: str, names: Names, why: str) -> ValueError:
    return ValueError(f"{name} is not set, although {names.rank} is ({names.launcher}): {why}; set it")


def _number(variables: Mapping[str, str], name: str, least: int, most: int, names: Names) -> int:
    text = variables.get(name)
    if not text:
        raise _missing(name, names, "a launcher sets both")
    if not (text.isascii() and text.isdigit() and least <= int(text) <= most):
        raise ValueError(f"{name}={text!r} is no number from {least} to {most} ({names.launcher})")
    return int(text)


def _local_size(variables: Mapping[str, str], names: Names, size: int) -> int | None:
    text = variables.get(names.local_size) or ""
    if names.launcher == "Slurm":  # "2(x3),1": tasks of the nodes in turn, where one node is what can be told
        text = variables.get("SLURM_STEP_TASKS_PER_NODE") or variables.get("SLURM_TASKS_PER_NODE") or text
    return int(text) if text.isascii() and text.isdigit() and 1 <= int(text) <= size else None


def _address(names: Names, size: int, local_size: int | None, nodes: str) -> str:
    if size == 1 or local_size == size:
        return LOCAL
    if names.launcher == "Slurm" and nodes:
        return first_node(nodes)
    raise _missing("MASTER_ADDR", names, "it is the address of rank 0's machine, which nothing else tells")


def _port(variables: Mapping[str, str], names: Names) -> int:
    """A port for a job that names none: jobs on one machine are given different ones, as far as their numbers
    go."""
    digits = re.findall(r"\d+", f"{variables.get(names.job, '')} {variables.get('SLURM_STEP_ID', '')}")
    if names.launcher == "torchrun" or not digits:
        return DEFAULT_PORT
    return 20000 + sum(16 * int(each) for each in digits) % 10000


def first_node(nodes: str) -> str:
    """The first name of Slurm's list, "gpu[003-007,011],login1" being gpu003.

    Raises:
        ValueError: it is no such list.
    """
    match = re.match(r"([^,\[\]]*)(?:\[(\d+)[^\]]*\]([^,\[\]]*))?(?=,|$)", nodes)
    name = match and "".join(part or "" for part in match.groups())
    if not name:
        raise ValueError(
            f"SLURM_JOB_NODELIST={nodes!r} is no list of nodes; set MASTER_ADDR to rank 0's machine"
        )
    return name
