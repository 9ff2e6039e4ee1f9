"""Python functions in a stream's order, and what becomes of what they raise."""

import threading

import pytest
from beside import Crowd, Gate
from child import in_child, in_own_process
from waiting import wait_until

import accelrt
from accelrt.driver.registry import Rows

pytestmark = pytest.mark.host
WAYS = {
    "stream": lambda stream: stream.synchronize(),
    "another stream": lambda stream: (stream.query() or wait(stream), accelrt.Stream().synchronize()),
    "event": lambda stream: stream.record_event().synchronize(),
    "device": lambda stream: accelrt.synchronize(),
    "query": lambda stream: wait(stream),
    "query of another stream": lambda stream: (wait_quietly(stream), accelrt.Stream().query()),
    "query of an event": lambda stream: wait(stream.record_event()),
}


def wait(work):
    wait_until(work.query)


def wait_quietly(stream):
    passed = threading.Event()
    stream.launch_host_func(passed.set)
    passed.wait()


def fail(text):
    raise KeyError(text)


@pytest.mark.parametrize("way", WAYS)
def test_every_synchronize_reports_what_a_function_raised(way):
    stream = accelrt.Stream()
    stream.launch_host_func(lambda: fail("one"))
    with pytest.raises(KeyError, match="one"):
        WAYS[way](stream)
    WAYS[way](stream)


@pytest.mark.parametrize("way", WAYS)
def test_several_errors_come_together_and_none_is_lost(way):
    stream = accelrt.Stream()
    for text in "abc":
        stream.launch_host_func(lambda text=text: fail(text))
    with pytest.raises(ExceptionGroup, match="3 host functions raised") as caught:
        WAYS[way](stream)
    assert [error.args[0] for error in caught.value.exceptions] == ["a", "b", "c"]
    WAYS[way](stream)


def test_errors_from_two_streams_come_together():
    streams = [accelrt.Stream(ordinal) for ordinal in range(accelrt.device_count())] + [accelrt.Stream()]
    passed = threading.Semaphore(0)
    for stream in streams:
        stream.launch_host_func(lambda: fail("any"))
        stream.launch_host_func(passed.release)
    for _ in streams:
        passed.acquire()
    with pytest.raises(ExceptionGroup) as caught:
        streams[0].synchronize()
    assert len(caught.value.exceptions) == len(streams)


def test_what_is_no_exception_of_programs_is_reported_too():
    stream = accelrt.Stream()
    stream.launch_host_func(lambda: exec("raise SystemExit(3)"))
    stream.launch_host_func(lambda: fail("other"))
    with pytest.raises(BaseExceptionGroup) as caught:
        stream.synchronize()
    assert [type(error) for error in caught.value.exceptions] == [SystemExit, KeyError]


def test_the_first_errors_are_kept_and_all_are_counted():
    stream = accelrt.Stream()
    for number in range(1000):
        stream.launch_host_func(lambda number=number: fail(number))
    with pytest.raises(ExceptionGroup, match="1000 host functions raised; the first 32 are here") as caught:
        stream.synchronize()
    assert [error.args[0] for error in caught.value.exceptions] == list(range(32))
    stream.launch_host_func(lambda: fail("later"))
    with pytest.raises(KeyError, match="later"):
        stream.synchronize()


def test_a_query_that_finds_work_left_raises_nothing_yet():
    stream = accelrt.Stream()
    stream.launch_host_func(lambda: fail("one"))
    wait_quietly(stream)
    with Gate(stream):
        assert not stream.query()
    with pytest.raises(KeyError, match="one"):
        wait(stream)


def test_the_work_behind_a_function_that_raised_runs():
    stream, seen = accelrt.Stream(), []
    stream.launch_host_func(lambda: fail("first"))
    stream.launch_host_func(lambda: seen.append(1))
    with pytest.raises(KeyError):
        stream.synchronize()
    assert seen == [1]


def test_each_replay_reports_its_own_error():
    stream, graph = accelrt.Stream(), accelrt.CUDAGraph()
    with accelrt.graph(graph, stream=stream):
        stream.launch_host_func(lambda: fail("replayed"))
    with accelrt.stream(stream):
        for _ in range(2):
            graph.replay()
            with pytest.raises(KeyError, match="replayed"):
                stream.synchronize()


def raise_and_leave():
    accelrt.Stream().launch_host_func(lambda: fail("nobody asked"))


@pytest.mark.own_process
def test_errors_that_nobody_asked_for_are_shown_at_exit():
    out = in_child(raise_and_leave)
    assert "Exception ignored in" in out
    assert "nobody asked" in out


def test_full_queues_do_not_deadlock_with_a_function_of_pythons():
    stream, gate = accelrt.Stream(), threading.Event()
    stream.launch_host_func(gate.wait)
    threading.Timer(0.05, gate.set).start()  # a pause, so that the queue is full before it
    event, other = accelrt.Event(), accelrt.Event()
    for _ in range(5000):
        event.record(stream)
        stream.wait_event(other)
        stream.wait_event(event)
    stream.synchronize()


def test_what_dies_with_a_function_on_the_drivers_thread_goes_back_later():
    """A driver may wait, in a call made in a host function, for that function's end."""
    stream, other, gate = accelrt.Stream(), accelrt.Stream(), threading.Event()
    with accelrt.stream(stream):
        kept = [accelrt.Buffer(4096), accelrt.pinned_empty(4096), accelrt.CUDAGraph(), accelrt.Event()]
        kept[0].record_stream(other)
        kept[0].copy_to(kept[1], blocking=False)
        other.launch_host_func(gate.wait)
        with accelrt.graph(kept[2]):
            accelrt.Buffer(512).fill(1)
        kept[3].record()
        stream.launch_host_func(lambda kept=kept: None)
        del kept
    wait(stream)
    gate.set()
    accelrt.synchronize()
    accelrt.empty_cache()
    accelrt.host_empty_cache()
    assert accelrt.memory_allocated() == accelrt.memory_reserved() == 0
    assert accelrt.host_memory_stats()["allocated_bytes.current"] == 0


def test_a_copy_to_other_host_memory_behind_a_function_lets_other_threads_use_the_driver():
    stream, own, out, waits = accelrt.Stream(), accelrt.Stream(), bytearray(4096), threading.Event()

    def busy():
        accelrt.Event().record(own)
        accelrt.Stream().query()
        waits.set()

    with Crowd(busy), accelrt.Buffer(4096, stream=stream) as buffer:
        for value in range(20):
            buffer.fill(value, stream=stream)
            waits.clear()
            stream.launch_host_func(waits.wait)
            buffer.copy_to(out, stream=stream)
            assert out == bytes([value]) * 4096


@in_own_process
def test_a_function_in_a_capture_that_others_began_runs_with_each_launch():
    accelrt.init()
    rows, ran = Rows(), []
    _, handle = rows.stream_create(0, 1, 0)
    stream = accelrt.ExternalStream(handle)
    assert rows.capture_begin(0, handle, 0) == 0
    stream.launch_host_func(lambda: ran.append(len(ran)))
    _, graph = rows.capture_end(0, handle)
    _, launched = rows.graph_instantiate(0, graph, 0)
    for _ in range(100):
        assert rows.graph_launch(0, launched, handle) == 0
        stream.launch_host_func(int)
        stream.synchronize()
    assert ran == list(range(100))
    rows.graph_exec_destroy(launched)
    rows.graph_destroy(graph)
