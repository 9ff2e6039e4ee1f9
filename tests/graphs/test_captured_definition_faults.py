"""Nodes by hand in a capture, with driver call 1 failing, then 2, ..., until they succeed."""

import gc

import pytest
from child import in_own_process, wrap_host

import accelrt
from accelrt.driver.host import driver as host
from accelrt.testing import failing_calls

UNKNOWN, OUT_OF_MEMORY = 999, 2
ROWS = ("capture_site", "capture_continue", "graph_node_add", "graph_condition", "capture_begin_to")


def capture_and_replay(x, child):
    """What x is after a capture with a fill, a child and a switch by hand, whose second body is captured."""
    graph = accelrt.CUDAGraph(keep_graph=True)
    out = bytearray(x.nbytes)
    with accelrt.graph(graph, stream=accelrt.Stream()):
        x.fill(1)
        definition = accelrt.GraphDefinition(graph)
        definition.child(child)
        node = definition.switch(definition.condition(1), 2)
        with node.bodies[1].capture():
            x.fill(5, 16)
    graph.replay()
    x.copy_to(out)
    return out


def settled():
    gc.collect()
    accelrt.synchronize()
    accelrt.memory.audit()
    counts = host.live_objects()
    return {kind: counts[kind] for kind in ("allocations", "bytes", "graphs", "execs")}


@pytest.mark.parametrize(("code", "mode"), [(UNKNOWN, "once"), (OUT_OF_MEMORY, "once"), (UNKNOWN, "onward")])
@in_own_process(printing="")
def test_a_call_that_fails_leaves_nothing_behind(code, mode):
    wrap_host()
    x, inner = accelrt.Buffer(64), accelrt.GraphDefinition()
    inner.fill(x, 3)
    right, failures = bytes([5] * 16 + [3] * 48), 0
    assert capture_and_replay(x, inner) == right
    level = settled()
    for row in ROWS:
        for call, error in failing_calls(lambda: capture_and_replay(x, inner), code, mode, [row]):
            failures += error is not None
            del error
            assert not accelrt.is_current_stream_capturing(), (row, call)
            assert settled() == level, (row, call)
            assert capture_and_replay(x, inner) == right
    assert failures >= 12
