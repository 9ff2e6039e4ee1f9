"""The legacy and the per-thread default streams, and streams that others made."""

import gc
import weakref

import numpy as np
import pytest
from beside import Gate, on_a_thread

import accelrt
from accelrt.driver.registry import Rows

BLOCKING = 0


@pytest.fixture
def blocking():
    """A blocking stream of another library's."""
    rows = Rows()
    code, handle = rows.stream_create(0, BLOCKING, 0)
    assert code == 0
    yield accelrt.ExternalStream(handle, 0)
    assert rows.stream_destroy(0, handle) == 0


def test_default_streams_are_the_same_objects_while_nothing_changed():
    assert accelrt.default_stream() is accelrt.default_stream(0)
    assert accelrt.per_thread_stream() is accelrt.per_thread_stream(0)
    assert accelrt.default_stream().cuda_stream == 0
    assert accelrt.per_thread_stream().cuda_stream == 2
    assert accelrt.per_thread_stream() != accelrt.default_stream()
    assert on_a_thread(accelrt.per_thread_stream) == accelrt.per_thread_stream()


def test_the_per_thread_stream_is_another_one_on_each_thread():
    stream = accelrt.per_thread_stream()
    gate = Gate(stream)
    assert not stream.query()
    assert on_a_thread(stream.query)
    gate.open.set()
    stream.synchronize()


def test_the_legacy_stream_follows_the_threads_and_they_follow_it():
    mine, legacy = accelrt.per_thread_stream(), accelrt.default_stream()
    gate = Gate(mine)
    event = legacy.record_event()
    assert not event.query()
    behind = on_a_thread(lambda: accelrt.per_thread_stream().record_event())
    assert not behind.query()
    gate.open.set()
    behind.synchronize()
    assert event.query()


def test_the_per_thread_stream_can_be_current_and_captured():
    data, out = np.arange(4096, dtype=np.uint8), np.zeros(4096, np.uint8)
    stream, graph = accelrt.per_thread_stream(), accelrt.CUDAGraph()
    with accelrt.stream(stream):
        assert accelrt.current_stream() is stream
        with accelrt.Buffer(4096) as a, accelrt.Buffer(4096) as b:
            a.copy_from(data)
            stream.synchronize()
            with accelrt.graph(graph, stream=stream):
                accelrt.copy(b, a, blocking=False)
                inside = accelrt.Buffer(4096)
                accelrt.copy(inside, a, blocking=False)
            graph.replay()
            b.copy_to(out)
            assert (out == data).all()
            out[:] = 0
            inside.copy_to(out)
            assert (out == data).all()
            inside.free()
            del graph
    assert accelrt.current_stream() == accelrt.default_stream()


def test_the_per_thread_stream_waits_and_is_waited_for():
    stream, other = accelrt.per_thread_stream(), accelrt.Stream()
    gate = Gate(other)
    stream.wait_stream(other)
    behind = accelrt.Stream()
    behind.wait_stream(stream)
    assert not behind.query()
    gate.open.set()
    behind.synchronize()


def test_memory_used_on_the_per_thread_stream_waits_for_it_whoever_frees_it():
    gate = Gate(accelrt.per_thread_stream())
    stream = accelrt.Stream()
    address = accelrt.caching_allocator_alloc(4 << 20, stream=stream)
    accelrt.record_stream(address, accelrt.per_thread_stream())
    on_a_thread(lambda: accelrt.caching_allocator_delete(address))
    other = accelrt.caching_allocator_alloc(4 << 20, stream=stream)
    assert other != address
    gate.open.set()
    accelrt.synchronize()
    accelrt.caching_allocator_delete(other)


def allocate_behind(made):
    """On another thread's default stream: whether nothing keeps what is put in there then from running."""

    def other():
        stream = accelrt.per_thread_stream()
        address = accelrt.caching_allocator_alloc(4 << 20, stream=stream)
        accelrt.record_stream(address, stream)
        stream.launch_host_func(int)
        made.append(address)
        return stream.query()

    return on_a_thread(other)


def finish(gate, *addresses):
    gate.open.set()
    accelrt.synchronize()
    for address in addresses:
        accelrt.caching_allocator_delete(address)


def test_memory_of_the_legacy_stream_that_one_thread_uses_is_not_handed_to_another_thread_early():
    made, legacy = [], accelrt.default_stream()
    gate = Gate(accelrt.per_thread_stream())
    address = accelrt.caching_allocator_alloc(4 << 20, stream=legacy)
    accelrt.record_stream(address, accelrt.per_thread_stream())
    accelrt.caching_allocator_delete(address)
    allocate_behind(made)
    finish(gate, *made)
    assert made != [address]


def test_a_threads_stream_that_gets_memory_of_the_legacy_stream_waits_for_what_that_waits_for():
    made, legacy, other = [], accelrt.default_stream(), accelrt.Stream()
    gate = Gate(other)
    address = accelrt.caching_allocator_alloc(4 << 20, stream=legacy)
    legacy.wait_stream(other)  # and no work of its own
    accelrt.caching_allocator_delete(address)
    done = allocate_behind(made)
    finish(gate, *made)
    assert made != [address] or not done


def test_a_thread_whose_stream_did_not_wait_for_the_event_gets_no_memory_freed_as_of_it():
    made, legacy, other = [], accelrt.default_stream(), accelrt.Stream()
    gate = Gate(other)
    address = accelrt.caching_allocator_alloc(4 << 20, stream=other)
    done = other.record_event()
    accelrt.memory.free_after(address, done)
    legacy.wait_event(done)
    allocate_behind(made)
    finish(gate, *made)
    assert made != [address]


class Owner:
    """An object that made a stream."""


def test_an_external_stream_keeps_its_owner_alive(blocking):
    owner = Owner()
    seen = weakref.ref(owner)
    stream = accelrt.ExternalStream(blocking.cuda_stream, 0, owner=owner)
    del owner
    gc.collect()
    with accelrt.stream(stream):
        assert accelrt.current_stream() is stream
        del stream
        gc.collect()
        assert seen() is not None
        assert accelrt.current_stream().cuda_stream == blocking.cuda_stream
    gc.collect()
    assert seen() is None


def test_an_external_stream_is_not_leased_when_it_dies(blocking):
    handle = blocking.cuda_stream
    for _ in range(3):
        accelrt.ExternalStream(handle)
    assert handle not in {stream.cuda_stream for stream in [accelrt.Stream() for _ in range(20)]}
