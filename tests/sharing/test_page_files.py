"""The descriptors of exported pages: made once, closed with the page, before it sleeps, and by forks."""

import gc
import os
import resource

import pytest
from child import in_fork, in_own_process

import accelrt
import accelrt.sharing
from accelrt.sharing import mapping

MIB = 1 << 20


def descriptors():
    return len(os.listdir("/proc/self/fd"))


def export_all(shared):
    """Every page once; how many descriptors the caller was to close."""
    closed = 0
    for index in range(len(shared.pages)):
        file, owner = shared.export_page(index)
        assert os.fstat(file)
        closed += owner is not None
    return closed


def shared_bytes(size):
    return mapping.share_bytes(accelrt.Buffer(size))


@in_own_process(ACCELRT_DRIVER=os.environ["ACCELRT_DRIVER"])
def test_a_descriptor_is_made_once_and_closed_with_its_page():
    accelrt.Buffer(MIB)  # the driver opens what it needs
    accelrt.empty_cache()
    at_first = descriptors()
    shared = shared_bytes(5 * MIB)
    pages, before = len(shared.pages), descriptors()
    assert [export_all(shared) for _ in range(3)] == [0, 0, 0]
    assert descriptors() == before + pages
    del shared
    again = shared_bytes(5 * MIB)  # the same pages
    export_all(again)
    assert descriptors() == before + pages
    del again
    accelrt.empty_cache()
    assert descriptors() == at_first


def sleep_and_wake(pool):
    """How many descriptors there are meanwhile."""
    accelrt.memory.sleep(pool)
    found = descriptors()
    accelrt.memory.wake(pool)
    return found


@in_own_process(ACCELRT_DRIVER=os.environ["ACCELRT_DRIVER"])
def test_a_page_that_sleeps_has_none():
    pool = accelrt.MemPool()
    with accelrt.use_mem_pool(pool):
        shared = shared_bytes(5 * MIB)
        kept = accelrt.Buffer(MIB)
    del shared
    before = sleep_and_wake(pool)
    with accelrt.use_mem_pool(pool):
        shared = shared_bytes(5 * MIB)
    awake = descriptors()
    export_all(shared)
    assert descriptors() > awake
    del shared
    gc.collect()
    assert sleep_and_wake(pool) == before
    del kept


@pytest.mark.host
@in_own_process(printing="")
def test_a_forked_child_has_none():
    shared = shared_bytes(5 * MIB)
    before = descriptors()
    export_all(shared)
    assert descriptors() > before
    assert in_fork(lambda: descriptors() != before) == 0
    assert export_all(shared) == 0  # the parent has its own


@pytest.mark.host
@in_own_process(printing="")
def test_no_more_are_kept_than_a_quarter_of_what_may_be_open():
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
    shared = shared_bytes(80 * MIB)
    assert len(shared.pages) > 16
    assert export_all(shared) == len(shared.pages) - 16
