"""The extension of another project, and a stream that it leases."""

import pytest
from downstream_project import built

import accelrt


@pytest.fixture(scope="module")
def graphs():
    return built("graphs")


@pytest.fixture
def stream(graphs):
    handle = graphs.lease(0)
    yield handle
    accelrt.ExternalStream(handle).synchronize()
    graphs.give_stream(0, handle)
