"""Signals that come while the main thread waits, and not before, however slow the machine is."""

import signal
import threading
from contextlib import contextmanager

import pytest
from waiting import SECONDS


class Alarm(BaseException):
    """What the handler raises."""


def ring():
    signal.setitimer(signal.ITIMER_REAL, 0.02)


@contextmanager
def signals(handler):
    """Calls a handler of signals once while the block waits, and again whenever the handler calls ring().

    Two signals in a row have to find the main thread at one call: that call waits, then, and asks for
    signals.  The block has no loop, in which it could come to one call twice.
    """
    places = []
    over = threading.Event()

    def look(number, frame):
        if over.is_set():
            return
        place = frame, frame.f_lasti
        if places != [place]:
            places[:] = [place]
            ring()
            return
        places.clear()
        handler(number, frame)

    before = signal.signal(signal.SIGALRM, look)
    try:
        ring()
        yield
    finally:
        over.set()
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        places.clear()


@contextmanager
def interrupted(stream, prepare=lambda: None):
    """Work that does not end in the stream, and a signal once something waits for it.

    prepare is called behind that work and before any signal.
    """
    gate = threading.Event()
    stream.launch_host_func(gate.wait)
    prepare()
    giving_up = threading.Timer(SECONDS, gate.set)  # its test fails then, instead of hanging
    giving_up.start()

    def stop(number, frame):
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
