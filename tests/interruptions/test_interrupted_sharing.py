"""KeyboardInterrupt at every place of sharing and opening memory: nothing stays lent, open or mapped."""

import gc
import os
import pickle
import threading
from multiprocessing.reduction import ForkingPickler

import pytest
from every_bytecode import interrupt_everywhere
from other_process import Other, make, share_made, statistics
from waiting import wait_until

import accelrt
import accelrt.sharing
from accelrt.sharing import consumer, handles, mapping, producer, threads, wire

MODULES = [consumer, handles, producer, wire]
THREADS = [threads]
MIB = 1 << 20


@pytest.fixture(scope="module")
def owner():
    made = Other()
    yield made
    made.stop()


@pytest.fixture
def handle(owner):
    owner.call(make, "made", 3 * MIB // 4, 5)
    made = owner.call(share_made)
    accelrt.ipc_collect()
    yield made
    accelrt.ipc_collect()
    owner.call(dict.clear)
    wait_until(lambda: owner.call(statistics)["lent_bytes"] == 0)


class Kept:
    """What this process and the owner have; after an operation it has to be the same."""

    def __init__(self, owner):
        self.owner = owner
        self.files = len(os.listdir("/proc/self/fd"))
        self.threads = threading.active_count()

    def check(self, *_):
        gc.collect()
        assert accelrt.ipc_collect() == 0
        told = accelrt.sharing.statistics()
        assert not any(told[name] for name in ("opened", "mapped", "unopened", "handles", "lent")), told
        wait_until(self.has_all_back)  # its threads read what they are told when they come to it
        wait_until(self.has_few)

    def has_few(self):
        """Connections are kept, and those that are over are closed by threads that end then."""
        files, threads = len(os.listdir("/proc/self/fd")), threading.active_count()
        return files <= self.files + 8 and threads < self.threads + 8

    def has_all_back(self):
        told = self.owner.call(statistics)
        return not any(told[name] for name in ("unopened", "lent"))


def open_and_drop(handle):
    memory = handle.open()
    assert memory.size
    del memory


def test_opening(owner, handle):
    reached, _ = interrupt_everywhere(open_and_drop, MODULES, lambda: handle, Kept(owner).check)
    assert reached > 50
    assert (handle.open().numpy() == 5).all()


def drop_connections(handle):
    for one in consumer._owners.values():
        one.idle.clear()
    return handle


def test_opening_by_a_new_connection(owner, handle):
    reached, _ = interrupt_everywhere(
        open_and_drop, MODULES, lambda: drop_connections(handle), Kept(owner).check
    )
    assert reached > 90


def test_collecting(owner, handle):
    def operation(handle):
        memory = handle.open()
        del memory
        accelrt.ipc_collect()

    interrupt_everywhere(operation, [consumer], lambda: handle, Kept(owner).check)


def pickled_there(kept):
    made = accelrt.full((3 * MIB // 4,), 7, "int32")
    return bytes(ForkingPickler.dumps(made))


def load_and_drop(pickled):
    assert pickle.loads(pickled).size


def test_opening_a_ticket(owner):
    reached, _ = interrupt_everywhere(
        load_and_drop, MODULES, lambda: owner.call(pickled_there), Kept(owner).check
    )
    assert reached > 50


def share_and_close(array):
    handle = array.share()
    handle.close()
    array.share()


def test_sharing(owner):
    array = accelrt.full((MIB,), 3, "int8")
    reached, _ = interrupt_everywhere(share_and_close, MODULES, lambda: array, Kept(owner).check)
    assert reached > 40
    with array.share() as handle:
        assert handle.open().ptr == array.ptr
    array.base.free()
    assert accelrt.memory_allocated() == 0


def test_pickling(owner):
    array = accelrt.full((MIB,), 3, "int8")

    def operation(_):
        ForkingPickler.dumps(array)
        accelrt.sharing.cancel_unopened()

    kept = Kept(owner)

    def check(_):
        accelrt.sharing.cancel_unopened()  # the pickle was made, and then it was interrupted
        kept.check()

    interrupt_everywhere(operation, MODULES, check=check)


def test_an_interrupted_pickle_leaves_no_ticket():
    array = accelrt.full((MIB,), 3, "int8")
    reached, escaped = interrupt_everywhere(handles.reduce_memory, [handles, producer], lambda: array)
    assert escaped > 20
    assert accelrt.sharing.statistics()["unopened"] == reached - escaped + 1  # of those that were made
    accelrt.sharing.cancel_unopened()


def end_offer():
    """This process listens no more, as before its first share()."""
    offer, producer._offer = producer._offer, None
    if offer is not None:
        offer.service.thread = None
        mapping.connect(offer.name, mapping.FOREVER)  # has its thread look up
        wait_until(lambda: count_threads("accelrt-sharing-listener") == 0)


def count_threads(name):
    return sum(thread.name.startswith(name) for thread in threading.enumerate())


def test_the_first_share():
    array = accelrt.full((MIB,), 3, "int8")
    array.share()
    files = len(os.listdir("/proc/self/fd"))

    def check(_):
        array.share()
        assert count_threads("accelrt-sharing-listener") == 1
        end_offer()
        assert accelrt.sharing.statistics()["handles"] == 0

    end_offer()
    reached, _ = interrupt_everywhere(share_and_drop, [producer, *THREADS], lambda: array, check)
    assert reached > 15
    wait_until(lambda: gc.collect() + len(os.listdir("/proc/self/fd")) <= files + 4)


def share_and_drop(array):
    array.share()


def test_the_first_open(owner, handle, monkeypatch):
    monkeypatch.setattr(consumer, "UNUSED", 0.02)

    def prepare():
        wait_until(lambda: not consumer._owners and count_threads("accelrt-sharing-borrower") == 0)
        return handle

    accelrt.ipc_collect()

    reached, _ = interrupt_everywhere(open_and_drop, [consumer, *THREADS], prepare, Kept(owner).check)
    assert reached > 50
