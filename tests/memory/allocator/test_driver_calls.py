"""Which rows of the driver an allocation and its free call."""

import pytest
from child import in_own_process, wrap_host

import accelrt
from accelrt.testing import calls_of

pytestmark = pytest.mark.host
ALLOC, FREE = accelrt.caching_allocator_alloc, accelrt.caching_allocator_delete


@in_own_process(ACCELRT_HOST_DEVICES="2", ACCELRT_DEBUG="0")
def test_a_hit_that_names_its_device_asks_the_driver_nothing():
    wrap_host()
    streams = [accelrt.Stream(device=0) for _ in range(5)]

    def on_every_stream():
        for address in [ALLOC(1000, 0, stream) for stream in streams]:
            FREE(address)

    assert calls_of(on_every_stream) == {}
    assert calls_of(lambda: FREE(ALLOC(1000, 0, streams[0].cuda_stream))) == {}
    assert calls_of(lambda: FREE(ALLOC(1000, 1))) == {}, "the free finds the device by the address"
    assert calls_of(lambda: accelrt.Buffer(1000, stream=streams[0])) == {}
    assert calls_of(lambda: FREE(ALLOC(1000))) == {"current_device": 1}


@in_own_process(ACCELRT_HOST_DEVICES="1", ACCELRT_DEBUG="0")
def test_a_search_asks_each_stream_once():
    faults = wrap_host()
    streams = [accelrt.Stream(device=0) for _ in range(5)]
    for address in [ALLOC(16 << 20, 0, stream) for stream in streams[1:]]:
        FREE(address)
    faults.reset_call_counts()
    FREE(ALLOC(64 << 20, 0, streams[0]))
    counts = faults.call_counts()
    assert counts["stream_query"] == counts["stream_is_capturing"] == 5, (
        "the four others', and its own when it is freed"
    )
    faults.reset_call_counts()
    FREE(ALLOC(60 << 20, 0, streams[0]))
    assert faults.call_counts()["stream_query"] == 1, "what is quiescent is asked for no more"
