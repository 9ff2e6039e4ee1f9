"""Signals end waits on the main thread: what the handler raises is raised, and the work goes on."""

import gc
import signal
import threading
import weakref

import numpy as np
import pytest
from beside import Gate, on_a_thread
from child import in_fork, in_own_process
from interruptions import Alarm, interrupted, ring, signals

import accelrt

SIZE = 1 << 20


def blocking_event(stream):
    event = accelrt.Event(blocking=True)
    event.record(stream)
    event.synchronize()


WAITS = {
    "device": lambda stream: accelrt.synchronize(),
    "stream": lambda stream: stream.synchronize(),
    "event": lambda stream: stream.record_event().synchronize(),
    "blocking event": blocking_event,
}


@pytest.mark.parametrize("wait", WAITS)
def test_a_signal_ends_a_wait(wait):
    stream = accelrt.Stream()
    with interrupted(stream):
        WAITS[wait](stream)
    WAITS[wait](stream)


@pytest.mark.parametrize("to_host", [False, True])
@pytest.mark.parametrize("blocking", [False, True])
@pytest.mark.parametrize("kind", ["array", "page-locked", "registered"])
def test_a_signal_ends_a_copy_that_waits(kind, blocking, to_host):
    if not blocking and not (kind == "array" and to_host):
        return  # it does not wait
    stream = accelrt.Stream()
    host = accelrt.pinned_empty(SIZE, np.uint8) if kind == "page-locked" else np.zeros(SIZE, np.uint8)
    host[:] = 3
    registered = accelrt.register_host(host) if kind == "registered" else None
    with accelrt.Buffer(SIZE, stream=stream) as buffer:
        buffer.fill(5, stream=stream, blocking=True)
        with interrupted(stream):
            if to_host:
                buffer.copy_to(host, stream=stream, blocking=blocking)
            else:
                buffer.copy_from(host, stream=stream, blocking=blocking)
        out = np.zeros(SIZE, np.uint8)
        buffer.copy_to(out, stream=stream)
        assert set(out) <= {3, 5}
        assert len(set(out)) == 1
    if registered is not None:
        registered.unregister()


def test_a_signal_ends_a_fill_that_waits_and_the_fill_is_done():
    stream = accelrt.Stream()
    with accelrt.Buffer(SIZE, stream=stream) as buffer:
        with interrupted(stream):
            buffer.fill(9, stream=stream, blocking=True)
        out = bytearray(SIZE)
        buffer.copy_to(out, stream=stream)
        assert out == bytes([9]) * SIZE


@pytest.mark.skipif("accelrt.device_count() < 2")
def test_a_signal_ends_a_copy_between_devices():
    stream = accelrt.Stream(0)
    with accelrt.Buffer(SIZE, device=0, stream=stream) as src, accelrt.Buffer(SIZE, device=1) as dst:
        src.fill(1, stream=stream, blocking=True)
        with interrupted(stream):
            accelrt.copy(dst, src, stream=stream)


def test_a_signal_ends_what_gives_memory_back():
    stream = accelrt.Stream()
    array = np.zeros(SIZE, np.uint8)
    registered = accelrt.register_host(array)
    for call in (accelrt.empty_cache, accelrt.host_empty_cache, registered.unregister):
        idle, pinned = accelrt.Buffer(SIZE), accelrt.PinnedBuffer(SIZE)
        idle.record_stream(stream)
        with interrupted(stream):
            idle.free()
            pinned.free()
            call()
        call()
    assert registered.ptr == 0


def capture_something():
    with accelrt.graph(accelrt.CUDAGraph(), stream=accelrt.Stream(), capture_error_mode="thread_local"):
        accelrt.Buffer(SIZE).fill(1)


def capture_on_a_thread():
    on_a_thread(capture_something)


@pytest.mark.parametrize("capture", [capture_something, capture_on_a_thread])
@pytest.mark.parametrize("call", ["empty_cache", "host_empty_cache", "unregister", "sleep"])
def test_a_handler_may_capture_or_await_a_capture_beside_what_gives_memory_back(call, capture):
    """The wait keeps captures from beginning, for as long as it lasts, but not while a handler runs."""
    stream, gate, seen, pool = accelrt.Stream(), threading.Event(), [], accelrt.MemPool()
    registered = accelrt.register_host(np.zeros(SIZE, np.uint8))
    with accelrt.use_mem_pool(pool):
        kept = accelrt.Buffer(SIZE)
    idle, pinned = accelrt.Buffer(SIZE), accelrt.PinnedBuffer(SIZE)
    calls = {"sleep": pool.sleep, "unregister": registered.unregister}

    def handle(number, frame):
        seen.append(number)
        capture()
        gate.set()

    stream.launch_host_func(gate.wait)
    idle.free()
    pinned.free()
    with signals(handle):
        (calls.get(call) or getattr(accelrt, call))()
    assert len(seen) == 1
    if call == "sleep":
        pool.wake()
    else:
        registered.unregister()
    kept.free()


class Exporter:
    """Device memory of another library's."""

    def __init__(self, buffer):
        self.buffer = buffer

    @property
    def __cuda_array_interface__(self):
        return {
            "shape": (len(self.buffer),),
            "typestr": "|u1",
            "data": (self.buffer.ptr, False),
            "version": 3,
        }


def test_what_an_interrupted_copy_uses_stays_alive_until_it_is_done():
    stream, pinned = accelrt.Stream(), accelrt.PinnedBuffer(SIZE)
    exporter = Exporter(accelrt.Buffer(SIZE, stream=stream))
    alive, address = weakref.ref(exporter), pinned.ptr
    with interrupted(stream):
        try:
            accelrt.copy(pinned, exporter, stream=stream)
        finally:
            del pinned, exporter
            gc.collect()
            assert alive() is not None
            with accelrt.PinnedBuffer(SIZE) as other:
                assert other.ptr != address
    stream.synchronize()  # gives back what the one before it waited for
    gc.collect()
    assert alive() is None


def test_a_handler_that_raises_nothing_ends_no_wait_and_may_wait_itself():
    stream, gate, seen = accelrt.Stream(), threading.Event(), []

    def handle(number, frame):
        seen.append(number)
        accelrt.Stream().synchronize()
        accelrt.Event().synchronize()
        if len(seen) == 3:
            gate.set()
        else:
            ring()

    stream.launch_host_func(gate.wait)
    with signals(handle):
        stream.synchronize()
    assert len(seen) == 3
    assert stream.query()


def test_a_handler_may_be_interrupted_in_a_wait_of_its_own():
    stream, depth = accelrt.Stream(), []

    def handle(number, frame):
        depth.append(number)
        if len(depth) == 3:
            raise Alarm
        ring()
        try:
            stream.synchronize()
        finally:
            depth.append("left")

    with Gate(stream), pytest.raises(Alarm), signals(handle):
        stream.synchronize()
    stream.synchronize()
    assert depth == [signal.SIGALRM] * 3 + ["left"] * 2


def test_the_waits_of_other_threads_go_on():
    stream, gate, ended = accelrt.Stream(), threading.Event(), []
    stream.launch_host_func(gate.wait)

    def work(wait):
        WAITS[wait](stream)
        ended.append(wait)

    threads = [threading.Thread(target=work, args=(wait,)) for wait in WAITS]
    for thread in threads:
        thread.start()

    def stop(number, frame):
        raise Alarm

    for _ in range(3):
        with pytest.raises(Alarm), signals(stop):
            stream.synchronize()
        assert ended == []
    gate.set()
    for thread in threads:
        thread.join()
    assert sorted(ended) == sorted(WAITS)


def test_what_a_function_raised_is_told_after_an_interruption():
    stream = accelrt.Stream()
    with pytest.raises(KeyError), interrupted(stream):
        stream.launch_host_func(lambda: {}["key"])
        stream.synchronize()


@in_own_process
def test_the_thread_that_forked_is_the_main_one_of_the_child():
    def wait():
        with interrupted(accelrt.Stream()):
            accelrt.synchronize()

    assert on_a_thread(lambda: in_fork(wait)) == 0
