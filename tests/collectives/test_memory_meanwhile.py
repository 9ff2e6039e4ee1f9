"""Memory that is freed, or put to sleep, while a collective of another thread is on its way to its stream."""

import threading

import pytest
from parking_backend import ParkingBackend, Worker
from rank_arrays import reduce_in_group

import accelrt
from accelrt import nccl
from accelrt.nccl import host_for_tests, splitting, suspending

pytestmark = [pytest.mark.host, pytest.mark.usefixtures("two_devices")]
SIZE = 1 << 18
POINTS = [(call, when) for call in ("group_start", "issue", "group_end") for when in ("before", "after")]


@pytest.fixture
def backend(comms):
    made = ParkingBackend(comms[0]._backend)
    for each in comms:
        each._backend = made
    yield made
    made.go_on()


def in_pools(pools):
    arrays = []
    for rank, pool in enumerate(pools):
        with accelrt.use_mem_pool(pool):
            arrays.append(accelrt.full(SIZE, rank + 1, "float32", rank))
        accelrt.synchronize(rank)
    return arrays


@pytest.mark.parametrize(("call", "when"), POINTS)
def test_memory_that_is_freed_meanwhile_serves_nobody_else_before(comms, backend, call, when):
    arrays = [accelrt.full(SIZE, rank + 1, "float32", rank) for rank in range(2)]
    for rank in range(2):
        accelrt.synchronize(rank)
    address = arrays[0].ptr
    backend.park(call, when)
    one = Worker(reduce_in_group, comms, arrays)
    assert backend.parked.wait(300)
    arrays[0].free()
    other = accelrt.full(SIZE, 9, "float32", 0)
    assert other.ptr != address
    backend.go_on()
    assert one.end() is None
    comms[1].synchronize(timeout=300)
    assert (arrays[1].numpy() == 3).all()
    assert (other.numpy() == 9).all()
    del one


@pytest.mark.parametrize(("call", "when"), POINTS)
def test_a_pool_that_is_to_sleep_meanwhile_waits_for_the_collective(comms, backend, call, when):
    pools = [accelrt.MemPool(), accelrt.MemPool()]
    arrays = in_pools(pools)
    backend.park(call, when)
    one = Worker(reduce_in_group, comms, arrays)
    assert backend.parked.wait(300)
    two = Worker(pools[0].sleep)
    two.join(0.05)
    assert two.is_alive()
    backend.go_on()
    assert one.end() is two.end() is None
    with pytest.raises(accelrt.SleepingMemoryError):
        comms[0].all_reduce(arrays[0])
    pools[0].wake()
    for rank, each in enumerate(comms):
        each.synchronize(timeout=300)
        assert (arrays[rank].numpy() == 3).all()
    del one, two


def test_a_group_with_memory_that_sleeps_is_left_out_as_a_whole(comms, backend):
    pools = [accelrt.MemPool(), accelrt.MemPool()]
    arrays = in_pools(pools)
    with pytest.raises(accelrt.SleepingMemoryError), nccl.group():
        for comm, array in zip(comms, arrays, strict=True):
            comm.all_reduce(array)
        pools[0].sleep()
    assert "issue" not in backend.calls
    pools[0].wake()
    reduce_in_group(comms, arrays)
    for rank, each in enumerate(comms):
        each.synchronize(timeout=300)
        assert (arrays[rank].numpy() == 3).all()


def test_a_group_with_memory_that_was_freed_is_left_out_as_a_whole(comms, backend):
    arrays = [accelrt.full(SIZE, rank + 1, "float32", rank) for rank in range(2)]
    with pytest.raises(ValueError, match="freed"), nccl.group():
        for comm, array in zip(comms, arrays, strict=True):
            comm.all_reduce(array)
        arrays[1].free()
    assert "issue" not in backend.calls
    assert (arrays[0].numpy() == 1).all()


@pytest.fixture
def long_calls(backend):
    """The backend's calls go on after they returned, as NCCL's: until `is_done(rank)` of this list's item."""
    is_done = [lambda rank: True]
    backend.MAY_TAKE_LONG = True
    backend.in_progress = lambda rank: not is_done[0](rank)
    return is_done


def test_two_threads_suspend_a_rank_each_though_one_call_ends_with_the_other(comms, long_calls, monkeypatch):
    asleep, first = set(), threading.Event()

    def is_done(rank):
        if not host_for_tests.suspended(rank):
            return True
        first.set()
        asleep.add(rank)
        return len(asleep) == 2

    def exchange_and_wait(those, sides):
        splitting.exchange(those, sides)
        assert those[0] is comms[0] or first.wait(300)

    long_calls[0] = is_done
    monkeypatch.setattr(suspending, "exchange", exchange_and_wait)
    workers = [Worker(comm.suspend) for comm in comms]
    assert [worker.end() for worker in workers] == [None, None]
    assert [comm.suspended for comm in comms] == [True, True]
    nccl.resume_all(comms)


def test_a_collective_that_waits_for_a_rank_holds_up_the_sleep_of_its_own_memory_alone(comms, long_calls):
    pools = [accelrt.MemPool(device=0), accelrt.MemPool(device=1)]
    arrays = []
    for rank, pool in enumerate(pools):
        with accelrt.device(rank), accelrt.use_mem_pool(pool):
            arrays.append(accelrt.full(SIZE, rank + 1, "float32", rank))
    has_come, asked = threading.Event(), threading.Event()
    long_calls[0] = lambda rank: asked.set() or has_come.is_set()
    one = Worker(comms[0].all_reduce, arrays[0])
    assert asked.wait(300)
    pools[1].sleep()  # as the thread of the other rank does before its part of the collective
    pools[1].wake()
    two = Worker(pools[0].sleep)
    two.join(0.2)
    assert two.is_alive()
    has_come.set()
    comms[1].all_reduce(arrays[1])
    assert one.end() is None
    assert two.end() is None
    pools[0].wake()
    comms[1].synchronize(timeout=300)
    assert [set(array.numpy().tolist()) for array in arrays] == [{3}, {3}]
