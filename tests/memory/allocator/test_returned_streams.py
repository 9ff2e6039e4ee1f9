"""What a stream leaves when it dies: its driver stream is leased again, and finds the free memory there."""

import itertools
import os
import random
import threading

import numpy as np
import pytest
from beside import Gate, on_a_thread
from child import in_child, in_own_process

import accelrt

MIB = 1 << 20
PLAIN = {"ACCELRT_ALLOC_CONF": "expandable_segments:False"}


def allocate(nbytes, stream=None):
    return accelrt.caching_allocator_alloc(nbytes, stream=stream)


def delete(*addresses):
    for address in addresses:
        accelrt.caching_allocator_delete(address)


def segment_count():
    return accelrt.memory_stats()["segment.all.allocated"]


def plain(scenario):
    """Runs a scenario of this file with plain segments, on the driver of this run."""
    in_child(scenario, ACCELRT_DRIVER=os.environ["ACCELRT_DRIVER"], **PLAIN)


def use_once(nbytes):
    """Allocates and frees on a stream that dies."""
    stream = accelrt.Stream()
    delete(allocate(nbytes, stream))
    stream.synchronize()


def a_loop_of_streams_does_not_grow():
    for _ in range(50):
        use_once(64 * MIB)
    assert segment_count() == 1
    accelrt.empty_cache()


def idle_segments_of_a_dead_stream_make_room_for_others():
    use_once(64 * MIB)
    accelrt.memory.set_per_process_memory_fraction(80 * MIB / accelrt.mem_get_info()[1])
    mine = allocate(64 * MIB)
    stats = accelrt.memory_stats()
    assert stats["segment.all.allocated"] == 2
    assert stats["num_alloc_retries"] == 1
    assert accelrt.memory_reserved() == 64 * MIB
    delete(mine)
    accelrt.empty_cache()


def random_streams_keep_the_allocator_whole():
    choose = random.Random(7)
    live, streams = [], []
    for _ in range(2000):
        pick = choose.random()
        if pick < 0.1:
            with accelrt.stream(choose.choice(streams) if streams and choose.random() < 0.5 else None):
                streams.append(accelrt.Stream())
        elif pick < 0.2 and streams:
            streams.pop(choose.randrange(len(streams)))
        elif pick < 0.6 or not live:
            stream = choose.choice(streams) if streams and choose.random() < 0.7 else None
            nbytes = choose.choice([512, 70_000, 3 * MIB, 12 * MIB])
            live.append((allocate(nbytes, stream), nbytes))
            if streams and choose.random() < 0.2:
                accelrt.record_stream(live[-1][0], choose.choice(streams))
        else:
            delete(live.pop(choose.randrange(len(live)))[0])
        assert all(low + n <= high for (low, n), (high, _) in itertools.pairwise(sorted(live)))
    delete(*(address for address, _ in live))
    del streams
    accelrt.synchronize()
    accelrt.empty_cache()
    accelrt.memory.audit()
    assert accelrt.memory_reserved() == 0


SCENARIOS = [
    a_loop_of_streams_does_not_grow,
    idle_segments_of_a_dead_stream_make_room_for_others,
    random_streams_keep_the_allocator_whole,
]


@pytest.mark.own_process
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_with_plain_segments(scenario):
    plain(scenario)


def test_with_virtual_memory_pages_of_a_dead_stream_serve_everybody():
    stream = accelrt.Stream()
    delete(allocate(64 * MIB, stream))
    stream.synchronize()
    del stream
    reserved = accelrt.memory_reserved()
    delete(allocate(64 * MIB))
    assert accelrt.memory_reserved() == reserved


@in_own_process(ACCELRT_DRIVER=os.environ["ACCELRT_DRIVER"])
def test_a_busy_stream_does_not_keep_the_others_from_being_handed_out():
    gate = threading.Event()
    busy, idle = accelrt.Stream(), accelrt.Stream()  # the only ones of the process
    handles = busy.cuda_stream, idle.cuda_stream
    busy.launch_host_func(gate.wait)
    del busy, idle
    try:
        taken = accelrt.Stream()
        assert taken.cuda_stream == handles[1]
    finally:
        gate.set()
    accelrt.synchronize()
    again = accelrt.Stream()
    assert again.cuda_stream == handles[0]


def test_memory_on_the_per_thread_stream_is_not_handed_to_a_thread_whose_stream_did_not_wait():
    stream = accelrt.per_thread_stream()
    address = allocate(4 * MIB, stream)
    with Gate(stream):
        delete(address)
        another = on_a_thread(lambda: allocate(4 * MIB, accelrt.per_thread_stream()))
    assert another != address
    stream.synchronize()
    delete(another)
    accelrt.synchronize()
    data, out = np.arange(1000, dtype=np.uint8), np.zeros(1000, np.uint8)
    with accelrt.stream(stream), accelrt.Buffer(1000) as buffer:
        buffer.copy_from(data)
        buffer.copy_to(out)
    assert (out == data).all()
