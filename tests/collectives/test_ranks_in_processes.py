"""One rank a process, as launchers start them: on the host device by its backend, on two GPUs by NCCL."""

import os
import signal
import time

import launched
import numpy as np
import pytest

import accelrt
from accelrt import nccl
from accelrt.nccl import host_for_tests

pytestmark = [pytest.mark.own_process, pytest.mark.usefixtures("two_devices")]
SIZE = 50_000


def collectives():
    comm = nccl.init_from_environment()
    rank, size, ordinal = comm.rank, comm.size, comm.device_index
    everyone = [np.arange(SIZE, dtype="float32") * (number + 1) for number in range(size)]
    mine = accelrt.asarray(everyone[rank], device=ordinal)
    stream = accelrt.Stream(ordinal)
    stream.wait_stream(accelrt.current_stream(ordinal))
    with accelrt.stream(stream):
        total, gathered = accelrt.empty(SIZE, "float32"), accelrt.empty((size, SIZE), "float32")
        part = accelrt.empty(SIZE // size, "float32")
        comm.all_reduce(mine, total)
        comm.all_gather(mine, gathered)
        comm.reduce_scatter(mine[: SIZE // size * size], part, op="avg")
        ring = accelrt.empty(SIZE, "float32")
        with nccl.group():
            comm.send(mine, (rank + 1) % size)
            comm.recv(ring, (rank - 1) % size)
        comm.broadcast(mine, root=size - 1)
        comm.synchronize(timeout=300)
        np.testing.assert_array_equal(total.numpy(), sum(everyone))
        np.testing.assert_array_equal(gathered.numpy(), everyone)
        whole = sum(everyone)[: SIZE // size * size] / size
        np.testing.assert_allclose(part.numpy(), whole.reshape(size, -1)[rank], rtol=1e-6)
        np.testing.assert_array_equal(ring.numpy(), everyone[rank - 1])
        np.testing.assert_array_equal(mine.numpy(), everyone[-1])
    second = nccl.init_from_environment()  # and another one, by the same port
    second.all_reduce(part)
    second.synchronize(timeout=300)
    second.close()
    comm.close()
    print(f"rank {rank} of {size} on device {ordinal}")


@pytest.mark.parametrize(
    "variables", [launched.torchrun_variables, launched.open_mpi_variables, launched.slurm_variables]
)
def test_two_processes_meet_as_their_launcher_says(variables):
    found = launched.in_ranks(collectives, 2, variables=variables)
    for rank, out in enumerate(found):
        assert f"rank {rank} of 2 on device {rank}" in out


@pytest.mark.host
def test_four_processes_exchange_more():
    found = launched.in_ranks(collectives, 4, ACCELRT_HOST_DEVICES="4")
    assert "rank 3 of 4 on device 3" in found[3]


def captured():
    comm = nccl.init_from_environment()
    array = accelrt.full(1000, comm.rank + 1.0, "float32", comm.device_index)
    warm = accelrt.zeros(1000, "float32", comm.device_index)
    with accelrt.device(comm.device_index):
        stream, graph = accelrt.Stream(), accelrt.CUDAGraph()
        comm.all_reduce(warm, stream=stream)
        accelrt.synchronize()
        with accelrt.graph(graph, stream=stream, capture_error_mode="thread_local"):
            comm.all_reduce(array)
        for _ in range(3):
            graph.replay()
        accelrt.synchronize()
    assert array.numpy()[0] == 3 * 2 * 2
    graph.reset()
    comm.close()
    print("replayed")


def test_a_graph_of_each_process_holds_its_operations():
    assert all("replayed" in out for out in launched.in_ranks(captured, 2))


def wait_for_one_that_dies():
    comm = nccl.init_from_environment()
    array = accelrt.zeros(100_000, "float32", comm.device_index)
    comm.all_reduce(array)
    comm.synchronize(timeout=300)
    if comm.rank == 1:
        print("dies", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    comm.all_reduce(array)
    began = time.monotonic()
    with pytest.raises(accelrt.NcclError) as caught:
        comm.synchronize(timeout=300)
    print(f"{caught.value.name} after {time.monotonic() - began:.0f} s: {caught.value}")
    comm.abort()


@pytest.mark.host
def test_a_rank_whose_process_is_killed_is_noticed():
    port = launched.free_port()
    ranks = [launched.start(wait_for_one_that_dies, rank, 2, port) for rank in range(2)]
    (status, out), (killed, _) = [launched.finish(each) for each in ranks]
    assert killed == -signal.SIGKILL
    assert status == 0, out
    assert out.startswith("REMOTE_ERROR")
    assert "rank 1 has left, or its process has ended" in out


@pytest.mark.host
def test_ranks_that_are_taken_are_refused_and_no_file_is_left():
    name, second = nccl.unique_id(), nccl.unique_id()
    with nccl.group():
        comms = [nccl.Communicator(2, name, rank, rank) for rank in range(2)]
    with pytest.raises(accelrt.NcclError, match="rank 0 is taken"), nccl.group():
        nccl.Communicator(2, second, 0, 0)
        nccl.Communicator(2, second, 0, 1)
    assert not os.path.exists(host_for_tests.path_of(name))
    assert not os.path.exists(host_for_tests.path_of(second))
    for each in comms:
        each.close()
