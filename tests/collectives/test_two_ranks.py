"""Two ranks, of which one is held up at steps of an operation, and then leaves, dies, stops or goes on."""

import contextlib
import itertools
import signal
import subprocess
import sys

import pytest

import accelrt
from accelrt import nccl
from accelrt.nccl import host_for_tests

pytestmark = [pytest.mark.host, pytest.mark.usefixtures("two_devices")]
SIZE = 20_000  # more than a channel holds, so that an operation takes several steps
LIMIT = 20


@pytest.fixture(scope="module")
def process():
    """Starts a process that can be stopped and killed in a rank's place."""
    running = []

    def start():
        running.append(
            subprocess.Popen([sys.executable, "-S", "-c", "import sys; sys.stdin.read()"], stdin=-1)
        )
        return running[-1]

    yield start
    for each in running:
        each.kill()
        each.stdin.close()
        each.wait()


class Ranks:
    """Rank 1, which is held up after some steps of an operation, and rank 0, which waits for it."""

    def __init__(self, call, steps):
        self.comms = nccl.init_all([0, 1], timeout=LIMIT)
        with self.comms[1]._turn() as (self.handle,):
            host_for_tests.hold_up(self.handle, steps)
        self.arrays = [accelrt.full(SIZE, rank + 1, "float32", rank) for rank in range(2)]
        self.streams = [accelrt.Stream(rank) for rank in range(2)]
        for rank, each in enumerate(self.streams):
            each.wait_stream(accelrt.current_stream(rank))
        for rank, comm in enumerate(self.comms):
            CALLS[call](comm, self.arrays[rank], self.streams[rank])

    def wait(self, rank, timeout=LIMIT):
        self.comms[rank].synchronize(self.streams[rank], timeout=timeout)

    def go_on(self):
        host_for_tests.hold_up(self.handle, -1)

    def end(self):
        self.go_on()
        for comm in self.comms:
            comm.abort()
        for each in self.streams:
            each.synchronize()


def exchange(comm, array, stream):
    with nccl.group():
        comm.send(array, 1 - comm.rank, stream)
        comm.recv(array, 1 - comm.rank, stream)


CALLS = {
    "all_reduce": lambda comm, array, stream: comm.all_reduce(array, stream=stream),
    "broadcast": lambda comm, array, stream: comm.broadcast(array, 1, stream=stream),
    "exchange": exchange,
}
EXPECTED = {"all_reduce": (3, 3), "broadcast": (2, 2)}


@contextlib.contextmanager
def ranks_of(call, steps):
    made = Ranks(call, steps)
    try:
        yield made
    finally:
        made.end()


def is_done(ranks):
    """Whether rank 0 needs nothing more of rank 1."""
    try:
        ranks.wait(0, 0.1)
    except TimeoutError:
        return False
    return True


@pytest.mark.parametrize("call", CALLS)
def test_a_rank_that_goes_on_at_any_step_gives_the_result(call):
    for steps in itertools.accumulate(itertools.count()):  # 0, 1, 3, 6, ...
        with ranks_of(call, steps) as ranks:
            done = is_done(ranks)
            ranks.go_on()
            for rank in range(2):
                ranks.wait(rank)
                if call in EXPECTED:
                    assert (ranks.arrays[rank].numpy() == EXPECTED[call][rank]).all()
        if done:
            break
    assert steps > 2


@pytest.mark.parametrize("action", ["abort", "dies", "stops", "free", "sleep", "close"])
@pytest.mark.parametrize("call", CALLS)
def test_whatever_a_rank_does_at_any_step_the_other_ends_with_its_result_or_error(call, action, process):
    other = process() if action in ("dies", "stops") else None
    for steps in (0, 1, 2, 3):
        if action == "dies" and steps:
            other = process()
        with ranks_of(call, steps) as ranks:
            if other is not None:
                host_for_tests.impersonate(ranks.handle, other.pid)
            if is_done(ranks):
                continue
            ACTIONS[action](ranks, other)


def abort(ranks, other):
    ranks.comms[1].abort()
    with pytest.raises(accelrt.NcclError, match="rank 1 has left"):
        ranks.wait(0)


def die(ranks, other):
    other.kill()
    other.wait()
    with pytest.raises(accelrt.NcclError, match=rf"its process has ended \(process {other.pid}\)"):
        ranks.wait(0)


def stop(ranks, other):
    other.send_signal(signal.SIGSTOP)
    while "stopped" not in ranks.comms[0]._awaited():
        assert other.poll() is None
    with pytest.raises(
        TimeoutError, match=rf"waits for rank 1 \(process {other.pid} on .*, which is stopped\)"
    ):
        ranks.wait(0, 0.05)
    other.send_signal(signal.SIGCONT)
    ranks.go_on()
    for rank in range(2):
        ranks.wait(rank)


def free(ranks, other):
    ranks.arrays[1].free()
    ranks.go_on()
    for rank in range(2):
        ranks.wait(rank)


def close(ranks, other):
    with pytest.raises(TimeoutError, match=r"abort\(\) ends it"):
        ranks.comms[1].close(timeout=0.05)
    ranks.go_on()
    ranks.comms[1].close()
    ranks.wait(0)


def sleep(ranks, other):
    pool = accelrt.MemPool()
    with accelrt.use_mem_pool(pool):
        kept = accelrt.full(10, 7, "float32", 0)
    ranks.go_on()
    pool.sleep()  # waits for the device, and so for the other rank
    assert is_done(ranks)
    pool.wake()
    assert (kept.numpy() == 7).all()


ACTIONS = {"abort": abort, "dies": die, "stops": stop, "free": free, "close": close, "sleep": sleep}


def test_an_abort_of_its_own_ends_what_waits_for_another_rank():
    for steps in (0, 1, 2):
        with ranks_of("all_reduce", steps) as ranks:
            if is_done(ranks):
                continue
            ranks.comms[0].abort()
            ranks.streams[0].synchronize()
            ranks.go_on()
            with pytest.raises(accelrt.NcclError, match="rank 0 has left"):
                ranks.wait(1)


def test_a_rank_that_waits_too_long_in_a_stream_gives_up_and_names_whom_it_waited_for():
    with ranks_of("all_reduce", 1) as ranks:
        ranks.comms[0].abort()
    comms = nccl.init_all([0, 1], timeout=0.2)
    arrays = [accelrt.full(SIZE, 1, "float32", rank) for rank in range(2)]
    comms[0].all_reduce(arrays[0])
    accelrt.synchronize(0)  # which ends
    with pytest.raises(
        accelrt.NcclError, match=r"nothing came within 0.2 s from rank 1 \(process \d+"
    ) as caught:
        comms[0].check()
    assert caught.value.name == "TIMEOUT"
    for each in comms:
        each.abort()


def test_a_rank_that_somebody_waits_for_has_the_time_that_this_one_gives():
    comms = nccl.init_all([0, 1], timeout=1)
    arrays = [accelrt.full(SIZE, 1, "float32", rank) for rank in range(2)]
    comms[0].all_reduce(arrays[0])
    with pytest.raises(TimeoutError, match=r"not done after 2 s, which waits for rank 1"):
        comms[0].synchronize(timeout=2)
    comms[1].all_reduce(arrays[1])
    comms[0].synchronize()
    assert (arrays[0].numpy() == 2).all()
    for each in comms:
        each.close()
