"""The cuda driver's waits, which signals end on the main thread, on a stand-in for NVIDIA's library."""

import ctypes
import threading

import pytest
from beside import on_a_thread
from child import in_child, in_own_process
from interruptions import Alarm, signals
from waiting import SECONDS, wait_until

import accelrt
from accelrt.driver.registry import Rows

pytestmark = pytest.mark.own_process


def calls(fake):
    text = ctypes.create_string_buffer(1 << 16)
    fake.fake_calls(text)
    return text.value.decode().split("\n")[:-1]


def stop(number, frame):
    raise Alarm


def interrupts(records):
    """A signal ends every wait; other threads' go on; all end by themselves when the work is complete."""
    accelrt.init()
    fake = ctypes.CDLL("libcuda.so.1")
    stream, default = accelrt.Stream(), accelrt.default_stream()
    event = stream.record_event()
    waits = {
        "stream": stream.synchronize,
        "default stream": default.synchronize,
        "event": event.synchronize,
        "device": accelrt.synchronize,
        "other device": lambda: accelrt.synchronize(1),
    }
    found = {}
    for name, wait in waits.items():
        wait()
        calls(fake)
        fake.fake_busy(1)
        giving_up = threading.Timer(SECONDS, fake.fake_busy, (0,))
        giving_up.start()
        with pytest.raises(Alarm), signals(stop):
            wait()
        assert giving_up.is_alive()
        giving_up.cancel()
        found[name] = calls(fake)
        thread = threading.Thread(target=wait)
        thread.start()
        ending = threading.Timer(0.02, fake.fake_busy, (0,))
        ending.start()
        wait()
        thread.join()
        assert fake.fake_depth() == 0
    assert found["stream"] == [f"record on {stream.cuda_stream:#x}"]
    assert found["default stream"] == ["record on 0"]
    assert found["event"] == []
    assert found["device"] == (["record device 0"] if records else ["synchronize device"])
    assert found["other device"] == (["record device 1"] if records else ["synchronize device"])


def test_a_signal_ends_every_wait(library):
    in_child(interrupts, True, LD_LIBRARY_PATH=library, ACCELRT_DRIVER="cuda")


@in_own_process(LD_LIBRARY_PATH="{library}", ACCELRT_DRIVER="cuda")
def test_no_wait_names_its_stream_for_as_long_as_it_lasts(library):
    """Off the main thread too, a stream is named only to ask it and to record an event."""
    accelrt.init()
    fake = ctypes.CDLL("libcuda.so.1")
    stream = accelrt.Stream()

    made = []

    def recorded():
        made.extend(calls(fake))
        return made

    def end_work():
        wait_until(recorded)
        fake.fake_busy(0)

    def wait():
        stream.synchronize()
        calls(fake)
        fake.fake_busy(1)
        ending = threading.Thread(target=end_work)
        ending.start()
        stream.synchronize()
        ending.join()
        return made + calls(fake)

    assert on_a_thread(wait) == [f"record on {stream.cuda_stream:#x}", "synchronize"]  # both of the event
    assert fake.fake_synchronized() == 0


def test_where_a_devices_work_cannot_be_recorded_another_thread_waits(library):
    missing = "cuCtxRecordEvent"
    in_child(interrupts, False, LD_LIBRARY_PATH=library, ACCELRT_DRIVER="cuda", FAKE_MISSING=missing)


@pytest.mark.parametrize("name", ["cuEventQuery", "cuStreamQuery", "cuCtxRecordEvent"])
@in_own_process(LD_LIBRARY_PATH="{library}", FAKE_MISSING="{name}")
def test_a_driver_that_lacks_a_question_waits_as_ever(library, name):
    rows = Rows("cuda")
    assert rows.open() == 0
    assert rows.stream_synchronize(0, 0x300) == 0
    assert rows.event_synchronize(0, 0x200) == 0
