"""Communicators whose devices have NCCL's memory back, on the host's backend and by NCCL 2.29.7."""

import operator
import threading
import types

import pytest
from child import in_own_process
from waiting import wait_until

import accelrt
from accelrt import nccl
from accelrt.nccl import nvidia
from accelrt.runtime import init


@pytest.fixture
def pair(comms):
    """Two ranks of this process, of an NCCL that can suspend them."""
    if not init.runs_on_host():
        try:
            nvidia.can_suspend()
        except accelrt.NotSupportedError as error:
            pytest.skip(str(error))
    return comms


def added(pair, arrays=None):
    """What all ranks' sum is, of 1 on device 0 and 2 on device 1."""
    arrays = arrays or [accelrt.full(1000, rank + 1, "int32", device=rank) for rank in range(2)]
    with nccl.group():
        for comm, array in zip(pair, arrays, strict=True):
            comm.all_reduce(array)
    for comm in pair:
        comm.synchronize()
    return [set(array.numpy().tolist()) for array in arrays]


def test_it_can_be_used_again(pair):
    for _ in range(3):
        assert added(pair) == [{3}, {3}]
        nccl.suspend_all(pair)
        assert [comm.suspended for comm in pair] == [True, True]
        assert all(repr(comm).endswith(", suspended>") for comm in pair)
        nccl.resume_all(pair)
        assert [comm.suspended for comm in pair] == [False, False]
    assert added(pair) == [{3}, {3}]


def freed_by_suspending(pair):
    """Bytes that each device has free beyond those before, while the ranks are suspended."""
    accelrt.empty_cache()
    free = [accelrt.mem_get_info(rank)[0] for rank in range(2)]
    nccl.suspend_all(pair)
    accelrt.empty_cache()
    freed = [accelrt.mem_get_info(rank)[0] - free[rank] for rank in range(2)]
    nccl.resume_all(pair)
    return freed


def test_the_device_has_the_memory_back(pair):
    added(pair)
    freed_by_suspending(pair)  # which has an operation of its own
    before = [comm.memory_stats() for comm in pair]
    suspendable = [figures["suspendable"] for figures in before]
    for figures in before:
        assert 0 <= figures["suspendable"] <= figures["total"]
    # Other processes may take memory of the devices meanwhile.
    wait_until(lambda: all(map(operator.ge, freed_by_suspending(pair), suspendable)))
    assert [comm.memory_stats() for comm in pair] == before


def test_graphs_are_refused_meanwhile_and_right_afterwards(pair):
    arrays = [accelrt.full(1000, rank + 1, "int32", device=rank) for rank in range(2)]
    streams = [accelrt.Stream(device=rank) for rank in range(2)]
    added(pair)
    graphs = [accelrt.CUDAGraph() for _ in range(2)]
    ready = threading.Barrier(2, timeout=300)

    def capture(rank):
        with accelrt.device(rank), accelrt.graph(graphs[rank], stream=streams[rank]):
            ready.wait()
            pair[rank].all_reduce(arrays[rank], stream=streams[rank])
            ready.wait()

    accelrt.testing.on_threads(capture, [0, 1])
    nccl.suspend_all(pair)
    for rank in range(2):
        with accelrt.device(rank), pytest.raises(accelrt.NcclError, match=r"is suspended.*resume\(\) on all"):
            graphs[rank].replay()
    nccl.resume_all(pair)
    for rank in range(2):
        with accelrt.device(rank):
            graphs[rank].replay()
    for comm in pair:
        comm.synchronize()
    assert [set(array.numpy().tolist()) for array in arrays] == [{3}, {3}]
    for graph in graphs:
        graph.reset()


def test_operations_are_refused_meanwhile(pair):
    nccl.suspend_all(pair)
    array = accelrt.zeros(4)
    for refused in (
        lambda: pair[0].all_reduce(array),
        lambda: nccl.split_all(pair, [0, 0]),
        lambda: pair[0].shrink([1]),
    ):
        with pytest.raises(accelrt.NcclError, match="the communicator is suspended"):
            refused()
    with pytest.raises(RuntimeError, match="suspended already; resume it first"):
        nccl.suspend_all(pair)
    with pytest.raises(RuntimeError, match=r"resume\(\) it on all ranks first, or abort\(\) it"):
        pair[0].close()
    pair[0].synchronize()
    nccl.resume_all(pair)
    with pytest.raises(RuntimeError, match="it is not suspended"):
        nccl.resume_all(pair)
    assert added(pair) == [{3}, {3}]


def test_where_it_cannot_begin_nothing_changes(pair):
    with nccl.group(), pytest.raises(RuntimeError, match=r"suspend\(\) in a group; call it outside"):
        pair[0].suspend()
    graph = accelrt.CUDAGraph()
    array = accelrt.zeros(4)
    with accelrt.graph(graph):
        array.fill_(1)
        with pytest.raises(RuntimeError, match="a capture is under way"):
            nccl.suspend_all(pair)
    assert not any(comm.suspended for comm in pair)
    assert added(pair) == [{3}, {3}]


def test_a_rank_that_does_not_come_is_waited_for_no_longer_than_the_timeout(pair):
    pair[0].timeout = 0.2
    with pytest.raises(TimeoutError):
        pair[0].suspend()
    assert not pair[0].suspended
    for comm in pair:
        comm.abort()


def test_a_rank_of_each_thread(pair):
    def cycle(rank):
        with accelrt.device(rank):
            pair[rank].suspend()
            pair[rank].resume()

    accelrt.testing.on_threads(cycle, [0, 1])
    assert added(pair) == [{3}, {3}]


def test_one_that_is_suspended_is_aborted(pair):
    added(pair)
    nccl.suspend_all(pair)
    for comm in pair:
        comm.abort()
        assert not comm.suspended
    graph = accelrt.CUDAGraph()
    with accelrt.graph(graph):
        accelrt.zeros(4).fill_(1)
    graph.replay()  # nothing is asleep any more
    accelrt.synchronize()


@pytest.mark.host
@in_own_process(ACCELRT_HOST_DEVICES="2")
def test_a_child_of_a_fork_counts_none_of_its_parents():
    import os

    comms = nccl.init_all([0, 1])
    nccl.suspend_all(comms)
    child = os.fork()
    if child == 0:
        comms.clear()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    nccl.resume_all(comms)
    for comm in comms:
        comm.close()


@pytest.mark.parametrize(
    ("bindings", "text"),
    [
        (types.SimpleNamespace(), "this nccl4py has no ncclCommSuspend"),
        (
            types.SimpleNamespace(comm_suspend=None, get_version=lambda: 22809),
            "NCCL 22809 has no ncclCommSuspend, which 2.29.7 brought",
        ),
    ],
)
def test_an_nccl_that_cannot_says_so(monkeypatch, bindings, text):
    monkeypatch.setattr(nvidia, "_bindings", bindings)
    with pytest.raises(accelrt.NotSupportedError, match=text):
        nvidia.can_suspend()
