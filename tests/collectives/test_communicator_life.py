"""Communicators in captures, beside failures of other ranks, in forks and at the end of the process."""

import gc
import threading

import pytest
from beside import Caller
from child import in_child, in_fork, in_own_process
from rank_arrays import rank_arrays

import accelrt
from accelrt import nccl


def capture(graphs, streams, operate):
    """Captures operate(rank) of each rank, once its device is idle."""
    for rank in range(2):
        accelrt.synchronize(rank)
    for rank, (each, stream) in enumerate(zip(graphs, streams, strict=True)):
        with accelrt.device(rank), accelrt.graph(each, stream=stream, capture_error_mode="thread_local"):
            operate(rank)


def replay(graphs, streams):
    """Replays the graphs of all ranks, and waits for them."""
    for each, stream in zip(graphs, streams, strict=True):
        with accelrt.stream(stream):
            each.replay()
    for stream in streams:
        stream.synchronize()


def test_operations_are_captured_and_replayed(comms):
    given, streams = rank_arrays(), [accelrt.Stream(rank) for rank in range(2)]
    nccl.all_reduce(rank_arrays(), streams=streams, comms=comms)  # NCCL connects the ranks here
    graphs = [accelrt.CUDAGraph() for _ in comms]
    capture(graphs, streams, lambda rank: comms[rank].all_reduce(given[rank]))
    for turn in range(1, 4):
        replay(graphs, streams)
        assert given[0].numpy()[0] == given[1].numpy()[0] == 3 * 2 ** (turn - 1)
    with pytest.raises(RuntimeError, match="captured operations of the communicator are in graphs"):
        comms[0].close()
    with pytest.raises(RuntimeError, match="reset"):
        comms[1].abort()
    for each in graphs:
        each.reset()


def test_a_graph_keeps_the_arrays_of_its_operations(comms):
    streams = [accelrt.Stream(rank) for rank in range(2)]
    nccl.all_reduce(rank_arrays(), streams=streams, comms=comms)
    total = [accelrt.zeros(1000, "float32", rank) for rank in range(2)]
    graphs, given = [accelrt.CUDAGraph() for _ in comms], rank_arrays()
    capture(graphs, streams, lambda rank: comms[rank].all_reduce(given[rank], total[rank]))
    given.clear()
    others = [accelrt.full(1000, 7.0, "float32", rank) for rank in range(2)]
    replay(graphs, streams)
    assert total[0].numpy()[0] == total[1].numpy()[0] == 3
    for each in graphs:
        each.reset()
    del others


@pytest.mark.host
def test_a_capture_of_another_thread_is_not_disturbed(comms):
    graph, stream, given, total = accelrt.CUDAGraph(), accelrt.Stream(0), accelrt.zeros(64), rank_arrays()
    for rank in range(2):
        accelrt.synchronize(rank)
    began, go = threading.Event(), threading.Event()

    def capture():
        with accelrt.graph(graph, stream=stream):
            given.fill_(3)
            began.set()
            go.wait(300)

    caller = Caller(capture).begin()
    began.wait(300)
    streams = [accelrt.Stream(rank) for rank in range(2)]
    try:
        nccl.all_reduce(total, streams=streams, comms=comms)
    finally:
        go.set()
        caller.result()
    for rank, each in enumerate(comms):
        each.synchronize(streams[rank], timeout=300)
    assert total[1].numpy()[0] == 3
    graph.replay()
    accelrt.synchronize(0)
    assert given.numpy()[0] == 3
    graph.reset()


@pytest.mark.parametrize("kind", ["default_stream", "per_thread_stream"])
def test_default_streams_are_streams(comms, kind):
    given = rank_arrays()
    for rank in range(2):
        accelrt.synchronize(rank)
    nccl.all_reduce(given, streams=[getattr(accelrt, kind)(rank) for rank in range(2)], comms=comms)
    for rank, each in enumerate(comms):
        each.synchronize(getattr(accelrt, kind)(rank), timeout=300)
    assert given[0].numpy()[0] == given[1].numpy()[0] == 3


@in_own_process(ACCELRT_SANITIZE="1")
def test_the_race_detector_is_told_of_collectives():
    comms, given = nccl.init_all([0, 1]), rank_arrays()
    streams = [accelrt.Stream(rank) for rank in range(2)]
    for rank, each in enumerate(streams):
        each.wait_stream(accelrt.current_stream(rank))
    nccl.all_reduce(given, streams=streams, comms=comms)
    with pytest.raises(accelrt.RaceError, match="all_reduce"):
        given[0].fill_(0)  # on the current stream, which has not waited
    for rank, each in enumerate(streams):
        accelrt.current_stream(rank).wait_stream(each)
    given[0].fill_(0)
    for each in comms:
        each.close()


@pytest.mark.host
def test_ranks_that_disagree_learn_of_it(comms):
    given = rank_arrays(100_000)  # more than a channel holds, so that a rank waits for the others
    comms[0].broadcast(given[0])
    comms[1].all_reduce(given[1])
    texts = []
    for each in comms:
        with pytest.raises(accelrt.NcclError, match=r"abort|disagree") as caught:
            each.synchronize(timeout=300)
        texts.append(str(caught.value))
        with pytest.raises(accelrt.NcclError):
            each.check()
    assert any("broadcast of 400000 bytes a rank" in text for text in texts)


@pytest.mark.host
def test_an_operation_that_others_never_call_times_out_and_is_aborted(comms):
    given = rank_arrays(100_000)
    comms[0].all_reduce(given[0])
    with pytest.raises(TimeoutError, match=r"is not done after 0.05 s.*abort\(\) ends it"):
        comms[0].synchronize(timeout=0.05)
    comms[0].abort()
    accelrt.synchronize(0)
    with pytest.raises(accelrt.NcclError, match="it was aborted"):
        comms[0].check()
    comms[1].all_reduce(given[1])
    with pytest.raises(accelrt.NcclError, match="rank 0 has left") as caught:
        comms[1].synchronize(timeout=300)
    assert caught.value.code == 6
    assert caught.value.name == "REMOTE_ERROR"


@in_own_process
def test_a_child_of_a_fork_uses_and_closes_nothing_of_its_parents():
    comms = nccl.init_all([0, 1])
    nccl.all_reduce(rank_arrays(), comms=comms)

    def child():
        with pytest.raises(accelrt.ForkedError, match="of the process that this one was forked from"):
            comms[0].check()
        comms[0].close()
        comms.clear()
        gc.collect()

    assert in_fork(child) == 0
    given = rank_arrays()
    nccl.all_reduce(given, comms=comms)  # the child has closed nothing of its parent's
    assert given[1].numpy()[0] == 3
    for each in comms:
        each.close()


def leave_with_an_operation_under_way(finished):
    comms = nccl.init_all([0, 1])
    given = rank_arrays()
    comms[0].all_reduce(given[0])
    if finished:
        comms[1].all_reduce(given[1])
    print("left")


@pytest.mark.own_process
@pytest.mark.parametrize("finished", [True, False])
def test_the_interpreter_ends_with_communicators_open(finished):
    assert "left" in in_child(leave_with_an_operation_under_way, finished, ACCELRT_NCCL_EXIT_TIMEOUT="0.2")
