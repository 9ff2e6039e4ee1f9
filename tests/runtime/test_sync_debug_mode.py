"""Sync debug mode: every call that waits for the device is told of, or refused before it waits."""

import threading
import warnings

import numpy as np
import pytest

import accelrt

SIZE = 4096


@pytest.fixture(autouse=True)
def _back_to_default():
    yield
    accelrt.set_sync_debug_mode("default")


class World:
    def __init__(self):
        self.stream, self.event = accelrt.Stream(), accelrt.Event()
        self.buffer, self.other = (
            accelrt.Buffer(SIZE, stream=self.stream),
            accelrt.Buffer(SIZE, stream=self.stream),
        )
        self.array, self.pinned = np.zeros(SIZE, np.uint8), accelrt.pinned_empty(SIZE, "uint8")
        self.registered = accelrt.register_host(np.zeros(1 << 16, np.uint8))
        self.event.record(self.stream)


WAITING = {
    "Stream.synchronize": lambda w: w.stream.synchronize(),
    "Event.synchronize": lambda w: w.event.synchronize(),
    "synchronize": lambda w: accelrt.synchronize(),
    "copy between buffers": lambda w: accelrt.copy(w.other, w.buffer, stream=w.stream),
    "copy to the device": lambda w: w.buffer.copy_from(w.array, stream=w.stream),
    "copy to the host": lambda w: w.buffer.copy_to(w.array, stream=w.stream),
    "copy to pageable memory, not blocking": lambda w: w.buffer.copy_to(
        w.array, stream=w.stream, blocking=False
    ),
    "fill": lambda w: w.buffer.fill(1, stream=w.stream, blocking=True),
    "empty_cache": lambda w: accelrt.empty_cache(),
    "host_empty_cache": lambda w: accelrt.host_empty_cache(),
    "unregister": lambda w: w.registered.unregister(),
}
FREE = {
    "query of a stream": lambda w: w.stream.query(),
    "query of an event": lambda w: w.event.query(),
    "record": lambda w: w.event.record(w.stream),
    "wait_stream": lambda w: accelrt.Stream().wait_stream(w.stream),
    "copy to page-locked memory": lambda w: w.buffer.copy_to(w.pinned, stream=w.stream, blocking=False),
    "copy between buffers": lambda w: accelrt.copy(w.other, w.buffer, stream=w.stream, blocking=False),
    "fill": lambda w: w.buffer.fill(1, stream=w.stream),
    "allocation": lambda w: accelrt.Buffer(SIZE).free(),
    "host function": lambda w: w.stream.launch_host_func(int),
}


@pytest.mark.parametrize("name", WAITING)
def test_a_call_that_waits_warns_at_the_callers_line(name):
    world = World()
    accelrt.set_sync_debug_mode("warn")
    with pytest.warns(accelrt.SyncDebugWarning, match="called a synchronizing operation") as caught:
        WAITING[name](world)
    assert [warning.filename for warning in caught] == [__file__]
    accelrt.set_sync_debug_mode("default")


@pytest.mark.parametrize("name", WAITING)
def test_a_call_that_waits_is_refused_before_it_does_anything(name):
    world, gate = World(), threading.Event()
    held = accelrt.memory_allocated()
    world.stream.launch_host_func(gate.wait)
    world.event.record(world.stream)
    accelrt.set_sync_debug_mode("error")
    with pytest.raises(accelrt.SyncDebugError, match="called a synchronizing operation"):
        WAITING[name](world)
    assert not world.event.query()
    accelrt.set_sync_debug_mode("default")
    gate.set()
    accelrt.synchronize()
    assert accelrt.memory_allocated() == held
    assert world.registered.nbytes == 1 << 16
    WAITING[name](world)


@pytest.mark.parametrize("mode", ["warn", "error"])
@pytest.mark.parametrize("name", FREE)
def test_a_call_that_does_not_wait_is_left_alone(name, mode):
    world = World()
    accelrt.set_sync_debug_mode(mode)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        FREE[name](world)
    accelrt.set_sync_debug_mode("default")
    accelrt.synchronize()


def test_the_mode_is_named_or_numbered():
    assert accelrt.get_sync_debug_mode() == 0
    for number, name in enumerate(("default", "warn", "error")):
        accelrt.set_sync_debug_mode(name)
        assert accelrt.get_sync_debug_mode() == number
        accelrt.set_sync_debug_mode(0)
        accelrt.set_sync_debug_mode(number)
        assert accelrt.get_sync_debug_mode() == number


@pytest.mark.parametrize(
    ("mode", "error"),
    [(3, ValueError), (-1, ValueError), ("off", ValueError), (None, TypeError), (True, TypeError)],
)
def test_a_mode_that_is_none_is_refused(mode, error):
    with pytest.raises(error, match="debug_mode is"):
        accelrt.set_sync_debug_mode(mode)
    assert accelrt.get_sync_debug_mode() == 0
