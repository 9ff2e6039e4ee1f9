"""While one thread ends a capture, no call about its streams or events reaches the driver.

The host device holds each end open for a while, and counts the calls that come in between.
"""

import ctypes
import threading

import numpy as np
import pytest
from beside import Caller, Gate, on_threads, park, until_over
from capture_ends import storm
from child import in_own_process, wrap_host
from device_arrays import bytes_of
from waiting import wait_until

import accelrt
from accelrt.driver import rowgen
from accelrt.driver.guard import is_capture_ending
from accelrt.driver.host import driver
from accelrt.driver.registry import Rows

pytestmark = pytest.mark.host
SECONDS = 300
NO_COPY = ctypes.create_string_buffer(256)  # a box of no bytes
UNFILLED = {"stream_window_set", "stream_window_get"}  # on host
CHANGING = {"capture_begin", "capture_begin_to", "capture_end", "stream_destroy", "event_destroy"}
GUARDED = {row.name for row in rowgen.read_rows() if rowgen.is_guarded(row)} - UNFILLED - CHANGING
WAITING = {"stream_synchronize", "event_synchronize"}
# Those that the host device looks a stream or an event up for, whatever their other arguments are.
LOOKING = {
    "stream_priority", "stream_flags", "stream_query", "stream_device", "stream_synchronize",
    "stream_wait_event", "event_query", "event_synchronize", "event_elapsed", "capture_status",
}  # fmt: skip


@pytest.fixture
def host():
    accelrt.init()
    driver.delay_capture_ends(0, hold=True)
    yield driver
    driver.delay_capture_ends(50)


class Ending:
    """A capture of a stream, whose end on a thread of its own is held open until release()."""

    def __init__(self, host, mode="relaxed"):
        self.host = host
        self.stream, self.side, self.mode = accelrt.Stream(), accelrt.Stream(), mode
        self.event, self.error = accelrt.Event(), None
        self.memory = accelrt.Buffer(64, stream=self.stream)
        self.captured = threading.Event()
        self.thread = threading.Thread(target=self.capture)

    def capture(self):
        try:
            graph = accelrt.CUDAGraph()
            with accelrt.graph(graph, stream=self.stream, capture_error_mode=self.mode):
                self.memory.fill(1)
                self.event.record(self.stream)
                self.side.wait_event(self.event)
                self.stream.wait_stream(self.side)
        except accelrt.CaptureError as error:
            self.error = error

    def __enter__(self):
        self.thread.start()
        while not self.host.held_capture_ends():
            assert self.thread.is_alive()
        assert is_capture_ending()
        return self

    def release(self):
        self.host.delay_capture_ends(0)
        self.thread.join(SECONDS)
        assert not self.thread.is_alive()

    def __exit__(self, *_):
        self.release()


def call(rows, name, ending):
    row = next(row for row in rowgen.read_rows() if row.name == name)
    values = {
        "stream": ending.stream.cuda_stream,
        "event": ending.event.cuda_event,
        "start": ending.event.cuda_event,
        "end": ending.event.cuda_event,
        "copy": ctypes.addressof(NO_COPY),
    }
    given = [values.get(argument.name, 0) for argument in row.arguments if not argument.is_out]
    return getattr(rows, name)(*given)


@pytest.mark.beside_ends
@pytest.mark.parametrize("name", sorted(LOOKING))
def test_the_host_device_counts_calls_about_a_capture_that_is_being_ended(host, name):
    ending, before = Ending(host), host.calls_beside_ends()
    with ending:
        if name in WAITING:  # their drivers hold back the look themselves
            Rows("host").stream_flags(0, ending.stream.cuda_stream)
        else:
            call(Rows("host"), name, ending)
    assert host.calls_beside_ends() > before


@pytest.mark.parametrize("name", sorted(GUARDED | WAITING))
def test_every_row_about_a_stream_or_an_event_waits_until_the_end_is_over(host, name):
    ending, before, order = Ending(host), host.calls_beside_ends(), []

    def ask():
        call(Rows(), name, ending)
        order.append(host.held_capture_ends())

    with ending:
        thread = threading.Thread(target=ask)
        thread.start()
        wait_until(lambda: thread.native_id is not None)
        assert order == []
    thread.join(SECONDS)
    assert order == [0]
    assert host.calls_beside_ends() == before


def test_whether_a_stream_captures_is_answered_at_any_time(host):
    ending, before = Ending(host), host.calls_beside_ends()
    with ending:
        assert Rows().stream_is_capturing(0, ending.stream.cuda_stream) == (0, 1)
        assert host.held_capture_ends() == 1
    assert Rows().stream_is_capturing(0, ending.stream.cuda_stream) == (0, 0)
    assert host.calls_beside_ends() == before


def test_memory_that_a_captured_stream_used_is_freed_at_once_while_the_capture_ends(host):
    ending, before = Ending(host), host.calls_beside_ends()
    memory = accelrt.Buffer(1000)
    memory.record_stream(ending.stream)
    memory.record_stream(ending.side)
    pinned = accelrt.PinnedBuffer(5000)
    accelrt.record_host_stream(pinned, ending.side)
    with ending:
        memory.free()
        pinned.free()
        assert host.held_capture_ends() == 1  # what was to be recorded behind the streams is put off
    assert host.calls_beside_ends() == before
    accelrt.synchronize()
    accelrt.empty_cache()
    assert accelrt.memory_stats()["active.all.current"] == 1  # that of the capture
    assert accelrt.host_memory_stats()["active_requests.current"] == 0


def test_the_end_does_not_wait_for_a_copy_that_waits_for_its_stream(host):
    # The copy's stream waits for what this thread does after the end.
    copying = accelrt.Stream()
    source, target = accelrt.Buffer(64, stream=copying), np.zeros(64, np.uint8)
    source.fill(7, stream=copying)
    with Gate(copying):
        sides = (target.ctypes.data, source.ptr, 64)
        reader = threading.Thread(target=Rows().copy, args=(0, copying.cuda_stream, *sides))
        reader.start()
        with Ending(host):
            pass
    reader.join(SECONDS)
    assert (target == 7).all()


def test_captures_end_one_after_the_other(host):
    before, graphs = host.calls_beside_ends(), []

    def capture(_):
        stream = accelrt.Stream()
        with accelrt.Buffer(64, stream=stream) as memory:
            for n in range(5):
                graph = accelrt.CUDAGraph()
                with accelrt.graph(graph, stream=stream, capture_error_mode="thread_local"):
                    memory.fill(n)
                with accelrt.stream(stream):
                    graph.replay()
                graphs.append((bytes_of(memory, stream) == n).all())

    host.delay_capture_ends(500)
    on_threads(capture, range(8))
    assert len(graphs) == 40
    assert all(graphs)
    assert host.calls_beside_ends() == before


@in_own_process
def test_threads_that_ask_of_all_streams_meet_no_end_of_a_capture():
    from accelrt.driver.host import driver as host

    accelrt.init()
    host.delay_capture_ends(2000)
    streams = [accelrt.Stream() for _ in range(4)]
    memory = [accelrt.Buffer(256, stream=stream) for stream in streams]

    def ask(over, number):
        event, pool = accelrt.Event(), accelrt.MemPool()
        own = accelrt.Stream()
        calls = [
            lambda stream: accelrt.Buffer(1000, stream=own).record_stream(stream),
            lambda stream: accelrt.record_host_stream(accelrt.PinnedBuffer(5000), stream),
            lambda stream: (event.record(own), own.query(), event.query(), own.synchronize()),
            lambda stream: stream.priority,
            lambda stream: accelrt.empty_cache(),
            lambda stream: [accelrt.Buffer((3 << 20) + 4096 * n, stream=own) for n in range(4)],
            lambda stream: (accelrt.memory_stats(), accelrt.is_current_stream_capturing()),
        ]
        while not (over.is_set() and made[number]):
            with accelrt.use_mem_pool(pool), accelrt.stream(own):
                calls[made[number] % len(calls)](streams[(made[number] + number) % len(streams)])
            made[number] += 1

    made = [0] * 6
    with until_over(ask, range(6)):
        for n in range(60):
            graph = accelrt.CUDAGraph()
            with accelrt.graph(graph, stream=streams[0], capture_error_mode="thread_local"):
                memory[0].fill(n)
                for other in streams[1:]:
                    other.wait_stream(streams[0])
                    streams[0].wait_stream(other)
            with accelrt.stream(streams[0]):
                graph.replay()
    assert all(made), made
    accelrt.synchronize()
    assert host.calls_beside_ends() == 0


@pytest.mark.parametrize("devices", [1, 2])
@in_own_process(ACCELRT_HOST_END_DELAY_US="200")
def test_eight_threads_capture_copy_free_and_replay_with_the_right_contents(devices):
    rounds, wrong = storm(1.5, 8, devices)
    assert rounds
    assert wrong == 0


@in_own_process
def test_memory_given_back_as_of_an_event_waits_for_the_end_of_a_capture():
    # The watch stream is the allocator's own, so another thread's end makes the event no captured one.

    faults = wrap_host()
    driver.delay_capture_ends(0, hold=True)
    stream = accelrt.Stream()
    address = accelrt.caching_allocator_alloc(4096, stream=stream)
    done = stream.record_event()
    rows = Rows()
    _, captured = rows.stream_create(0, 1, 0)
    assert rows.capture_begin(0, captured, 2) == 0
    giver = park("stream_wait_event", lambda: accelrt.memory.free_after(address, done), "after")
    ender = Caller(lambda: rows.capture_end(0, captured)).begin()
    while not driver.held_capture_ends():
        assert not ender.is_done()
    assert faults.go_on()
    assert not giver.is_done(0.05)
    driver.delay_capture_ends(0)
    giver.result()
    code, graph = ender.result()
    assert (code, rows.graph_destroy(graph)) == (0, 0)
    accelrt.synchronize()
    accelrt.memory.audit()
    assert driver.calls_beside_ends() == 0
