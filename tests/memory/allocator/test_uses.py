"""Memory that a stream uses is kept until the stream is past it, whichever device the stream is of."""

import threading

import numpy as np
import pytest
from beside import Gate
from device_arrays import bytes_of

import accelrt
from accelrt.driver.registry import Rows

SIZE = 1 << 20
LAST = accelrt.device_count() - 1
ON_HOST = accelrt.device(0).type == "host"


def held(stream):
    """An event that lets the stream's later work go."""
    gate = threading.Event()
    stream.launch_host_func(gate.wait)
    return gate


def contents(buffer):
    return set(bytes_of(buffer).tolist())


def overtake(address, device, stream=None):
    """Buffers of the device as long as none has the address; at most some."""
    others = [accelrt.Buffer(SIZE, device, stream) for _ in range(4)]
    return [other for other in others if other.ptr == address]


if LAST:

    @pytest.mark.parametrize("of", ["src", "dst"])
    @pytest.mark.parametrize("freed", ["src", "dst"])
    def test_both_sides_of_a_copy_between_devices_wait_for_it(of, freed):
        worker = accelrt.Stream(0 if of == "src" else LAST)
        sides = {"src": accelrt.Buffer(SIZE, 0), "dst": accelrt.Buffer(SIZE, LAST)}
        sides["src"].fill(7, blocking=True)
        gate = held(worker)
        accelrt.copy(sides["dst"], sides["src"], stream=worker, blocking=False)
        side = sides[freed]
        address, device = side.ptr, side.device_index
        side.free()
        found = overtake(address, device)
        gate.set()
        worker.synchronize()
        assert found == []
        if freed == "src":
            assert contents(sides["dst"]) == {7}

    def test_default_streams_of_two_devices_are_two_users():
        buffer, other = accelrt.Buffer(SIZE, 0), accelrt.Buffer(SIZE, LAST)
        address = buffer.ptr
        gate = held(accelrt.default_stream(LAST))
        buffer.fill(5, blocking=True)
        accelrt.copy(buffer, other, stream=accelrt.default_stream(LAST), blocking=False)
        buffer.free()
        found = overtake(address, 0)
        gate.set()
        accelrt.synchronize(LAST)
        assert found == []

    def test_a_copy_on_no_chosen_stream_keeps_memory_of_other_streams():
        home = accelrt.Stream(0)
        src, dst = accelrt.Buffer(SIZE, LAST), accelrt.Buffer(SIZE, 0, home)
        gate = held(accelrt.current_stream(LAST))
        accelrt.copy(dst, src, blocking=False)
        address = dst.ptr
        dst.free()
        found = overtake(address, 0, home)
        gate.set()
        accelrt.synchronize(LAST)
        accelrt.synchronize(0)
        assert found == []

    def test_the_memory_is_free_again_once_the_copy_is_done():
        worker = accelrt.Stream(LAST)
        src, dst = accelrt.Buffer(SIZE, LAST, worker), accelrt.Buffer(SIZE, 0)
        address = dst.ptr
        accelrt.copy(dst, src, stream=worker, blocking=False)
        dst.free()
        worker.synchronize()
        assert overtake(address, 0)
        assert accelrt.memory_stats(0)["active_bytes.all.current"] == accelrt.memory_allocated(0)

    @pytest.mark.parametrize("of", [0, LAST], ids=["src", "dst"])
    def test_a_captured_copy_between_devices_keeps_both_sides_as_long_as_its_graph(of):
        worker = accelrt.Stream(of)
        src, dst = accelrt.Buffer(SIZE, 0), accelrt.Buffer(SIZE, LAST)
        addresses = src.ptr, dst.ptr
        graph = accelrt.CUDAGraph()
        with accelrt.graph(graph, stream=worker):
            accelrt.copy(dst, src, stream=worker, blocking=False)
        del src, dst
        assert not overtake(addresses[0], 0)
        assert not overtake(addresses[1], LAST)
        graph.reset()
        accelrt.synchronize(0)
        accelrt.synchronize(LAST)
        assert overtake(addresses[0], 0)
        assert overtake(addresses[1], LAST)

    def test_a_copy_between_devices_takes_a_stream_of_either_alone():
        if accelrt.device_count() > 2:
            src, dst = accelrt.Buffer(SIZE, 0), accelrt.Buffer(SIZE, 1)
            with pytest.raises(ValueError, match="takes one of src's, device 0, or of dst's, device 1"):
                accelrt.copy(dst, src, stream=accelrt.Stream(2))
        src, dst = accelrt.Buffer(SIZE, 0), accelrt.Buffer(SIZE, LAST)
        for on in (0, LAST):
            for value, stream in enumerate(
                (accelrt.Stream(on), accelrt.default_stream(on), accelrt.per_thread_stream(on))
            ):
                src.fill(value + 1, stream=accelrt.current_stream(0), blocking=True)
                accelrt.copy(dst, src, stream=stream)
                assert contents(dst) == {value + 1}

    @pytest.mark.parametrize("take", [accelrt.Stream, accelrt.default_stream], ids=["own", "default"])
    @pytest.mark.parametrize("by_address", [False, True])
    def test_memory_that_a_stream_of_another_device_was_said_to_use_waits_for_it(take, by_address):
        stream = take(LAST)
        buffer = accelrt.Buffer(SIZE, 0)
        address = buffer.ptr
        with Gate(stream):
            if by_address:
                accelrt.memory.record_stream(address, stream)
            else:
                buffer.record_stream(stream)
            buffer.free()
            with accelrt.Buffer(SIZE, 0) as another:
                assert another.ptr != address
        accelrt.synchronize(LAST)
        with accelrt.Buffer(SIZE, 0), accelrt.Buffer(SIZE, 0):
            assert accelrt.memory_stats(0)["active_bytes.all.current"] == accelrt.memory_allocated(0)

    def test_memory_is_not_filled_or_allocated_on_streams_of_other_devices():
        buffer = accelrt.Buffer(64, 0)
        other = accelrt.Stream(LAST)
        with pytest.raises(ValueError, match=f"stream is on device {LAST}"):
            buffer.fill(1, stream=other)
        with pytest.raises(ValueError, match=f"stream is on device {LAST}"):
            accelrt.caching_allocator_alloc(64, device=0, stream=other)
        with pytest.raises(ValueError, match=f"stream_ptr .* is a stream of device {LAST}, but device is 0"):
            accelrt.ExternalStream(other.cuda_stream, device=0)
        assert accelrt.ExternalStream(other.cuda_stream).device_index == LAST


def test_a_use_on_another_stream_of_the_device_is_noted_by_copies_and_fills():
    side = accelrt.Stream()
    for work in (
        lambda b: b.fill(3, stream=side),
        lambda b: accelrt.copy(b, accelrt.Buffer(SIZE), stream=side, blocking=False),
    ):
        buffer = accelrt.Buffer(SIZE)
        address = buffer.ptr
        buffer.fill(0, blocking=True)
        gate = held(side)
        work(buffer)
        buffer.free()
        found = overtake(address, 0)
        gate.set()
        side.synchronize()
        assert found == []


@pytest.mark.gone_streams
def test_work_that_the_driver_refused_uses_nothing():
    if not ON_HOST:
        pytest.skip("a GPU's driver may crash on a stream that is gone")
    accelrt.init()
    rows = Rows()
    _, handle = rows.stream_create(0, 1, 0)
    gone, pinned = accelrt.ExternalStream(handle), accelrt.PinnedBuffer(64)
    assert rows.stream_destroy(0, handle) == 0
    buffer, other = accelrt.Buffer(64), accelrt.Buffer(64)
    for work in (
        lambda: buffer.fill(1, stream=gone),
        lambda: accelrt.copy(buffer, other, stream=gone, blocking=False),
        lambda: buffer.copy_from(pinned, stream=gone, blocking=False),
        lambda: buffer.copy_to(np.zeros(64, np.uint8), stream=gone),
    ):
        with pytest.raises(accelrt.CudaError, match="INVALID_HANDLE"):
            work()
    for thing in (buffer, other, pinned):
        thing.free()
    accelrt.Buffer(64).free()
    accelrt.PinnedBuffer(64).free()
    accelrt.empty_cache()
    assert accelrt.memory_reserved() == 0


def test_a_handle_that_no_driver_knows_is_refused_and_files_nothing():
    if not ON_HOST:
        pytest.skip("a GPU's driver may crash on a handle that was never one")
    buffer, pinned = accelrt.Buffer(64), accelrt.PinnedBuffer(64)
    before = accelrt.memory_stats()
    for call in (
        lambda: accelrt.Buffer(64, stream=12345),
        lambda: accelrt.caching_allocator_alloc(64, stream=12345),
        lambda: accelrt.ExternalStream(12345),
        lambda: buffer.record_stream(12345),
        lambda: accelrt.memory.record_stream(buffer.ptr, 12345),
        lambda: accelrt.record_host_stream(pinned, 12345),
        lambda: buffer.fill(1, stream=12345),
        lambda: buffer.copy_from(bytes(64), stream=12345),
    ):
        with pytest.raises(ValueError, match="0x3039, which is no stream that the driver knows"):
            call()
    assert accelrt.memory_stats() == before
    buffer.free()
    pinned.free()
    accelrt.Buffer(64).free()


class Foreign:
    def __init__(self, answer):
        self.answer = answer

    def __cuda_stream__(self):
        return self.answer


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        ((0,), TypeError),
        ((), TypeError),
        (None, TypeError),
        ([0, 0], TypeError),
        ((0, "x"), TypeError),
        (("x", 0), TypeError),
        ((0, True), TypeError),
        ((0, 0, 0), TypeError),
        (7, TypeError),
        ((1, 0), ValueError),
        ((-1, 0), ValueError),
        ((0, -1), ValueError),
        ((0, 1 << 64), ValueError),
    ],
    ids=repr,
)
def test_the_stream_protocol_is_read_as_written(answer, error):
    with accelrt.Buffer(16) as buffer, pytest.raises(error, match="__cuda_stream__"):
        buffer.fill(0, stream=Foreign(answer))


def test_a_stream_of_the_protocol_does_the_work():
    stream = accelrt.Stream()
    with accelrt.Buffer(16, stream=stream) as buffer:
        for value, handle in enumerate((stream.cuda_stream, np.uint64(stream.cuda_stream), 0, 2)):
            buffer.fill(value + 1, stream=Foreign((0, handle)), blocking=True)
            assert contents(buffer) == {value + 1}

    class Instance:
        __cuda_stream__ = (0, 0)

    with accelrt.Buffer(16) as buffer, pytest.raises(TypeError, match="it has to be a method"):
        buffer.fill(0, stream=Instance())
