"""KeyboardInterrupt at every place of accelrt.nccl: no lock, group, descriptor, file or rank stays."""

import contextlib
import gc
import glob
import os
import threading
import time

import launched
import pytest
from beside import Caller
from every_bytecode import Held, interrupt_everywhere, some_places

import accelrt
from accelrt import nccl
from accelrt.nccl import collectives, host_for_tests, process_end, rendezvous, splitting
from accelrt.nccl import ranks as compiled_ranks
from accelrt.nccl.launcher import Place
from accelrt.nccl.splitting import Side

pytestmark = pytest.mark.host
MODULES = [
    f"accelrt.nccl.{name}" for name in ("all_ranks", "communicator", "groups", "collectives", "process_end")
]


class Ranks:
    def __init__(self):
        self.others = set(process_end.live)  # those that functions over lists keep
        self.comms = nccl.init_all([0, 1], timeout=300)
        self.arrays = [accelrt.full(10, rank + 1, "float32", rank) for rank in range(2)]


def settle(comms):
    """Ends what there is, on another thread: it would wait for a lock that stayed taken."""

    def end():
        for each in comms:
            for lock in (each._hold.order, each._hold.calling):
                assert lock.acquire(timeout=300)
                lock.release()
            assert not each._hold.is_busy
            each.abort()

    Caller(end).begin().result()
    assert compiled_ranks.groups.depth == 0
    assert compiled_ranks.groups.pending == []
    for rank in range(2):
        accelrt.synchronize(rank)


def check(ranks):
    settle(ranks.comms)
    assert not any(each._hold.has_handle for each in set(process_end.live) - ranks.others)


def in_group(ranks):
    with nccl.group():
        for comm, array in zip(ranks.comms, ranks.arrays, strict=True):
            comm.all_reduce(array)
    for comm in ranks.comms:
        comm.synchronize(timeout=300)


def test_a_group():
    places, raised = interrupt_everywhere(in_group, MODULES, Ranks, check)
    assert raised == places > 50


def end_both(ranks):
    ranks.comms[0].abort()
    ranks.comms[1].close()


def test_the_end_of_communicators():
    places, raised = interrupt_everywhere(end_both, MODULES, Ranks, check)
    assert raised == places > 20


def make(found):
    found += nccl.init_all([0, 1], timeout=300)


def check_made(found):
    # Those that were made and not yet handed over are the exit's.
    rest = list(process_end.live)
    settle([*found, *(each for each in rest if each not in found)])
    gc.collect()
    process_end.abandoned.clear()
    for each in nccl.init_all([0, 1]):  # clears away
        each.close()
    assert glob.glob(compiled_ranks.prefix() + "*") == []


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_the_making_of_communicators(monkeypatch):
    mine = f"{host_for_tests.prefix()}{os.getpid()}-"  # other processes have theirs at the same time
    monkeypatch.setattr(compiled_ranks, "prefix", lambda: mine)
    check_made([])
    held = Held()
    places, raised = interrupt_everywhere(make, MODULES, list, check_made)
    held.check()
    assert raised == places > 10


def lists(arrays):
    nccl.all_reduce(arrays)


def two_arrays():
    return [accelrt.full(10, rank + 1, "float32", rank) for rank in range(2)]


def check_lists(arrays):
    nccl.all_reduce(arrays)  # with the communicators that are kept, or new ones
    for rank in range(2):
        accelrt.synchronize(rank)
    for devices in list(collectives._made):
        comms = collectives._made[devices]
        settle(comms)
        collectives._drop(devices)


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@some_places(5)
@pytest.mark.parametrize("shrinks", [False, True])
def test_what_is_split_off(shrinks, places):
    def make(ranks):
        if shrinks:
            parts = splitting.shrink(ranks.comms[:1], [1], False, None, "shrink_all()")
        else:
            parts = splitting.split(ranks.comms, [Side(0, 0), Side(0, 1)], None, "split_all()")
        with contextlib.ExitStack() as ends:
            for part in parts:
                ends.callback(part.abort)

    def check_parts(ranks):
        parts = set(process_end.live) - ranks.others - set(ranks.comms)
        assert not any(part._hold.has_handle for part in parts)
        gc.collect()
        assert len(process_end.abandoned) == abandoned
        check(ranks)

    abandoned = len(process_end.abandoned)
    modules = ["accelrt.nccl.splitting", "accelrt.nccl.groups"]
    reached, escaped = interrupt_everywhere(make, modules, Ranks, check_parts, places)
    assert escaped > 0.8 * reached > 5


@some_places(5)
def test_a_suspension(places):
    def cycle(ranks):
        nccl.suspend_all(ranks.comms)
        nccl.resume_all(ranks.comms)

    def check_awake(ranks):
        asleep = [comm for comm in ranks.comms if comm.suspended]
        if asleep:
            nccl.resume_all(asleep)
        in_group(ranks)
        check(ranks)

    modules = ["accelrt.nccl.suspending", "accelrt.nccl.splitting", "accelrt.nccl.groups"]
    reached, escaped = interrupt_everywhere(cycle, modules, Ranks, check_awake, places)
    assert escaped > 0.8 * reached > 5


def test_a_function_over_a_list():
    places, raised = interrupt_everywhere(lists, MODULES, two_arrays, check_lists)
    assert raised == places > 50
    settle(list(process_end.live))
    process_end.abandoned.clear()


class Meeting:
    """Rank 0 or 1 on this thread, and the other one on another."""

    def __init__(self, rank):
        port = launched.free_port()
        places = [Place("torchrun", each, 2, each, 2, "127.0.0.1", port, False, "job") for each in range(2)]
        end = time.monotonic() + 0.3
        server = rendezvous._Server(places[0], 0, bytes(128), end, 0.3)
        asker = rendezvous._Asker(places[1], 0, end, 0.3, bytes(16))
        self.mine, other = (server.serve, asker.ask) if rank == 0 else (asker.ask, server.serve)
        self.thread = threading.Thread(target=self.run, args=(other,))
        self.thread.start()

    def run(self, function):
        with contextlib.suppress(TimeoutError, OSError):
            function()

    def end(self):
        self.thread.join(300)
        assert not self.thread.is_alive()


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rendezvous(rank):
    held = Held()

    def meet(meeting):
        with contextlib.suppress(TimeoutError):
            meeting.mine()

    places, raised = interrupt_everywhere(
        meet, [rendezvous], lambda: Meeting(rank), Meeting.end, places=range(1, 120, 11)
    )
    held.check()
    assert raised == places > 5
