"""Communicators: what they refuse, groups, threads, and how they are closed."""

import gc

import numpy as np
import pytest
from beside import on_threads
from rank_arrays import rank_arrays

import accelrt
from accelrt import nccl


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
    nccl.all_reduce(rank_arrays(), comms=comms)  # both are still in step
    for each in comms:
        each.synchronize(timeout=300)


def test_a_group_whose_body_raises_puts_nothing_into_a_stream(comms):
    given = rank_arrays()
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
            each.all_reduce(rank_arrays()[rank], total[rank])
        gc.collect()
        other = [accelrt.full(1000, 7.0, "float32", rank) for rank in range(2)]
    assert total[0].numpy()[-1] == total[1].numpy()[-1] == 3
    del other


def test_a_closed_communicator_says_so(comms):
    for each in comms:
        each.close()
        each.close()
    with pytest.raises(accelrt.NcclError, match="it is closed; make another one"):
        comms[0].all_reduce(rank_arrays()[0])
    assert "it is closed" in repr(comms[0])


@pytest.mark.host
def test_what_close_raises_while_it_waits_leaves_nothing_open(comms):
    stream = accelrt.Stream(0)

    def fail():
        raise ZeroDivisionError("in a host function")

    given = rank_arrays()
    comms[0].all_reduce(given[0], stream=stream)
    comms[1].all_reduce(given[1])
    stream.launch_host_func(fail)
    with pytest.raises(ZeroDivisionError, match="in a host function"):
        comms[0].close()
    assert "closed" in repr(comms[0])
    comms[1].close()


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
    given = rank_arrays()

    def work(rank):
        comms[rank].all_reduce(given[rank])
        comms[rank].synchronize(timeout=300)

    on_threads(work, range(2))
    assert [each.numpy()[0] for each in given] == [3, 3]
    assert accelrt.current_device() == 0


@pytest.mark.host
def test_groups_are_a_threads_own():
    comms = [nccl.init_all([0, 1]) for _ in range(4)]
    nccl.all_reduce(rank_arrays(), comms=comms[0])

    def work(mine):
        streams = [accelrt.Stream(rank) for rank in range(2)]
        for _ in range(25):
            given = rank_arrays()
            for rank in range(2):
                streams[rank].wait_stream(accelrt.current_stream(rank))
            nccl.all_reduce(given, streams=streams, comms=mine)
            for rank, each in enumerate(streams):
                each.synchronize()
                assert given[rank].numpy()[-1] == 3

    on_threads(work, comms)
    for mine in comms:
        for each in mine:
            each.close()


def test_ranks_are_made_in_a_group_and_by_threads(two_devices):
    name, made = nccl.unique_id(), []
    on_threads(lambda rank: made.append(nccl.Communicator(2, name, rank, rank)), range(2))
    comms = sorted(made, key=lambda each: each.rank)
    given = rank_arrays()
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
    nccl.all_reduce(rank_arrays(), comms=comms)
    for each in comms:
        each.close()
