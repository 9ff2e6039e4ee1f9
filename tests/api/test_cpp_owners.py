"""accelrt.hpp: owners give back what they hold, whichever way they are left, and failures are exceptions."""

import ctypes

import pytest
from compiled import CXX, compile_cpp

import accelrt

pytestmark = pytest.mark.skipif(CXX is None, reason="no C++ compiler (g++) is installed")


@pytest.fixture(scope="module")
def owners(tmp_path_factory):
    return ctypes.CDLL(compile_cpp("owners", tmp_path_factory.mktemp("owners")))


@pytest.mark.parametrize("device", [0, 1])
@pytest.mark.parametrize("case", ["moves", "refusals", "orders", "broken_captures"])
def test_owners(owners, case, device):
    if device >= accelrt.device_count():
        pytest.skip("one device")
    failed_line = getattr(owners, case)(device)
    assert failed_line == 0
    assert accelrt.memory_allocated(device) == 0
