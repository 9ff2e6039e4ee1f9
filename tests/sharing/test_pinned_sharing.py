"""Page-locked memory between processes: the same bytes, page-locked in each, and whose they are then."""

import contextlib
import gc
import multiprocessing
import os
import pickle
import sys

import numpy as np
import pytest
from beside import Caller, on_a_thread
from child import in_own_process

import accelrt
import accelrt.sharing
from accelrt import memory
from accelrt.sharing import consumer, mapping

pytestmark = pytest.mark.own_process
MIB = 1 << 20
SPAWN = multiprocessing.get_context("spawn")


def bytes_of(pinned):
    return np.frombuffer(pinned, np.uint8)


def add_one(handles, results):
    """What another process does: it opens, works on the bytes with its device, and says what it saw."""
    import accelrt

    accelrt.init(driver="host") if not accelrt.is_available() else None
    for handle in iter(handles.get, None):
        try:
            pinned = handle.open()
            seen = bytes_of(pinned)
            before = int(seen[0])
            buffer = accelrt.Buffer(pinned.nbytes)
            buffer.copy_from(pinned)
            buffer.fill(before + 1, count=pinned.nbytes // 2)
            buffer.copy_to(pinned)
            results.put((before, accelrt.is_pinned(pinned), accelrt.host_memory_stats()["num_host_alloc"]))
            del seen, pinned
        except Exception as error:
            results.put(f"{type(error).__name__}: {error}")


@pytest.fixture
def other():
    handles, results = SPAWN.Queue(), SPAWN.Queue()
    process = SPAWN.Process(target=add_one, args=(handles, results))
    process.start()

    def ask(handle):
        handles.put(handle)
        return results.get(timeout=300)

    yield ask
    handles.put(None)
    process.join(300)
    assert process.exitcode == 0


def test_what_another_thread_frees_meanwhile_is_refused_as_freed():
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(100):
            pinned = accelrt.PinnedBuffer(4096, shared=True)
            caller = Caller(pinned.free).begin()
            with contextlib.suppress(ValueError):  # NotSupportedError is none
                while True:
                    pinned.share().close()
            caller.result()
    finally:
        sys.setswitchinterval(interval)


class TakesAnother:
    """A connection beside whose end another thread takes one to open page-locked memory."""

    def __init__(self, owner):
        self.owner, self.taken = owner, None

    def close(self):
        self.taken = on_a_thread(lambda: self.owner.take_connection(0.0))


def test_a_connection_that_another_thread_has_just_taken_stays_open():
    name = f"accelrt-test-{os.getpid()}"
    listener = mapping.Listener(name)
    connection = mapping.connect(name, mapping.FOREVER)
    owner = consumer.Owner(name, os.getpid(), None)
    first = TakesAnother(owner)
    owner.idle += [connection, first]
    assert owner.giving.goes_on() is False  # no memory is lent, so that its connections end
    assert first.taken is connection
    assert connection.fileno() >= 0
    connection.close()
    listener.close()


def test_another_process_works_on_the_same_bytes(other):
    accelrt.init()
    pinned = accelrt.PinnedBuffer(3 * MIB, shared=True)
    bytes_of(pinned)[:] = 7
    handle = pinned.share()
    assert handle.nbytes == 3 * MIB
    before, locked, _ = other(handle)
    assert (before, locked) == (7, True)
    assert (bytes_of(pinned)[: 3 * MIB // 2] == 8).all()
    assert (bytes_of(pinned)[3 * MIB // 2 :] == 7).all()
    memory.host_audit()


def test_what_is_open_outlives_the_owners_memory(other):
    accelrt.init()
    pinned = accelrt.PinnedBuffer(MIB, shared=True)
    handle = pinned.share()
    bytes_of(pinned)[:] = 1
    assert other(handle)[0] == 1
    pinned.free()
    assert accelrt.host_memory_stats()["allocated_bytes.current"] == 0
    again = handle.open()  # the handle has the file yet
    assert bytes_of(again)[0] == 2
    handle.close()
    assert "its owner has dropped or closed the handle" in other(handle)


def test_the_owner_opens_its_own_memory():
    pinned = accelrt.PinnedBuffer(100, shared=True)
    same = pickle.loads(pickle.dumps(pinned.share()))
    kept = pinned.share()
    opened = kept.open()
    bytes_of(opened)[:] = 5
    assert (bytes_of(pinned) == 5).all()
    assert opened.ptr != pinned.ptr
    with pytest.raises(RuntimeError, match="dropped or closed"):
        same.open()  # its handle is gone
    memory.host_audit()


def test_it_is_counted_and_kept_to_a_pools_limit():
    pool = accelrt.PinnedMemPool(limit=4 * MIB)
    pinned = accelrt.PinnedBuffer(3 * MIB, pool=pool, shared=True)
    assert pool.stats()["active_bytes.current"] == 3 * MIB
    with pytest.raises(accelrt.OutOfMemoryError, match="limit"):
        accelrt.PinnedBuffer(3 * MIB, pool=pool, shared=True)
    stream = accelrt.Stream()
    buffer = accelrt.Buffer(3 * MIB, stream=stream)
    buffer.copy_from(pinned, stream=stream, blocking=False)
    del pinned
    gc.collect()
    stream.synchronize()
    accelrt.host_empty_cache()
    pool.empty_cache()
    assert pool.stats()["allocated_bytes.current"] == 0  # it goes back at once, and is kept by no cache


def test_other_memory_is_not_shared():
    with pytest.raises(accelrt.NotSupportedError, match="shared=True"):
        accelrt.PinnedBuffer(64).share()
    pinned = accelrt.PinnedBuffer(64, shared=True)
    pinned.free()
    with pytest.raises(ValueError, match="freed"):
        pinned.share()
    empty = accelrt.PinnedBuffer(0, shared=True).share()
    assert empty.open().nbytes == 0


@in_own_process()
def test_a_file_of_somebody_elses_is_refused():
    import os

    from accelrt.sharing import mapping

    accelrt.init()
    file = os.memfd_create("other", os.MFD_CLOEXEC)
    os.ftruncate(file, 8192)  # which its owner may make smaller under the mapping
    with pytest.raises(ValueError, match="none of 4096 page-locked ones"):
        mapping.open_pinned(file, 4096, None)
    shared = accelrt.PinnedBuffer(4096, shared=True)
    offered, _ = mapping.file_of_pinned(shared)
    with pytest.raises(ValueError, match="none of 8192 page-locked ones"):
        mapping.open_pinned(offered.fileno(), 8192, None)
    with pytest.raises(OSError, match=r"."):
        os.ftruncate(offered.fileno(), 0)
    os.close(file)
    del shared, offered
    assert accelrt.host_memory_stats()["allocated_bytes.current"] == 0
