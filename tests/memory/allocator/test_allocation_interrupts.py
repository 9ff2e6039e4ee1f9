"""Signals end an allocation's wait for memory that work uses: nothing is lost, and every lock is open."""

import threading

import pytest
from beside import Gate
from interruptions import Alarm, interrupted, ring, signals

import accelrt

MIB = 1 << 20
alloc, delete = accelrt.caching_allocator_alloc, accelrt.caching_allocator_delete


@pytest.fixture
def little_room():
    total = accelrt.mem_get_info()[1]
    accelrt.set_per_process_memory_fraction(32 * MIB / total, 0)
    yield
    accelrt.set_per_process_memory_fraction(1.0, 0)


def use_as_another(stream, taker):
    address = alloc(24 * MIB, stream=taker)
    accelrt.record_stream(address, stream)
    delete(address)


def use_as_its_own(stream, taker):
    delete(alloc(24 * MIB, stream=stream))


def capture_with_scratch(graph, stream, nbytes=24 * MIB):
    with accelrt.graph(graph, stream=stream), accelrt.Buffer(nbytes) as scratch:
        scratch.fill(1)


WAYS = [use_as_another, use_as_its_own]


@pytest.mark.parametrize("use", WAYS, ids=lambda use: use.__name__)
def test_a_signal_ends_an_allocation_that_waits(use, little_room):
    stream, taker = accelrt.Stream(), accelrt.Stream()
    before = accelrt.memory_stats()
    with interrupted(stream, prepare=lambda: use(stream, taker)):
        alloc(24 * MIB, stream=taker)
    after = accelrt.memory_stats()
    assert after["num_sync_all_streams"] == before["num_sync_all_streams"] + 1
    assert after["num_ooms"] == before["num_ooms"]
    assert after["allocation.all.current"] == before["allocation.all.current"]
    accelrt.memory.audit()
    delete(alloc(24 * MIB, stream=taker))


@pytest.mark.parametrize("use", WAYS, ids=lambda use: use.__name__)
def test_a_handler_may_allocate_and_the_allocation_waits_on(use, little_room):
    stream, taker, gate, seen = accelrt.Stream(), accelrt.Stream(), threading.Event(), []

    def handle(number, frame):
        seen.append(number)
        delete(alloc(4 * MIB, stream=accelrt.Stream()))
        accelrt.memory.audit()
        if len(seen) == 3:
            gate.set()
        else:
            ring()

    stream.launch_host_func(gate.wait)
    use(stream, taker)
    with signals(handle):
        address = alloc(24 * MIB, stream=taker)
    assert len(seen) == 3
    delete(address)


@pytest.mark.parametrize("call", ["commit", "prepare"])
def test_a_handler_may_allocate_and_capture_while_a_reservation_waits_for_room(call, little_room):
    stream, gate, seen = accelrt.Stream(), threading.Event(), []

    def handle(number, frame):
        seen.append(number)
        delete(alloc(4 * MIB, stream=accelrt.Stream()))
        capture_with_scratch(accelrt.CUDAGraph(), accelrt.Stream(), MIB)
        accelrt.memory.audit()
        gate.set()

    stream.launch_host_func(gate.wait)
    use_as_its_own(stream, None)
    with accelrt.reserve(16 * MIB) as reservation:
        with signals(handle):
            getattr(reservation, call)(0, 16 * MIB)
        assert len(seen) == 1


def test_a_handler_may_be_interrupted_in_an_allocation_of_its_own(little_room):
    stream, taker, depth = accelrt.Stream(), accelrt.Stream(), []

    def handle(number, frame):
        depth.append(number)
        if len(depth) == 2:
            raise Alarm
        ring()
        alloc(24 * MIB, stream=taker)

    with Gate(stream):
        use_as_another(stream, taker)
        with pytest.raises(Alarm), signals(handle):
            alloc(24 * MIB, stream=taker)
    stream.synchronize()
    assert len(depth) == 2


def test_what_other_threads_allocate_waits_on(little_room):
    stream, taker, gate, got = accelrt.Stream(), accelrt.Stream(), threading.Event(), []
    stream.launch_host_func(gate.wait)
    use_as_another(stream, taker)
    thread = threading.Thread(target=lambda: got.append(alloc(24 * MIB, stream=taker)))
    thread.start()

    def stop(number, frame):
        raise Alarm

    with pytest.raises(Alarm), signals(stop):
        stream.synchronize()
    assert got == []
    gate.set()
    thread.join()
    delete(*got)


def test_in_a_capture_an_allocation_waits_for_the_work_before_it_however_long_that_takes(little_room):
    stream, gate = accelrt.Stream(), threading.Event()
    stream.launch_host_func(gate.wait)
    delete(alloc(24 * MIB, stream=stream))
    threading.Timer(0.5, gate.set).start()
    capture_with_scratch(accelrt.CUDAGraph(), stream)
    assert gate.is_set()


def test_after_a_signal_a_capture_still_waits_for_replays_of_a_graph_that_is_gone(little_room):
    stream, taker, graph, gate = accelrt.Stream(), accelrt.Stream(), accelrt.CUDAGraph(), threading.Event()
    capture_with_scratch(graph, accelrt.Stream())

    def stop(number, frame):
        raise Alarm

    stream.launch_host_func(gate.wait)
    with accelrt.stream(stream):
        graph.replay()
    graph.reset()
    with pytest.raises(Alarm), signals(stop):
        alloc(24 * MIB, stream=taker)
    threading.Timer(0.1, gate.set).start()
    capture_with_scratch(accelrt.CUDAGraph(), taker)
    assert gate.is_set()
