"""What a stream leaves when it dies: its driver stream is leased again, its free memory is its parent's."""

import itertools
import os
import random
import threading

import numpy as np
import pytest
from child import in_child

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


def use_once(nbytes, parent=None):
    """Allocates and frees on a stream that dies, made while a stream is current."""
    with accelrt.stream(parent):
        stream = accelrt.Stream()
    delete(allocate(nbytes, stream))
    stream.synchronize()


def parent_takes_what_a_dead_stream_freed():
    streams = [accelrt.Stream() for _ in range(3)]
    delete(*[allocate(n, stream) for n, stream in zip((64 * MIB, 8 * MIB, 512), streams, strict=True)])
    accelrt.synchronize()
    del streams
    taken = segment_count()
    mine = [allocate(60 * MIB), allocate(8 * MIB), allocate(1024)]
    assert segment_count() == taken
    assert {segment["stream"] for segment in accelrt.memory_snapshot()} == {0}
    delete(*mine)
    assert mine[:2] == [allocate(60 * MIB), allocate(8 * MIB)]
    delete(*mine[:2])
    accelrt.empty_cache()


def others_do_not_take_it():
    use_once(64 * MIB)
    other, taken = accelrt.Stream(), segment_count()
    if other.cuda_stream == accelrt.memory_snapshot()[0]["stream"]:
        other = accelrt.Stream()  # the first has the handle again, and so the memory
    delete(allocate(64 * MIB, other))
    assert segment_count() == taken + 1
    accelrt.empty_cache()


def live_memory_moves_along_and_is_freed_to_the_parent():
    stream = accelrt.Stream()
    kept, freed = allocate(4 * MIB, stream), allocate(6 * MIB, stream)
    delete(freed)
    stream.synchronize()
    del stream
    mine, taken = allocate(6 * MIB), segment_count()
    assert segment_count() == taken == 1
    delete(kept)
    assert allocate(4 * MIB) == kept
    accelrt.memory.audit()
    delete(kept, mine)
    accelrt.empty_cache()


def memory_that_is_pending_or_in_use_stays():
    gate = threading.Event()
    stream, other = accelrt.Stream(), accelrt.Stream()
    busy = allocate(64 * MIB, stream)
    stream.launch_host_func(gate.wait)
    delete(busy)
    del stream
    before = segment_count()
    first = allocate(64 * MIB)  # its stream still runs
    assert segment_count() == before + 1
    gate.set()
    accelrt.synchronize()
    second = allocate(64 * MIB)
    assert second == busy
    assert segment_count() == before + 1
    delete(first, second)
    assert other.query()
    accelrt.empty_cache()


def a_loop_of_streams_does_not_grow():
    for _ in range(50):
        use_once(64 * MIB)
    assert segment_count() == 1
    accelrt.empty_cache()


def what_was_left_before_the_handle_was_leased_again_is_still_the_parents():
    use_once(64 * MIB)
    again = accelrt.Stream()
    assert again.cuda_stream == accelrt.memory_snapshot()[0]["stream"]
    mine = allocate(64 * MIB)
    assert segment_count() == 1
    delete(mine)
    delete(allocate(32 * MIB, again))  # and this is the second one's
    taken = segment_count()
    delete(allocate(512), allocate(64 * MIB))
    delete(allocate(40 * MIB))
    assert {each["stream"] for each in accelrt.memory_snapshot() if each["total_size"] == 32 * MIB} == {
        again.cuda_stream
    }
    assert segment_count() == taken + 1  # the small one
    accelrt.empty_cache()


def grandparents_inherit_when_the_parent_is_gone():
    parent = accelrt.Stream()
    use_once(64 * MIB, parent)
    mine = allocate(64 * MIB)  # the parent lives: not ours
    assert segment_count() == 2
    delete(mine)
    accelrt.empty_cache()
    use_once(64 * MIB, parent)
    del parent
    taken = segment_count()
    delete(allocate(64 * MIB))
    assert segment_count() == taken
    accelrt.empty_cache()


def priority_makes_no_difference():
    _, greatest = accelrt.Stream.priority_range()
    stream = accelrt.Stream(priority=greatest)
    delete(allocate(64 * MIB, stream))
    stream.synchronize()
    del stream
    delete(allocate(64 * MIB))
    assert segment_count() == 1
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


def threads_free_while_segments_move():
    stop, failures = threading.Event(), []

    def churn(stream):
        try:
            while not stop.is_set():
                delete(*[allocate(256 * 1024, stream) for _ in range(8)])
        except Exception as error:
            failures.append(error)

    workers = [threading.Thread(target=churn, args=(accelrt.Stream(),)) for _ in range(2)]
    for worker in workers:
        worker.start()
    for _ in range(100):
        stream = accelrt.Stream()
        kept = allocate(3 * MIB, stream)
        delete(allocate(9 * MIB, stream))
        stream.synchronize()
        del stream
        delete(allocate(9 * MIB), kept)
    stop.set()
    for worker in workers:
        worker.join()
    assert not failures
    accelrt.empty_cache()
    accelrt.memory.audit()
    assert accelrt.memory_reserved() == 0


SCENARIOS = [
    parent_takes_what_a_dead_stream_freed,
    others_do_not_take_it,
    live_memory_moves_along_and_is_freed_to_the_parent,
    memory_that_is_pending_or_in_use_stays,
    a_loop_of_streams_does_not_grow,
    what_was_left_before_the_handle_was_leased_again_is_still_the_parents,
    grandparents_inherit_when_the_parent_is_gone,
    priority_makes_no_difference,
    random_streams_keep_the_allocator_whole,
]


@pytest.mark.own_process
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_with_plain_segments(scenario):
    plain(scenario)


@pytest.mark.own_process
@pytest.mark.parametrize("debug", ["0", "2"])
def test_threads_go_on_while_segments_change_hands(debug):
    in_child(
        threads_free_while_segments_move,
        ACCELRT_DRIVER=os.environ["ACCELRT_DRIVER"],
        ACCELRT_DEBUG=debug,
        **PLAIN,
    )


def test_with_virtual_memory_pages_of_a_dead_stream_serve_everybody():
    stream = accelrt.Stream()
    delete(allocate(64 * MIB, stream))
    stream.synchronize()
    del stream
    reserved = accelrt.memory_reserved()
    delete(allocate(64 * MIB))
    assert accelrt.memory_reserved() == reserved


def test_a_busy_stream_does_not_keep_the_others_from_being_leased_again():
    gate = threading.Event()
    busy, idle = accelrt.Stream(), accelrt.Stream()
    handles = busy.cuda_stream, idle.cuda_stream
    everything = [accelrt.Stream() for _ in range(300)]  # nothing else is left to lease
    busy.launch_host_func(gate.wait)
    del busy, idle
    leased = accelrt.Stream()
    assert leased.cuda_stream == handles[1]
    gate.set()
    accelrt.synchronize()
    again = accelrt.Stream()
    assert again.cuda_stream == handles[0]
    del everything


def test_memory_on_the_per_thread_stream_is_not_handed_to_a_thread_whose_stream_did_not_wait():
    gate, addresses = threading.Event(), []
    stream = accelrt.per_thread_stream()
    address = allocate(4 * MIB, stream)
    stream.launch_host_func(gate.wait)
    delete(address)

    def other():
        addresses.append(allocate(4 * MIB, accelrt.per_thread_stream()))

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    gate.set()
    assert addresses[0] != address
    stream.synchronize()
    delete(*addresses)
    accelrt.synchronize()
    data, out = np.arange(1000, dtype=np.uint8), np.zeros(1000, np.uint8)
    with accelrt.stream(stream), accelrt.Buffer(1000) as buffer:
        buffer.copy_from(data)
        buffer.copy_to(out)
    assert (out == data).all()
