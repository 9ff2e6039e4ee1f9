"""A process's place by the variables of launchers, and what is said of those that are missing or wrong."""

import pytest

from accelrt import nccl
from accelrt.nccl.launcher import first_node

pytestmark = pytest.mark.own_process
TORCHRUN = {
    "RANK": "3",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "gpu001",
    "MASTER_PORT": "1234",
}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "PMIX_NAMESPACE": "prterun-host-4711@1",
}
MPICH = {"PMI_RANK": "0", "PMI_SIZE": "2", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "2"}
SLURM = {
    "SLURM_PROCID": "5",
    "SLURM_NTASKS": "8",
    "SLURM_LOCALID": "1",
    "SLURM_STEP_TASKS_PER_NODE": "4(x2)",
    "SLURM_JOB_NODELIST": "gpu[007-008]",
    "SLURM_JOB_ID": "42",
}


def read(**variables):
    return nccl.place_from_environment(variables)


def test_torchruns_variables():
    found = read(**TORCHRUN)
    assert (found.launcher, found.rank, found.size, found.local_rank, found.local_size) == (
        "torchrun",
        3,
        8,
        1,
        2,
    )
    assert (found.address, found.port, found.taken) == ("gpu001", 1234, False)
    assert read(**TORCHRUN, TORCHELASTIC_USE_AGENT_STORE="True").taken
    assert read(**TORCHRUN, TORCHELASTIC_RESTART_COUNT="1").job != found.job  # what is left of the run before


def test_open_mpis_variables():
    found = read(**OPEN_MPI)
    assert (found.launcher, found.rank, found.size, found.local_rank) == ("Open MPI", 1, 2, 1)
    assert found.address == "127.0.0.1"
    assert 20000 <= found.port < 30000
    other = read(**OPEN_MPI | {"PMIX_NAMESPACE": "prterun-host-4712@1"})
    assert other.port != found.port
    assert other.job != found.job


def test_mpichs_variables():
    found = read(**MPICH)
    assert (found.launcher, found.rank, found.size, found.port) == ("MPICH", 0, 2, 29500)


def test_slurms_variables():
    found = read(**SLURM)
    assert (found.launcher, found.rank, found.size, found.local_rank) == ("Slurm", 5, 8, 1)
    assert (found.address, found.local_size) == ("gpu007", None)
    assert found.port == read(**SLURM | {"SLURM_PROCID": "0"}).port
    assert read(**SLURM, MASTER_ADDR="10.0.0.1").address == "10.0.0.1"
    assert read(**SLURM | {"SLURM_STEP_TASKS_PER_NODE": "8"}).address == "127.0.0.1"


def test_the_inner_launcher_counts():
    assert read(**SLURM, **OPEN_MPI).launcher == "Open MPI"
    assert read(**SLURM, **TORCHRUN).launcher == "torchrun"


def test_one_process_needs_its_rank_alone():
    found = read(RANK="0", WORLD_SIZE="1")
    assert (found.local_rank, found.address, found.port) == (0, "127.0.0.1", 29500)


@pytest.mark.parametrize(
    ("variables", "text"),
    [
        ({}, "none of RANK, OMPI_COMM_WORLD_RANK, PMI_RANK, SLURM_PROCID is set"),
        ({**TORCHRUN, "WORLD_SIZE": ""}, r"WORLD_SIZE is not set, although RANK is \(torchrun\)"),
        ({**TORCHRUN, "RANK": "8"}, "RANK='8' is no number from 0 to 7"),
        ({**TORCHRUN, "RANK": "-1"}, "RANK='-1' is no number"),
        ({**TORCHRUN, "WORLD_SIZE": "two"}, "WORLD_SIZE='two' is no number"),
        ({**TORCHRUN, "MASTER_PORT": "70000"}, "MASTER_PORT='70000' is no number from 1 to 65535"),
        ({**TORCHRUN, "MASTER_ADDR": ""}, "MASTER_ADDR is not set"),
        ({**TORCHRUN, "LOCAL_RANK": ""}, "LOCAL_RANK is not set"),
        ({**SLURM, "SLURM_NTASKS": ""}, r"SLURM_NTASKS is not set, although SLURM_PROCID is \(Slurm\)"),
        ({**SLURM, "SLURM_JOB_NODELIST": "[1-2"}, "is no list of nodes; set MASTER_ADDR"),
        (
            {**OPEN_MPI, "OMPI_COMM_WORLD_LOCAL_SIZE": "1"},
            "MASTER_ADDR is not set, although OMPI_COMM_WORLD_RANK",
        ),
    ],
)
def test_what_is_missing_or_wrong_is_named(variables, text):
    with pytest.raises(ValueError, match=text):
        read(**variables)


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("gpu7", "gpu7"),
        ("gpu[003-007,011],login1", "gpu003"),
        ("a,b[1-2]", "a"),
        ("n[5,9]-ib", "n5-ib"),
        ("host-1.example.org", "host-1.example.org"),
    ],
)
def test_the_first_of_slurms_nodes(nodes, first):
    assert first_node(nodes) == first
