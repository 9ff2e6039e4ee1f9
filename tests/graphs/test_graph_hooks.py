"""Hooks around captures and replays: when they are called, and what it does if they raise."""

import gc
import weakref

import numpy as np
import pytest

import accelrt

KINDS = ["capture_pre", "capture", "replay_pre", "replay"]


def register(graph, kind, hook):
    return getattr(graph, f"register_{kind}_hook")(hook)


def capture(graph, buffer, value=1):
    with accelrt.graph(graph):
        buffer.fill(value)


class Boom(Exception):
    pass


def raising(graph):
    raise Boom


def test_hooks_are_called_in_the_order_of_their_registration():
    graph, seen = accelrt.CUDAGraph(), []
    for number in (1, 2):
        for kind in reversed(KINDS):
            register(graph, kind, lambda g, name=f"{kind} {number}": seen.append((name, g is graph)))
    with accelrt.Buffer(512) as buffer:
        capture(graph, buffer)
        assert [name for name, same in seen if same] == [f"{kind} {n}" for kind in KINDS[:2] for n in (1, 2)]
        del seen[:]
        graph.replay()
        assert [name for name, same in seen if same] == [f"{kind} {n}" for kind in KINDS[2:] for n in (1, 2)]


def test_hooks_around_a_capture_are_outside_of_it_and_the_last_can_replay():
    graph, out, states = accelrt.CUDAGraph(), np.zeros(512, np.uint8), []
    buffer = accelrt.Buffer(512)

    def after(graph):
        states.append((accelrt.is_current_stream_capturing(), graph.is_capturing, graph.node_count))
        graph.replay()

    graph.register_capture_pre_hook(lambda g: states.append((accelrt.is_current_stream_capturing(),)))
    graph.register_capture_hook(after)
    capture(graph, buffer, 3)
    accelrt.synchronize()
    buffer.copy_to(out)
    assert states == [(False,), (False, False, 1)]
    assert (out == 3).all()


def test_what_a_hook_puts_into_the_stream_is_ordered_around_the_replay():
    graph, stream, seen = accelrt.CUDAGraph(), accelrt.Stream(), []
    with accelrt.graph(graph, stream=stream):
        stream.launch_host_func(lambda: seen.append("graph"))

    def note(text):
        return lambda graph: accelrt.current_stream().launch_host_func(lambda: seen.append(text))

    graph.register_replay_pre_hook(note("before"))
    graph.register_replay_hook(note("after"))
    with accelrt.stream(stream):
        graph.replay()
        graph.replay()
    stream.synchronize()
    assert seen == ["before", "graph", "after"] * 2


def test_a_removed_hook_is_called_no_more():
    graph, seen = accelrt.CUDAGraph(), []
    handles = [register(graph, "replay", lambda g, n=n: seen.append(n)) for n in range(3)]
    with accelrt.Buffer(512) as buffer:
        capture(graph, buffer)
        handles[1].remove()
        handles[1].remove()
        graph.replay()
        assert seen == [0, 2]
        with handles[0], handles[2]:
            graph.replay()
        graph.replay()
    assert seen == [0, 2, 0, 2]


def test_a_hook_may_remove_itself():
    graph, seen = accelrt.CUDAGraph(), []
    first = graph.register_replay_pre_hook(lambda g: (seen.append(1), first.remove()))
    graph.register_replay_pre_hook(lambda g: seen.append(2))
    with accelrt.Buffer(512) as buffer:
        capture(graph, buffer)
        graph.replay()
        graph.replay()
    assert seen == [1, 2, 2]


@pytest.mark.parametrize("kind", KINDS[:2])
def test_a_hook_that_raises_around_a_capture_leaves_the_graph_empty(kind):
    graph, called = accelrt.CUDAGraph(), []
    handle = register(graph, kind, raising)
    register(graph, kind, called.append)
    with accelrt.Buffer(512) as buffer:
        with pytest.raises(Boom):
            capture(graph, buffer)
        assert not called
        assert not graph.is_capturing
        assert not graph.is_captured
        assert not accelrt.is_current_stream_capturing()
        handle.remove()
        capture(graph, buffer)
        graph.replay()
    assert called == [graph]


@pytest.mark.parametrize(("kind", "launched"), [("replay_pre", 0), ("replay", 1)])
def test_a_hook_that_raises_around_a_replay_leaves_the_graph_ready(kind, launched):
    graph, stream, seen = accelrt.CUDAGraph(), accelrt.Stream(), []
    with accelrt.graph(graph, stream=stream):
        stream.launch_host_func(lambda: seen.append(1))
    handle = register(graph, kind, raising)
    with accelrt.stream(stream), pytest.raises(Boom):
        graph.replay()
    stream.synchronize()
    assert len(seen) == launched
    handle.remove()
    with accelrt.stream(stream):
        graph.replay()
    stream.synchronize()
    assert len(seen) == launched + 1


def test_a_hook_that_captures_the_graph_itself_is_told():
    graph = accelrt.CUDAGraph()
    buffer, within = accelrt.Buffer(512), []

    def sneaks(graph):
        if not within:
            within.append(1)
            capture(graph, buffer)

    graph.register_capture_pre_hook(sneaks)
    with pytest.raises(RuntimeError, match="holds a capture already"):
        capture(graph, buffer)
    assert graph.node_count == 1
    graph.replay()


def test_no_hook_is_called_around_a_capture_or_replay_that_cannot_be():
    graph, called = accelrt.CUDAGraph(), []
    for kind in KINDS:
        register(graph, kind, called.append)
    with pytest.raises(RuntimeError, match="nothing to replay"):
        graph.replay()
    with pytest.raises(ValueError, match="capture_error_mode"):
        graph.capture_begin(capture_error_mode="no")
    assert not called


def test_hooks_stay_when_the_graph_is_reset_and_do_not_keep_it_alive():
    graph, called = accelrt.CUDAGraph(), []
    handle = graph.register_capture_hook(lambda g: called.append(g.node_count))
    with accelrt.Buffer(512) as buffer:
        capture(graph, buffer)
        graph.reset()
        capture(graph, buffer)
    assert called == [1, 1]
    hook = weakref.ref(handle.hook)
    del graph
    handle.remove()
    del handle
    gc.collect()
    assert hook() is None


def test_what_cannot_be_called_is_no_hook():
    for kind in KINDS:
        with pytest.raises(TypeError, match="cannot be called"):
            register(accelrt.CUDAGraph(), kind, 3)


# --- at the end of a graph -------------------------------------------------------------------------


def test_a_destruction_hook_is_called_at_a_reset_and_at_the_objects_end():
    graph, seen = accelrt.CUDAGraph(), []
    with accelrt.Buffer(512) as buffer:
        graph.register_destruction_hook(lambda: seen.append("first"))
        removed = graph.register_destruction_hook(lambda: seen.append("removed"))
        graph.register_destruction_hook(lambda: seen.append("last"))
        graph.reset()
        assert seen == []  # it held nothing
        capture(graph, buffer)
        removed.remove()
        graph.reset()
        assert seen == ["first", "last"]
        graph.reset()
        assert seen == ["first", "last"]
        capture(graph, buffer)
        graph.replay()
        del graph
        gc.collect()
        assert seen == ["first", "last"] * 2
        accelrt.synchronize()


def test_a_destruction_hook_is_called_where_a_collection_finds_the_graph():
    seen = []
    with accelrt.Buffer(512) as buffer:
        graph = accelrt.CUDAGraph()
        capture(graph, buffer)
        graph.register_destruction_hook(lambda: seen.append("destroyed"))
        cycle = [graph]
        cycle.append(cycle)
        del graph, cycle
        gc.collect()
    assert seen == ["destroyed"]


def test_a_destruction_hook_sees_the_memory_given_back():
    pool, graph, figures = accelrt.MemPool(), accelrt.CUDAGraph(), []
    with accelrt.Buffer(512) as buffer:
        with accelrt.graph(graph, pool=pool):
            buffer.fill(1)
        assert pool.use_count() == 2
        graph.register_destruction_hook(lambda: figures.append(pool.use_count()))
        del graph
        gc.collect()
        assert figures == [1]


def test_what_a_destruction_hook_raises_is_raised_by_the_reset_or_reported(monkeypatch):
    graph, reported = accelrt.CUDAGraph(), []
    with accelrt.Buffer(512) as buffer:
        capture(graph, buffer)
        hook = graph.register_destruction_hook(lambda: raising(None))
        with pytest.raises(Boom):
            graph.reset()
        assert not graph.is_captured
        capture(graph, buffer)
        monkeypatch.setattr("sys.unraisablehook", lambda told: reported.append(told.exc_type))
        del graph
        gc.collect()
        assert reported == [Boom]
        assert hook.hook
    with pytest.raises(TypeError, match="hook is 5, which cannot be called"):
        accelrt.CUDAGraph().register_destruction_hook(5)


@pytest.mark.parametrize("error", [Boom, KeyboardInterrupt, SystemExit])
def test_what_a_destructors_hook_raises_is_reported_once_and_ends_nothing(error, monkeypatch):
    """Printed as an exception of the program's, a SystemExit would end the process within the destructor."""
    graph, reported = accelrt.CUDAGraph(), []

    def raises():
        raise error

    with accelrt.Buffer(512) as buffer:
        capture(graph, buffer)
        graph.register_destruction_hook(raises)
        monkeypatch.setattr("sys.excepthook", lambda kind, *_: reported.append(f"printed {kind}"))
        monkeypatch.setattr("sys.unraisablehook", lambda told: reported.append(told.exc_type))
        del graph
        gc.collect()
    assert reported == [error]


def test_an_instance_of_a_definition_has_its_own_destruction_hooks(by_hand):
    definition, seen = accelrt.GraphDefinition(), []
    with accelrt.Buffer(512) as buffer:
        definition.fill(buffer, 1)
        instance = definition.instantiate()
        instance.register_destruction_hook(lambda: seen.append(len(definition.nodes())))
        instance.replay()
        del instance
        gc.collect()
        accelrt.synchronize()
    assert seen == [1]
