"""make_graphed_callables: what a call computes, copies and keeps, and on which streams."""

import functools
import gc
import threading

import numpy as np
import pytest
from beside import on_threads
from device_arrays import bytes_of

import accelrt

SIZE = 4096


def pattern(seed, count=SIZE):
    return np.random.default_rng(seed).integers(0, 256, count, dtype=np.uint8)


def uploaded(data):
    buffer = accelrt.Buffer(data.nbytes)
    buffer.copy_from(data)
    return buffer


def rolled(source):
    """The halves change places; what lies between comes from the graph's pool and is given back at once."""
    half = source.nbytes // 2
    with accelrt.Buffer(source.nbytes) as between:
        accelrt.copy(between, source, half, src_offset=half, blocking=False)
        accelrt.copy(between, source, half, dst_offset=half, blocking=False)
        result = accelrt.Buffer(source.nbytes)
        accelrt.copy(result, between, blocking=False)
    return result


def inverted(source):
    """By the host, through page-locked memory."""
    staged, result = accelrt.pinned_empty(source.nbytes, np.uint8), accelrt.Buffer(source.nbytes)
    source.copy_to(staged, blocking=False)
    accelrt.current_stream().launch_host_func(lambda: np.bitwise_not(staged, out=staged))
    result.copy_from(staged, blocking=False)
    return result


def framed(source):
    """Its ends are set to 7; the result is a dict beside a tuple that holds None."""
    with accelrt.Buffer(2 * source.nbytes) as between:
        between.fill(7)
        accelrt.copy(between, source, source.nbytes - 200, src_offset=100, dst_offset=100, blocking=False)
        result = accelrt.Buffer(source.nbytes)
        accelrt.copy(result, between, source.nbytes, blocking=False)
    return {"framed": result}, (None, source)


def test_three_chained_callables_of_one_pool_give_the_eager_result_on_a_thousand_inputs():
    with accelrt.stream(accelrt.Stream()):
        samples = tuple((accelrt.Buffer(SIZE),) for _ in range(3))
        steps = accelrt.make_graphed_callables((rolled, inverted, framed), samples)
        assert len({step.graph.pool() for step in steps}) == 1
        for seed in range(1000):
            given = uploaded(pattern(seed))
            graphed = steps[2](steps[1](steps[0](given)))
            if seed % 50 == 0:
                eager = framed(inverted(rolled(given)))
                assert (bytes_of(eager[0]["framed"]) == bytes_of(graphed[0]["framed"])).all()
                assert graphed[1][0] is None
            half = np.roll(pattern(seed), SIZE // 2)
            assert (bytes_of(graphed[0]["framed"])[100:-100] == ~half[100:-100]).all()
            assert (bytes_of(graphed[0]["framed"])[-100:] == 7).all()
        del eager, graphed, steps, samples, given


@pytest.mark.parametrize("rounds", [0, 1, 3])
def test_a_function_runs_for_each_warm_up_and_once_for_the_capture(rounds):
    calls = []

    def step(buffer):
        calls.append(accelrt.is_current_stream_capturing())
        buffer.fill(1)

    graphed = accelrt.make_graphed_callables(step, (accelrt.Buffer(512),), rounds)
    assert calls == [False] * rounds + [True]
    assert graphed(accelrt.Buffer(512)) is None
    assert len(calls) == rounds + 1
    assert graphed.__name__ == "step"


def test_the_warm_ups_come_behind_what_the_current_stream_holds_and_before_what_follows():
    stream, seen = accelrt.Stream(), []
    with accelrt.stream(stream), accelrt.Buffer(512) as sample:

        def step(buffer):
            accelrt.current_stream().launch_host_func(lambda: seen.append("step"))
            buffer.fill(1)

        stream.launch_host_func(lambda: seen.append("before"))
        graphed = accelrt.make_graphed_callables(step, (sample,), 2)
        stream.launch_host_func(lambda: seen.append("after"))
        graphed(sample)
        stream.synchronize()
    assert seen == ["before", "step", "step", "after", "step"]


def test_only_inputs_at_another_address_are_copied(monkeypatch):
    copies = []
    monkeypatch.setattr(
        accelrt.graphs.callables,
        "copy",
        lambda dst, src, **how: (copies.append((dst.ptr, src.ptr)), accelrt.copy(dst, src, **how)),
    )
    one, two = uploaded(pattern(1)), uploaded(pattern(2))
    step = accelrt.make_graphed_callables(lambda a, b: (rolled(a), rolled(b)), (one, two))
    assert (bytes_of(step(one, two)[1]) == np.roll(pattern(2), SIZE // 2)).all()
    assert not copies
    other = uploaded(pattern(3))
    assert (bytes_of(step(one, other)[1]) == np.roll(pattern(3), SIZE // 2)).all()
    assert copies == [(two.ptr, other.ptr)]
    other.copy_from(pattern(4))
    assert (bytes_of(step(one, other)[1]) == np.roll(pattern(4), SIZE // 2)).all()


def test_inputs_may_change_places():
    one, two = uploaded(pattern(1)), uploaded(pattern(2))
    step = accelrt.make_graphed_callables(lambda a, b: (rolled(a), rolled(b)), (one, two))
    first, second = step(two, one)
    assert (bytes_of(first) == np.roll(pattern(2), SIZE // 2)).all()
    assert (bytes_of(second) == np.roll(pattern(1), SIZE // 2)).all()


def test_results_keep_their_place_until_the_next_call():
    step = accelrt.make_graphed_callables(rolled, (accelrt.Buffer(SIZE),))
    first = step(uploaded(pattern(1)))
    assert (bytes_of(first) == np.roll(pattern(1), SIZE // 2)).all()
    second = step(uploaded(pattern(2)))
    assert first is second
    assert (bytes_of(first) == np.roll(pattern(2), SIZE // 2)).all()


def test_containers_of_a_result_are_new_with_each_call():
    step = accelrt.make_graphed_callables(lambda a: [{"a": rolled(a)}, (a,)], (accelrt.Buffer(SIZE),))
    given = uploaded(pattern(1))
    first = step(given)
    first[0].clear()
    first.clear()
    again = step(given)
    assert [type(part) for part in again] == [dict, tuple]
    assert (bytes_of(again[0]["a"]) == np.roll(pattern(1), SIZE // 2)).all()


def test_arguments_may_be_nested_and_on_the_host():
    def step(parts, scale):
        result = accelrt.Buffer(SIZE)
        accelrt.copy(result, parts["low"], blocking=False)
        accelrt.copy(result, parts["high"][0], dst_offset=SIZE // 2, blocking=False)
        return result if scale is None else None

    half = SIZE // 2
    host = accelrt.pinned_empty(half, np.uint8)
    host[:] = 0
    graphed = accelrt.make_graphed_callables(step, ({"low": accelrt.Buffer(half), "high": [host]}, None))
    for seed in range(20):
        data = pattern(seed)
        high = data[half:] if seed % 2 else uploaded(data[half:])
        result = graphed({"high": [high], "low": data[:half]}, None)
    assert (bytes_of(result) == data).all()
    del graphed, host, high, result


def test_calls_on_other_streams_come_one_after_the_other():
    streams = [accelrt.Stream() for _ in range(4)]
    steps = accelrt.make_graphed_callables(
        (rolled, inverted), ((accelrt.Buffer(SIZE),), (accelrt.Buffer(SIZE),))
    )
    outs = [accelrt.PinnedBuffer(SIZE) for _ in range(40)]
    for index, out in enumerate(outs):
        with accelrt.stream(streams[index % 4]):
            given = uploaded(pattern(index))
            steps[1](steps[0](given)).copy_to(out, blocking=False)
    for index, out in enumerate(outs):
        streams[index % 4].synchronize()
        assert (np.frombuffer(out, np.uint8) == ~np.roll(pattern(index), SIZE // 2)).all()


def test_a_partial_binds_what_is_no_memory():
    def filled(value, buffer):
        buffer.fill(value)
        return buffer

    step = accelrt.make_graphed_callables(functools.partial(filled, 9), (accelrt.Buffer(512),))
    assert (bytes_of(step(accelrt.Buffer(512))) == 9).all()


def test_hooks_of_given_graphs_are_called():
    seen, graph = [], accelrt.CUDAGraph()
    graph.register_capture_pre_hook(lambda g: seen.append("capture"))
    graph.register_capture_hook(lambda g: seen.append(g is graph))
    graph.register_replay_pre_hook(lambda g: seen.append("replay"))
    step = accelrt.make_graphed_callables(rolled, (accelrt.Buffer(SIZE),), graphs=[graph])
    step(accelrt.Buffer(SIZE))
    assert step.graph is graph
    assert seen == ["capture", True, "replay"]


def test_callables_share_the_pool_that_is_given():
    with_pool = accelrt.MemPool()
    step = accelrt.make_graphed_callables(rolled, (accelrt.Buffer(SIZE),), pool=with_pool)
    assert step.graph.pool() == with_pool.id
    assert with_pool.stats()["allocated_bytes.current"] == SIZE
    del step


def test_what_is_dropped_while_a_call_is_under_way_is_not_handed_out():
    stream, gate, out = accelrt.Stream(), threading.Event(), accelrt.PinnedBuffer(SIZE)
    sample = uploaded(pattern(1))
    step = accelrt.make_graphed_callables(rolled, (sample,))
    with accelrt.stream(stream):
        stream.launch_host_func(gate.wait)
        step(sample).copy_to(out, blocking=False)
    del step, sample
    gc.collect()
    others = [accelrt.Buffer(SIZE) for _ in range(64)]
    for other in others:
        other.fill(0)
    accelrt.current_stream().synchronize()
    gate.set()
    stream.synchronize()
    assert (np.frombuffer(out, np.uint8) == np.roll(pattern(1), SIZE // 2)).all()


def test_threads_may_call_at_the_same_time():
    step = accelrt.make_graphed_callables(rolled, (accelrt.Buffer(SIZE),))

    def work(number):
        given = uploaded(pattern(number))
        with accelrt.stream(accelrt.Stream()):
            for _ in range(50):
                step(given)
            accelrt.current_stream().synchronize()

    on_threads(work, range(4))
    assert (bytes_of(step(uploaded(pattern(9)))) == np.roll(pattern(9), SIZE // 2)).all()


def test_torchs_arguments_are_taken_by_their_places():
    source, pool = accelrt.Buffer(64), accelrt.graph_pool_handle()
    source.fill(3)
    graphs = [accelrt.CUDAGraph()]

    def ignoring(used, unused):
        result = accelrt.Buffer(used.nbytes)
        accelrt.copy(result, used, blocking=False)
        return result

    called = accelrt.make_graphed_callables(
        ignoring, (source, accelrt.Buffer(8)), 1, True, pool, graphs=graphs
    )
    out = bytearray(64)
    called(source, accelrt.Buffer(8)).copy_to(out)
    assert out == bytes([3] * 64)
    assert graphs[0].pool() == pool


def test_the_pool_of_two_zeros_is_one_of_the_graphs_own():
    first, second = accelrt.CUDAGraph(), accelrt.CUDAGraph()
    buffer = accelrt.Buffer(64)
    for graph in (first, second):
        with accelrt.graph(graph, pool=(0, 0)):
            buffer.fill(1)
    assert len({first.pool(), second.pool(), (0, 0)}) == 3
