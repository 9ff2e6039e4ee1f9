"""Collectives between two GPUs with other libraries' arrays, and beside torch's own NCCL."""

import os
import signal
import sys
import threading

import launched
import numpy as np
import pytest
from parking_backend import Worker

import accelrt
from accelrt import nccl

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("two_devices")]


def test_torchs_tensors_are_reduced_in_place(comms):
    torch = pytest.importorskip("torch")
    tensors = [torch.full((1000,), rank + 1.0, device=f"cuda:{rank}") for rank in range(2)]
    nccl.all_reduce(tensors, comms=comms)
    for each in comms:
        each.synchronize(timeout=300)
    for rank, each in enumerate(tensors):
        with torch.cuda.device(rank):
            assert each.cpu().eq(3).all()


def test_bfloat16_tensors_of_torchs_are_reduced(comms):
    torch = pytest.importorskip("torch")
    pytest.importorskip("ml_dtypes")
    tensors = [torch.full((64,), rank + 1, dtype=torch.bfloat16, device=f"cuda:{rank}") for rank in range(2)]
    nccl.all_reduce(tensors, comms=comms)
    for each in comms:
        each.synchronize(timeout=300)
    assert tensors[1].cpu().eq(3).all()


def test_cupys_arrays_are_reduced_in_place(comms):
    cupy = pytest.importorskip("cupy")
    arrays = []
    for rank in range(2):
        with cupy.cuda.Device(rank):
            arrays.append(cupy.full(1000, rank + 1, cupy.float32))
    nccl.all_reduce(arrays, comms=comms)
    for each in comms:
        each.synchronize(timeout=300)
    for rank, each in enumerate(arrays):
        with cupy.cuda.Device(rank):
            assert (each.get() == 3).all()


def test_memory_of_many_pages_is_reduced(comms):
    size = 48 << 20  # 192 MiB: pages of several mappings
    arrays = [accelrt.full(size, rank + 1.0, "float32", rank) for rank in range(2)]
    nccl.all_reduce(arrays, comms=comms)
    for each in arrays:
        assert (each.numpy() == 3).all()


def abort_all(comms):
    """Each on a thread of its own: NCCL may have one wait for the others."""
    for each in [Worker(comm.abort) for comm in comms]:
        assert each.end() is None


def test_abort_ends_a_kernel_that_waits_for_another_rank(two_devices):
    comms, arrays = nccl.init_all([0, 1]), [accelrt.zeros(1000, "float32", rank) for rank in range(2)]
    nccl.all_reduce(arrays, comms=comms)
    for rank, each in enumerate(comms):
        each.synchronize(timeout=300)
        accelrt.synchronize(rank)
    comms[0].all_reduce(arrays[0])
    with pytest.raises(TimeoutError, match=r"abort\(\) ends it"):
        comms[0].synchronize(timeout=0.5)
    abort_all(comms)
    accelrt.synchronize(0)
    with pytest.raises(accelrt.NcclError, match="it was aborted"):
        comms[0].all_reduce(arrays[0])


def test_abort_beside_operations_of_another_thread(two_devices):
    for _ in range(5):
        comms, arrays = nccl.init_all([0, 1]), [accelrt.zeros(1000, "float32", rank) for rank in range(2)]
        started = threading.Event()

        def work(comms=comms, arrays=arrays, started=started):
            while True:
                nccl.all_reduce(arrays, comms=comms)
                started.set()

        one = Worker(work)
        assert started.wait(300)
        abort_all(comms)
        assert isinstance(one.end(), accelrt.NcclError)
        for rank in range(2):
            accelrt.synchronize(rank)


def stop_and_go_on():
    comm = nccl.init_from_environment()
    array = accelrt.full(1000, comm.rank + 1.0, "float32", comm.device_index)
    comm.all_reduce(array)
    comm.synchronize(timeout=300)
    if comm.rank == 1:
        sys.stdout.flush()
        os.kill(os.getpid(), signal.SIGSTOP)
    comm.all_reduce(array)
    if comm.rank == 0:
        with pytest.raises(TimeoutError):
            comm.synchronize(timeout=1)
        print("waits", flush=True)
    comm.synchronize(timeout=300)
    print(array.numpy()[0], flush=True)
    comm.close()


@pytest.mark.own_process
def test_a_rank_that_is_stopped_and_continued_gives_the_result():
    port = launched.free_port()
    ranks = [launched.start(stop_and_go_on, rank, 2, port) for rank in range(2)]
    assert ranks[0].stdout.readline() == "waits\n"
    ranks[1].send_signal(signal.SIGCONT)
    assert ranks[0].stdout.read() == "6.0\n"
    assert launched.finish(ranks[1]) == (0, "6.0\n")
    assert ranks[0].wait(60) == 0
    ranks[0].stdout.close()


def test_two_ranks_on_one_device_are_refused(two_devices):
    with pytest.raises((accelrt.NcclError, ValueError)):
        nccl.init_all([0, 0])


def test_an_operation_that_the_other_rank_never_calls_is_aborted(two_devices):
    comms = nccl.init_all([0, 1])
    warm = [accelrt.zeros(1000, "float32", rank) for rank in range(2)]
    nccl.all_reduce(warm, comms=comms)
    for each in comms:
        each.synchronize(timeout=300)
    array = accelrt.full(1000, 1.0, "float32", 0)
    comms[0].all_reduce(array)
    with pytest.raises(TimeoutError, match=r"abort\(\) ends it"):
        comms[0].synchronize(timeout=0.2)
    for each in comms:
        each.abort()
    accelrt.synchronize(0)
    accelrt.synchronize(1)


def beside_torch(port):
    import torch
    import torch.distributed as dist

    comm = nccl.init_from_environment()
    torch.cuda.set_device(comm.rank)
    dist.init_process_group(
        "nccl", init_method=f"tcp://127.0.0.1:{port}", rank=comm.rank, world_size=comm.size
    )
    theirs = torch.full((1 << 20,), comm.rank + 1.0, device="cuda")
    mine = accelrt.full(1 << 20, comm.rank + 1.0, "float32", comm.device_index)
    dist.all_reduce(theirs)
    comm.all_reduce(mine)
    torch.cuda.synchronize()
    comm.synchronize(timeout=300)
    np.testing.assert_array_equal(mine.numpy(), theirs.cpu().numpy())
    comm.close()
    dist.destroy_process_group()
    print("same")


@pytest.mark.own_process
def test_torch_distributed_runs_beside_it():
    pytest.importorskip("torch")
    assert all("same" in out for out in launched.in_ranks(beside_torch, 2, launched.free_port()))


def many_pages_in_a_graph():
    comm = nccl.init_from_environment()
    with accelrt.device(comm.device_index):
        array = accelrt.full(24 << 20, comm.rank + 1.0, "float32")
        warm, graph, stream = accelrt.zeros(24 << 20, "float32"), accelrt.CUDAGraph(), accelrt.Stream()
        comm.all_reduce(warm, stream=stream)
        accelrt.synchronize()
        with accelrt.graph(graph, stream=stream, capture_error_mode="thread_local"):
            comm.all_reduce(array)
        graph.replay()
        accelrt.synchronize()
        assert (array.numpy() == 3).all()
    graph.reset()
    comm.close()
    print("replayed")


@pytest.mark.own_process
def test_a_graph_reduces_memory_of_many_pages():
    assert all("replayed" in out for out in launched.in_ranks(many_pages_in_a_graph, 2))
