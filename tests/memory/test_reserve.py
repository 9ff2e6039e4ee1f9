"""Reservations: addresses that are given memory page by page, in a stream's order."""

import contextlib
import functools
import gc
import itertools
import os
import random
import re
import signal
import threading

import numpy as np
import pytest
from beside import Gate, park
from child import in_own_process, wrap_host
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from waiting import wait_until, wait_until_asleep

import accelrt
from accelrt import memory, testing
from accelrt.testing.interleavings import Interleaver

PAGES = 12


@pytest.fixture
def cache():
    with accelrt.reserve(PAGES * page_bytes()) as made:
        yield made


def page_bytes():
    with accelrt.reserve(1) as made:
        return made.page_bytes


def value_at(cache, page):
    out = np.empty(cache.page_bytes, np.uint8)
    cache.buffer(page * cache.page_bytes, cache.page_bytes).copy_to(out)
    assert (out == out[0]).all()
    return int(out[0])


def fill(cache, page, value, stream=None):
    cache.buffer(page * cache.page_bytes, cache.page_bytes).fill(value, stream=stream)


def protect(cache, page, access):
    """Protects a page, if the device can; a GPU may have no memory that is read-only."""
    try:
        cache.protect(page * cache.page_bytes, cache.page_bytes, access)
    except accelrt.NotSupportedError:
        pytest.skip("the device has no such access")


def test_addresses_cost_no_memory_and_a_commit_is_an_allocation(cache):
    page = cache.page_bytes
    before, reserved = accelrt.memory_allocated(), accelrt.memory_reserved()
    assert (cache.nbytes, len(cache), cache.committed()) == (PAGES * page, PAGES * page, [])
    cache.commit(3 * page, 2 * page)
    assert accelrt.memory_allocated() == before + 2 * page
    assert accelrt.memory_reserved() == reserved + 2 * page
    assert (cache.committed(), cache.committed_bytes) == ([(3 * page, 2 * page)], 2 * page)
    assert cache.stats()["allocation.current"] == 2
    cache.decommit(3 * page, page)
    assert accelrt.memory_allocated() == before + page
    assert (cache.committed(), cache.ready_bytes) == ([(4 * page, page)], page)
    cache.empty_cache()
    assert (cache.ready_bytes, accelrt.memory_reserved()) == (0, reserved + page)
    cache.decommit(4 * page, page)


def test_more_addresses_than_memory_are_reserved():
    total = accelrt.mem_get_info()[1]
    with accelrt.reserve(8 * total) as cache:
        cache.commit(cache.nbytes - cache.page_bytes, cache.page_bytes)
        fill(cache, cache.nbytes // cache.page_bytes - 1, 3)
        assert value_at(cache, cache.nbytes // cache.page_bytes - 1) == 3
        with pytest.raises(accelrt.OutOfMemoryError):
            cache.commit(0, 2 * total // cache.page_bytes * cache.page_bytes)
        assert cache.committed_bytes == cache.page_bytes
        memory.audit()


def test_what_is_decommitted_and_committed_again_takes_no_call_of_the_driver(cache):
    cache.commit(0, 4 * cache.page_bytes)
    calls = accelrt.memory_stats()["virtual_memory_calls"]
    made = accelrt.memory_stats()["num_device_alloc"]
    for _ in range(5):
        cache.decommit(cache.page_bytes, 2 * cache.page_bytes)
        cache.commit(cache.page_bytes, cache.page_bytes)
        cache.commit(2 * cache.page_bytes, cache.page_bytes)
    assert accelrt.memory_stats()["virtual_memory_calls"] == calls
    assert accelrt.memory_stats()["num_device_alloc"] == made
    cache.decommit(0, 4 * cache.page_bytes)


def test_prepared_pages_are_committed_without_a_call_of_the_driver(cache):
    cache.prepare(0, 6 * cache.page_bytes)
    assert (cache.ready_bytes, cache.committed()) == (6 * cache.page_bytes, [])
    calls = accelrt.memory_stats()["virtual_memory_calls"]
    for page in (2, 0, 5, 1, 3, 4):
        cache.commit(page * cache.page_bytes, cache.page_bytes)
    assert accelrt.memory_stats()["virtual_memory_calls"] == calls
    assert cache.ready_bytes == 0
    cache.decommit(0, 6 * cache.page_bytes)


def test_a_thread_makes_pages_ahead():
    page = page_bytes()
    with accelrt.reserve(PAGES * page, ahead=3 * page) as cache:
        cache.commit(0, page)
        wait_until(lambda: cache.ready_bytes == 3 * page)
        calls = accelrt.memory_stats()["virtual_memory_calls"]
        with accelrt.reserve(page):  # of another one
            cache.commit(page, page)
        assert accelrt.memory_stats()["virtual_memory_calls"] - calls <= 3 * 4


@in_own_process(printing="['handler', 'commit'] 0\n")
def test_a_signals_handler_commits_while_the_thread_starts_that_makes_pages_ahead():
    start, order = threading.Thread.start, []
    page = page_bytes()
    caches = [accelrt.reserve(8 * page, ahead=page) for _ in range(2)]

    def commit(cache, name):
        cache.commit(0, page)
        order.append(name)

    def begin(thread):
        threading.Thread.start = start
        signal.raise_signal(signal.SIGUSR1)
        thread.start()

    signal.signal(signal.SIGUSR1, lambda *_: commit(caches[1], "handler"))
    threading.Thread.start = begin
    commit(caches[0], "commit")
    for cache in caches:
        wait_until(lambda cache=cache: cache.ready_bytes >= page)
        cache.close()
    wait_until(lambda: sum(each.name == "accelrt-pages" for each in threading.enumerate()) == 1)
    print(order, accelrt.memory_allocated())


@pytest.mark.parametrize(("error", "kept"), [(RuntimeError, True), (KeyboardInterrupt, False)])
def test_a_thread_that_does_not_start_makes_nothing_ahead(error, kept):
    def start(thread):
        raise error("can't start new thread")

    with accelrt.reserve(8 * page_bytes(), ahead=page_bytes()) as cache:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(threading.Thread, "is_alive", lambda thread: False)
            patch.setattr(threading.Thread, "start", start)
            with contextlib.nullcontext() if kept else pytest.raises(error):
                cache.commit(0, cache.page_bytes)
        assert cache.committed_bytes == kept * cache.page_bytes


def test_idle_pages_come_from_the_end_of_the_longest_run():
    page = page_bytes()
    with accelrt.reserve(64 * page) as cache:
        for start, count in ((0, 20), (32, 6)):  # the longer one at the lower addresses
            cache.commit(start * page, count * page)
        cache.decommit(0, 20 * page)
        cache.decommit(32 * page, 6 * page)
        accelrt.synchronize()
        for number in range(12):  # beside the 8 pages that stay idle there are 18 to move
            cache.commit((48 + number) * page, page)
        calls = accelrt.memory_stats()["virtual_memory_calls"]
        cache.commit(0, 8 * page)  # where the two runs begin
        cache.commit(32 * page, 6 * page)
        assert accelrt.memory_stats()["virtual_memory_calls"] == calls
        memory.audit()


def test_idle_pages_move_to_where_they_are_committed():
    page = page_bytes()
    with accelrt.reserve(64 * page) as cache:
        reserved = accelrt.memory_reserved()
        for start in range(0, 64, 4):
            cache.commit(start * page, 4 * page)
            fill(cache, start, 1)
            cache.decommit(start * page, 4 * page)
            cache.stream.synchronize()
        assert accelrt.memory_reserved() - reserved <= 12 * page
        assert cache.committed() == []
        memory.audit()


def test_commits_and_decommits_follow_the_order_of_another_stream(cache):
    page, other = cache.page_bytes, accelrt.Stream()
    cache.commit(0, page, stream=other)
    gate = Gate(other)
    fill(cache, 0, 7, other)
    kept = accelrt.Buffer(page)
    kept.copy_from(cache.buffer(0, page), stream=other, blocking=False)
    cache.decommit(0, page, stream=other)
    calls = []
    thread = threading.Thread(target=lambda: (cache.commit(0, page), calls.append(gate.open.is_set())))
    thread.start()
    threading.Timer(0.2, gate.open.set).start()
    thread.join(300)
    assert calls == [True]  # the page waits for the work that uses it
    other.synchronize()
    out = np.empty(page, np.uint8)
    kept.copy_to(out)
    assert (out == 7).all()
    cache.decommit(0, page)


@pytest.mark.host
@in_own_process
def test_a_commit_for_another_stream_is_behind_what_is_decommitted_beside_it():
    testing.use_device()
    cache, other = accelrt.reserve(PAGES * page_bytes()), accelrt.Stream()
    page = cache.page_bytes
    cache.prepare(0, page)
    commit = park("stream_wait_event", lambda: cache.commit(0, page, stream=other), when="after")
    with Gate(cache.stream):
        with contextlib.suppress(ValueError):  # the parked call has it committed
            cache.commit(0, page)
            fill(cache, 0, 1)
            cache.decommit(0, page)
        testing.go_on()
        commit.result()
        fill(cache, 0, 7, other)
        other.query()
    accelrt.synchronize()
    assert value_at(cache, 0) == 7


@pytest.mark.host
@pytest.mark.parametrize("row", ["event_record", "stream_wait_event"])
@in_own_process
def test_a_commit_whose_order_the_driver_refuses_commits_nothing(row):
    testing.use_device()
    cache, other = accelrt.reserve(PAGES * page_bytes()), accelrt.Stream()
    with testing.failing(rows=[row]), pytest.raises(accelrt.CudaError):
        cache.commit(0, 2 * cache.page_bytes, stream=other)
    accelrt.synchronize()
    assert cache.committed() == []
    cache.commit(0, cache.page_bytes, stream=other)
    assert cache.committed_bytes == cache.page_bytes


def test_streams_that_copies_named_are_waited_for_as_well(cache):
    page, other = cache.page_bytes, accelrt.Stream()
    cache.commit(0, 2 * page)
    fill(cache, 1, 5)
    accelrt.current_stream().synchronize()
    kept = accelrt.Buffer(page)
    gate = Gate(other)
    kept.copy_from(cache.buffer(page + 256, page - 256), stream=other, blocking=False)
    cache.decommit(0, 2 * page)
    assert cache.ready_bytes == 0  # both pages wait
    assert accelrt.memory_stats()["active_bytes.all.current"] >= 2 * page
    gate.open.set()
    other.synchronize()
    cache.commit(0, 2 * page)
    cache.decommit(0, 2 * page)


def test_a_stream_that_goes_is_waited_for_no_more(cache):
    cache.commit(0, cache.page_bytes)
    stream = accelrt.Stream()
    cache.record_stream(stream)
    stream.synchronize()
    del stream
    gc.collect()
    cache.decommit(0, cache.page_bytes)
    accelrt.synchronize()
    cache.commit(0, cache.page_bytes)
    cache.decommit(0, cache.page_bytes)


def test_it_is_a_buffer_an_array_and_a_tensor_of_other_libraries(cache):
    page = cache.page_bytes
    cache.commit(0, 2 * page)
    whole = cache.array((PAGES, page // 4), "f4")
    whole[1] = 2.5
    assert (np.from_dlpack(whole[1]) == 2.5).all() if whole.device.type == "host" else True
    part = cache.array(16, "f4", offset=page + 64)
    assert part.ptr == cache.ptr + page + 64
    assert (part.numpy() == 2.5).all()
    assert cache.buffer(page + 3, 5).nbytes == 5
    assert accelrt.asarray(cache.buffer()).ptr == cache.ptr
    with pytest.raises(BufferError, match="2 Buffers or Arrays on the Reservation are alive"):
        cache.close()
    del whole, part
    gc.collect()


def test_many_copies_go_between_pages(cache):
    page = cache.page_bytes
    cache.commit(0, 4 * page)
    for n in range(2):
        fill(cache, n, n + 1)
    at = cache.ptr + np.array([2, 3], np.uint64) * np.uint64(page)
    of = cache.ptr + np.array([1, 0], np.uint64) * np.uint64(page)
    accelrt.copy_many(at, of, page)
    assert [value_at(cache, n) for n in range(4)] == [1, 2, 2, 1]
    cache.decommit(3 * page, page)
    with pytest.raises(ValueError, match="not allocated"):
        accelrt.copy_many([cache.ptr + 3 * page], [cache.ptr], 16)
    with pytest.raises(ValueError, match="no memory"):
        accelrt.copy_many([cache.ptr + 5 * page], [cache.ptr], 16)
    cache.decommit(0, 3 * page)


def test_a_graph_replays_over_pages(cache):
    page = cache.page_bytes
    cache.commit(0, 2 * page)
    view = cache.array((2, page))
    graph = accelrt.CUDAGraph()
    with accelrt.graph(graph):
        view[1].copy_(view[0])
    for value in (3, 4):
        fill(cache, 0, value)
        graph.replay()
        assert value_at(cache, 1) == value
    del graph, view
    gc.collect()


def test_it_is_recorded_with_its_tag():
    memory.record_history("all")
    try:
        with accelrt.reserve(4 * page_bytes()) as cache:
            with memory.tag("keys"):
                cache.commit(0, cache.page_bytes)
            live = [block for segment in accelrt.memory_snapshot() for block in segment["blocks"]
                    if block["address"] == cache.ptr]  # fmt: skip
            assert [(block["size"], block["tag"]) for block in live] == [(cache.page_bytes, "keys")]
            cache.decommit(0, cache.page_bytes)
            actions = [event["action"] for trace in memory.snapshot()["device_traces"] for event in trace
                       if event["addr"] == cache.ptr]  # fmt: skip
            assert {"segment_map", "alloc", "free_requested", "free_completed"} <= set(actions)
    finally:
        memory.record_history(None)


def test_it_sleeps_and_wakes_with_its_contents_and_its_protection(cache):
    page = cache.page_bytes
    cache.commit(0, page)
    cache.commit(4 * page, page)
    fill(cache, 0, 3)
    fill(cache, 4, 4)
    protect(cache, 4, "r")
    moved = cache.sleep()
    assert moved.copied == 2 * page
    assert cache.is_asleep()
    with pytest.raises(accelrt.SleepingMemoryError):
        fill(cache, 0, 1)
    with pytest.raises(accelrt.SleepingMemoryError):
        cache.commit(page, page)
    cache.wake()
    assert [value_at(cache, 0), value_at(cache, 4)] == [3, 4]
    assert (cache.access(0), cache.access(4 * page)) == ("rw", "r")
    cache.decommit(4 * page, page)
    cache.commit(4 * page, page)
    fill(cache, 4, 5)  # its protection went with the memory
    cache.decommit(0, page)
    cache.decommit(4 * page, page)


def pool_of(cache):
    """The id of a Reservation's pool, as snapshots tell it; something has to be committed."""
    return next(each["segment_pool_id"] for each in memory.memory_snapshot() if each["address"] == cache.ptr)


def test_it_sleeps_and_wakes_by_the_id_of_its_pool_as_by_its_own_calls(cache):
    page = cache.page_bytes
    cache.commit(0, 3 * page)
    for index in range(3):
        fill(cache, index, 3 + index)
    protect(cache, 0, "r")
    protect(cache, 1, "none")  # what may not be read keeps its contents
    pool = pool_of(cache)
    assert memory.sleep(pool).copied == 3 * page
    assert cache.is_asleep()
    with pytest.raises(
        RuntimeError, match=f"Reservation.sleep: the Reservation at {cache.ptr:#x}: it sleeps already"
    ):
        memory.sleep(pool)
    memory.wake(pool)
    assert [cache.access(index * page) for index in range(3)] == ["r", "none", "rw"]
    if cache.buffer().device.type == "host":  # a GPU may lose its context by it
        with pytest.raises(accelrt.CudaError):
            fill(cache, 0, 1)
        with pytest.raises(accelrt.CudaError):
            value_at(cache, 1)
    cache.protect(0, 2 * page, "rw")
    assert [value_at(cache, index) for index in range(3)] == [3, 4, 5]
    cache.close()
    with pytest.raises(ValueError, match="the Reservation is closed"):
        memory.sleep(pool)


def enter_pool(pool):
    with accelrt.use_mem_pool(pool):
        pass


def capture_into(pool):
    with accelrt.graph(accelrt.CUDAGraph(), pool=pool):
        pass


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (
            enter_pool,
            ValueError,
            "use_mem_pool: pool .* is a Reservation's, which has no memory but what its commit",
        ),
        (
            capture_into,
            ValueError,
            "capture_begin: pool .* is a Reservation's, which has no memory but what its commit",
        ),
        (memory.get_checkpoint_state, RuntimeError, "it is a Reservation's, whose memory changes by commit"),
    ],
)
def test_nothing_else_comes_and_goes_in_its_pool(cache, call, error, words):
    """Memory of others would lie where it commits, and a checkpoint would commit in its stead."""
    page = cache.page_bytes
    cache.commit(0, 3 * page)
    cache.decommit(page, page)
    with pytest.raises(error, match=words):
        call(pool_of(cache))
    assert accelrt.Buffer(page).ptr not in range(cache.ptr, cache.ptr + cache.nbytes)
    cache.commit(page, page)
    assert cache.committed() == [(0, 3 * page)]


def test_the_access_of_what_is_not_reserved_is_refused(cache):
    for offset in (-1, cache.nbytes):
        with pytest.raises(ValueError, match=f"offset {offset} is not within the {cache.nbytes} bytes"):
            cache.access(offset)


def test_errors_of_its_sleep_name_the_reservation(cache):
    name = rf"the Reservation at {cache.ptr:#x}"
    cache.commit(0, cache.page_bytes)
    with pytest.raises(RuntimeError, match=f"^Reservation.wake: {name}: it does not sleep"):
        cache.wake()
    array = cache.array((64,))
    lent = array.__dlpack__()
    with pytest.raises(
        BufferError, match=f"^Reservation.sleep: other libraries have memory of {name} by DLPack"
    ):
        cache.sleep()
    del lent
    cache.sleep()
    with pytest.raises(RuntimeError, match=f"^Reservation.sleep: {name}: it sleeps already"):
        cache.sleep()
    cache.wake()


@pytest.mark.host
@in_own_process(printing="told\n")
def test_a_sleep_and_a_wake_that_the_driver_refuses_name_the_reservation():
    testing.use_device()
    cache = accelrt.reserve(1)
    cache.commit()
    name = rf"the Reservation at {cache.ptr:#x}"
    with testing.failing(rows=["memory_unmap"]), pytest.raises(accelrt.CudaError) as told:
        cache.sleep("discard")
    assert re.search(f"Reservation.sleep did not put {name} to sleep, and it is as it was", str(told.value))
    assert re.search(rf"\breservation={cache.ptr:#x}|\breservation={cache.ptr}\b", str(told.value))
    cache.sleep("discard")
    failing = testing.failing(rows=["physical_create"], code=2, mode="onward")
    with failing, pytest.raises(accelrt.OutOfMemoryError, match=r"Reservation\.wake"):
        cache.wake()
    with (
        testing.failing(rows=["memory_map"]),
        pytest.raises(accelrt.CudaError, match=f"{name} sleeps on, and"),
    ):
        cache.wake()
    cache.wake()
    print("told")


@pytest.mark.host
@in_own_process(printing="committed\n")
def test_a_commit_waits_for_memory_that_is_freed_and_still_in_use():
    """As an allocation does: what another stream uses is free once its work is over."""
    testing.use_device()
    total = accelrt.get_device_properties(0).total_memory
    stream, block, cache = accelrt.Stream(), accelrt.Buffer(total * 3 // 4), accelrt.reserve(total // 2)
    with Gate(stream) as gate:
        block.record_stream(stream)
        block.free()
        caller = park("event_synchronize", cache.commit)
        assert cache.committed_bytes == 0
        gate.open.set()
        testing.go_on()
        caller.result()
    assert cache.committed_bytes == cache.nbytes
    print("committed")


def test_what_may_not_be_read_sleeps_with_its_contents(cache):
    cache.commit(0, cache.page_bytes)
    fill(cache, 0, 8)
    protect(cache, 0, "none")
    cache.sleep()
    cache.wake()
    assert cache.access(0) == "none"
    cache.protect(0, cache.page_bytes, "rw")
    assert value_at(cache, 0) == 8
    cache.decommit(0, cache.page_bytes)


@in_own_process(ACCELRT_HOST_DEVICES="2")
def test_other_devices_are_granted_access():
    with accelrt.reserve(1 << 23) as made:
        made.grant_access(1, "r")
        made.commit(0, made.page_bytes)
        assert made.peer_access == {1: "r"}
        made.revoke_access(1)
        assert made.peer_access == {}
        stream = accelrt.Stream(device=1)
        made.record_stream(stream)
        made.decommit(0, made.page_bytes)


def test_another_stream_that_captures_commits_nothing(cache):
    stream, graph = accelrt.Stream(), accelrt.CUDAGraph()
    with accelrt.graph(graph, stream=stream), pytest.raises(RuntimeError, match="the stream captures"):
        cache.commit(0, cache.page_bytes, stream=stream)
    assert cache.committed() == []


def test_a_forked_child_is_refused(cache):
    cache.commit(0, cache.page_bytes)
    calls = [
        lambda: cache.commit(cache.page_bytes, cache.page_bytes),
        lambda: cache.decommit(0, cache.page_bytes),
        cache.prepare,
        cache.sleep,
        lambda: cache.protect(0, cache.page_bytes, "r"),
        lambda: accelrt.copy_many([cache.ptr], [cache.ptr], 5),
    ]
    child = os.fork()
    if child == 0:
        refused = 0
        for call in calls:
            try:
                call()
            except accelrt.ForkedError:
                refused += 1
            except BaseException:
                break
        os._exit(refused)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == len(calls)
    cache.decommit(0, cache.page_bytes)


def test_what_is_protected_is_read_and_not_written(cache):
    cache.commit(0, 2 * cache.page_bytes)
    fill(cache, 0, 6)
    protect(cache, 0, "r")
    assert value_at(cache, 0) == 6
    if cache.buffer().device.type == "host":  # a GPU may lose its context by it
        with pytest.raises(accelrt.CudaError):
            fill(cache, 0, 1)
    cache.protect(0, cache.page_bytes, "rw")
    fill(cache, 0, 1)
    with pytest.raises(ValueError, match="access is 'x'"):
        cache.protect(0, cache.page_bytes, "x")
    with pytest.raises(ValueError, match="not committed"):
        cache.protect(cache.page_bytes, 2 * cache.page_bytes, "r")
    cache.decommit(0, 2 * cache.page_bytes)


def test_protecting_less_waits_for_the_streams_work(cache):
    cache.commit(0, cache.page_bytes)
    gate = Gate(cache.stream)
    fill(cache, 0, 9)
    threading.Timer(0.1, gate.open.set).start()
    protect(cache, 0, "r")
    assert gate.open.is_set()
    assert value_at(cache, 0) == 9
    cache.decommit(0, cache.page_bytes)


def test_a_limit_holds_and_idle_pages_serve_within_it():
    page = page_bytes()
    with accelrt.reserve(8 * page, limit=3 * page) as cache:
        cache.commit(0, 3 * page)
        with pytest.raises(accelrt.OutOfMemoryError):
            cache.commit(4 * page, page)
        assert cache.committed() == [(0, 3 * page)]
        cache.decommit(page, page)
        cache.stream.synchronize()
        cache.commit(5 * page, page)
        assert cache.committed_bytes == 3 * page
        memory.audit()


def test_the_devices_limit_holds(cache):
    accelrt.set_per_process_memory_fraction(2 * cache.page_bytes / accelrt.mem_get_info()[1])
    try:
        cache.commit(0, 2 * cache.page_bytes)
        with pytest.raises(accelrt.OutOfMemoryError):
            cache.commit(2 * cache.page_bytes, cache.page_bytes)
    finally:
        accelrt.set_per_process_memory_fraction(1.0)
    cache.decommit(0, 2 * cache.page_bytes)


def test_idle_pages_go_back_where_a_request_would_be_refused():
    total = min(accelrt.mem_get_info()[0], 1 << 30)  # a GPU's 70,000 pages take too long
    accelrt.set_per_process_memory_fraction(total / accelrt.mem_get_info()[1])
    try:
        with accelrt.reserve(total) as cache:
            half = total // 2 // cache.page_bytes * cache.page_bytes
            cache.commit(0, half)
            cache.decommit(0, half)
            other = accelrt.Buffer(total - total // 8)
            assert cache.ready_bytes < half
            del other
    finally:
        accelrt.set_per_process_memory_fraction(1.0)


def test_commits_may_come_in_a_capture(cache):
    stream = accelrt.Stream()
    graph = accelrt.CUDAGraph()
    target = accelrt.Buffer(256)
    with accelrt.graph(graph, stream=stream):
        cache.commit(0, cache.page_bytes)
        target.fill(4, stream=stream)
    graph.replay()
    cache.decommit(0, cache.page_bytes)
    del graph


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda c: c.commit(1), ValueError, "multiples of page_bytes"),
        (lambda c: c.commit(0, c.page_bytes + 1), ValueError, "multiples of page_bytes"),
        (lambda c: c.commit(-c.page_bytes), ValueError, "not within"),
        (lambda c: c.commit(0, c.nbytes + c.page_bytes), ValueError, "not within"),
        (lambda c: c.commit("0"), TypeError, "offset"),
        (lambda c: c.decommit(0, c.page_bytes), ValueError, "offset 0 is not committed"),
        (lambda c: (c.commit(0, c.page_bytes), c.commit()), ValueError, "offset 0 is committed already"),
        (lambda c: c.buffer(0, c.nbytes + 1), ValueError, "not within"),
        (lambda c: c.array((c.nbytes,), "f4"), ValueError, "bytes"),
        (lambda c: accelrt.reserve(0), ValueError, "nbytes is from 1"),
        (lambda c: accelrt.reserve(8, page_bytes=16), ValueError, "page_bytes"),
        (lambda c: accelrt.reserve(True), TypeError, "nbytes"),
        (lambda c: memory.Reservation(), TypeError, "made by accelrt.reserve"),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_refused_with_why(cache, call, error, words):
    with pytest.raises(error, match=words):
        call(cache)


def test_what_is_closed_says_so():
    cache = accelrt.reserve(1)
    cache.commit()
    cache.close()
    cache.close()
    assert "closed" in repr(cache)
    for call in (cache.commit, cache.decommit, cache.buffer, cache.stats, cache.sleep, cache.empty_cache):
        with pytest.raises(ValueError, match="closed"):
            call()


def test_what_is_dropped_gives_its_memory_back():
    before = accelrt.memory_allocated()
    cache = accelrt.reserve(4 * page_bytes())
    cache.commit()
    view = cache.array((4,))
    del cache
    gc.collect()
    assert accelrt.memory_allocated() > before
    del view
    gc.collect()
    assert accelrt.memory_allocated() == before


@in_own_process(ACCELRT_ALLOC_CONF="expandable_segments:False")
def test_plain_segments_have_none():
    with pytest.raises(accelrt.NotSupportedError, match="virtual memory"):
        accelrt.reserve(1 << 20)


def free_place():
    """Addresses that are free just now, far from where drivers put what they choose themselves."""
    with accelrt.reserve(1 << 40) as wide:
        return wide.ptr + (1 << 39)


def test_addresses_are_the_ones_that_are_asked_for():
    page, place = page_bytes(), free_place()
    with accelrt.reserve(4 * page, address=place) as cache:
        assert (cache.ptr, cache.nbytes) == (place, 4 * page)
        cache.commit(page, page)
        fill(cache, 1, 7)
        assert value_at(cache, 1) == 7
        with accelrt.reserve(2 * page, address=place + 4 * page) as other:
            assert other.ptr == place + 4 * page
            other.commit()
            fill(other, 0, 8)
            assert (value_at(cache, 1), value_at(other, 0)) == (7, 8)
        memory.audit()
    with accelrt.reserve(4 * page, address=place) as again:
        assert again.ptr == place
        again.commit()
        fill(again, 3, 9)
        assert value_at(again, 3) == 9


def test_addresses_that_something_has_are_refused():
    page, place = page_bytes(), free_place()
    accelrt.empty_cache()
    before = accelrt.memory_stats()["reserved_addresses"]
    with accelrt.reserve(4 * page, address=place):
        for wanted, pages in ((place, 1), (place + 3 * page, 4), (place - page, 2)):
            with pytest.raises(accelrt.CudaError, match="something lies at these addresses") as refused:
                accelrt.reserve(pages * page, address=wanted)
            assert refused.value.name == "INVALID_VALUE"
        assert accelrt.memory_stats()["reserved_addresses"] == before + 4 * page
    accelrt.empty_cache()
    assert accelrt.memory_stats()["reserved_addresses"] == before


def test_addresses_of_a_reservation_of_the_process_that_nothing_has_are_given(cache):
    page = cache.page_bytes
    beside = accelrt.reserve(4 * page)  # of the same reservation of the driver's
    place = beside.ptr
    beside.close()
    with accelrt.reserve(2 * page, address=place + page) as chosen:
        assert chosen.ptr == place + page
        chosen.commit()
        fill(chosen, 1, 3)
        assert value_at(chosen, 1) == 3
        memory.audit()
        with pytest.raises(accelrt.CudaError, match="something lies"):
            accelrt.reserve(2 * page, address=place)


def test_beside_a_capture_a_closed_reservation_keeps_its_addresses():
    page, place, other = page_bytes(), free_place(), accelrt.Buffer(16)
    accelrt.empty_cache()
    accelrt.reserve(page, address=place).close()
    graph = accelrt.CUDAGraph()
    with accelrt.graph(graph, stream=accelrt.Stream()):
        other.fill(1)
        with pytest.raises(accelrt.CudaError, match="something lies"):
            accelrt.reserve(page, address=place)
        beside = accelrt.reserve(page, address=place + page)
        assert beside.ptr == place + page
        beside.close()
    graph.replay()
    with accelrt.reserve(page, address=place) as again:
        assert again.ptr == place


@pytest.mark.parametrize("address", [4096, -1, 1 << 64])
def test_what_is_no_address_of_a_page_is_refused(address):
    page_bytes()
    with pytest.raises(ValueError, match="address is"):
        accelrt.reserve(1 << 20, address=address)
    with pytest.raises(TypeError, match="address is 'here'"):
        accelrt.reserve(1 << 20, address="here")


@in_own_process(printing="")
def test_a_call_that_fails_leaves_no_addresses_reserved():
    wrap_host()
    page, place = page_bytes(), free_place()
    taken = accelrt.reserve(page, address=place)
    accelrt.empty_cache()
    before, failures = accelrt.memory_stats()["reserved_addresses"], 0
    for _, error in testing.failing_calls(lambda: accelrt.reserve(2 * page, address=place + page).close()):
        failures += error is not None
        accelrt.empty_cache()
        assert accelrt.memory_stats()["reserved_addresses"] == before
        memory.audit()
    assert failures >= 1
    with testing.failing(1, rows=["address_free"]), pytest.raises(accelrt.CudaError):
        accelrt.reserve(2 * page, address=place - page)  # the driver gives others, which do not go back
    taken.close()


def test_threads_commit_and_decommit_side_by_side():
    page = page_bytes()
    errors = []

    def work(place):
        chosen = random.Random(place)
        try:
            for _ in range(60):
                first = place * 8 + chosen.randrange(8)
                count = chosen.randint(1, place * 8 + 8 - first)
                cache.commit(first * page, count * page)
                fill(cache, first, place)
                cache.decommit(first * page, count * page)
                if chosen.random() < 0.1:
                    cache.empty_cache()
        except BaseException as error:
            errors.append(error)

    with accelrt.reserve(32 * page) as cache:
        threads = [threading.Thread(target=work, args=(place,)) for place in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not errors, errors
        assert cache.committed() == []
        memory.audit()


class Model(RuleBasedStateMachine):
    """A Reservation beside a dict from committed pages to the byte that fills them."""

    def __init__(self):
        super().__init__()
        self.before = accelrt.memory_allocated()
        self.cache = accelrt.reserve(PAGES * page_bytes())
        self.page = self.cache.page_bytes
        self.model, self.number, self.asleep = {}, 0, False

    ranges = st.tuples(st.integers(0, PAGES - 1), st.integers(1, 5)).map(
        lambda pair: range(pair[0], min(PAGES, sum(pair)))
    )

    @precondition(lambda self: not self.asleep)
    @rule(chosen=ranges)
    def commit(self, chosen):
        if any(page in self.model for page in chosen):
            with pytest.raises(ValueError, match="committed already"):
                self.cache.commit(chosen.start * self.page, len(chosen) * self.page)
            return
        self.cache.commit(chosen.start * self.page, len(chosen) * self.page)
        for page in chosen:
            self.number = self.number % 255 + 1
            self.model[page] = self.number
            fill(self.cache, page, self.number)

    @precondition(lambda self: not self.asleep)
    @rule(chosen=ranges)
    def decommit(self, chosen):
        if all(page in self.model for page in chosen):
            self.cache.decommit(chosen.start * self.page, len(chosen) * self.page)
            for page in chosen:
                del self.model[page]
        else:
            with pytest.raises(ValueError, match="not committed"):
                self.cache.decommit(chosen.start * self.page, len(chosen) * self.page)

    @precondition(lambda self: not self.asleep)
    @rule(chosen=ranges)
    def prepare(self, chosen):
        self.cache.prepare(chosen.start * self.page, len(chosen) * self.page)

    @precondition(lambda self: self.model and not self.asleep)
    @rule(data=st.data(), access=st.sampled_from(["r", "none", "rw"]))
    def protect(self, data, access):
        page = data.draw(st.sampled_from(sorted(self.model)))
        protect(self.cache, page, access)
        assert self.cache.access(page * self.page) == access
        self.cache.protect(page * self.page, self.page, "rw")

    @precondition(lambda self: not self.asleep)
    @rule()
    def release_idle(self):
        self.cache.empty_cache()
        assert self.cache.ready_bytes == 0

    @rule()
    def release_all(self):
        accelrt.empty_cache()

    @rule()
    def sleep_or_wake(self):
        if self.asleep:
            self.cache.wake()
        elif self.model:
            self.cache.sleep()
        self.asleep = not self.asleep and bool(self.model)

    @invariant()
    def is_as_the_model(self):
        memory.audit()
        committed = [page for start, size in self.cache.committed()
                     for page in range(start // self.page, (start + size) // self.page)]  # fmt: skip
        assert committed == sorted(self.model)
        assert accelrt.memory_allocated() == self.before + len(self.model) * self.page
        if not self.asleep:
            assert {page: value_at(self.cache, page) for page in self.model} == self.model

    def teardown(self):
        self.cache.close()
        accelrt.empty_cache()
        memory.audit()
        assert accelrt.memory_allocated() == self.before


TestModel = Model.TestCase
TestModel.settings = settings(max_examples=25, stateful_step_count=25, deadline=None)


@pytest.mark.host
@in_own_process
def test_protections_and_commits_of_threads_are_as_one_after_the_other():
    """protect() stopped at its calls of the driver, beside decommit() and commit(); and what is refused."""
    testing.use_device()
    cache = accelrt.reserve(4 * page_bytes())
    interleaver = Interleaver()

    def again():
        cache.decommit()
        cache.commit()

    for access in ("none", "r"):
        cache.commit()
        places = interleaver.places(lambda access=access: cache.protect(0, cache.page_bytes, access))
        for (number, _), when in itertools.product(places, ("before", "after")):
            cache.protect(0, cache.page_bytes, "rw")
            interleaver.run_beside(
                lambda access=access: cache.protect(0, cache.page_bytes, access), again, number, when
            )
            if cache.access(0) == "rw":
                cache.buffer(0, cache.page_bytes).fill(1)
            cache.stream.synchronize()
        cache.decommit()
    interleaver.close()


def test_what_is_refused_leaves_the_protection():
    with accelrt.reserve(4 * page_bytes()) as cache:
        cache.commit(0, cache.page_bytes)
        cache.protect(0, cache.page_bytes, "r")
        with pytest.raises(ValueError, match="not committed"):
            cache.decommit(0, 2 * cache.page_bytes)
        assert cache.access(0) == "r"


@in_own_process
def test_what_the_driver_does_not_protect_again_is_told():
    """What is refused as it wakes is open, and access() says so; the rest is protected."""
    testing.use_device()
    cache = accelrt.reserve(3 * page_bytes())
    cache.commit()

    def sleep_and_wake():
        for page in range(3):
            protect(cache, page, "r")
        cache.sleep()
        cache.wake()

    told = []
    for _ in testing.failing_calls(sleep_and_wake, rows=["memory_access"]):
        if cache.is_asleep():
            cache.wake()
        told.append(sorted(cache.access(page * cache.page_bytes) for page in range(3)))
    assert told[-4:] == [["r", "r", "rw"]] * 3 + [["r"] * 3]
    cache.close()


def test_what_may_not_be_read_and_sleeps_is_not_put_to_sleep_again(cache):
    cache.commit(0, cache.page_bytes)
    protect(cache, 0, "none")
    cache.sleep()
    with pytest.raises(RuntimeError, match="it sleeps already"):
        cache.sleep()
    cache.wake()
    assert cache.access(0) == "none"


def test_a_page_that_waits_for_its_last_use_is_not_protected():
    gate, other = threading.Event(), accelrt.Stream()
    with accelrt.reserve(4 * page_bytes()) as cache:
        cache.commit(0, cache.page_bytes)
        other.launch_host_func(lambda: gate.wait(300))
        cache.record_stream(other)
        cache.decommit(0, cache.page_bytes)
        try:
            with pytest.raises(ValueError, match="not committed"):
                cache.protect(0, cache.page_bytes, "none")
        finally:
            gate.set()
        other.synchronize()
        cache.commit(0, cache.page_bytes)
        cache.buffer(0, cache.page_bytes).fill(1)
        accelrt.synchronize()


@pytest.mark.host
@in_own_process
def test_nothing_is_made_on_a_reservation_that_another_thread_closes():
    testing.use_device()
    interleaver, caches = Interleaver(), []

    def made():
        caches.append(accelrt.reserve(4 * page_bytes()))
        caches[-1].commit(0, page_bytes())
        caches[-1].protect(0, page_bytes(), "r")
        return caches[-1]

    for (number, _), when in itertools.product(interleaver.places(made().close), ("before", "after")):
        cache = made()
        closed, buffer = interleaver.run_beside(
            cache.close, lambda cache=cache: cache.buffer(0, cache.page_bytes), number, when
        )
        assert (closed.kind, buffer.kind) in (("done", "ValueError"), ("BufferError", "done"))
    interleaver.close()


@pytest.mark.host
@pytest.mark.parametrize("call", ["commit", "prepare"])
@in_own_process(ACCELRT_HOST_MEMORY="8MiB")
def test_it_is_closed_beside_a_call_whose_pages_the_device_refuses(call):
    """That call gives idle memory back, which what was closed is."""
    testing.use_device()

    def made():
        accelrt.empty_cache()
        return accelrt.reserve(8 * page_bytes())

    def grow(cache):
        with contextlib.suppress(accelrt.OutOfMemoryError):
            getattr(cache, call)(0, 6 * page_bytes())

    assert testing.interleave(grow, memory.Reservation.close, made, allowed=[ValueError]) > 20
    memory.audit()


def test_what_is_protected_is_closed_while_it_sleeps():
    with accelrt.reserve(4 * page_bytes()) as cache:
        cache.commit(0, 2 * cache.page_bytes)
        cache.protect(0, cache.page_bytes, "r")
        cache.sleep()
    assert repr(cache) == "<accelrt.memory.Reservation, closed>"


def test_what_is_protected_is_decommitted_while_it_sleeps():
    with accelrt.reserve(4 * page_bytes()) as cache:
        cache.commit(0, 2 * cache.page_bytes)
        cache.protect(0, 2 * cache.page_bytes, "r")
        cache.sleep()
        cache.decommit(0, cache.page_bytes)
        cache.wake()
        assert [cache.access(at * cache.page_bytes) for at in (0, 1)] == ["rw", "r"]
        cache.commit(0, cache.page_bytes)
        cache.buffer(0, cache.page_bytes).fill(1)
        accelrt.synchronize()


@pytest.mark.host
@pytest.mark.parametrize("row", ["physical_release", "memory_unmap"])
@in_own_process
def test_a_page_that_the_driver_did_not_take_back_is_committed_again(row):
    """It is nowhere then: neither mapped, nor a gap."""
    testing.use_device()
    cache = accelrt.reserve(8 * page_bytes())
    cache.commit(0, 2 * cache.page_bytes)
    cache.decommit(0, 2 * cache.page_bytes)
    accelrt.synchronize()
    with testing.failing(rows=[row]), pytest.raises(accelrt.CudaError):
        cache.empty_cache()
    cache.prepare(0, 3 * cache.page_bytes)
    cache.commit(0, 2 * cache.page_bytes)
    assert cache.committed() == [(0, 2 * cache.page_bytes)]
    fill(cache, 0, 7)
    fill(cache, 1, 8)
    assert (value_at(cache, 0), value_at(cache, 1)) == (7, 8)


@pytest.mark.host
@in_own_process
def test_a_commit_beside_close_commits_nothing_that_nobody_can_give_back():
    testing.use_device()
    cache = accelrt.reserve(8 * page_bytes())
    commit = testing.park("physical_create", lambda: cache.commit(0, 2 * cache.page_bytes))
    cache.close()
    testing.go_on()
    with pytest.raises(ValueError, match="the Reservation is closed"):
        commit.result()
    assert accelrt.memory_allocated() == 0
    accelrt.empty_cache()
    assert accelrt.memory_reserved() == 0


@pytest.mark.host
@in_own_process
def test_what_is_asked_of_a_reservation_outlives_its_close():
    """The thread that asks waits without the GIL for the one that makes pages of another reservation."""
    testing.use_device()
    cache, other = accelrt.reserve(page_bytes()), accelrt.reserve(page_bytes())
    commit = testing.park("physical_create", lambda: other.commit(0, other.page_bytes))
    asked = threading.Event()

    def ask():
        asked.set()
        return cache.peer_access

    answers = []
    thread = threading.Thread(target=lambda: answers.append(ask()))
    thread.start()
    asked.wait()
    wait_until_asleep(thread)
    pools = [each for each in gc.get_objects() if isinstance(each, accelrt.MemPool)]
    number = len(pools)
    del pools
    cache.close()
    assert len([each for each in gc.get_objects() if isinstance(each, accelrt.MemPool)]) == number
    testing.go_on()
    thread.join()
    commit.result()
    assert answers == [{}]


def outcome(cache, call):
    try:
        getattr(cache, call)(*((0, cache.page_bytes) if call == "decommit" else ()))
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "done"


@pytest.mark.host
@in_own_process
def test_a_call_that_waited_for_close_says_that_it_is_closed():
    testing.use_device()
    for call in ("decommit", "sleep", "wake"):
        cache, outcomes = accelrt.reserve(4 * page_bytes()), []
        cache.commit(0, cache.page_bytes)
        protect = testing.park("memory_access", functools.partial(cache.protect, 0, cache.page_bytes, "r"))
        calls = [cache.close, lambda each=(cache, call), to=outcomes: to.append(outcome(*each))]
        threads = [threading.Thread(target=function) for function in calls]
        for thread in threads:
            thread.start()
            wait_until_asleep(thread)  # for the turn
        testing.go_on()
        protect.result()
        for thread in threads:
            thread.join()
        assert outcomes[0] in ("ValueError: the Reservation is closed", "done") or (
            call == "wake" and "does not sleep" in outcomes[0]
        )


@in_own_process
def test_a_commit_waits_for_its_page_while_others_free_on_another_stream():
    """What waits counted the events of all streams together, so that new ones took the place of its own."""
    testing.use_device()
    first, second, cache = accelrt.Stream(), accelrt.Stream(), accelrt.reserve(PAGES * page_bytes())
    with Gate(second) as at_second:
        with Gate(first):
            free_behind(first)
            cache.commit(0, cache.page_bytes, stream=second)
            fill(cache, 0, 1, stream=second)
            cache.decommit(0, cache.page_bytes, stream=second)
            commit = park("event_synchronize", lambda: cache.commit(0, cache.page_bytes))
            later = Gate(first)
            free_behind(first)
        with later:
            testing.go_on()
        first.synchronize()
        wait_until_asleep(commit.thread)
        at_second.open.set()
        commit.result()
    cache.decommit(0, cache.page_bytes)
    accelrt.synchronize()
    cache.close()


def free_behind(stream):
    buffer = accelrt.Buffer(4096)
    buffer.record_stream(stream)
    buffer.free()
