"""Ctrl-C that waits until a command is between two steps."""

import signal
import threading
from collections.abc import Callable
from typing import Self


class HeldInterrupts:
    """The context in which Ctrl-C raises nothing but is noted; it raises KeyboardInterrupt at the end.

    Whoever is inside looks at came between two steps.  Where Ctrl-C raises no KeyboardInterrupt as it is, on
    another thread or with a handler of the program's own, nothing is held.

    Arguments:
        wake: called at once, from the signal's handler.
    """

    def __init__(self, wake: Callable[[], object] = int) -> None:
        self.wake = wake
        self.came: bool = False
        self.held: bool = False

    def __enter__(self) -> Self:
        on_main = threading.current_thread() is threading.main_thread()
        self.held = on_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler
        if self.held:
            signal.signal(signal.SIGINT, self.note)  # behind it no interruption comes
        return self

    def note(self, number: int, frame: object) -> None:
        self.came = True
        self.wake()

    def __exit__(self, *error: object) -> None:
        if self.held:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        if self.came:
            raise KeyboardInterrupt
