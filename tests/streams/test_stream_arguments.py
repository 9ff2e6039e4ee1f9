"""Every call that takes a stream, on every kind of stream: it works, or is refused and changes nothing."""

import numpy as np
import pytest
from beside import on_a_thread
from device_arrays import StreamProtocol, bytes_of

import accelrt
from accelrt import memory
from accelrt.driver.registry import Rows

SIZE = 4096
LAST = accelrt.device_count() - 1
ON_HOST = accelrt.device(0).type == "host"
NON_BLOCKING = 1


class Streams:
    """Streams that somebody else made, by the driver's rows."""

    def __init__(self):
        accelrt.init()
        self.rows, self.made = Rows(), []

    def make(self, device):
        code, handle = self.rows.stream_create(device, NON_BLOCKING, 0)
        assert code == 0
        self.made.append((device, handle))
        return handle

    def gone(self, device):
        handle = self.make(device)
        stream = accelrt.ExternalStream(handle)
        self.drop()
        return stream

    def drop(self):
        for device, handle in self.made:
            assert self.rows.stream_destroy(device, handle) == 0
        self.made.clear()


KINDS = {
    "own": lambda others: accelrt.Stream(0),
    "handle": lambda others: others.make(0),
    "numpy's handle": lambda others: np.uint64(others.make(0)),
    "protocol": lambda others: StreamProtocol(others.make(0)),
    "external": lambda others: accelrt.ExternalStream(others.make(0)),
    "none": lambda others: None,
    "default": lambda others: accelrt.default_stream(0),
    "default as int": lambda others: 0,
    "default as 1": lambda others: 1,
    "per thread": lambda others: accelrt.per_thread_stream(0),
    "per thread as int": lambda others: 2,
}
if LAST:
    KINDS |= {
        "of another device": lambda others: accelrt.Stream(LAST),
        "handle of another device": lambda others: others.make(LAST),
        "protocol of another device": lambda others: StreamProtocol(others.make(LAST)),
        "external of another device": lambda others: accelrt.ExternalStream(others.make(LAST), LAST),
        "default of another device": lambda others: accelrt.default_stream(LAST),
        "per thread of another device": lambda others: accelrt.per_thread_stream(LAST),
    }
if ON_HOST:  # a GPU's driver may crash on these
    KINDS |= {
        "gone": lambda others: others.gone(0),
        "handle that is gone": lambda others: others.gone(0).cuda_stream,
        "garbage": lambda others: 12345,
        "protocol with garbage": lambda others: StreamProtocol(12345),
    }


def wait():
    for device in range(LAST + 1):
        accelrt.synchronize(device)


def expect(buffer, value):
    wait()
    assert (bytes_of(buffer) == value).all()


class Things:
    """What the calls work on."""

    def __init__(self):
        self.buffer, self.other = accelrt.Buffer(SIZE, 0), accelrt.Buffer(SIZE, 0)
        self.far = accelrt.Buffer(SIZE, LAST)
        self.pinned, self.array = accelrt.PinnedBuffer(SIZE), np.full(SIZE, 5, np.uint8)
        np.frombuffer(self.pinned, np.uint8)[:] = 6
        self.buffer.fill(1, blocking=True)
        self.other.fill(2, blocking=True)
        self.far.fill(3, blocking=True)

    def free(self):
        for thing in (self.buffer, self.other, self.far, self.pinned):
            thing.free()


def allocate(things, stream):
    buffer = accelrt.Buffer(SIZE, 0, stream)
    buffer.fill(9, blocking=True)
    expect(buffer, 9)
    buffer.free()


def allocate_bytes(things, stream):
    memory.caching_allocator_delete(accelrt.caching_allocator_alloc(SIZE, 0, stream))


def copy_out(things, stream):
    things.buffer.copy_to(things.array, stream=stream)
    wait()
    assert (things.array == 1).all()


def copy_to_pinned(things, stream):
    things.buffer.copy_to(things.pinned, stream=stream, blocking=False)
    wait()
    assert bytes(things.pinned) == bytes([1]) * SIZE


CALLS = {
    "Buffer": allocate,
    "caching_allocator_alloc": allocate_bytes,
    "Buffer.record_stream": lambda things, stream: things.buffer.record_stream(stream),
    "record_stream": lambda things, stream: memory.record_stream(things.buffer.ptr, stream),
    "record_host_stream": lambda things, stream: accelrt.record_host_stream(things.pinned, stream),
    "copy_to": copy_out,
    "copy_to pinned": copy_to_pinned,
    "fill": lambda things, stream: (things.buffer.fill(7, stream=stream), expect(things.buffer, 7)),
    "copy_from": lambda things, stream: (
        things.buffer.copy_from(things.array, stream=stream),
        expect(things.buffer, 5),
    ),
    "copy_from pinned": lambda things, stream: (
        things.buffer.copy_from(things.pinned, stream=stream, blocking=False),
        expect(things.buffer, 6),
    ),
    "copy": lambda things, stream: (
        accelrt.copy(things.buffer, things.other, stream=stream, blocking=False),
        expect(things.buffer, 2),
    ),
    "copy to the last device": lambda things, stream: (
        accelrt.copy(things.far, things.buffer, stream=stream, blocking=False),
        expect(things.far, 1),
    ),
    "copy from the last device": lambda things, stream: (
        accelrt.copy(things.buffer, things.far, stream=stream, blocking=False),
        expect(things.buffer, 3),
    ),
    "Event.record": lambda things, stream: accelrt.Event().record(stream),
    "Event.wait": lambda things, stream: accelrt.current_stream().record_event().wait(stream),
}
# These ask nothing of the stream; once it is gone it uses nothing more.
TOLD = {"Buffer.record_stream", "record_stream", "record_host_stream"}


def figures():
    found = [accelrt.memory_stats(device) for device in range(LAST + 1)]
    keys = (
        "allocated_bytes.all.current",
        "active_bytes.all.current",
        "allocation.all.current",
        "active.all.current",
    )
    return [{key: stats[key] for key in keys} for stats in found]


def try_call(name, kind):
    """Whether it worked."""
    others = Streams()
    things = Things()
    wait()
    before = figures()
    try:
        CALLS[name](things, KINDS[kind](others))
        worked = True
    except (ValueError, accelrt.CudaError):
        worked = False
        assert figures() == before
        expect(things.buffer, 1)
        expect(things.far, 3)
    except TypeError:
        assert kind == "none"
        worked = False
    wait()
    things.free()
    accelrt.Buffer(SIZE, 0).free()
    accelrt.Buffer(SIZE, LAST).free()
    accelrt.PinnedBuffer(SIZE).free()
    wait()
    accelrt.empty_cache()
    accelrt.host_empty_cache()
    memory.audit()
    memory.host_audit()
    others.drop()
    return worked


def has_to_work(name, kind):
    if "gone" in kind or "garbage" in kind:
        return kind == "gone" and name in {"Buffer", "caching_allocator_alloc"} | TOLD
    if "another device" in kind:
        return name.endswith("last device") or name in {"Event.record", "Event.wait"} | TOLD
    return True


PAIRS = [(name, kind) for name in CALLS for kind in KINDS]


@pytest.mark.parametrize(("name", "kind"), PAIRS, ids=[f"{name} on {kind}" for name, kind in PAIRS])
@pytest.mark.gone_streams
def test_a_call_works_on_a_stream_or_refuses_it(name, kind):
    accelrt.set_device(0)
    assert try_call(name, kind) == has_to_work(name, kind)


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.gone_streams
def test_threads_that_never_chose_a_device_find_the_same(name):
    for kind in [kind for other, kind in PAIRS if other == name]:
        assert on_a_thread(lambda kind=kind: try_call(name, kind)) == has_to_work(name, kind), kind


WORK = {
    "fill": lambda things, stream: things.buffer.fill(7, stream=stream),
    "copy": lambda things, stream: accelrt.copy(things.buffer, things.other, stream=stream, blocking=False),
    "copy_from pinned": lambda things, stream: things.buffer.copy_from(
        things.pinned, stream=stream, blocking=False
    ),
    "copy to the last device": lambda things, stream: accelrt.copy(
        things.far, things.buffer, stream=stream, blocking=False
    ),
    "copy from the last device": lambda things, stream: accelrt.copy(
        things.buffer, things.far, stream=stream, blocking=False
    ),
}
DONE = {
    "fill": ("buffer", 7),
    "copy": ("buffer", 2),
    "copy_from pinned": ("buffer", 6),
    "copy to the last device": ("far", 1),
    "copy from the last device": ("buffer", 3),
}


@pytest.mark.parametrize("of", sorted({0, LAST}))
@pytest.mark.parametrize("name", WORK)
@pytest.mark.parametrize("chosen", [False, True], ids=["fresh thread", "main thread"])
def test_work_on_a_capturing_stream_is_captured_or_refused(name, of, chosen):
    def run():
        things, stream, graph = Things(), accelrt.Stream(of), accelrt.CUDAGraph()
        wait()
        works = of == 0 or name.endswith("last device")
        with accelrt.graph(graph, stream=stream, capture_error_mode="thread_local"):
            if works:
                WORK[name](things, stream)
            else:
                with pytest.raises(ValueError, match=f"stream is on device {of}"):
                    WORK[name](things, stream)
                things.far.fill(3, stream=stream)
        expect(things.buffer, 1)
        expect(things.far, 3)
        graph.replay()
        wait()
        if works:
            side, value = DONE[name]
            expect(getattr(things, side), value)
        wait()
        graph.reset()
        things.free()
        accelrt.Buffer(SIZE, 0).free()

    if chosen:
        accelrt.set_device(0)
        run()
    else:
        on_a_thread(run)
