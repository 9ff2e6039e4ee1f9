"""Kernel nodes that were changed: replays are taken for what they launch now."""

import pytest
from child import in_child

pytestmark = [pytest.mark.own_process, pytest.mark.host]


def captured(launches):
    """A graph of kernels with the sources and destinations given; (accelrt, graph, nodes, memory)."""
    from kernel_sources import image_for

    import accelrt

    accelrt.sanitizer.enable()
    kernel = accelrt.Module(image_for("host")).function("saxpy", "float a, const float* x, float* y, int n")
    graph = accelrt.CUDAGraph(keep_graph=True)
    memory = [accelrt.Buffer(1024) for _ in range(6)]
    with accelrt.graph(graph):
        for x, y in launches:
            kernel[1, 1](1.0, memory[x], memory[y], 4)
    graph.instantiate()
    return accelrt, graph, [node for node in graph.nodes() if node.type == "kernel"], memory


def races(accelrt, graph, buffer, writes):
    """Whether a replay races with an access of another stream's before it."""
    first, second = accelrt.Stream(), accelrt.Stream()
    accelrt.synchronize()
    accelrt.use(buffer.ptr, 1024, first, "w" if writes else "r")
    try:
        with accelrt.stream(second):
            graph.replay()
    except accelrt.RaceError:
        return True
    finally:
        accelrt.synchronize()
        accelrt.sanitizer.clear()
    return False


def changed():
    accelrt, graph, nodes, memory = captured([(0, 1)])
    assert [races(accelrt, graph, each, True) for each in memory] == [True, True] + [False] * 4
    assert [races(accelrt, graph, each, False) for each in memory] == [False, True] + [False] * 4
    graph.set_kernel_node_params(nodes[0], args=(1.0, memory[2], memory[3], 4))
    assert [races(accelrt, graph, each, True) for each in memory] == [False, False, True, True, False, False]
    assert [races(accelrt, graph, each, False) for each in memory] == [False] * 3 + [True, False, False]
    nodes[0].params = nodes[0].params._replace(grid=(2, 1, 1))  # what it points at stays
    assert [races(accelrt, graph, each, True) for each in memory] == [False, False, True, True, False, False]


def changed_among_others():
    accelrt, graph, nodes, memory = captured([(0, 1), (1, 2)])
    graph.set_kernel_node_params(nodes[1], args=(1.0, memory[1], memory[3], 4))
    assert [races(accelrt, graph, each, True) for each in memory] == [True, True, False, True, False, False]
    graph.set_kernel_node_params(nodes[0], args=(1.0, memory[4], memory[1], 4))
    assert [races(accelrt, graph, each, True) for each in memory] == [False, True, False, True, True, False]


def one_of_two_alike():
    accelrt, graph, nodes, memory = captured([(0, 1), (0, 1)])
    graph.set_kernel_node_params(nodes[0], args=(1.0, memory[2], memory[3], 4))
    assert [races(accelrt, graph, each, True) for each in memory] == [True] * 4 + [False] * 2


@pytest.mark.parametrize("scenario", [changed, changed_among_others, one_of_two_alike])
def test_a_replay_uses_what_its_nodes_launch_now(scenario):
    in_child(scenario)
