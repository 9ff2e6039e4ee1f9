"""Communicators: their errors and their end, groups, captures, and who may use them."""

import copy
import gc
import os
import pickle
import threading

import numpy as np
import pytest
from child import in_child

import accelrt
from accelrt import nccl
from accelrt.nccl import process_end


def arrays(size=1000):
    made = [accelrt.full(size, rank + 1.0, "float32", rank) for rank in range(2)]
    for rank in range(2):
        accelrt.current_stream(rank).synchronize()
    return made


def test_bad_arguments_are_refused_before_anything_is_put_into_a_stream(comms):
    comm, good = comms[0], accelrt.zeros(8, "float32", 0)
    refused = [
        (lambda: comm.all_reduce([1, 2]), TypeError, "pass an Array, a Buffer"),
        (lambda: comm.all_reduce(np.zeros(8, "float32")), ValueError, "input is in host memory"),
        (
            lambda: comm.all_reduce(accelrt.zeros(8, "float32", 1)),
            ValueError,
            "on device 1, the communicator",
        ),
        (
            lambda: comm.all_reduce(accelrt.zeros((4, 4), "float32", 0).T),
            ValueError,
            "take contiguous arrays",
        ),
        (
            lambda: comm.all_reduce(good, op="median"),
            ValueError,
            "it may be 'sum', 'prod', 'max', 'min', 'avg'",
        ),
        (lambda: comm.all_reduce(good, op=5), ValueError, "op is 5"),
        (lambda: comm.all_reduce(good, op=["sum"]), ValueError, r"op is \['sum'\]"),
        (lambda: comm.all_reduce(good, op=True), ValueError, "op is True"),
        (lambda: comm.all_reduce(good.view(">f4")), TypeError, "of another byte order"),
        (lambda: comm.all_reduce(good.view("int16")), TypeError, "NCCL has no 'sum' of int16"),
        (lambda: comm.all_reduce(good.view("complex64"), op="max"), TypeError, "no 'max' of complex64"),
        (lambda: comm.all_reduce(good, good[1:]), ValueError, "output has 7 elements, input has 8"),
        (lambda: comm.all_reduce(good, good.view("int32")), TypeError, "one element type"),
        (lambda: comm.all_gather(good, good), ValueError, "output has 8 elements, 2 inputs have 16"),
        (lambda: comm.reduce_scatter(good, good), ValueError, "input has 8 elements, 2 outputs have 16"),
        (lambda: comm.broadcast(good, root=2), ValueError, "root is 2; it goes from 0 to 1"),
        (lambda: comm.send(good, peer=-1), ValueError, "peer is -1"),
        (lambda: comm.recv(good, peer=True), TypeError, "peer is True"),
        (lambda: comm.all_reduce(good, stream=accelrt.Stream(1)), ValueError, "the communicator on 0"),
        (lambda: nccl.Communicator(2, b"short", 0), ValueError, "pass the 128 bytes"),
        (lambda: nccl.Communicator(2, nccl.unique_id(), 2), ValueError, "rank is 2; it goes from 0 to 1"),
        (lambda: nccl.Communicator(1, nccl.unique_id(), 0, 99), ValueError, "device 99"),
        (lambda: nccl.init_all([0, 0]), ValueError, "pass each device once"),
        (nccl.group_end, RuntimeError, "without group_start"),
    ]
    for call, kind, text in refused:
        with pytest.raises(kind, match=text):
            call()
    freed = accelrt.Buffer(64, 0)
    freed.free()
    with pytest.raises(ValueError, match="freed"):
        comm.all_reduce(freed)
    nccl.all_reduce(arrays(), comms=comms)  # both are still in step
    for each in comms:
        each.synchronize(timeout=30)


def test_a_group_whose_body_raises_puts_nothing_into_a_stream(comms):
    given = arrays()
    with pytest.raises(ZeroDivisionError), nccl.group():
        comms[0].all_reduce(given[0])
        raise ZeroDivisionError
    nccl.all_reduce(given, comms=comms)
    assert given[0].numpy()[0] == 3


def test_memory_freed_inside_of_a_group_is_found_at_its_end(comms):
    array = accelrt.zeros(8, "float32", 0)
    with pytest.raises(ValueError, match="freed"), nccl.group():
        comms[0].all_reduce(array)
        array.free()


def test_arrays_live_until_the_end_of_the_group(comms):
    total = [accelrt.empty(1000, "float32", rank) for rank in range(2)]
    with nccl.group():
        for rank, each in enumerate(comms):
            each.all_reduce(arrays()[rank], total[rank])
        gc.collect()
        other = [accelrt.full(1000, 7.0, "float32", rank) for rank in range(2)]
    assert total[0].numpy()[-1] == total[1].numpy()[-1] == 3
    del other


def test_a_closed_communicator_says_so(comms):
    for each in comms:
        each.close()
        each.close()
    with pytest.raises(accelrt.NcclError, match="it is closed; make another one"):
        comms[0].all_reduce(arrays()[0])
    assert "it is closed" in repr(comms[0])


@pytest.mark.host
def test_what_close_raises_while_it_waits_leaves_nothing_open(comms):
    stream = accelrt.Stream(0)

    def fail():
        raise ZeroDivisionError("in a host function")

    given = arrays()
    comms[0].all_reduce(given[0], stream=stream)
    comms[1].all_reduce(given[1])
    stream.launch_host_func(fail)
    with pytest.raises(ZeroDivisionError, match="in a host function"):
        comms[0].close()
    assert "closed" in repr(comms[0])
    comms[1].close()


def test_communicators_are_not_copied(comms):
    for attempt in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="a Communicator cannot be pickled or copied"):
            attempt(comms[0])


def test_as_contexts_they_close_or_after_an_error_abort(two_devices):
    first, second = nccl.init_all([0, 1])
    with first, second:
        pass
    assert "closed" in repr(first)
    comm = nccl.Communicator(1, nccl.unique_id(), 0)
    with pytest.raises(ZeroDivisionError), comm:
        raise ZeroDivisionError
    assert "aborted" in repr(comm)


def test_one_that_is_dropped_open_says_so(two_devices):
    comm = nccl.Communicator(1, nccl.unique_id(), 0)
    held = [comm]
    del comm
    with pytest.warns(ResourceWarning, match="dropped without close"):
        held.clear()


def test_threads_that_never_chose_a_device_take_part(comms):
    given, errors = arrays(), []

    def work(rank):
        try:
            comms[rank].all_reduce(given[rank])
            comms[rank].synchronize(timeout=30)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(2)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert errors == []
    assert [each.numpy()[0] for each in given] == [3, 3]
    assert accelrt.current_device() == 0


@pytest.mark.host
def test_groups_are_a_threads_own():
    comms = [nccl.init_all([0, 1]) for _ in range(4)]
    nccl.all_reduce(arrays(), comms=comms[0])
    errors = []

    def work(mine):
        try:
            streams = [accelrt.Stream(rank) for rank in range(2)]
            for _ in range(25):
                given = arrays()
                for rank in range(2):
                    streams[rank].wait_stream(accelrt.current_stream(rank))
                nccl.all_reduce(given, streams=streams, comms=mine)
                for rank, each in enumerate(streams):
                    each.synchronize()
                    assert given[rank].numpy()[-1] == 3
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(mine,)) for mine in comms]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert errors == []
    for mine in comms:
        for each in mine:
            each.close()


def test_ranks_are_made_in_a_group_and_by_threads(two_devices):
    name, made = nccl.unique_id(), []
    threads = [
        threading.Thread(target=lambda rank=rank: made.append(nccl.Communicator(2, name, rank, rank)))
        for rank in range(2)
    ]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    comms = sorted(made, key=lambda each: each.rank)
    given = arrays()
    nccl.all_reduce(given, comms=comms)
    assert given[1].numpy()[0] == 3
    for each in comms:
        each.close()


def test_ranks_of_one_thread_are_made_in_a_group(two_devices):
    name = nccl.unique_id()
    with nccl.group():
        comms = [nccl.Communicator(2, name, rank, rank) for rank in range(2)]
        with pytest.raises(accelrt.NcclError, match="its group has not ended"):
            comms[0].check()
    nccl.all_reduce(arrays(), comms=comms)
    for each in comms:
        each.close()


def test_operations_are_captured_and_replayed(comms):
    given, streams = arrays(), [accelrt.Stream(rank) for rank in range(2)]
    nccl.all_reduce(arrays(), streams=streams, comms=comms)  # NCCL connects the ranks here
    graphs = [accelrt.CUDAGraph() for _ in comms]
    for rank in range(2):
        accelrt.synchronize(rank)
    for rank, each in enumerate(comms):
        with (
            accelrt.device(rank),
            accelrt.graph(graphs[rank], stream=streams[rank], capture_error_mode="thread_local"),
        ):
            each.all_reduce(given[rank])
    for turn in range(1, 4):
        for rank, each in enumerate(graphs):
            with accelrt.stream(streams[rank]):
                each.replay()
        for each in streams:
            each.synchronize()
        assert given[0].numpy()[0] == given[1].numpy()[0] == 3 * 2 ** (turn - 1)
    with pytest.raises(RuntimeError, match="captured operations of the communicator are in graphs"):
        comms[0].close()
    with pytest.raises(RuntimeError, match="reset"):
        comms[1].abort()
    for each in graphs:
        each.reset()


def test_a_graph_keeps_the_arrays_of_its_operations(comms):
    streams = [accelrt.Stream(rank) for rank in range(2)]
    nccl.all_reduce(arrays(), streams=streams, comms=comms)
    total = [accelrt.zeros(1000, "float32", rank) for rank in range(2)]
    graphs, given = [accelrt.CUDAGraph() for _ in comms], arrays()
    accelrt.synchronize(0)
    accelrt.synchronize(1)
    for rank, each in enumerate(comms):
        with (
            accelrt.device(rank),
            accelrt.graph(graphs[rank], stream=streams[rank], capture_error_mode="thread_local"),
        ):
            each.all_reduce(given[rank], total[rank])
    del given
    others = [accelrt.full(1000, 7.0, "float32", rank) for rank in range(2)]
    for rank, each in enumerate(graphs):
        with accelrt.stream(streams[rank]):
            each.replay()
    for each in streams:
        each.synchronize()
    assert total[0].numpy()[0] == total[1].numpy()[0] == 3
    for each in graphs:
        each.reset()
    del others


@pytest.mark.host
def test_a_capture_of_another_thread_is_not_disturbed(comms):
    graph, stream, given, total = accelrt.CUDAGraph(), accelrt.Stream(0), accelrt.zeros(64), arrays()
    for rank in range(2):
        accelrt.synchronize(rank)
    began, go, errors = threading.Event(), threading.Event(), []

    def capture():
        try:
            with accelrt.graph(graph, stream=stream):
                given.fill_(3)
                began.set()
                go.wait(30)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=capture)
    thread.start()
    began.wait(30)
    streams = [accelrt.Stream(rank) for rank in range(2)]
    try:
        nccl.all_reduce(total, streams=streams, comms=comms)
    finally:
        go.set()
        thread.join()
    assert errors == []
    for rank, each in enumerate(comms):
        each.synchronize(streams[rank], timeout=30)
    assert total[1].numpy()[0] == 3
    graph.replay()
    accelrt.synchronize(0)
    assert given.numpy()[0] == 3
    graph.reset()


@pytest.mark.parametrize("kind", ["default_stream", "per_thread_stream"])
def test_default_streams_are_streams(comms, kind):
    given = arrays()
    for rank in range(2):
        accelrt.synchronize(rank)
    nccl.all_reduce(given, streams=[getattr(accelrt, kind)(rank) for rank in range(2)], comms=comms)
    for rank, each in enumerate(comms):
        each.synchronize(getattr(accelrt, kind)(rank), timeout=60)
    assert given[0].numpy()[0] == given[1].numpy()[0] == 3


def race():
    comms, given = nccl.init_all([0, 1]), arrays()
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
    print("told")


@pytest.mark.own_process
def test_the_race_detector_is_told_of_collectives():
    assert "told" in in_child(race, ACCELRT_SANITIZE="1")


@pytest.mark.host
def test_ranks_that_disagree_learn_of_it(comms):
    given = arrays(100_000)  # more than a channel holds, so that a rank waits for the others
    comms[0].broadcast(given[0])
    comms[1].all_reduce(given[1])
    texts = []
    for each in comms:
        with pytest.raises(accelrt.NcclError, match=r"abort|disagree") as caught:
            each.synchronize(timeout=30)
        texts.append(str(caught.value))
        with pytest.raises(accelrt.NcclError):
            each.check()
    assert any("broadcast of 400000 bytes a rank" in text for text in texts)


@pytest.mark.host
def test_an_operation_that_others_never_call_times_out_and_is_aborted(comms):
    given = arrays(100_000)
    comms[0].all_reduce(given[0])
    with pytest.raises(TimeoutError, match=r"is not done after 0.05 s.*abort\(\) ends it"):
        comms[0].synchronize(timeout=0.05)
    comms[0].abort()
    accelrt.synchronize(0)
    with pytest.raises(accelrt.NcclError, match="it was aborted"):
        comms[0].check()
    comms[1].all_reduce(given[1])
    with pytest.raises(accelrt.NcclError, match="rank 0 has left") as caught:
        comms[1].synchronize(timeout=30)
    assert caught.value.code == 6
    assert caught.value.name == "REMOTE_ERROR"


def use_in_child_of_a_fork():
    comms = nccl.init_all([0, 1])
    nccl.all_reduce(arrays(), comms=comms)
    child = os.fork()
    if child == 0:
        try:
            with pytest.raises(accelrt.ForkedError, match="of the process that this one was forked from"):
                comms[0].check()
            comms[0].close()
            del comms
            gc.collect()
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    given = arrays()
    nccl.all_reduce(given, comms=comms)  # the child has closed nothing of its parent's
    assert given[1].numpy()[0] == 3
    for each in comms:
        each.close()
    print("done")


@pytest.mark.own_process
def test_a_child_of_a_fork_uses_and_closes_nothing_of_its_parents():
    assert "done" in in_child(use_in_child_of_a_fork)


def leave_with_an_operation_under_way(finished):
    comms = nccl.init_all([0, 1])
    given = arrays()
    process_end.EXIT_SECONDS = 0.2
    comms[0].all_reduce(given[0])
    if finished:
        comms[1].all_reduce(given[1])
    print("left")


@pytest.mark.own_process
@pytest.mark.parametrize("finished", [True, False])
def test_the_interpreter_ends_with_communicators_open(finished, monkeypatch):
    assert "left" in in_child(leave_with_an_operation_under_way, finished)
