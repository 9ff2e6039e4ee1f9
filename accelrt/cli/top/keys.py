"""Single keys of a terminal, without waiting for a line."""

from __future__ import annotations

import os
import select
import signal
import sys
import termios
import tty
from typing import Any, Self

__all__ = ["ENDED", "RESIZED", "Keys"]

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
        self.opened = not sys.stdin.isatty()
        self.terminal = os.open("/dev/tty", os.O_RDONLY) if self.opened else sys.stdin.fileno()
        self.before = termios.tcgetattr(self.terminal)
        self.wake, self.resized = os.pipe()
        self.handler: Any = signal.signal(signal.SIGWINCH, self.resize)
        tty.setcbreak(self.terminal)
        return self

    def __exit__(self, *error: object) -> None:
        signal.signal(signal.SIGWINCH, self.handler)
        termios.tcsetattr(self.terminal, termios.TCSADRAIN, self.before)
        for descriptor in (self.wake, self.resized, *([self.terminal] if self.opened else [])):
            os.close(descriptor)

    def resize(self, number: int, frame: object) -> None:
        os.write(self.resized, b"\0")

    def read(self, seconds: float) -> str | None:
        """The next key: a letter (arrows are j and k), RESIZED or ENDED; None where none comes in time."""
        if self.waiting:
            return self.waiting.pop(0)
        ready, _, _ = select.select([self.terminal, self.wake], [], [], max(seconds, 0))
        if not ready:
            return None
        if self.wake in ready:
            os.read(self.wake, 64)
            return RESIZED
        try:
            typed = os.read(self.terminal, 64)
        except OSError:
            return ENDED
        self.waiting = parsed(typed)
        return self.waiting.pop(0) if self.waiting else ENDED


def parsed(typed: bytes) -> list[str]:
    """Keys of what a terminal sent at once."""
    found = []
    while typed:
        arrow = next((one for one in ARROWS if typed.startswith(one)), b"")
        found.append(ARROWS[arrow] if arrow else chr(typed[0]))
        typed = typed[len(arrow) or 1 :]
    return found
