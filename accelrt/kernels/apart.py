"""Calls on threads of their own, which no signal's exception interrupts.

A KeyboardInterrupt is raised in the main thread, between any two steps: after a file was opened and before
its descriptor has an owner, say.  What takes descriptors, folders, processes or a library's objects therefore
runs on a thread of its own, which gives all of it back whatever happens, and the caller only waits.
"""

from __future__ import annotations

from _thread import allocate_lock, start_new_thread
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")
PATIENCE = 10.0  # seconds that an interrupted caller waits for what it called to give all back


class Call(Generic[T]):
    """One call, and how it ends.

    Attributes:
        is_cancelled: bool, the caller was interrupted; the work should end soon.
        on_cancel: function without arguments, or None; set by the work, called by the interrupted caller.
    """

    def __init__(self, work: Callable[[Call[T]], T]) -> None:
        self._work = work
        self._lock = allocate_lock()
        self._over = allocate_lock()
        self._over.acquire()
        self._began = self._ended = False
        self._result: list[T] = []
        self._error: BaseException | None = None
        self.is_cancelled: bool = False
        self.on_cancel: Callable[[], object] | None = None

    def run(self) -> None:
        try:
            with self._lock:
                self._began = not self.is_cancelled
            if self._began:
                self._result.append(self._work(self))
        except BaseException as error:
            self._error = error
        finally:
            self._ended = True
            self._over.release()

    def wait(self) -> T:
        self._over.acquire()
        if self._error is not None:
            try:
                raise self._error
            finally:
                self._error = None  # whose traceback names this frame
        return self._result[0]

    def cancel(self) -> None:
        """Has the work end, and waits until it has given back what it took."""
        with self._lock:
            self.is_cancelled = True
            began, stop = self._began, self.on_cancel
        if began and not self._ended:
            if stop is not None:
                stop()
            self._over.acquire(True, PATIENCE)

    def when_cancelled(self, stop: Callable[[], object] | None) -> None:
        """Has stop called when the caller is interrupted; at once where it was."""
        with self._lock:
            self.on_cancel = stop
            is_cancelled = self.is_cancelled
        if is_cancelled and stop is not None:
            stop()


def call_apart(work: Callable[[Call[T]], T]) -> T:
    """The result of work(call), which runs on a thread of its own; raises what it raises.

    An exception of a signal handler in the caller cancels the call.
    """
    call = Call(work)
    try:
        try:
            start_new_thread(call.run, ())
        except RuntimeError:  # no thread can be started
            call.run()
        return call.wait()
    except BaseException:
        call.cancel()
        raise
