"""Contexts left twice, without being entered, on another thread or out of turn: RuntimeError, and what is
current stays what it was."""

import contextlib
import gc
import os
import threading

import pytest
from beside import on_a_thread, on_threads
from child import in_own_process

import accelrt

LAST = accelrt.device_count() - 1
NOTHING = contextlib.nullcontext()  # stream(None) enters nothing


def leave(context, error=None):
    context.__exit__(error, error and error(), None)


STREAMS = ("stream", "stream of the last device", "stream None", "device", "device None", "device_of")
KINDS = (*STREAMS, "use_mem_pool", "sleepable", "tag", "graph", "if_", "while_")


def kinds():
    """Ways to make a context, by name; what they need lives with them."""
    pool, graph, flag = accelrt.MemPool(), accelrt.CUDAGraph(), accelrt.Buffer(4)
    return {
        "stream": lambda: accelrt.stream(accelrt.Stream()),
        "stream of the last device": lambda: accelrt.stream(accelrt.Stream(LAST)),
        "stream None": lambda: accelrt.stream(None),
        "device": lambda: accelrt.device(LAST),
        "device None": lambda: accelrt.device(None),
        "device_of": lambda: accelrt.device_of(flag),
        "use_mem_pool": lambda: accelrt.use_mem_pool(pool),
        "sleepable": lambda: accelrt.memory.sleepable("kept"),
        "tag": lambda: accelrt.memory.tag("kept"),
        "graph": lambda: accelrt.graph(graph),
        "if_": lambda: graph.if_(flag),
        "while_": lambda: graph.while_(flag),
    }


@pytest.fixture
def unchanged():
    accelrt.set_device(0)
    yield
    gc.collect()
    assert accelrt.current_device() == 0
    assert accelrt.current_stream() is accelrt.default_stream()
    assert accelrt.Buffer(64).stream is accelrt.default_stream()
    assert not accelrt.is_current_stream_capturing()


@pytest.mark.parametrize("kind", [*STREAMS, "use_mem_pool"])
def test_what_is_left_on_another_thread_can_still_be_left_here(unchanged, kind):
    context = kinds()[kind]()
    context.__enter__()
    inside = accelrt.current_stream(), accelrt.current_device()

    def other():
        before = accelrt.current_stream()
        with contextlib.suppress(RuntimeError):
            leave(context)
        return accelrt.current_stream() is before

    assert on_a_thread(other)
    assert (accelrt.current_stream(), accelrt.current_device()) == inside
    with contextlib.suppress(RuntimeError):
        leave(context)


@pytest.mark.parametrize("kind", STREAMS)
def test_what_is_entered_in_itself_is_left_step_by_step(unchanged, kind):
    context, stream = kinds()[kind](), accelrt.Stream()
    with context:
        outer = accelrt.current_stream(), accelrt.current_device()
        with accelrt.stream(stream):
            with context:
                assert (accelrt.current_stream(), accelrt.current_device())[1] == outer[1]
            assert accelrt.current_stream() is stream
        assert (accelrt.current_stream(), accelrt.current_device()) == outer


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("error", [None, KeyError])
def test_leaving_what_is_not_entered_is_an_error(unchanged, kind, error):
    context, enters = kinds()[kind](), kind in (*STREAMS, "use_mem_pool", "sleepable", "tag")
    for again in (False, enters, enters):
        if again:
            with context:
                pass
        for _ in range(2):
            with pytest.raises(RuntimeError, match="not entered") if kind != "stream None" else NOTHING:
                leave(context, error)


def test_a_stream_context_says_what_is_wrong():
    context = accelrt.stream(accelrt.Stream())
    with pytest.raises(RuntimeError, match="is not entered, or was left already"):
        leave(context)
    with context, pytest.raises(RuntimeError, match="was entered on another thread"):
        on_a_thread(lambda: leave(context))
    with pytest.raises(RuntimeError, match="is not entered"):
        leave(context)
    assert accelrt.current_stream() is accelrt.default_stream()


def test_a_context_that_threads_share_is_each_threads_own():
    stream, barrier = accelrt.Stream(), threading.Barrier(4)
    context = accelrt.stream(stream)

    def use(_):
        for _ in range(50):
            barrier.wait()
            with context:
                barrier.wait()
                assert accelrt.current_stream() is stream
                with context:
                    assert accelrt.current_stream() is stream
            assert accelrt.current_stream() is accelrt.default_stream()

    on_threads(use, range(4))


def test_a_generator_closed_on_another_thread_leaves_that_threads_stream_alone():
    stream, opened = accelrt.Stream(), contextlib.ExitStack()
    context = accelrt.stream(stream)

    def generator():
        with context:
            yield

    steps = generator()
    next(steps)
    opened.callback(leave, context)
    with pytest.raises(RuntimeError, match="another thread"):
        on_a_thread(steps.close)
    assert accelrt.current_stream() is stream
    opened.close()
    assert accelrt.current_stream() is accelrt.default_stream()


@pytest.mark.parametrize("context_of", [accelrt.stream, lambda stream: stream], ids=["stream()", "Stream"])
def test_contexts_left_out_of_turn_end_where_the_first_began(context_of):
    streams = [accelrt.Stream() for _ in range(4)]
    contexts = [context_of(stream) for stream in streams]
    for context in contexts:
        context.__enter__()
    for context in contexts[:3]:
        with pytest.raises(RuntimeError, match="is left before one that was entered inside"):
            leave(context)
        assert accelrt.current_stream() is streams[3]
    leave(contexts[3])
    assert accelrt.current_stream() is accelrt.default_stream()


@pytest.mark.skipif(not LAST, reason="needs two devices")
def test_contexts_of_two_devices_left_out_of_turn_return_to_both():
    near, far = accelrt.stream(accelrt.Stream(0)), accelrt.stream(accelrt.Stream(1))
    near.__enter__()
    far.__enter__()
    with pytest.raises(RuntimeError, match="left before one"):
        leave(near)
    assert accelrt.current_stream(0) is accelrt.default_stream(0)
    assert accelrt.current_stream(1) is far.stream
    leave(far)
    assert accelrt.current_stream(1) is accelrt.default_stream(1)
    assert accelrt.current_device() == 0


def test_a_context_that_was_dropped_inside_is_left_with_the_outer_one():
    with accelrt.stream(accelrt.Stream()):
        accelrt.stream(accelrt.Stream(LAST)).__enter__()
        assert accelrt.current_device() == LAST
    assert accelrt.current_stream(0) is accelrt.default_stream(0)
    assert accelrt.current_stream(LAST) is accelrt.default_stream(LAST)
    assert accelrt.current_device() == 0


def test_set_stream_inside_of_a_context_lasts_until_it_is_left():
    with accelrt.stream(accelrt.Stream()):
        other = accelrt.Stream()
        accelrt.set_stream(other)
        assert accelrt.current_stream() is other
    assert accelrt.current_stream() is accelrt.default_stream()


def test_a_graph_that_is_ready_is_left_alone_by_a_context_that_is_not_entered():
    graph, buffer = accelrt.CUDAGraph(), accelrt.Buffer(64)
    with accelrt.graph(graph) as _:
        buffer.fill(1)
    with pytest.raises(RuntimeError, match="graph context is not entered"):
        accelrt.graph(graph).__exit__(KeyError, KeyError(), None)
    assert graph.is_captured
    graph.replay()
    accelrt.synchronize()


def test_a_capture_left_on_another_thread_is_over_and_both_threads_go_on():
    graph, buffer = accelrt.CUDAGraph(), accelrt.Buffer(64)
    context = accelrt.graph(graph, capture_error_mode="thread_local")
    context.__enter__()
    with pytest.raises(RuntimeError):
        on_a_thread(lambda: leave(context))
    with pytest.raises(RuntimeError):
        leave(context)
    assert accelrt.current_stream() is accelrt.default_stream()
    assert not graph.is_capturing
    with accelrt.graph(graph):
        buffer.fill(1)


@in_own_process
def test_threads_that_end_inside_of_contexts_take_them_along():
    for _ in range(100):
        contexts = [accelrt.stream(accelrt.Stream()) for _ in range(20)]
        on_a_thread(lambda contexts=contexts: [context.__enter__() for context in contexts])
        for context in contexts:
            with contextlib.suppress(RuntimeError):
                leave(context)
    assert accelrt.current_stream() is accelrt.default_stream()


@in_own_process
def test_a_forked_child_leaves_what_its_parent_entered():
    with accelrt.stream(accelrt.Stream(LAST)):
        child = os.fork()
    if child == 0:
        os._exit(0)  # the context was left without a word
    assert os.waitpid(child, 0)[1] == 0
    assert accelrt.current_stream() is accelrt.default_stream()
