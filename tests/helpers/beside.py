"""Threads whose call of accelrt's is stopped on its way to the driver, and what is done beside them."""

import threading

SECONDS = 20  # until a test that fails stops waiting


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
        except Exception as error:
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


def park(faults, row, function, when="before"):
    """A Caller that stands before, or after, its call of a row."""
    caller = Caller(function)
    faults.park(row, when=when, thread=caller.ident, limit=SECONDS)
    caller.begin()
    if faults.await_parked(SECONDS) != row:
        caller.result()
        raise AssertionError(f"{row} was not called")
    return caller
