"""Buffers and Arrays that another process opens: the same bytes, for as long as either needs them."""

import contextlib
import gc
import multiprocessing
import os
import pickle
import threading

import numpy as np
import pytest
import shared_memory_rounds as rounds
from beside import Gate, on_a_thread, on_threads
from child import in_own_process, run_python
from other_process import (
    Other,
    descriptors,
    drop,
    keep,
    look,
    make,
    opened,
    read,
    read_and_fill,
    statistics,
)  # fmt: skip
from waiting import wait_until

import accelrt.sharing
from accelrt.sharing import consumer

MIB = 1 << 20


@pytest.mark.parametrize("length", [1, 129, 3 * MIB])
def test_both_processes_see_the_same_elements(other, length):
    array = accelrt.full((length,), 3, "int32")
    seen = other.call(read_and_fill, array, 8)
    assert seen.shape == (length,)
    assert (seen == 3).all()
    assert (array.numpy() == 8).all()


def test_a_view_comes_as_it_is(other):
    array = accelrt.asarray(np.arange(60, dtype=np.float64).reshape(5, 12))
    for view in (array[1:4, ::-3], array.T, array[2, 5], array[5:], array.reshape(60)[7:8]):
        assert (other.call(read, view) == view.numpy()).all()
    assert (other.call(read, array[3:][:0]) == array[3:][:0].numpy()).all()


def test_a_buffer_comes_as_a_buffer(other):
    with accelrt.Buffer(3 * MIB + 512) as buffer:
        buffer.fill(9)
        handle = buffer.share()
        assert (other.call(opened, handle) == 9).all()
        handle.close()


def test_memory_of_no_bytes_is_shared_too(other):
    assert other.call(read, accelrt.empty((0, 3), "int8")).shape == (0, 3)
    with accelrt.Buffer(0).share() as handle:
        assert handle.nbytes == len(other.call(opened, handle)) == 0


def test_pages_of_a_reservation_are_shared_and_not_taken_back_meanwhile(other):
    with accelrt.reserve(1 << 24) as cache:
        page = cache.page_bytes
        cache.commit(page, 3 * page)
        elements = cache.array(page // 2, "f4", offset=page + 4096)  # reaches over two pages and into a third
        elements.fill_(3)
        assert (other.call(read_and_fill, elements, 7) == 3).all()
        assert (elements.numpy() == 7).all()
        handle = cache.buffer(page, page).share()
        with pytest.raises(RuntimeError, match="other processes have the page"):
            cache.decommit(page, page)
        with pytest.raises(ValueError, match="offset 0 of the Reservation is not committed"):
            cache.buffer(0, 16).share()
        handle.close()
        del elements, handle
        gc.collect()

        def is_decommitted():
            with contextlib.suppress(RuntimeError):  # "other processes have the page", for a moment yet
                cache.decommit(page, 3 * page)
                return True
            return False

        wait_until(is_decommitted)  # what is lent no more comes back a moment later


def pass_it_on(kept, array):
    kept["passed"] = array[1:]
    kept["handle"] = kept["passed"].share()
    return kept["handle"]


def open_and_fill(kept, handle, value):
    array = handle.open()
    seen = array.numpy()
    array.fill_(value)
    accelrt.synchronize()
    return seen


def test_what_was_opened_is_passed_on_to_a_third_process(other, mortal):
    array = accelrt.full(3 * MIB, 3, "int32")
    handle = other.call(pass_it_on, array)
    assert (mortal.call(open_and_fill, handle, 8) == 3).all()
    assert array[0].item() == 3
    assert (array[1:].numpy() == 8).all()
    address = array.ptr
    array.free()
    assert (mortal.call(open_and_fill, handle, 9) == 8).all()  # while the second process keeps it
    assert (other.call(look, "passed") == 9).all()
    assert accelrt.memory.address_info(address).state == "active_allocated"
    handle.close()
    other.call(drop, "passed")
    other.call(drop, "handle")
    wait_until(lambda: accelrt.memory.address_info(address).state != "active_allocated")


def test_what_an_owner_lent_is_not_passed_on_once_it_has_ended(mortal):
    array = mortal.call(make, "made", 3 * MIB, 5)
    assert (array.numpy() == 5).all()  # it has come; a process that dies leaves its work undone
    mortal.kill()
    with pytest.raises(RuntimeError, match=r"cannot be passed on: .* copy it into a Buffer of this process"):
        array.share()
    assert (array.numpy() == 5).all()
    del array


def test_what_another_process_made_comes_here(other):
    array = other.call(make, "made", 3 * MIB, 5)
    assert (array.numpy() == 5).all()
    array.fill_(6)
    accelrt.synchronize()
    assert (other.call(look, "made") == 6).all()
    del array
    accelrt.ipc_collect()
    other.call(drop, "made")
    wait_until(lambda: other.call(statistics)["lent_bytes"] == 0)  # it may not have read our message yet


def test_a_handle_pickles_in_any_way_and_is_opened_often(other):
    array = accelrt.full((4, 4), 2, "int16")
    with array.share() as handle:
        assert repr(handle).startswith("<accelrt.sharing.MemoryHandle of an Array of 32 bytes, of process")
        copied = pickle.loads(pickle.dumps(handle))
        for _ in range(3):
            assert (other.call(opened, copied) == 2).all()
        here = copied.open()
        assert here.ptr == array.ptr
        del array
        assert (here.numpy() == 2).all()
    with pytest.raises(RuntimeError, match="its owner has closed the handle"):
        other.call(opened, copied)


def test_pages_are_mapped_once_for_all_that_is_on_them(other):
    first, second = accelrt.full((8,), 1, "int8"), accelrt.full((8,), 2, "int8")
    a, b = other.call(keep, "a", first), other.call(keep, "b", second)
    assert b - a == second.ptr - first.ptr
    assert other.call(statistics)["mapped"] == 1
    other.call(drop, "a")
    assert (other.call(look, "b") == 2).all()
    other.call(drop, "b")
    assert other.call(statistics)["mapped"] == 0


def test_work_there_comes_after_work_here(other):
    stream = accelrt.Stream()
    array = accelrt.zeros((MIB,), "int32")
    accelrt.synchronize()
    with Gate(stream):
        array.fill_(4, stream=stream)
        handle = array.share(stream)
        other.tell(opened, handle)
        assert not other.pipe.poll(0.05)
    assert (other.answer() == 4).all()
    handle.close()


def hold_back(kept, name):
    """Work on the memory that does not end before it is let go, and the end of the memory's only name."""
    kept["gate"] = threading.Event()
    stream = accelrt.Stream()
    stream.launch_host_func(kept["gate"].wait)
    kept[name].fill_(1, stream=stream)
    del kept[name]


def let_go(kept):
    kept.pop("gate").set()
    accelrt.ipc_collect()


def test_memory_is_the_other_processs_until_its_work_is_done(other):
    array = accelrt.full((3 * MIB,), 7, "int32")
    address = array.ptr
    other.call(keep, "array", array)
    array.free()
    assert accelrt.memory_allocated() >= 12 * MIB
    with accelrt.Buffer(12 * MIB) as another:
        assert another.ptr != address
        another.fill(0)
    assert (other.call(look, "array") == 7).all()
    other.call(hold_back, "array")
    gc.collect()
    assert accelrt.memory_allocated() >= 12 * MIB
    other.call(let_go)
    wait_until(lambda: accelrt.memory_allocated() == 0)


def test_a_process_that_is_killed_gives_all_of_it_back(mortal):
    array = accelrt.full((MIB,), 7, "int8")
    mortal.call(keep, "array", array)
    mortal.call(keep, "again", array)
    array.free()
    assert accelrt.sharing.statistics()["lent"] == 2
    mortal.kill()
    wait_until(lambda: accelrt.sharing.statistics()["lent"] == 0)
    wait_until(lambda: accelrt.memory_allocated() == 0)


def test_what_was_opened_outlives_its_owner(mortal):
    array = mortal.call(make, "made", MIB, 5)
    handle = mortal.call(share_it, "made")
    mortal.kill()
    assert (array.numpy() == 5).all()
    array.fill_(6)
    assert (array.numpy() == 6).all()
    with pytest.raises(RuntimeError, match=r"that process is gone.*the owner has to live"):
        handle.open()
    del array
    accelrt.ipc_collect()
    assert accelrt.sharing.statistics()["mapped"] == 0


def share_it(kept, name):
    kept["handle"] = kept[name].share()
    return kept["handle"]


def test_what_nobody_opens_can_be_taken_back(mortal):
    array = accelrt.full((MIB,), 7, "int8")
    mortal.kill()
    pickled = multiprocessing_pickle(array)
    array.free()
    assert accelrt.sharing.statistics()["unopened"] == 1
    assert accelrt.sharing.cancel_unopened() == 1
    assert accelrt.memory_allocated() == 0
    with pytest.raises(RuntimeError, match="it was opened before, or its handle was closed"):
        pickle.loads(pickled)


def multiprocessing_pickle(thing):
    from multiprocessing.reduction import ForkingPickler

    return bytes(ForkingPickler.dumps(thing))


def test_a_fork_server_starts_processes_that_open_memory():
    other = Other("forkserver")
    array = accelrt.full((10,), 3, "int64")
    assert (other.call(read, array) == 3).all()
    other.stop()
    del array
    wait_until(lambda: accelrt.sharing.statistics()["lent_bytes"] == 0 == accelrt.memory_allocated())


def test_many_hand_overs_leave_no_descriptor(other):
    def hand_over(times):
        for value in range(times):
            array = accelrt.full((300,), value, "int32")
            assert (other.call(read, array) == value).all()
            del array
            other.call(statistics)
            wait_until(lambda: accelrt.sharing.statistics()["lent_bytes"] == 0)
        return held()

    def held():
        return other.call(descriptors), rounds.descriptors(), threading.active_count()

    few = hand_over(5)
    hand_over(40)
    # Connections that are over may still be closed by their threads; 40 that nobody closes would stay.
    wait_until(lambda: all(after - before <= 8 for before, after in zip(few, held(), strict=True)))


def test_four_processes_hand_each_other_memory():
    found = rounds.run(160, 4)
    rounds.judge(found, 160, 4)


STRANGER = """
import multiprocessing, pickle, sys
import accelrt.sharing

multiprocessing.current_process().authkey = bytes.fromhex(sys.argv[1])
array = pickle.loads(bytes.fromhex(sys.argv[2])).open()
kept = accelrt.full((3,), 1, "int8"), array.fill_(8)
handle = kept[0].share()
print(int(array.numpy().sum()))
"""


def test_a_process_that_multiprocessing_did_not_start_opens_memory_and_ends_with_it(other):
    array = accelrt.full((1000,), 7, "int32")
    with array.share() as handle:
        key = bytes(multiprocessing.current_process().authkey).hex()
        done = run_python("-c", STRANGER, key, pickle.dumps(handle).hex())
    assert (done.returncode, done.stdout, done.stderr) == (0, "8000\n", "")
    wait_until(lambda: accelrt.sharing.statistics()["lent"] == 0)
    assert (array.numpy() == 8).all()


@in_own_process(ACCELRT_DRIVER=os.environ["ACCELRT_DRIVER"], ACCELRT_ALLOC_CONF="expandable_segments:False")
def test_plain_segments_are_shared_by_handles_of_the_driver():
    other = Other(ACCELRT_ALLOC_CONF="expandable_segments:False")
    array = accelrt.full((3 * MIB,), 3, "int32")
    assert (other.call(read_and_fill, array[5:], 8) == 3).all()
    assert (array[5:].numpy() == 8).all()
    mine = other.call(make, "made", 1000, 5)
    assert (mine.numpy() == 5).all()
    del mine
    accelrt.ipc_collect()
    other.call(drop, "made")
    wait_until(lambda: other.call(statistics)["lent_bytes"] == 0)  # it may not have read our message yet
    array.free()
    other.stop()
    wait_until(lambda: accelrt.memory_allocated() == 0)


@pytest.mark.skipif("accelrt.device_count() < 2")
def test_memory_of_a_second_device_is_found_there(other):
    arrays = [accelrt.full((100,), ordinal, "int32", device=ordinal) for ordinal in range(2)]
    for ordinal, array in enumerate(arrays):
        assert (other.call(read, array) == ordinal).all()


def capture_and_replay(kept, array):
    stream, graph = accelrt.Stream(), accelrt.CUDAGraph()
    with accelrt.graph(graph, stream=stream):
        array.fill_(5)
    del array
    graph.replay()
    accelrt.synchronize()
    opened = accelrt.sharing.statistics()["opened"]
    del graph
    return opened


def test_a_graph_keeps_memory_of_another_process(other):
    array = accelrt.full((1000,), 7, "int32")
    assert other.call(capture_and_replay, array) == 1
    assert (array.numpy() == 5).all()
    wait_until(lambda: other.call(statistics)["opened"] == 0)


def open_on_threads(kept, handle):
    found = []
    on_threads(lambda _: found.append(handle.open()), range(8))
    sums = {int(array.numpy().sum()) for array in found}
    return sums, len({array.ptr for array in found}), accelrt.sharing.statistics()["mapped"]


def share_kept(kept, name, value):
    kept[name] = accelrt.full((8,), value, "int8").share()
    return kept[name]


def test_a_handler_opens_memory_while_its_thread_opens_some(other, monkeypatch):
    """A handler runs on the thread that it interrupts, which may hold a lock that an opening takes."""
    handles = [other.call(share_kept, name, value) for name, value in (("outer", 1), ("inner", 2))]
    from_handle, inner = accelrt.Event.from_ipc_handle, []

    class Interrupted:
        @staticmethod
        def from_ipc_handle(*arguments):
            monkeypatch.setattr(consumer, "Event", accelrt.Event)
            inner.append(handles[1].open())
            return from_handle(*arguments)

    monkeypatch.setattr(consumer, "Event", Interrupted)
    outer = on_a_thread(handles[0].open, timeout=300)
    assert [memory.numpy()[0] for memory in (outer, *inner)] == [1, 2]
    del outer, inner[:]
    accelrt.ipc_collect()
    for name in ("outer", "inner"):
        other.call(drop, name)


def test_threads_open_memory_at_once(other):
    with accelrt.full((3 * MIB,), 2, "int8").share() as handle:
        assert other.call(open_on_threads, handle) == ({6 * MIB}, 1, 1)
    wait_until(lambda: other.call(statistics)["opened"] == 0)
