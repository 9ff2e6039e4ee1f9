"""A bar on a terminal that says how far a long loop is."""

from __future__ import annotations

import sys
import time

__all__ = ["Progress"]

WIDTH = 30
SECONDS_BETWEEN = 0.1


class Progress:
    """The bar, on standard error; it draws nothing where that is no terminal, or if it is not wanted.

    Arguments:
        total: int, what update counts up to.
        wanted: bool.
    """

    def __init__(self, total: int, wanted: bool = True):
        self.total = total
        self.drawn = 0
        self.next_time = 0.0
        self.shown = wanted and total > 0 and sys.stderr.isatty()

    def update(self, done: int) -> None:
        """Draws, unless it has just drawn."""
        if not self.shown or time.monotonic() < self.next_time:
            return
        self.next_time = time.monotonic() + SECONDS_BETWEEN
        bar = "#" * (WIDTH * done // self.total)
        self.write(f"[{bar:<{WIDTH}}] {100 * done // self.total:3} %  {done:,} of {self.total:,}")

    def finish(self) -> None:
        """Wipes the bar out."""
        if self.drawn:
            self.write(" " * self.drawn + "\r")
            self.drawn = 0

    def write(self, line: str) -> None:
        sys.stderr.write("\r" + line)
        sys.stderr.flush()
        self.drawn = max(self.drawn, len(line))
