"""Single keys of a terminal, without waiting for a line."""

import _signal  # type: ignore[import-not-found]  # signal's own functions are Python's
import os
import select
import signal
import sys
import termios
import tty
from functools import partial
from typing import Any, Self

from accelrt.core.process import Descriptor, Owned, open_descriptor, pipe

RESIZED = "resized"
ENDED = "ended"  # the terminal is gone
ESCAPE = "\x1b"
ARROWS = {b"\x1b[A": "k", b"\x1b[B": "j", b"\x1bOA": "k", b"\x1bOB": "j"}


class Keys:
    """The context in which the terminal gives keys one by one and does not show them.

    The terminal is standard input, or where that is none, whatever controls this process.
    """

    def __enter__(self) -> Self:
        self.waiting: list[str] = []
        opened = None if sys.stdin.isatty() else open_descriptor("/dev/tty", os.O_RDONLY)
        self.terminal: int = sys.stdin.fileno() if opened is None else opened.fileno()
        self.wake: Descriptor
        self.wake, resized = pipe()
        # What was before comes back with the objects, if an interruption comes before or within __exit__.
        self.mode: Owned[Any] = Owned(
            termios.tcgetattr,
            (self.terminal,),
            partial(termios.tcsetattr, self.terminal, termios.TCSADRAIN),
            keep=opened,
        )
        self.handler: Owned[Any] = Owned(
            _signal.signal,
            (signal.SIGWINCH, lambda number, frame: os.write(resized.fileno(), b"\0")),
            partial(_signal.signal, signal.SIGWINCH),
        )
        tty.setcbreak(self.terminal)
        return self

    def __exit__(self, *error: object) -> None:
        self.handler.close()
        self.mode.close()
        self.wake.close()

    def read(self, seconds: float) -> str | None:
        """The next key: a letter (arrows are j and k), RESIZED or ENDED; None where none comes in time."""
        if self.waiting:
            return self.waiting.pop(0)
        wake = self.wake.fileno()
        ready, _, _ = select.select([self.terminal, wake], [], [], max(seconds, 0))
        if not ready:
            return None
        if wake in ready:
            os.read(wake, 64)
            return RESIZED
        try:
            typed = os.read(self.terminal, 64)
        except OSError:
            return ENDED
        self.waiting = parsed(typed)
        return self.waiting.pop(0) if self.waiting else ENDED


def parsed(typed: bytes) -> list[str]:
    """Keys of what a terminal sent at once."""
    keys = []
    while typed:
        arrow = next((one for one in ARROWS if typed.startswith(one)), b"")
        keys.append(ARROWS[arrow] if arrow else chr(typed[0]))
        typed = typed[len(arrow) or 1 :]
    return keys
