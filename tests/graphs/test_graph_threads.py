"""A capture beside other threads: what it waits for as it begins, what is refused, and what goes on."""

import contextlib
import functools
import gc
import threading
import time

import numpy as np
import pytest
from beside import SECONDS, Caller, on_a_thread, on_threads
from child import in_own_process, wrap_host
from waiting import wait_until, wait_until_asleep

import accelrt
from accelrt import testing
from accelrt.memory import free_after

MIB = 1 << 20
SHARED = "another thread begins, ends or drops a capture of this CUDAGraph"


def is_busy(graph):
    try:
        graph.reset()
    except RuntimeError as error:
        return SHARED in str(error)
    return False


def is_capture_counted(event, stream, faults):
    """Whether captures are counted: then each record asks whether its stream captures.  The thread that
    begins a capture asks the same before it counts, a few streams at most."""
    before = faults.call_counts()["capture_status"]
    for _ in range(100):
        event.record(stream)
    return faults.call_counts()["capture_status"] - before >= 100


@contextlib.contextmanager
def about_to_begin(graph, stream, faults):
    """Another thread is inside capture_begin, has counted its capture, and waits for one that gives
    page-locked memory back, and that for the device."""
    gate, waiter = threading.Event(), accelrt.Stream()
    accelrt.PinnedBuffer(3 * MIB).free()
    waiter.launch_host_func(gate.wait)

    def capture():
        with accelrt.stream(stream), accelrt.Buffer(64, stream=stream) as buffer:
            graph.capture_begin(capture_error_mode="relaxed")
            buffer.fill(1)
            graph.capture_end()

    callers = [Caller(accelrt.host_empty_cache), Caller(capture)]
    try:
        callers[0].begin()
        wait_until(lambda: faults.call_counts()["host_free"])
        callers[1].begin()
        assert any(is_busy(graph) for _ in range(10**6))
        event = accelrt.Event()
        assert any(is_capture_counted(event, stream, faults) for _ in range(10**4))
        yield
    finally:
        gate.set()
        for caller in callers:
            caller.begin().thread.join()
    for caller in callers:
        caller.result()


@in_own_process
def test_a_graph_that_another_thread_begins_to_capture_is_refused_and_nothing_is_left():
    faults, graph, stream = wrap_host(), accelrt.CUDAGraph(), accelrt.Stream()
    with about_to_begin(graph, stream, faults):
        for call in (graph.capture_begin, graph.capture_end, graph.reset):
            with pytest.raises(RuntimeError, match=SHARED):
                call()
        with pytest.raises(RuntimeError, match=SHARED), accelrt.graph(graph):
            pass
    graph.replay()
    accelrt.synchronize()
    graph.reset()
    with accelrt.graph(graph), accelrt.Buffer(64) as buffer:
        buffer.fill(1)
    graph.reset()
    accelrt.synchronize()
    accelrt.empty_cache()
    assert accelrt.memory_reserved() == 0


@in_own_process
def test_no_stream_is_asked_from_the_moment_that_a_capture_is_about_to_begin():
    faults, graph, stream = wrap_host(), accelrt.CUDAGraph(), accelrt.Stream()
    other = accelrt.Stream()
    accelrt.Buffer(64 * MIB, stream=stream).free()
    with about_to_begin(graph, stream, faults):
        faults.reset_call_counts()
        accelrt.Buffer(72 * MIB, stream=other).free()
        accelrt.PinnedBuffer(64).free()
        counts = faults.call_counts()
        assert counts["physical_create"] > 0
        assert counts["stream_query"] == counts["device_synchronize"] == 0
    accelrt.Buffer(64 * MIB, stream=stream).free()  # else the event of before may have said that it is idle
    faults.reset_call_counts()
    accelrt.Buffer(144 * MIB, stream=other).free()
    assert faults.call_counts()["stream_query"] > 0


@pytest.mark.parametrize("mode", ["global", "thread_local", "relaxed"])
def test_memory_is_freed_as_of_an_event_beside_another_threads_capture(mode):
    graph, stream, other, used = accelrt.CUDAGraph(), accelrt.Stream(), accelrt.Stream(), accelrt.Stream()
    gate, taken = threading.Event(), []
    first = accelrt.caching_allocator_alloc(4 * MIB, stream=stream)
    second = accelrt.caching_allocator_alloc(4 * MIB, stream=stream)
    stream.launch_host_func(gate.wait)
    done = stream.record_event()

    def give_back():
        accelrt.record_stream(second, used)
        free_after(first, done)
        free_after(second, done)
        other.wait_event(done)
        taken.append(accelrt.caching_allocator_alloc(4 * MIB, stream=other))

    with accelrt.Buffer(64) as buffer:
        with accelrt.graph(graph, capture_error_mode=mode):
            buffer.fill(1)
            on_a_thread(give_back)
            buffer.fill(2)
        graph.replay()
        gate.set()
        accelrt.synchronize()
    assert taken == [first]
    accelrt.caching_allocator_delete(first)


def test_an_event_that_was_recorded_in_a_capture_frees_nothing_and_breaks_nothing():
    graph, out = accelrt.CUDAGraph(), np.zeros(64, np.uint8)
    address = accelrt.caching_allocator_alloc(MIB)
    with accelrt.Buffer(64) as buffer:
        with accelrt.graph(graph):
            buffer.fill(1)
            done = accelrt.current_stream().record_event()
            with pytest.raises(accelrt.CaptureError, match=r"recorded in a capture.*record_stream"):
                free_after(address, done)
            buffer.fill(2)
        with pytest.raises(accelrt.CaptureError, match="recorded in a capture"):
            free_after(address, done)
        graph.replay()
        buffer.copy_to(out)
    assert (out == 2).all()
    done.record()
    free_after(address, done)
    accelrt.synchronize()


@in_own_process
def test_no_node_goes_while_another_thread_instantiates_the_graph():
    """What a launch runs would not be as many functions as it counts, and the exit waits for these."""
    testing.use_device()
    graph, stream, runs = accelrt.CUDAGraph(keep_graph=True), accelrt.Stream(), []
    memory = accelrt.zeros(64, "u1")
    with accelrt.graph(graph, stream=stream):
        accelrt.fill(memory, 1, stream=stream)
    definition = accelrt.GraphDefinition(graph)
    definition.fill(accelrt.zeros(64, "u1"), 2)
    node = definition.host_function(lambda: runs.append(1))
    graph.replay()
    accelrt.synchronize()
    definition.fill(memory, 3)  # of memory that the streams of the replays are noted for
    other = accelrt.Buffer(4 * MIB)
    other.record_stream(stream)
    free = testing.park("event_record", other.free)  # has the allocator's lock, which the note waits for
    instantiate = threading.Thread(target=graph.instantiate)
    instantiate.start()
    wait_until_asleep(instantiate)
    with pytest.raises(RuntimeError, match=SHARED):
        node.remove()
    testing.go_on()
    free.result()
    instantiate.join()
    graph.replay()
    accelrt.synchronize()
    assert runs == [1, 1]


@in_own_process
def test_what_was_instantiated_stays_where_the_next_instance_is_refused():
    """It runs the functions that it had, keeps them, and counts as many: the exit waits for these."""
    graph, stream, runs = accelrt.CUDAGraph(keep_graph=True), accelrt.Stream(), []
    memory = accelrt.zeros(64, "u1")
    with accelrt.graph(graph, stream=stream):
        accelrt.fill(memory, 1, stream=stream)
        stream.launch_host_func(lambda: runs.append("captured"))
    graph.replay()
    definition = accelrt.GraphDefinition(graph)
    next(node for node in definition.nodes() if node.type == "host").remove()
    added = [definition.host_function(functools.partial(runs.append, f"added {place}")) for place in (1, 2)]
    definition.add_edge(*added)
    definition.add_edge(*added[::-1])
    with pytest.raises(accelrt.CudaError, match="edges that make a circle"):
        graph.instantiate()
    gc.collect()
    graph.replay()
    accelrt.synchronize()
    assert runs == ["captured"] * 2
    definition.remove_edge(*added[::-1])
    graph.instantiate()
    graph.replay()
    accelrt.synchronize()
    assert runs[2:] == ["added 1", "added 2"]


@in_own_process
def test_a_replay_is_refused_where_another_thread_gave_the_graph_other_memory_before_its_launch():
    """What it was given would stay as it was, and other memory be written."""
    testing.use_device()
    graph, generator = accelrt.CUDAGraph(keep_graph=True), accelrt.random.Generator(seed=1)
    captured, given, other = (accelrt.zeros(64, "u1") for _ in range(3))
    drawn = accelrt.empty(64, "f4")
    graph.register_generator_state(generator)
    with accelrt.graph(graph):
        generator.uniform(drawn)
        accelrt.fill(captured, 3)
    names = accelrt.GraphParameters(graph, out=captured)
    names.replay()
    replay = testing.park("stream_wait_event", functools.partial(names.replay, out=given))
    others = accelrt.GraphParameters(graph, out=captured)
    others.rebind(out=other)
    testing.go_on()
    with pytest.raises(RuntimeError, match="make other GraphParameters"):
        replay.result()
    accelrt.synchronize()
    assert [memory.numpy().any() for memory in (captured, given, other)] == [True, False, False]
    others.replay()
    accelrt.synchronize()
    assert (other.numpy() == 3).all()


def until_free(call):
    """What it answers once no other thread is in its way.

    The others let go of the GIL in the midst of what they do alone, and need it to come to an end.
    """
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        with contextlib.suppress(RuntimeError):
            return call()
        time.sleep(0)
    return call()


def test_names_and_changes_beside_updates_and_resets_of_their_instance_are_made_or_refused():
    definition, x, y = accelrt.GraphDefinition(), accelrt.Buffer(4096), accelrt.Buffer(4096)
    node = definition.copy(y, x)
    instances = [definition.instantiate()]

    def work(number):
        for _ in range(1000):
            if number == 0:
                until_free(lambda: instances[0].update(definition.graph))
                until_free(instances[0].reset)
                instances[0] = until_free(definition.instantiate)
                continue
            with contextlib.suppress(RuntimeError):
                if number == 1:
                    node.update(instance=instances[0], dst=y)
                names = accelrt.GraphParameters(instances[0], x=x, y=y)
                names.rebind(x=y, y=x)
                names.replay(x=x)

    on_threads(work, range(4))
