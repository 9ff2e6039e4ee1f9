"""One process beside this one, for all tests of a file: it takes half a second to start."""

import gc

import pytest
from other_process import Other
from waiting import wait_until

import accelrt.sharing


def is_all_back():
    devices = range(accelrt.device_count())
    return accelrt.sharing.statistics()["lent_bytes"] == 0 == sum(map(accelrt.memory_allocated, devices))


def is_nothing_left():
    """Memory of no bytes is given back by messages too, after all that has bytes."""
    told = accelrt.sharing.statistics()
    return is_all_back() and not any(told[n] for n in ("handles", "unopened", "lent", "opened", "mapped"))


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
    wait_until(is_nothing_left, accelrt.sharing.statistics)


@pytest.fixture
def mortal():
    """A process that the test may kill."""
    made = Other()
    yield made
    made.stop()
    gc.collect()
    wait_until(is_all_back)
