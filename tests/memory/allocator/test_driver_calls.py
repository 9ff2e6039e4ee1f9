"""Which rows of the driver an allocation and its free call."""

import itertools
import random
import threading

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
    assert counts["stream_query"] == counts["stream_is_capturing"] == 4, "the others', and not its own"
    faults.reset_call_counts()
    FREE(ALLOC(60 << 20, 0, streams[0]))
    assert faults.call_counts()["stream_query"] == 0, "what is quiescent is asked for no more"
    FREE(ALLOC(16 << 20, 0, streams[1]))
    assert faults.call_counts()["stream_query"] == 1, "the one whose freed pages are needed by another"


@in_own_process(ACCELRT_HOST_DEVICES="1", ACCELRT_DEBUG="2", ACCELRT_HOST_MEMORY="256MiB")
def test_a_stream_is_asked_when_another_wants_the_pages_that_it_freed():
    faults = wrap_host()
    owner, taker = (accelrt.Stream(device=0) for _ in range(2))
    for address in [ALLOC(16 << 20, 0, owner) for _ in range(2)]:
        FREE(address)
    FREE(ALLOC(24 << 20, 0, taker))
    faults.reset_call_counts()
    for _ in range(10):  # the same pages, in the order of one stream
        FREE(ALLOC(24 << 20, 0, taker))
    assert calls_of(lambda: FREE(ALLOC(24 << 20, 0, taker))) == {}
    assert faults.call_counts()["stream_query"] == 0
    FREE(ALLOC(8 << 20, 0, owner))
    assert faults.call_counts()["stream_query"] == 1


@in_own_process(ACCELRT_HOST_DEVICES="1", ACCELRT_DEBUG="2", ACCELRT_HOST_MEMORY="64MiB")
def test_pages_that_busy_work_may_use_go_back_to_its_stream():
    wrap_host()
    owner, taker = (accelrt.Stream(device=0) for _ in range(2))
    FREE(ALLOC(24 << 20, 0, owner))
    kept = ALLOC(22 << 20, 0, taker)
    assert accelrt.memory_reserved(0) == 24 << 20
    gate = threading.Event()
    taker.launch_host_func(lambda: gate.wait(300))
    FREE(kept)
    other = ALLOC(20 << 20, 0, owner)
    assert accelrt.memory_reserved(0) == 42 << 20, "the pages are not taken from the work that may use them"
    again = ALLOC(20 << 20, 0, taker)
    assert accelrt.memory_reserved(0) == 42 << 20, "the stream itself may have them"
    gate.set()
    for address in (other, again):
        FREE(address)
    accelrt.synchronize()
    accelrt.empty_cache()
    assert accelrt.memory_reserved(0) == 0
    accelrt.memory.audit()


@in_own_process(ACCELRT_HOST_DEVICES="1", ACCELRT_DEBUG="0", ACCELRT_HOST_MEMORY="256MiB")
def test_a_stream_whose_event_is_pending_is_not_asked_too():
    faults = wrap_host()
    owner, taker = (accelrt.Stream(device=0) for _ in range(2))
    gate = threading.Event()
    owner.launch_host_func(lambda: gate.wait(300))
    FREE(ALLOC(30 << 20, 0, owner))
    keys = [ALLOC(20 << 20, 0, taker)]
    faults.reset_call_counts()
    keys.append(ALLOC(22 << 20, 0, taker))
    counts = faults.call_counts()
    assert counts["event_query"] > 0
    assert counts["stream_query"] == 0, "an event that is pending says that its stream is busy"
    gate.set()
    for address in keys:
        FREE(address)


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


@in_own_process(ACCELRT_HOST_DEVICES="1", ACCELRT_DEBUG="1")
def test_streams_of_few_blocks_each_seldom_leave_the_fast_path():
    streams = [accelrt.Stream(device=0) for _ in range(12)]
    numbers = random.Random(5)
    steps = [(numbers.randrange(12), numbers.randrange(1, 1 << 16), numbers.random()) for _ in range(2000)]

    def work():
        before, calls = audited_hits(0)[0], 0
        live = [[] for _ in streams]
        for index, size, chance in steps:
            if live[index] and (len(live[index]) == 4 or chance < 0.4):
                FREE(live[index].pop(int(chance * len(live[index]))))
            else:
                live[index].append(ALLOC(size, 0, streams[index]))
            calls += 1
        for address in itertools.chain(*live):
            FREE(address)
            calls += 1
        return calls - (audited_hits(0)[0] - before)

    work()
    peaks = accelrt.memory_stats(0)
    assert work() <= 20, "calls that had to enter the exclusive section, though no peak rose"
    figures = accelrt.memory_stats(0)
    assert all(figures[key] == peaks[key] for key in figures if key.endswith(".peak"))


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
