"""Ranks whose processes stop, die or never come: who needs them is told within a limit, others go on."""

import contextlib
import fcntl
import glob
import os
import signal
import sys
import threading

import launched
import pytest

import accelrt
from accelrt import nccl
from accelrt.nccl import host_for_tests

pytestmark = [pytest.mark.own_process, pytest.mark.host, pytest.mark.usefixtures("two_devices")]
LIMIT = 5  # seconds
SIZE = 100_000  # more than a channel holds


class Processes:
    """A process for each rank, which say lines and are told to go on."""

    def __init__(self):
        self.running = []

    def start(self, function, size, *arguments, **environment):
        port = launched.free_port()
        self.running = [
            launched.start(function, rank, size, port, *arguments, **environment) for rank in range(size)
        ]

    def hear(self, rank):
        """Its next line."""
        return self.running[rank].stdout.readline().strip()

    def signal(self, rank, number):
        self.running[rank].send_signal(number)

    def finish(self, rank):
        """(exit status, what it said since the last line that was heard)."""
        process = self.running[rank]
        limit = threading.Timer(launched.SECONDS, process.kill)
        limit.start()
        try:
            return process.stdout.read(), process.wait()
        finally:
            limit.cancel()


@pytest.fixture
def processes():
    made = Processes()
    yield made
    for each in made.running:
        with contextlib.suppress(ProcessLookupError):
            each.kill()
        each.stdout.close()
        each.wait()


def meet():
    """(communicator, array) after an operation of all ranks, so that each has the others' state."""
    place = nccl.place_from_environment()
    name = nccl.exchange(nccl.unique_id, place, timeout=300)
    comm = nccl.Communicator(place.size, name, place.rank, place.local_rank, timeout=300)
    array = accelrt.full(SIZE, comm.rank + 1.0, "float32", comm.device_index)
    comm.all_reduce(accelrt.zeros(10, "float32", comm.device_index))
    comm.synchronize()
    print("met", flush=True)
    return comm, array


def stop():
    sys.stdout.flush()
    os.kill(os.getpid(), signal.SIGSTOP)


def wait_for_one_that_stops():
    comm, array = meet()
    if comm.rank == 1:
        stop()
    comm.all_reduce(array)
    if comm.rank == 0:
        told = ""
        while "which is stopped" not in told:  # it may take longer to stop
            with pytest.raises(TimeoutError) as caught:
                comm.synchronize(timeout=0.5)
            told = str(caught.value)
        print(told, flush=True)
    comm.synchronize()
    print(array.numpy()[0], flush=True)
    comm.close()


def test_a_rank_that_is_stopped_is_named_and_goes_on_when_it_is_continued(processes):
    processes.start(wait_for_one_that_stops, 2)
    assert processes.hear(0) == processes.hear(1) == "met"
    told, number = processes.hear(0), processes.running[1].pid
    assert "is not done after 0.5 s, which waits for rank 1 (process" in told
    assert f"(process {number} on " in told
    assert "which is stopped)" in told
    processes.signal(1, signal.SIGCONT)
    assert processes.finish(0) == processes.finish(1) == ("3.0\n", 0)


def give_up_on_one_that_stops():
    first, array = meet()
    first.timeout = LIMIT
    comm = first.split(0)  # ranks that have met come to it at once
    first.close()
    if comm.rank == 1:
        stop()
    comm.all_reduce(array)
    accelrt.synchronize(comm.device_index)  # the stream's own wait ends
    try:
        comm.check()
    except accelrt.NcclError as error:
        print(f"{error.name}: {error}", flush=True)
    comm.abort()
    second = accelrt.full(10, 5.0, "float32", comm.device_index)
    print(second.numpy()[0], flush=True)


def test_a_stream_waits_for_a_stopped_rank_as_long_as_the_limit_says(processes):
    processes.start(give_up_on_one_that_stops, 2)
    assert processes.hear(0) == processes.hear(1) == "met"
    told = processes.hear(0)
    assert told.startswith("TIMEOUT: ")
    assert f"nothing came within {LIMIT} s from rank 1 (process" in told
    assert "which is stopped" in told
    assert processes.finish(0) == ("5.0\n", 0)
    processes.signal(1, signal.SIGCONT)
    out, status = processes.finish(1)
    assert status == 0, out
    assert "REMOTE_ERROR" in out
    assert "rank 0 has left" in out


def exchange_beside_one_that_stops():
    comm, array = meet()
    if comm.rank == 1:
        stop()
    else:
        for _ in range(3):
            with nccl.group():
                comm.send(array, 2 - comm.rank)
                comm.recv(array, 2 - comm.rank)
        comm.synchronize()
        print(array.numpy()[0], flush=True)
        print("done", flush=True)
    comm.close()


def test_ranks_that_do_not_need_a_stopped_one_go_on(processes):
    processes.start(exchange_beside_one_that_stops, 3, ACCELRT_HOST_DEVICES="3")
    assert {processes.hear(rank) for rank in range(3)} == {"met"}
    assert (processes.hear(0), processes.hear(2)) == ("3.0", "1.0")
    assert processes.hear(0) == processes.hear(2) == "done"
    assert processes.finish(0)[1] == processes.finish(2)[1] == 0
    processes.signal(1, signal.SIGCONT)
    assert processes.finish(1)[1] == 0


def leave_beside_one_that_stops():
    comm, array = meet()
    if comm.rank == 1:
        stop()
        comm.abort()
    else:
        comm.all_reduce(array)
        print("leaves", flush=True)


def test_the_process_ends_beside_a_rank_that_is_stopped(processes):
    processes.start(leave_beside_one_that_stops, 2, ACCELRT_NCCL_EXIT_TIMEOUT="0.2")
    assert processes.hear(0) == processes.hear(1) == "met"
    assert processes.finish(0) == ("leaves\n", 0)
    processes.signal(1, signal.SIGCONT)
    assert processes.finish(1)[1] == 0


def test_a_rank_that_does_not_come_is_named_and_leaves_no_file():
    name = nccl.unique_id()
    with pytest.raises(
        TimeoutError, match=r"init_rank\(rank=0.* 0\.2 s, and waits for rank 1, which has not"
    ):
        nccl.Communicator(2, name, 0, 0, timeout=0.2)
    assert not os.path.exists(host_for_tests.path_of(name))


def wait_in_vain(name):
    print(os.path.exists(host_for_tests.path_of(name)), flush=True)
    nccl.Communicator(2, name, 0, 0)


def files():
    return set(glob.glob(host_for_tests.prefix() + "*"))


def is_locked(path):
    """Whether a rank has the file: it makes it first, and locks it then."""
    try:
        with open(path) as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        pass
    return False


def test_the_file_of_ranks_that_were_killed_is_cleared_away(processes):
    name = nccl.unique_id()
    processes.running = [launched.start(wait_in_vain, 0, 1, 1, name)]
    assert processes.hear(0) == "False"
    path = host_for_tests.path_of(name)
    while not is_locked(path):
        assert processes.running[0].poll() is None
    for each in nccl.init_all([0, 1]):  # one that is waited for stays
        each.close()
    assert path in files()
    processes.signal(0, signal.SIGKILL)
    processes.running[0].wait()
    for each in nccl.init_all([0, 1]):  # unless another process has cleared it away
        each.close()
    assert path not in files()


def come_and_die(name):
    handle = host_for_tests.init_rank(4, name, 1, 1, 1.0)
    print(handle.rank, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_rank_that_dies_while_others_are_waited_for_is_named(processes):
    name = nccl.unique_id()
    first = host_for_tests.init_rank(4, name, 2, 0, 1.0)
    processes.running = [launched.start(come_and_die, 1, 3, 1, name)]
    processes.running[0].wait()
    with pytest.raises(accelrt.NcclError, match=r"rank 1 has left, or its process has ended \(process \d+\)"):
        nccl.Communicator(4, name, 0, 0, timeout=300)
    host_for_tests.abort(first)
    assert not os.path.exists(host_for_tests.path_of(name))
