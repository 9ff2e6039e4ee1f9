"""The Cython API's captures with call 1 of a row failing, then call 2, ..., until it succeeds."""

import functools
import gc

import pytest
from child import in_child, wrap_host

import accelrt
from accelrt.driver.host import driver as host
from accelrt.testing import failing_calls

pytestmark = pytest.mark.own_process

UNKNOWN = 999
ROWS = (
    "capture_begin",
    "capture_status",
    "capture_end",
    "capture_mode_exchange",
    "graph_node_count",
    "graph_instantiate",
    "graph_launch",
    "graph_destroy",
    "graph_exec_destroy",
    "stream_create",
    "stream_query",
)


def capture_and_launch(graphs, buffer):
    """Raises what fails, and gives back what it has even then; a refusal to do that is accelrt's to mend."""
    stream, graph, address = graphs.lease(0), graphs.BareGraph(), 0
    try:
        graph.begin(0, stream)
        address = graphs.take(0, 4096, stream)
        graphs.set_bytes(0, stream, address, 1, 4096)
        graphs.set_bytes(0, stream, buffer.ptr, 2, 512)
        graph.end()
        graph.instantiate()
        graph.launch(stream)
    finally:
        if address:
            graphs.give(0, address)
        if graph.is_begun():
            graph.destroy()
        graphs.give_stream(0, stream)


def check(graphs, buffer):
    """A capture works, the stream that failed is none's, and what is alive afterwards."""
    accelrt.synchronize()
    capture_and_launch(graphs, buffer)
    accelrt.synchronize()
    gc.collect()
    accelrt.empty_cache()
    accelrt.memory.audit()
    assert accelrt.memory_reserved() == accelrt.memory_allocated() + (2 << 20) - 512
    counts = host.live_objects()
    return {kind: counts[kind] for kind in ("allocations", "bytes", "graphs", "execs")}


def sweep(mode):
    wrap_host()
    from downstream import graphs  # the parent built it

    failures, buffer = 0, accelrt.Buffer(512)
    level = check(graphs, buffer)
    for row in ROWS:
        step = functools.partial(capture_and_launch, graphs, buffer)
        for call, error in failing_calls(step, UNKNOWN, mode, [row]):
            assert error is None or error.code == UNKNOWN, (row, call)
            failures += error is not None
            assert check(graphs, buffer) == level, (row, call)
    assert failures >= 8


@pytest.mark.parametrize("mode", ["once", "onward"])
def test_each_failure_leaves_nothing_behind_and_the_next_capture_works(mode, downstream):
    assert in_child(sweep, mode) == ""
