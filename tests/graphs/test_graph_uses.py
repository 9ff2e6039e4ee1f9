"""A CUDAGraph that one thread uses while another changes it: refused, and nothing of the driver's is lost."""

import ctypes
from functools import partial

import pytest
from beside import on_a_thread, park
from child import in_own_process, wrap_host

import accelrt
from accelrt.driver.host import driver as host
from accelrt.sanitizer.detector import Detector

pytestmark = pytest.mark.host
SECONDS = 300
USED = "another thread replays or reads this CUDAGraph just now"
CHANGED = "another thread begins, ends or drops a capture of this CUDAGraph just now"


def captured(accelrt, memory, value):
    graph = accelrt.CUDAGraph(keep_graph=True)
    with accelrt.graph(graph):
        memory.fill_(value)
    graph.instantiate()
    return graph


def beside(faults, row, first, second):
    """The text with which the second call is refused while the first stands before a row."""
    caller = park(row, first)
    with pytest.raises(RuntimeError) as refused:
        second()
    assert faults.go_on()
    caller.result()
    return str(refused.value)


@in_own_process
def test_what_another_thread_uses_is_not_changed():
    faults = wrap_host()

    memory = accelrt.zeros(64, "f4")
    graph, other = captured(accelrt, memory, 1), captured(accelrt, memory, 2)
    graph.replay()
    before = host.live_objects()
    assert beside(faults, "graph_launch", graph.replay, lambda: graph.update(other)).startswith(USED)
    for use, row in ((graph.upload, "graph_upload"), (lambda: graph.debug_dump("/dev/null"), "graph_dot")):
        for change in (graph.reset, graph.instantiate, lambda: graph.update(other)):
            assert beside(faults, row, use, change).startswith(USED), (row, change)
    for change, row in (
        (graph.instantiate, "graph_instantiate"),
        (lambda: graph.update(other), "graph_update"),
    ):
        for use in (graph.replay, graph.upload, graph.reset, graph.nodes, graph.edges):
            assert beside(faults, row, change, use).startswith(CHANGED), (row, use)
            if row == "graph_update":
                graph.reset()
                with accelrt.graph(graph):
                    memory.fill_(1)
                graph.instantiate()
        if row == "graph_update":  # the one that is read for it may be replayed, and not be dropped
            assert beside(faults, row, change, other.reset).startswith(USED)
    other.replay()
    graph.replay()
    assert (memory.numpy() == 2).all()
    after = host.live_objects()
    assert after["execs"] == before["execs"]
    assert after["graphs"] <= before["graphs"]


@in_own_process
def test_a_replay_beside_a_change_of_its_instance_is_refused():
    # The driver's graphs may not be used by two threads at once.
    faults = wrap_host()

    x, y, z = (accelrt.zeros(64, "u1") for _ in range(3))
    definition = accelrt.GraphDefinition()
    node = definition.fill(x, 1)
    graph = definition.instantiate()
    arguments = accelrt.GraphParameters(graph, x=x)
    graph.replay()
    for change, row in (
        (lambda: arguments.rebind(x=y), "graph_node_set"),
        (lambda: node.update(instance=graph, dst=z), "graph_node_set"),
        (lambda: node.set_enabled(graph, False), "graph_node_enable"),
        (lambda: node.set_enabled(graph, True), "graph_node_enable"),
    ):
        assert beside(faults, row, change, graph.replay).startswith(CHANGED), row
        graph.replay()
    assert [int(each.numpy().any()) for each in (x, y, z)] == [1, 1, 1]


@in_own_process
def test_a_replay_beside_a_change_of_its_kernel_is_refused():
    faults = wrap_host()

    kernel = accelrt.host_kernel(ctypes.cast(ctypes.CDLL(None).getpid, ctypes.c_void_p).value, ["char*"])
    x, y = (accelrt.zeros(64, "u1") for _ in range(2))
    graph = accelrt.CUDAGraph(keep_graph=True)
    with accelrt.graph(graph):
        kernel[1, 1](x)
    graph.replay()
    (node,) = graph.nodes()
    change = partial(graph.set_kernel_node_params, node, args=(y,))
    assert beside(faults, "graph_node_set", change, graph.replay).startswith(CHANGED)
    graph.replay()


def test_memory_of_a_users_pool_is_kept_as_other_memory_is():
    """Of a MemPool that is not the capture's own: in a capture, and given anew for a name."""
    pool, out = accelrt.MemPool(), accelrt.zeros(4096, "u1")

    def made(value):
        with accelrt.use_mem_pool(pool):
            return accelrt.full(4096, value, "u1")

    captured, x = made(3), accelrt.zeros(4096, "u1")
    graph = accelrt.CUDAGraph(keep_graph=True)
    with accelrt.graph(graph):
        accelrt.copy(out, captured, blocking=False)
        accelrt.copy(out, x, blocking=False)
    del captured
    others = [made(5) for _ in range(3)]
    graph.replay()
    arguments = accelrt.GraphParameters(graph, x=x)
    given = made(4)
    arguments.replay(x=given)
    del given
    others += [made(6) for _ in range(3)]
    arguments.replay()
    assert (out.numpy() == 4).all()
    assert [int(other.numpy()[0]) for other in others] == [5, 5, 5, 6, 6, 6]


def test_a_graph_keeps_the_reservation_open_whose_memory_it_uses():
    cache, out = accelrt.reserve(1 << 21), accelrt.zeros(4096, "u1")
    cache.commit()
    graph, buffer = accelrt.CUDAGraph(), cache.buffer(0, 4096)
    buffer.fill(3)
    with accelrt.graph(graph):
        accelrt.copy(out, buffer, blocking=False)
    del buffer
    with pytest.raises(BufferError, match="are alive"):
        cache.close()
    graph.replay()
    assert (out.numpy() == 3).all()
    graph.reset()
    cache.close()


@in_own_process(ACCELRT_SANITIZE="1")
def test_what_a_replay_notes_on_a_new_stream_is_not_changed_meanwhile():
    # The race detector is told of each memory, between two steps of the notes.
    x, y, z, spare = (accelrt.zeros(64, "u1") for _ in range(4))
    accelrt.synchronize()
    definition = accelrt.GraphDefinition()
    node = definition.fill(z, 1, after=definition.fill(x, 1))
    graph = definition.instantiate()
    arguments = accelrt.GraphParameters(graph, x=x)
    arguments.rebind(x=y)  # a first change, which the notes go through
    told, refused = Detector.recorded_use, []

    def recorded_use(*use):
        told(*use)
        Detector.recorded_use = told  # once: changes are noted too
        for change in (
            lambda: arguments.rebind(x=spare),
            lambda: node.update(instance=graph, dst=spare),
            lambda: graph.update(definition.graph),
            graph.reset,
        ):
            with pytest.raises(RuntimeError, match=USED) as error:
                on_a_thread(change)
            refused.append(error)

    Detector.recorded_use = recorded_use
    stream = accelrt.Stream()
    stream.wait_stream(accelrt.current_stream())
    with accelrt.stream(stream):
        graph.replay()
    assert len(refused) == 4
    arguments.rebind(x=spare)
    graph.reset()
