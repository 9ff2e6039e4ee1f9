"""Threads of the library's own, which no exception ends, and what they tell of those that came."""

from __future__ import annotations

import threading
import time
import warnings

from accelrt.errors import CudaError

TYPE_CHECKING = False  # typing's, which takes long to import
if TYPE_CHECKING:
    from collections.abc import Callable

FIRST_PAUSE = 0.001  # seconds after an exception; each further one doubles it
LONGEST_PAUSE = 1.0

_reported: set[tuple[str, type, object]] = set()


def report(what: str, error: BaseException) -> None:
    """Warns of an error that no caller hears of, once of each kind.  Raises nothing.

    A driver that the process's end has closed is no news: threads may look at it once more.
    """
    try:
        if isinstance(error, CudaError) and error.name == "DEINITIALIZED":
            return
        kind = (what, type(error), getattr(error, "errno", None) or getattr(error, "code", None))
        if kind in _reported:
            return
        _reported.add(kind)
        text = f"accelrt.sharing goes on, but {what}: {type(error).__name__}: {error}"
        warnings.warn(text, RuntimeWarning, stacklevel=2)
    except BaseException:  # warnings that are errors, no memory, an interpreter that ends
        return


class Service:
    """A daemon thread that does one step after another, for ever or until a step answers False.

    Arguments:
        name: of the thread.
        what: what does not happen where a step fails, for the warning.
        step: waits for something to be done, and does it.
    """

    def __init__(self, name: str, what: str, step: Callable[[], bool | None]) -> None:
        self.name = name
        self.what = what
        self.step = step
        self.thread: threading.Thread | None = None  # the one that goes on; others end

    def ensure(self) -> None:
        """Starts the thread where it does not run.  Callers take turns.

        Raises:
            RuntimeError: the system gives no thread.
        """
        if self.thread is not None and self.thread.ident is not None:
            return
        self.thread = threading.Thread(target=self.run, name=self.name, daemon=True)
        self.thread.start()

    def run(self) -> None:
        pause = FIRST_PAUSE
        while self.thread is threading.current_thread():
            try:
                if self.step() is False:
                    return
                pause = FIRST_PAUSE
            except BaseException as error:
                report(self.what, error)
                del error
                time.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
