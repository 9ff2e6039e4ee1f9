"""Requests that wait for memory that was freed and is in use, beside threads that free more."""

import pytest
from beside import Gate, park
from child import in_own_process
from waiting import wait_until_asleep

import accelrt
from accelrt import testing
from accelrt.arrays.array import record_host_stream

MIB = 1 << 20


def pool_of(kind):
    """What makes memory of a pool with a limit of 6 MiB, which a stream uses, if one is named."""
    pool = accelrt.MemPool(limit=6 * MIB) if kind == "device" else accelrt.PinnedMemPool(limit=6 * MIB)

    def make(size, stream=None):
        with accelrt.use_mem_pool(pool):
            buffer = accelrt.Buffer(size) if kind == "device" else accelrt.PinnedBuffer(size)
        if stream is not None and kind == "device":
            buffer.record_stream(stream)
        elif stream is not None:
            record_host_stream(buffer.ptr, stream)
        return buffer

    return make


@pytest.mark.parametrize("kind", ["device", "pinned"])
@in_own_process
def test_a_request_waits_for_what_was_freed_while_others_free_on_another_stream(kind):
    """What waits counted the events of all streams together, so that new ones took the place of older."""
    testing.use_device()
    make, first, second = pool_of(kind), accelrt.Stream(), accelrt.Stream()
    small, later_small, large = make(4096, first), make(4096, first), make(4 * MIB, second)
    with Gate(second) as at_second:
        with Gate(first):
            small.free()
            large.free()
            request = park("event_synchronize", lambda: make(4 * MIB))
            later = Gate(first)
            later_small.free()
        with later:
            testing.go_on()
        first.synchronize()
        wait_until_asleep(request.thread)
        at_second.open.set()
        request.result().free()
    accelrt.synchronize()
