"""Streams, events and the current device, from Python.

The event that is waited for was recorded on another stream and is complete by then.
"""

from rows import Goal, Row
from suite import run

ROWS = [
    Row("current_stream", "current_stream()", Goal(60), batch=2000),
    Row("with_stream", "with stream(s)", Goal(250), batch=2000),
    Row("stream_make", "Stream(), made and dropped", Goal(300)),
    Row("stream_query", "stream.query()"),
    Row("event_make", "Event(), made and dropped", Goal(100)),
    Row("event_record", "event.record()", Goal(80, plus="raw C")),
    Row("event_cycle", "Event() made, recorded and dropped"),
    Row("wait_event", "stream.wait_event()", Goal(80, plus="raw C")),
    Row("current_device", "current_device()", Goal(45), batch=2000),
    Row("with_device", "with device(0)", Goal(150), batch=2000),
]

if __name__ == "__main__":
    run("stream", ROWS, ["cuda.bindings", "torch", "CuPy", "cuda.core"])
