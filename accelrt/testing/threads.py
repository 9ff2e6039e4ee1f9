"""Threads that run at once, streams that wait until told, and threads that stand at a call of the driver."""

from __future__ import annotations

import functools
import sys
import threading
import time

from accelrt.testing.device import wrapped_table

TYPE_CHECKING = False  # typing's, which takes long to import
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any, Literal, Self

    from accelrt.streams.stream import Stream

SECONDS = 100  # until a test that fails stops waiting: far away, on a machine that has much else to do too
LIMIT = 120.0  # seconds that functions on threads have, unless the caller says otherwise


class Gate:
    """Holds a stream's work back until it is opened, or five minutes are over: work is under way meanwhile.

    with accelrt.testing.Gate(stream) as gate:
        array.fill_(1, stream=stream)      # put into the stream, and waits there
        ...                                # what a program may do beside work under way
    # opened at the end of the block, or by gate.open.set()

    Arguments:
        stream: Stream.
    """

    def __init__(self, stream: Stream) -> None:
        self.open: threading.Event = threading.Event()
        stream.launch_host_func(functools.partial(self.open.wait, 3 * SECONDS))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.open.set()


class Caller:
    """A thread that calls a function, which begins when begin() tells it to.

    Attributes:
        answer: what the function returned, or None.
        error: BaseException that it raised, or None.
        ident: int, of the thread.
    Arguments:
        function: callable of no arguments.
    """

    def __init__(self, function: Callable[[], Any]) -> None:
        self.function = function
        self.answer: Any = None
        self.error: BaseException | None = None
        self.begun: threading.Event = threading.Event()
        self.thread: threading.Thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()
        self.ident: int | None = self.thread.ident

    def _run(self) -> None:
        self.begun.wait()
        try:
            self.answer = self.function()
        except BaseException as error:
            self.error = error

    def begin(self) -> Self:
        """Lets the function begin.

        Returns:
            Caller, itself.
        """
        self.begun.set()
        return self

    def is_done(self, timeout: float = 0.0) -> bool:
        """Tells whether the function has ended; waits for it for so many seconds at most.

        Arguments:
            timeout: float, seconds to wait for it at most.
        """
        self.thread.join(min(timeout, threading.TIMEOUT_MAX))
        return not self.thread.is_alive()

    def result(self) -> Any:
        """Returns what the function returned, or raises what it raised.

        Raises:
            AssertionError: it does not end within 100 s.
        """
        assert self.is_done(SECONDS), "the thread does not end"
        if self.error is not None:
            raise self.error
        return self.answer


def on_threads(function: Callable[[Any], object], values: Iterable[Any], timeout: float = LIMIT) -> None:
    """Calls a function with each value, on a thread each, at once; raises the first error after all have
    ended.

    Arguments:
        function: callable of one argument.
        values: iterable of what it is called with.
        timeout: float, seconds that all of them have together; math.inf is without limit.
    Raises:
        AssertionError: some have not ended by then; the text says where their threads stand, and its cause is
            the first error of the others.  They are daemon threads, and go on.
        ValueError: timeout is not above 0.
    """
    await_all([functools.partial(function, value) for value in values], timeout, "on_threads")


def on_a_thread(function: Callable[[], Any], timeout: float = LIMIT) -> Any:
    """Calls a function on a thread of its own, and returns or raises what it does.

    Arguments:
        function: callable of no arguments.
        timeout: float, seconds that it has; math.inf is without limit.
    Returns:
        what the function returns.
    Raises:
        AssertionError: it has not ended by then; the text says where its thread stands.  That is a daemon
            thread, and goes on.
        ValueError: timeout is not above 0.
    """
    return await_all([function], timeout, "on_a_thread")[0]


def await_all(functions: list[Callable[[], Any]], timeout: float, call: str) -> list[Any]:
    """Calls functions on a thread each, at once, and returns what they return, or raises the first error,
    once all have ended."""
    if not timeout > 0:
        raise ValueError(f"timeout is {timeout!r}; pass seconds above 0, in which the functions are to end")
    callers = [Caller(function) for function in functions]
    for caller in callers:
        caller.begin()
    deadline = time.monotonic() + timeout
    waiting = [each for each in callers if not each.is_done(max(deadline - time.monotonic(), 0.0))]
    errors = [caller.error for caller in callers if caller.error is not None]
    if waiting:
        lines = "; ".join(map(place_of, waiting))
        raise AssertionError(
            f"{call}: {len(waiting)} of {len(callers)} threads have not ended within {timeout:g} s, and stand"
            f" {lines}; pass a longer timeout where they are to take longer"
        ) from next(iter(errors), None)
    return [caller.result() for caller in callers]


def place_of(caller: Caller) -> str:
    """Returns the line at which a thread stands, and its function."""
    frame = sys._current_frames().get(caller.ident or 0)
    if frame is None:
        return "at their end"
    return f"at {frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_qualname}"


def await_stop(table: Any, caller: Caller) -> str | None:
    """Returns the row at which the caller's thread stands; None where its function ended, or the time did."""
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        ended = caller.is_done()
        row: str | None = table.await_parked(0.0 if ended else 0.02)
        if row is not None or ended:
            return row
    return None


def park(row: str, function: Callable[[], Any], when: Literal["before", "after"] = "before") -> Caller:
    """Calls a function on a thread, which stops at its next call of a row of the driver.

        caller = accelrt.testing.park("memory_unmap", buffer.free)
        ...                                        # beside a thread that stands there
        accelrt.testing.go_on()
        caller.result()

    Arguments:
        row: str, a name as of calls_of().
        function: callable of no arguments.
        when: "before" the driver's call is made, or "after" it.
    Returns:
        Caller, whose thread stands there; it goes on at go_on(), and by itself after 100 s.
    Raises:
        AssertionError: the function ended without such a call.
        RuntimeError: the call is made with the GIL, so that no other thread could tell it to go on; or
            accelrt was initialised without use_device().
        ValueError: no such row.
        What the function raises before.
    """
    table = wrapped_table()
    caller = Caller(function)
    try:
        table.park(row, when=when, thread=caller.ident, limit=SECONDS)
    except BaseException:
        caller.function = lambda: None  # its thread would wait for begin() for ever
        caller.begin()
        raise
    caller.begin()
    if await_stop(table, caller) != row:
        caller.result()
        raise AssertionError(f"{row} was not called")
    return caller


def go_on() -> bool:
    """Lets the thread that stands at a call go on.

    Returns:
        bool: whether one stood there.
    Raises:
        RuntimeError: it went on by itself, at its limit.
    """
    return bool(wrapped_table().go_on())
