"""The extension of another project, and a stream that it leases."""

import pytest

import accelrt


@pytest.fixture(scope="module")
def graphs(downstream):
    return downstream("graphs")


@pytest.fixture
def stream(graphs):
    handle = graphs.lease(0)
    yield handle
    accelrt.ExternalStream(handle).synchronize()
    graphs.give_stream(0, handle)
