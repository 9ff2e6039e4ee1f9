"""Collectives with each call of the driver failing in its turn, or parked while another thread acts."""

import contextlib
import gc
import itertools
import threading

import numpy as np
import pytest
from child import in_own_process, wrap_host
from parking_backend import Worker
from rank_arrays import reduce_in_group

import accelrt
from accelrt import nccl
from accelrt.driver.host import driver as host
from accelrt.nccl import collectives

pytestmark = [pytest.mark.host, pytest.mark.own_process]
OUT_OF_MEMORY, UNKNOWN = 2, 999
SIZE = 1000


def pair():
    return [accelrt.full(SIZE, rank + 1, "float32", rank) for rank in range(2)]


def path():
    """Lists, a group on streams of its own, an exchange, a capture's replay; raises what fails."""
    arrays = pair()
    nccl.all_reduce(arrays)
    for each in arrays:
        np.testing.assert_array_equal(each.numpy(), np.full(SIZE, 3, "float32"))
    comms = nccl.init_all([0, 1])
    try:
        streams = [accelrt.Stream(rank) for rank in range(2)]
        given, received = pair(), pair()
        for rank, each in enumerate(streams):
            each.wait_stream(accelrt.current_stream(rank))
        with nccl.group():
            for rank, comm in enumerate(comms):
                comm.send(given[rank], 1 - rank, streams[rank])
                comm.recv(received[rank], 1 - rank, streams[rank])
        for rank, comm in enumerate(comms):
            comm.synchronize(streams[rank], timeout=300)
        assert (received[0].numpy() == 2).all()
        assert (received[1].numpy() == 1).all()
    except BaseException:
        for comm in comms:
            comm.abort()
        raise
    for comm in comms:
        comm.close(timeout=300)


def settled():
    """What is alive once everything was dropped."""
    for devices in list(collectives._made):
        collectives._drop(devices)
    gc.collect()
    for rank in range(2):
        with contextlib.suppress(accelrt.CudaError):  # what a failure left to be told
            accelrt.synchronize(rank)
        accelrt.synchronize(rank)
        assert accelrt.memory_allocated(rank) == 0
    accelrt.empty_cache()
    accelrt.host_empty_cache()
    accelrt.memory.audit()
    return {kind: count for kind, count in host.live_objects().items() if kind not in ("streams", "events")}


def attempt():
    """Whether the path failed, which it does by an error of the runtime's or of NCCL's alone."""
    try:
        path()
    except (accelrt.CudaError, accelrt.NcclError):
        return True
    return False


@pytest.mark.parametrize("mode", ["once", "late"])
@pytest.mark.parametrize("code", [OUT_OF_MEMORY, UNKNOWN])
@in_own_process
def test_every_call_of_the_driver_may_fail(mode, code):
    faults = wrap_host()
    path()
    level = settled()
    faults.reset_call_counts()
    path()
    assert settled() == level
    called = [row for row, calls in faults.call_counts().items() if calls]
    raised = absorbed = 0
    for rows in [[row] for row in called] if mode == "once" else [called]:
        for call in itertools.count(1):
            faults.arm(call=call, code=code, mode=mode, rows=rows)
            failed = attempt()
            made = faults.fired()
            faults.disarm()
            assert settled() == level, (rows, call)
            if made < call:
                assert not failed
                break
            raised, absorbed = raised + failed, absorbed + (not failed)
        path()  # whatever failed before, it works
        assert settled() == level
    assert len(called) > 5
    assert raised > 10, (raised, absorbed)


@pytest.mark.parametrize("second", ["abort", "close", "free", "check"])
@in_own_process
def test_a_group_that_is_parked_at_any_call_of_the_driver(second):
    """Parks a group at each call of the driver in turn, lets another thread act, and lets both end."""
    faults = wrap_host()
    for _ in range(2):
        comms, arrays = nccl.init_all([0, 1]), pair()
        for rank in range(2):
            accelrt.synchronize(rank)
        faults.begin_trace()
        reduce_in_group(comms, arrays)
        faults.end_trace()
        for comm in comms:
            comm.close()
    calls = faults.traced_calls(threading.get_ident())
    rows = [row for row, _ in calls]
    points = [
        (row, rows[: index + 1].count(row)) for index, (row, has_gil) in enumerate(calls) if not has_gil
    ]
    for (row, number), when in itertools.product(points, ("before", "after")):
        comms, arrays = nccl.init_all([0, 1]), pair()
        for rank in range(2):
            accelrt.synchronize(rank)
        faults.park(row, number=number, when=when, limit=300)
        one = Worker(reduce_in_group, comms, arrays)
        parked = faults.await_parked(20)
        assert parked == row
        actions = {"abort": comms[0].abort, "close": lambda comms=comms: comms[0].close(timeout=5)}
        actions |= {"free": arrays[0].free, "check": comms[1].check}
        two = Worker(actions[second])
        two.join(0.02)  # to its end, or to its wait
        faults.go_on()
        for each in (one, two):
            error = each.end()
            assert error is None or isinstance(error, (accelrt.NcclError, TimeoutError)), (parked, error)
        for comm in comms:
            comm.abort()
        del one, two, actions
    assert len(points) >= 2
