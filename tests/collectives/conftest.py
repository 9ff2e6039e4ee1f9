"""Collectives run on the host's backend for tests, and on two GPUs by NCCL, by the same tests."""

import pytest

import accelrt
from accelrt import nccl


@pytest.fixture(scope="session")
def two_devices():
    """Skips where there is one device, or on a GPU no NCCL; never on the host device."""
    if accelrt.device_count() < 2:
        pytest.skip("needs two devices")
    if not nccl.is_available():
        pytest.skip("NCCL and nccl4py are not installed")


@pytest.fixture
def comms(two_devices):
    """A communicator for each of two devices, closed afterwards."""
    made = nccl.init_all([0, 1])
    yield made
    for each in made:
        each.close()
