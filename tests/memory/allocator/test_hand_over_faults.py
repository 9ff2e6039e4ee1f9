"""A row of the driver that fails while memory is given back as of an event."""

import pytest
from child import in_own_process, wrap_host

import accelrt

SIZE = 4 << 20


@pytest.mark.parametrize("call", [1, 2])
@in_own_process
def test_memory_whose_events_cannot_be_recorded_is_given_back_or_stays_live(call):
    faults = wrap_host()
    stream, other = accelrt.Stream(), accelrt.Stream()
    address = accelrt.caching_allocator_alloc(SIZE, stream=stream)
    accelrt.record_stream(address, other)
    done = stream.record_event()
    faults.arm(call=call, code=999, rows=["event_record"])
    try:
        accelrt.memory.free_after(address, done)
        freed = True
    except accelrt.CudaError:
        freed = False
    assert faults.fired() >= call
    faults.disarm()
    accelrt.memory.audit(0)
    again = accelrt.caching_allocator_alloc(SIZE, stream=stream)
    accelrt.synchronize()
    assert freed or again != address
    for each in [again] if freed else [again, address]:
        accelrt.caching_allocator_delete(each)
    accelrt.memory.audit(0)
    accelrt.empty_cache()
    assert accelrt.memory_snapshot(0) == []
