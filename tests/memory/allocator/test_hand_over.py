"""Memory that is given back as of an event: a stream that waits for the event may take it at once."""

import threading

import pytest
from beside import PAUSE, Gate, until_over
from child import in_own_process

import accelrt
from accelrt.memory import free_after

SIZE = 4 << 20


@pytest.fixture
def held():
    """A stream that runs nothing until the event is set, and memory that its work uses."""
    stream, gate = accelrt.Stream(), threading.Event()
    stream.launch_host_func(gate.wait)
    yield stream, gate
    gate.set()
    stream.synchronize()


def allocate(stream):
    return accelrt.caching_allocator_alloc(SIZE, stream=stream)


def free(*addresses):
    for address in addresses:
        accelrt.caching_allocator_delete(address)


def test_a_stream_that_waits_for_the_event_takes_the_memory_at_once(held):
    stream, _gate = held
    other = accelrt.Stream()
    first = allocate(stream)
    done = stream.record_event()
    free_after(first, done)
    before = allocate(other)
    other.wait_event(done)
    after = allocate(other)
    assert before != first
    assert after == first
    assert not stream.query()
    free(before, after)


def test_nobody_else_gets_it_before_the_event_is_complete(held):
    stream, gate = held
    other = accelrt.Stream()
    first = allocate(stream)
    free_after(first, stream.record_event())
    other.wait_event(other.record_event())
    taken = [allocate(other), allocate(stream)]
    assert first not in taken
    gate.set()
    accelrt.synchronize()  # the allocator's own stream, which waits for the event, too
    again = allocate(stream)
    assert again == first
    free(again, *taken)


def test_an_event_that_is_recorded_anew_hands_nothing_over(held):
    stream, _gate = held
    other = accelrt.Stream()
    first = allocate(stream)
    done = stream.record_event()
    free_after(first, done)
    with pytest.raises(ValueError, match="never recorded"):
        free_after(first, accelrt.Event())
    other.wait_event(accelrt.Stream().record_event())
    later = accelrt.Stream()
    done.record(later)  # the first record is still waited for by the memory, and by nobody else
    other.wait_event(done)
    taken = allocate(other)
    assert taken != first
    free(taken)


def test_the_taker_is_waited_for_before_the_memory_returns(held):
    stream, gate = held
    taker = accelrt.Stream()
    first = allocate(stream)
    done = stream.record_event()
    free_after(first, done)
    taker.wait_event(done)
    again = allocate(taker)
    assert again == first
    with Gate(taker):
        free(again)
        gate.set()
        stream.synchronize()
        meanwhile = allocate(stream)
        assert meanwhile != first
    taker.synchronize()
    returned = allocate(stream)
    assert returned == first
    free(meanwhile, returned)


def test_memory_that_nobody_takes_is_free_once_the_event_is_complete(held):
    stream, gate = held
    first = allocate(stream)
    event = stream.record_event()
    free_after(first, event)
    del event
    assert accelrt.memory_allocated() == 0
    assert accelrt.memory.memory_stat("active_bytes.all.current") == SIZE
    gate.set()
    stream.synchronize()
    accelrt.empty_cache()
    assert accelrt.memory_reserved() == 0


def test_what_is_not_allocated_is_refused():
    event = accelrt.Stream().record_event()
    with pytest.raises(ValueError, match="not allocated"):
        free_after(512, event)
    address = allocate(None)
    free_after(address, event)
    with pytest.raises(ValueError, match="not allocated"):
        free_after(address, event)
    with pytest.raises(TypeError):
        free_after(0, "event")


def test_an_event_that_is_complete_hands_nothing_over_while_other_work_goes_on(held):
    busy, gate = held
    stream, taker = accelrt.Stream(), accelrt.Stream()
    first = allocate(stream)
    accelrt.record_stream(first, busy)
    done = stream.record_event()
    done.synchronize()
    free_after(first, done)
    taker.wait_event(done)
    for _ in range(100):  # each looks at what is complete, so the event's turn comes before the other work's
        free(allocate(stream))
    taken = allocate(taker)
    assert taken != first
    gate.set()
    accelrt.synchronize()
    again = allocate(stream)
    assert again == first
    free(again, taken)


def test_memory_of_a_private_pool_is_handed_to_nobody(held):
    stream, gate = held
    taker, pool = accelrt.Stream(), accelrt.MemPool()
    with accelrt.use_mem_pool(pool):
        first = allocate(stream)
    done = stream.record_event()
    free_after(first, done)
    taker.wait_event(done)
    taken = allocate(taker)
    assert taken != first
    gate.set()
    accelrt.synchronize()
    with accelrt.use_mem_pool(pool):
        again = allocate(stream)
    assert again == first
    free(again, taken)


@in_own_process(ACCELRT_ALLOC_CONF="max_split_size_mb:32")
def test_a_block_above_the_limit_of_splitting_is_counted_for_whoever_takes_it():
    stream, taker = accelrt.Stream(), accelrt.Stream()
    first = accelrt.caching_allocator_alloc(64 << 20, stream=stream)
    with Gate(stream):
        done = stream.record_event()
        free_after(first, done)
        live = [accelrt.memory_stats()["oversize_allocations.current"]]
        taker.wait_event(done)
        assert accelrt.caching_allocator_alloc(64 << 20, stream=taker) == first
        live.append(accelrt.memory_stats()["oversize_allocations.current"])
        free(first)
        live.append(accelrt.memory_stats()["oversize_allocations.current"])
    accelrt.synchronize()
    assert live == [0, 1, 0]


def test_threads_hand_over_while_others_wait_for_events():
    def wait_again_and_again(over, _):
        waiter, done = accelrt.Stream(), accelrt.Stream().record_event()
        while not over.wait(PAUSE):
            waiter.wait_event(done)
            free(allocate(waiter))

    stream = accelrt.Stream()
    with until_over(wait_again_and_again, range(3)):
        for _ in range(300):
            free_after(allocate(stream), stream.record_event())
