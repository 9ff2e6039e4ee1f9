"""Signals that come while the main thread waits."""

import signal
import threading
from contextlib import contextmanager

import pytest

GIVE_UP = 30  # seconds until a wait that no signal ends is let go, so that its test fails instead of hanging


class Alarm(BaseException):
    """What the handler raises."""


@contextmanager
def signals(handler):
    """SIGALRM again and again; it may come before the wait begins, but not only then."""
    before = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def interrupted(stream, prepare=lambda: None):
    """Work that does not end in the stream, and a signal once something waits for it.

    prepare is called behind that work and before any signal, which may come late or early on a busy machine.
    """
    gate = threading.Event()
    stream.launch_host_func(gate.wait)
    prepare()
    giving_up = threading.Timer(GIVE_UP, gate.set)
    giving_up.start()

    def stop(number, frame):
        signal.setitimer(signal.ITIMER_REAL, 0)
        assert not gate.is_set()
        raise Alarm

    try:
        with pytest.raises(Alarm), signals(stop):
            yield
        assert not stream.query()
    finally:
        gate.set()
        giving_up.cancel()
    stream.synchronize()
