"""Which rows of the driver an allocation and its free call."""

import pytest
from child import in_own_process, wrap_host

import accelrt
from accelrt.memory.caching import audited_hits
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


@in_own_process(ACCELRT_HOST_DEVICES="1", ACCELRT_DEBUG="1")
def test_streams_that_serve_in_turn_seldom_leave_the_fast_path():
    streams = [accelrt.Stream(device=0) for _ in range(8)]

    def serve():
        before = audited_hits(0)[0]
        for stream in streams:
            for address in [ALLOC(512 * (1 + index % 7), 0, stream) for index in range(200)]:
                FREE(address)
        return 8 * 400 - (audited_hits(0)[0] - before)

    serve()
    assert serve() <= 8 * 12, "calls that had to enter the exclusive section"


@in_own_process(ACCELRT_HOST_DEVICES="1", ACCELRT_DEBUG="0", ACCELRT_HOST_MEMORY="1GiB")
def test_a_segment_is_reused_beside_other_streams_free_pages():
    faults = wrap_host()
    streams = [accelrt.Stream(device=0) for _ in range(4)]

    def serve():
        for stream in streams:
            keys = [ALLOC(size << 20, 0, stream) for size in (30, 9, 50, 3)]
            for key in keys:
                FREE(key)

    for _ in range(4):
        serve()
    faults.reset_call_counts()
    serve()
    counts = faults.call_counts()
    assert not any(counts[row] for row in ("physical_create", "memory_map", "memory_access", "memory_unmap"))
    accelrt.memory.audit()
