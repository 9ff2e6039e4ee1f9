"""Threads that run at once, and threads that are stopped on their way to the driver."""

import contextlib
import functools
import threading

SECONDS = 20  # until a test that fails stops waiting


class Gate:
    """Holds a stream until it is opened, the block ends, or a test that fails has waited long."""

    def __init__(self, stream):
        self.open = threading.Event()
        stream.launch_host_func(functools.partial(self.open.wait, 3 * SECONDS))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.open.set()


class Caller:
    """A thread that calls a function, which begins when it is told to, and the answer or the error."""

    def __init__(self, function):
        self.function, self.answer, self.error = function, None, None
        self.begun = threading.Event()
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()
        self.ident = self.thread.ident

    def run(self):
        self.begun.wait()
        try:
            self.answer = self.function()
        except BaseException as error:
            self.error = error

    def begin(self):
        self.begun.set()
        return self

    def is_done(self, timeout=0.0):
        self.thread.join(timeout)
        return not self.thread.is_alive()

    def result(self):
        assert self.is_done(SECONDS), "the thread does not end"
        if self.error is not None:
            raise self.error
        return self.answer


def on_threads(function, values):
    """Calls the function with each value, on a thread each, at once; raises the first error after all end."""
    callers = [Caller(functools.partial(function, value)) for value in values]
    for caller in callers:
        caller.begin()
    for caller in callers:
        caller.thread.join()
    for caller in callers:
        caller.result()


def on_a_thread(function):
    """Calls the function on a thread of its own: what it answers or raises."""
    caller = Caller(function).begin()
    caller.thread.join()
    return caller.result()


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
    """Threads that call a function each, again and again; the end of the block raises what one raised."""

    def __init__(self, *works):
        self.over, self.rounds = threading.Event(), [0] * len(works)
        self.callers = [Caller(functools.partial(self.repeat, *each)) for each in enumerate(works)]

    def repeat(self, number, work):
        while not self.over.is_set():
            work()
            self.rounds[number] += 1

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


def park(faults, row, function, when="before"):
    """A Caller that stands before, or after, its call of a row."""
    caller = Caller(function)
    faults.park(row, when=when, thread=caller.ident, limit=SECONDS)
    caller.begin()
    if faults.await_parked(SECONDS) != row:
        caller.result()
        raise AssertionError(f"{row} was not called")
    return caller
