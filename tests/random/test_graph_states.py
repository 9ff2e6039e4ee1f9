"""Random numbers in graphs: each replay goes on where its generators are."""

import threading

import numpy as np
import philox
import pytest
from beside import on_threads
from device_arrays import read

import accelrt
from accelrt.driver.registry import Rows, opened_name
from accelrt.interop.cupy_memory import ExternalCapture
from accelrt.random import Generator

DEFAULT = accelrt.default_generators


def captured(generator, *draws, register=True):
    """A graph that draws into one array after the other."""
    graph = accelrt.CUDAGraph()
    if register:
        graph.register_generator_state(generator)
    with accelrt.graph(graph):
        for out in draws:
            generator.uniform(out)
    return graph


def test_replays_draw_what_calls_would_have_drawn():
    generator, first, second = Generator(0).manual_seed(5), accelrt.empty(8, "f4"), accelrt.empty(3000, "f4")
    generator.geometry = (1, 512)
    generator.uniform(first)
    graph = captured(generator, first, second)
    assert generator.get_offset() == 4
    offset = 4
    for seed in (5, 5, 6):
        if generator.initial_seed() != seed:
            generator.manual_seed(seed)
            offset = 0
        graph.replay()
        assert (read(first) == philox.uniform(8, seed, offset)).all()
        assert (read(second) == philox.uniform(3000, seed, offset + 4, (1, 512))).all()
        offset += 4 + philox.used(3000, 4, (1, 512))
        assert generator.get_offset() == offset
        generator.uniform(first)
        assert (read(first) == philox.uniform(8, seed, offset)).all()
        offset += 4


def test_the_default_generator_registers_itself():
    out = accelrt.empty(8, "f4")
    accelrt.manual_seed(3)
    graph = captured(DEFAULT[0], out, register=False)
    for replay in range(3):
        graph.replay()
        assert (read(out) == philox.uniform(8, 3, 4 * replay)).all()
    assert DEFAULT[0].get_offset() == 12


def test_a_default_generator_may_first_be_asked_for_in_a_capture(monkeypatch):
    from accelrt.random import generator

    monkeypatch.delitem(generator._defaults, 0, raising=False)
    out, graph = accelrt.empty(8, "f4"), accelrt.CUDAGraph()
    with accelrt.graph(graph):
        DEFAULT[0].uniform(out)
    DEFAULT[0].manual_seed(6)
    graph.replay()
    assert (read(out) == philox.uniform(8, 6, 0)).all()


def test_two_generators_go_their_own_ways_and_graphs_share_one():
    one, two = Generator(0).manual_seed(1), Generator(0).manual_seed(2)
    a, b = accelrt.empty(8, "f4"), accelrt.empty(8, "f4")
    graph = accelrt.CUDAGraph()
    graph.register_generator_state(one)
    graph.register_generator_state(two)
    with accelrt.graph(graph):
        one.uniform(a)
        two.normal(b)
        two.uniform(b)
    other = captured(two, a)
    graph.replay()
    assert (read(a) == philox.uniform(8, 1, 0)).all()
    assert (read(b) == philox.uniform(8, 2, 4)).all()
    other.replay()
    assert (read(a) == philox.uniform(8, 2, 8)).all()
    assert (one.get_offset(), two.get_offset()) == (4, 12)


def test_a_state_may_be_exchanged_between_replays():
    generator, out = Generator(0).manual_seed(1), accelrt.empty(8, "f4")
    graph = captured(generator, out)
    shared = generator.graphsafe_get_state().manual_seed(9)
    graph.replay()
    assert (read(out) == philox.uniform(8, 9, 0)).all()
    assert shared.get_offset() == 4


def test_replays_on_several_streams_do_not_mix_their_offsets():
    generator, out = Generator(0).manual_seed(4), accelrt.empty(1 << 16, "f4")
    sums, graph = accelrt.empty((12, 1 << 16), "f4"), captured(generator, out)
    streams = [accelrt.Stream(0) for _ in range(3)]
    for replay in range(12):
        with accelrt.stream(streams[replay % 3]):
            graph.replay()
            sums[replay].copy_(out, stream=streams[replay % 3])
            out.record_stream(streams[replay % 3])
        streams[(replay + 1) % 3].wait_stream(streams[replay % 3])
    rows = read(sums)
    step = philox.used(1 << 16, 4, generator.geometry)
    for replay in range(12):
        assert (rows[replay] == philox.uniform(1 << 16, 4, step * replay, generator.geometry)).all()


def test_a_replay_writes_no_offset_before_the_last_one_on_another_stream_has_read_its_own():
    generator, out, total = Generator(0).manual_seed(4), accelrt.empty(8, "f4"), accelrt.zeros(8, "f4")
    add = accelrt.elementwise("T x, T y", "T z", "z = x + y", name="sum")
    add(total, 0.0, out=total)
    graph, first, second = accelrt.CUDAGraph(), accelrt.Stream(0), accelrt.Stream(0)
    graph.register_generator_state(generator)
    with accelrt.graph(graph):
        generator.uniform(out)
        add(total, out, out=total)
    graph.replay()  # loads what replays need, which may wait for the device
    total.fill_(0)
    accelrt.synchronize(0)
    generator.set_offset(0)
    go_on = threading.Event()
    first.launch_host_func(go_on.wait)
    for stream in (first, second):
        with accelrt.stream(stream):
            graph.replay()
    assert not go_on.wait(0.05)  # time for a write that comes too early
    assert not second.query()
    go_on.set()
    assert (read(total) == philox.uniform(8, 4, 0) + philox.uniform(8, 4, 4)).all()
    add.unload()


@pytest.mark.parametrize("choose", [accelrt.Stream, accelrt.per_thread_stream, accelrt.default_stream])
def test_threads_replay_one_graph_without_losing_an_offset(choose):
    generator, out = Generator(0).manual_seed(4), accelrt.empty(8, "f4")
    graph = captured(generator, out)

    def work(_):
        with accelrt.stream(choose(0)):
            for _ in range(50):
                graph.replay()

    on_threads(work, range(3))
    assert generator.get_offset() == 600
    assert (read(out) == philox.uniform(8, 4, 596)).all()


@pytest.mark.parametrize("known", [False, True])
def test_captures_of_other_libraries_are_refused_and_go_on(known):
    generator, out, stream = Generator(0), accelrt.empty(8, "f4"), accelrt.Stream(0)
    rows = Rows(opened_name())
    capture = ExternalCapture(0, stream.handle) if known else None
    assert rows.capture_begin(0, stream.handle, 2) == 0
    if known:
        capture.begun()
    with pytest.raises(RuntimeError, match="graph of another library, whose replays would repeat"):
        generator.uniform(out, stream=stream)
    code, graph = rows.capture_end(0, stream.handle)
    assert code == 0
    if known:
        capture.over()
    assert rows.graph_destroy(graph) == 0
    assert generator.get_offset() == 0
    generator.uniform(out, stream=stream)
    accelrt.synchronize(0)
    assert generator.get_offset() == 4


def test_a_generator_that_is_not_registered_is_refused_and_the_capture_goes_on():
    generator, out, graph = Generator(0), accelrt.empty(8, "f4"), accelrt.CUDAGraph()
    with accelrt.graph(graph):
        out.fill_(0)
        with pytest.raises(
            RuntimeError, match=r"is not registered with .* call graph.register_generator_state"
        ):
            generator.uniform(out)
        with pytest.raises(RuntimeError, match="registered before the capture begins"):
            graph.register_generator_state(generator)
    graph.replay()
    assert (read(out) == 0).all()
    with pytest.raises(TypeError, match=r"generator is of type int; pass an accelrt\.random\.Generator"):
        graph.register_generator_state(3)


@pytest.mark.parametrize(
    "call",
    [
        lambda g: g.manual_seed(1),
        lambda g: g.seed(),
        lambda g: g.initial_seed(),
        lambda g: g.get_offset(),
        lambda g: g.set_offset(4),
        lambda g: g.get_state(),
        lambda g: g.set_state(bytes(16)),
        lambda g: accelrt.manual_seed_all(1),
    ],
)
def test_states_are_neither_read_nor_set_in_a_capture(call):
    generator, out, graph = Generator(0), accelrt.empty(8, "f4"), accelrt.CUDAGraph()
    DEFAULT[0].manual_seed(2)
    with accelrt.graph(graph):
        out.fill_(1)
        with pytest.raises(RuntimeError, match="is not possible while the current stream captures"):
            call(generator)
    assert DEFAULT[0].initial_seed() == 2
    assert generator.initial_seed() == 67280421310721


def test_a_graph_that_draws_is_not_replayed_into_a_capture():
    generator, out, outer = Generator(0), accelrt.empty(8, "f4"), accelrt.CUDAGraph()
    graph = captured(generator, out)
    with accelrt.graph(outer):
        out.fill_(1)
        with pytest.raises(RuntimeError, match="cannot be replayed into a capture, which would repeat them"):
            graph.replay()
    graph.replay()
    assert generator.get_offset() == 4


def test_a_capture_that_fails_leaves_no_state_behind():
    generator, out, graph = Generator(0).manual_seed(3), accelrt.empty(8, "f4"), accelrt.CUDAGraph()
    graph.register_generator_state(generator)
    with pytest.raises(ZeroDivisionError), accelrt.graph(graph):
        generator.uniform(out)
        raise ZeroDivisionError
    graph.reset()
    graph.register_generator_state(generator)
    with accelrt.graph(graph):
        generator.uniform(out)
    graph.replay()
    assert (read(out) == philox.uniform(8, 3, 0)).all()
    graph.reset()
    with accelrt.graph(graph):
        out.fill_(1)
        with pytest.raises(RuntimeError, match="not registered"):
            generator.uniform(out)


def test_an_update_takes_the_other_graphs_generators():
    one, two = Generator(0).manual_seed(1), Generator(0).manual_seed(2)
    a, b = accelrt.empty(8, "f4"), accelrt.empty(8, "f4")
    graph, other = captured(one, a), accelrt.CUDAGraph(keep_graph=True)
    other.register_generator_state(two)
    with accelrt.graph(other):
        two.uniform(b)
    graph.update(other)
    del other
    graph.replay()
    assert (read(b) == philox.uniform(8, 2, 0)).all()
    assert (one.get_offset(), two.get_offset()) == (0, 4)


def test_numbers_of_a_stream_that_joined_and_of_a_condition_are_captured():
    generator, a, b = Generator(0).manual_seed(1), accelrt.empty(8, "f4"), accelrt.empty(8, "f4")
    side, graph, flag = accelrt.Stream(0), accelrt.CUDAGraph(), accelrt.Buffer(4)
    flag.fill(1)
    graph.register_generator_state(generator)
    with accelrt.graph(graph):
        side.wait_stream(accelrt.current_stream(0))
        generator.uniform(a, stream=side)
        accelrt.current_stream(0).wait_stream(side)
        with graph.if_(flag):
            generator.uniform(b)
    for replay in range(2):
        graph.replay()
        assert (read(a) == philox.uniform(8, 1, 8 * replay)).all()
        assert (read(b) == philox.uniform(8, 1, 8 * replay + 4)).all()


def test_threads_draw_into_one_graph():
    generator, rows, graph = Generator(0).manual_seed(1), accelrt.empty((60, 4), "f4"), accelrt.CUDAGraph()
    graph.register_generator_state(generator)
    streams = [accelrt.Stream(0) for _ in range(3)]
    with accelrt.graph(graph, capture_error_mode="relaxed"):
        begun = accelrt.current_stream(0)
        for stream in streams:
            stream.wait_stream(begun)

        def work(k):
            for row in range(20 * k, 20 * k + 20):
                generator.uniform(rows[row], stream=streams[k])

        on_threads(work, range(3))
        for stream in streams:
            begun.wait_stream(stream)
    graph.replay()
    assert set(map(tuple, read(rows))) == {tuple(philox.uniform(4, 1, 4 * place)) for place in range(60)}
    assert generator.get_offset() == 240


def test_graphed_callables_draw_anew_each_time():
    out = accelrt.empty(8, "f4")
    accelrt.manual_seed(3)

    def work(x):
        DEFAULT[0].uniform(x)
        return x

    graphed = accelrt.make_graphed_callables(work, (out,))
    begin = DEFAULT[0].get_offset()
    rows = [read(graphed(out)).tolist() for _ in range(2)]
    assert rows == [philox.uniform(8, 3, begin + 4 * replay).tolist() for replay in range(2)]
    assert not np.isnan(rows).any()
