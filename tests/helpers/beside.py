"""What tests alone need of threads beside accelrt.testing.threads, and that by their names here."""

import contextlib
import functools
import threading

from accelrt.testing.threads import SECONDS, Caller, Gate, on_a_thread, on_threads, park

__all__ = ["PAUSE", "SECONDS", "Caller", "Crowd", "Gate", "on_a_thread", "on_threads", "park", "until_over"]

# Seconds between two calls of a thread beside others.  One that lets go of the GIL for microseconds alone,
# again and again, has it back before any of several others is awake, and those wait for seconds.
PAUSE = 0.0001


@contextlib.contextmanager
def until_over(function, values):
    """Calls function(over, value) for each value, on a thread each, beside the block, whose end sets over.

    Raises the first error of a thread after all have ended.
    """
    over = threading.Event()
    callers = [Caller(functools.partial(function, over, value)).begin() for value in values]
    try:
        yield
    finally:
        over.set()
        for caller in callers:
            caller.thread.join()
    for caller in callers:
        caller.result()


class Crowd:
    """Threads that call a function each, once at least, until the block ends, which raises what one did.

    They pause between two calls.
    """

    def __init__(self, *works):
        self.over, self.rounds = threading.Event(), [0] * len(works)
        self.callers = [Caller(functools.partial(self.repeat, *each)) for each in enumerate(works)]

    def repeat(self, number, work):
        while True:
            work()
            self.rounds[number] += 1
            if self.over.wait(PAUSE):
                return

    def has_failed(self):
        return any(caller.error for caller in self.callers)

    def __enter__(self):
        for caller in self.callers:
            caller.begin()
        return self

    def __exit__(self, *_):
        self.over.set()
        for caller in self.callers:
            caller.thread.join()
        for caller in self.callers:
            caller.result()
