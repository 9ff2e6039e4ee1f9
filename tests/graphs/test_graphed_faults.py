"""make_graphed_callables and its calls with driver call 1 failing, then 2, ..., until they succeed."""

import gc
import itertools

import pytest
from child import in_child, wrap_host

pytestmark = pytest.mark.own_process

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


def make_and_call(accelrt, given, other):
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


def attempt(accelrt, given, other):
    """The code of what failed, or None; a result that is wrong without an error fails."""
    try:
        assert make_and_call(accelrt, given, other)
    except accelrt.CudaError as error:
        return error.code
    return None


def settled(accelrt, host):
    gc.collect()
    accelrt.synchronize()
    accelrt.empty_cache()
    accelrt.memory.audit()
    assert accelrt.memory_allocated() == 512
    assert accelrt.current_stream() == accelrt.default_stream()
    counts = host.live_objects()
    return {kind: counts[kind] for kind in ("allocations", "bytes", "graphs", "execs")}


def sweep(mode):
    faults = wrap_host()
    import accelrt
    from accelrt.driver.host import driver as host

    given, other, failures = accelrt.Buffer(512), accelrt.Stream(), 0
    given.fill(3, blocking=True)
    assert make_and_call(accelrt, given, other)
    level = settled(accelrt, host)
    for row in ROWS:
        for call in itertools.count(1):
            faults.arm(call=call, code=UNKNOWN, mode=mode, rows=[row])
            failed = attempt(accelrt, given, other)
            made = faults.fired()
            faults.disarm()
            assert failed in (None, UNKNOWN), (row, call, failed)
            failures += failed is not None
            assert settled(accelrt, host) == level, (row, call)
            assert make_and_call(accelrt, given, other), (row, call)
            if made < call:
                break
    print(failures)


@pytest.mark.parametrize("mode", ["once", "onward"])
def test_each_failure_leaves_nothing_behind_and_the_next_make_works(mode):
    assert int(in_child(sweep, mode)) >= 20
