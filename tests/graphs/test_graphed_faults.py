"""make_graphed_callables and its calls with driver call 1 failing, then 2, ..., until they succeed."""

import gc

import pytest
from child import in_own_process, wrap_host

import accelrt
from accelrt.driver.host import driver as host
from accelrt.testing import failing_calls

UNKNOWN = 999
ROWS = (
    "capture_begin",
    "capture_status",
    "capture_end",
    "graph_node_count",
    "graph_instantiate",
    "graph_launch",
    "copy",
    "copy_async",
    "fill",
    "event_record",
    "stream_wait_event",
)


def make_and_call(given, other):
    """Two chained callables, called on two streams; whether the result is right."""

    def doubled(source):
        result = accelrt.Buffer(2 * source.nbytes)
        accelrt.copy(result, source, blocking=False)
        accelrt.copy(result, source, dst_offset=source.nbytes, blocking=False)
        return result

    def headed(source):
        result = accelrt.Buffer(source.nbytes)
        accelrt.copy(result, source, blocking=False)
        result.fill(9, 16)
        return [result]

    samples = (accelrt.Buffer(512),), (accelrt.Buffer(1024),)
    first, second = accelrt.make_graphed_callables((doubled, headed), samples, 1)
    out = bytearray(1024)
    second(first(given))
    with accelrt.stream(other):
        second(first(given))[0].copy_to(out)
    return out == bytes([9] * 16 + [3] * 1008)


def settled():
    gc.collect()
    accelrt.synchronize()
    accelrt.empty_cache()
    accelrt.memory.audit()
    assert accelrt.memory_allocated() == 512
    assert accelrt.current_stream() == accelrt.default_stream()
    counts = host.live_objects()
    return {kind: counts[kind] for kind in ("allocations", "bytes", "graphs", "execs")}


@pytest.mark.parametrize("mode", ["once", "onward"])
@in_own_process(printing="")
def test_each_failure_leaves_nothing_behind_and_the_next_make_works(mode):
    wrap_host()
    given, other, failures = accelrt.Buffer(512), accelrt.Stream(), 0
    given.fill(3, blocking=True)

    def check():
        assert make_and_call(given, other)

    check()
    level = settled()
    for row in ROWS:
        for call, error in failing_calls(check, UNKNOWN, mode, [row]):
            assert error is None or error.code == UNKNOWN, (row, call)
            failures += error is not None
            del error
            assert settled() == level, (row, call)
            check()
    assert failures >= 20
