"""Capture and replay: what a graph does again, what it keeps, and what a broken capture leaves behind."""

import gc

import numpy as np
import pytest
from beside import on_a_thread
from device_arrays import pattern
from graph_memory import works_again

import accelrt


def test_a_capture_runs_nothing_and_a_replay_everything():
    stream, graph = accelrt.Stream(), accelrt.CUDAGraph()
    out = np.zeros(4096, np.uint8)
    with accelrt.Buffer(4096, stream=stream) as buffer:
        buffer.fill(1, stream=stream)
        with accelrt.graph(graph, stream=stream):
            assert accelrt.is_current_stream_capturing()
            buffer.fill(2)
        assert not accelrt.is_current_stream_capturing()
        buffer.copy_to(out, stream=stream)
        assert (out == 1).all()
        with accelrt.stream(stream):
            graph.replay()
        buffer.copy_to(out, stream=stream)
    assert (out == 2).all()
    assert graph.node_count == 1


def test_joined_streams_replay_in_order_on_new_inputs():
    first, second = accelrt.Stream(), accelrt.Stream()
    fork, join = accelrt.Event(), accelrt.Event()
    size, calls, graph = 1 << 16, [], accelrt.CUDAGraph()
    source, result = accelrt.PinnedBuffer(size), accelrt.PinnedBuffer(size)
    given, taken = np.frombuffer(source, np.uint8), np.frombuffer(result, np.uint8)
    with accelrt.Buffer(size, stream=first) as a, accelrt.Buffer(size, stream=second) as b:
        with accelrt.graph(graph, stream=first):
            a.copy_from(source, stream=first, blocking=False)
            fork.record(first)
            second.wait_event(fork)
            accelrt.copy(b, a, size // 2, src_offset=size // 2, stream=second, blocking=False)
            second.launch_host_func(lambda: calls.append(1))
            accelrt.copy(b, a, size // 2, dst_offset=size // 2, stream=first, blocking=False)
            join.record(second)
            first.wait_event(join)
            b.copy_to(result, stream=first, blocking=False)
        for seed in range(20):
            given[:] = pattern(size, seed)
            with accelrt.stream(first):
                graph.replay()
            first.synchronize()
            assert (taken == np.roll(given, size // 2)).all()
    assert len(calls) == 20
    graph.reset()
    del given, taken


def test_memory_of_a_capture_is_private_and_stays_until_the_graph_dies():
    graph = accelrt.CUDAGraph()
    with accelrt.graph(graph):
        buffer = accelrt.Buffer(4096)
        address = buffer.ptr
        buffer.fill(3)
        del buffer
        with accelrt.Buffer(4096) as again:
            assert again.ptr == address
    pools = {tuple(segment["segment_pool_id"]) for segment in accelrt.memory_snapshot(0)}
    assert graph.pool() in pools
    accelrt.empty_cache()
    assert address in {segment["address"] for segment in accelrt.memory_snapshot(0)}
    with accelrt.Buffer(4096) as outside:
        assert outside.ptr != address
    graph.reset()
    accelrt.empty_cache()
    assert accelrt.memory_reserved() == 0


def test_live_memory_of_a_dead_graph_goes_when_it_is_freed():
    graph = accelrt.CUDAGraph()
    with accelrt.graph(graph):
        kept = accelrt.Buffer(4096)
        kept.fill(1)
    del graph
    accelrt.empty_cache()
    assert accelrt.memory_allocated() == 4096
    del kept
    accelrt.empty_cache()
    assert accelrt.memory_reserved() == 0


def test_a_graph_without_a_capture_has_no_pool():
    graph = accelrt.CUDAGraph()
    assert repr(graph) == "<accelrt.CUDAGraph empty>"
    with pytest.raises(RuntimeError, match="has no memory pool: nothing is captured"):
        graph.pool()
    with (
        pytest.raises(RuntimeError, match="has no memory pool"),
        accelrt.graph(accelrt.CUDAGraph(), pool=graph),
    ):
        pass
    with accelrt.graph(graph), accelrt.Buffer(512) as buffer:
        inside = graph.pool()
        buffer.fill(1)
    assert graph.pool() == inside != (0, 0)
    graph.reset()
    with pytest.raises(RuntimeError, match="has no memory pool"):
        graph.pool()


def test_graphs_share_a_pool():
    pool = accelrt.graph_pool_handle()
    one, other = accelrt.CUDAGraph(), accelrt.CUDAGraph()
    stream = accelrt.Stream()
    with accelrt.graph(one, pool=pool, stream=stream), accelrt.Buffer(4096) as buffer:
        address = buffer.ptr
        buffer.fill(1)
    with accelrt.graph(other, pool=one, stream=stream), accelrt.Buffer(4096) as buffer:
        assert buffer.ptr == address
        buffer.fill(2)
    assert one.pool() == other.pool() == pool
    one.reset()
    accelrt.empty_cache()
    assert accelrt.memory_reserved() > 0
    other.reset()
    accelrt.empty_cache()
    assert accelrt.memory_reserved() == 0


def test_another_threads_memory_stays_out_of_the_capture():
    graph = accelrt.CUDAGraph()

    def allocate():
        with accelrt.Buffer(4096) as buffer:
            owner = next(
                s
                for s in accelrt.memory_snapshot(0)
                if s["address"] <= buffer.ptr < s["address"] + s["total_size"]
            )
            return owner["segment_pool_id"]

    with accelrt.Buffer(512) as target, accelrt.graph(graph):
        pool_id = on_a_thread(allocate)
        target.fill(1)
    assert pool_id == (0, 0)


def test_a_graph_outlives_what_it_was_captured_with():
    graph, out = accelrt.CUDAGraph(), np.zeros(512, np.uint8)
    target = accelrt.Buffer(512)
    data = pattern(512)
    source = accelrt.PinnedBuffer(512)
    np.frombuffer(source, np.uint8)[:] = data
    with accelrt.graph(graph):
        target.copy_from(source, blocking=False)
    del source
    gc.collect()
    graph.replay()
    target.copy_to(out)
    assert (out == data).all()


def test_the_default_stream_cannot_be_captured():
    graph = accelrt.CUDAGraph()
    with pytest.raises(accelrt.CaptureError, match="STREAM_CAPTURE_UNSUPPORTED") as caught:
        graph.capture_begin()
    assert "the legacy default stream cannot be captured" in str(caught.value)
    assert "accelrt.Stream()" in str(caught.value)
    assert not graph.is_capturing
    assert works_again()


def test_an_unjoined_stream_is_named_as_the_drivers_error_and_explained():
    graph, other, event = accelrt.CUDAGraph(), accelrt.Stream(), accelrt.Event()
    with accelrt.Buffer(512) as buffer:
        with (
            pytest.raises(accelrt.CaptureError, match="STREAM_CAPTURE_UNJOINED") as caught,
            accelrt.graph(graph),
        ):
            event.record()
            other.wait_event(event)
            buffer.fill(1, stream=other)
        assert "record an event at its end" in str(caught.value)
    assert works_again()
    other.synchronize()


@pytest.mark.parametrize("what", ["stream", "device", "event"])
def test_a_synchronize_inside_a_capture_breaks_it(what):
    graph, stream, event = accelrt.CUDAGraph(), accelrt.Stream(), accelrt.Event()
    with accelrt.Buffer(512) as buffer:
        with pytest.raises(accelrt.CaptureError), accelrt.graph(graph, stream=stream):
            buffer.fill(1)
            event.record()
            {"stream": stream, "device": accelrt, "event": event}[what].synchronize()
        assert graph.node_count == 0
    assert works_again()
    stream.synchronize()


def test_an_exception_in_the_body_drops_the_capture_and_goes_on():
    graph = accelrt.CUDAGraph()
    with pytest.raises(KeyError), accelrt.graph(graph):
        accelrt.Buffer(4096).fill(1)
        raise KeyError
    with pytest.raises(RuntimeError, match="nothing to replay"):
        graph.replay()
    assert works_again()


def test_the_order_of_the_calls_is_checked():
    graph = accelrt.CUDAGraph()
    with pytest.raises(RuntimeError, match="no capture"):
        graph.capture_end()
    with accelrt.Buffer(512) as buffer:
        with accelrt.graph(graph):
            buffer.fill(1)
            with pytest.raises(RuntimeError, match="is being captured already"):
                graph.capture_begin()
        with pytest.raises(RuntimeError, match="holds a capture already"):
            graph.capture_begin()
        graph.reset()
        with accelrt.graph(graph):
            buffer.fill(2)
    assert graph.node_count == 1


@pytest.mark.parametrize(
    ("arguments", "error"),
    [({"pool": 3}, TypeError), ({"pool": (1, -1)}, TypeError), ({"capture_error_mode": "local"}, ValueError)],
)
def test_bad_arguments_are_refused(arguments, error):
    with pytest.raises(error), accelrt.graph(accelrt.CUDAGraph(), **arguments):
        pass
    assert accelrt.current_stream() == accelrt.default_stream()
    assert works_again()


def test_an_empty_graph_is_warned_about():
    graph = accelrt.CUDAGraph()
    with pytest.warns(UserWarning, match="The CUDA Graph is empty"), accelrt.graph(graph):
        pass
    graph.replay()


def test_a_graph_that_dies_while_it_captures_ends_the_capture():
    stream = accelrt.Stream()
    with accelrt.stream(stream), accelrt.Buffer(512) as buffer:
        graph = accelrt.CUDAGraph()
        graph.capture_begin()
        buffer.fill(1)
        del graph
        assert not accelrt.is_current_stream_capturing()
    assert works_again()


def test_things_may_die_during_a_capture():
    graph = accelrt.CUDAGraph()
    dying = accelrt.CUDAGraph()
    with accelrt.Buffer(512) as buffer:
        with accelrt.graph(dying):
            buffer.fill(1)
        pinned, event, stream, free = (
            accelrt.PinnedBuffer(64),
            accelrt.Event(),
            accelrt.Stream(),
            accelrt.Buffer(512),
        )
        event.record(stream)
        with accelrt.graph(graph):
            buffer.fill(2)
            del dying, pinned, event, stream, free
            gc.collect()
            accelrt.empty_cache()
        graph.replay()
        accelrt.synchronize()
    assert graph.node_count == 1


def test_record_stream_during_a_capture_waits_for_its_end():
    graph, other = accelrt.CUDAGraph(), accelrt.Stream()
    with accelrt.Buffer(512) as target, accelrt.graph(graph):
        target.fill(1)
        victim = accelrt.Buffer(4096, stream=accelrt.default_stream())
        victim.record_stream(other)
        address = victim.ptr
        victim.free()
        with accelrt.Buffer(4096, stream=accelrt.default_stream()) as fresh:
            assert fresh.ptr != address
