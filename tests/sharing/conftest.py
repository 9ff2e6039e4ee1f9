"""One process beside this one, for all tests of a file: it takes half a second to start."""

import gc

import pytest
from other_process import Other
from waiting import wait_until

import accelrt.sharing


def is_all_back():
    devices = range(accelrt.device_count())
    return accelrt.sharing.statistics()["lent_bytes"] == 0 == sum(map(accelrt.memory_allocated, devices))


@pytest.fixture(scope="module")
def neighbour():
    made = Other()
    yield made
    made.stop()


@pytest.fixture
def other(neighbour):
    """The process; after a test neither has anything of the other's."""
    yield neighbour
    gc.collect()
    wait_until(is_all_back)
    told = accelrt.sharing.statistics()
    assert not any(told[name] for name in ("handles", "unopened", "lent", "opened", "mapped")), told


@pytest.fixture
def mortal():
    """A process that the test may kill."""
    made = Other()
    yield made
    made.stop()
    gc.collect()
    wait_until(is_all_back)
