"""What a signal's handler raises comes out of the wait that it interrupts, whether the work ends or not."""

import threading

import numpy as np
import pytest
from interruptions import signals
from waiting import wait_until

import accelrt
from accelrt.testing import Gate


class HandlerError(Exception):
    pass


@pytest.fixture
def interrupted():
    """Calls a wait behind work of a stream that a handler, which raises, has end first."""
    stream, gate = accelrt.Stream(), threading.Event()

    def handler(number, frame):
        gate.set()
        wait_until(stream.query)
        raise HandlerError

    def call(wait):
        stream.launch_host_func(gate.wait)
        try:
            with pytest.raises(HandlerError), signals(handler):
                wait(stream)
        finally:
            gate.set()
            stream.synchronize()

    return call


@pytest.mark.parametrize(
    "wait",
    [
        lambda stream: stream.synchronize(),
        lambda stream: stream.record_event().synchronize(),
        lambda stream: accelrt.synchronize(),
        lambda stream: accelrt.Buffer(4096).copy_to(np.zeros(4096, np.uint8), stream=stream),
    ],
    ids=["stream", "event", "device", "copy"],
)
def test_a_handlers_exception_as_the_work_ends(interrupted, wait):
    interrupted(wait)


@pytest.mark.parametrize("copy", [accelrt.Buffer.copy_from, accelrt.Buffer.copy_to], ids=["from", "to"])
def test_memory_of_an_interrupted_copy_is_not_handed_out_before_the_copy_is_over(copy):
    def handler(number, frame):
        raise HandlerError

    buffer, stream = accelrt.Buffer(4096, stream=accelrt.Stream()), accelrt.Stream()
    address = buffer.ptr
    with Gate(stream):
        with pytest.raises(HandlerError), signals(handler):
            copy(buffer, np.zeros(4096, np.uint8), stream=stream)
        buffer.free()
        assert accelrt.memory.address_info(address).state == "active_pending_free"
    stream.synchronize()


def test_memory_that_was_unlocked_meanwhile_is_not_registered_any_more(interrupted):
    memory = np.zeros(4096, np.uint8)
    registered = accelrt.register_host(memory)
    interrupted(lambda stream: registered.unregister())
    registered.unregister()
    accelrt.register_host(memory).unregister()
