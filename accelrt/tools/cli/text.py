"""Figures and tables as people read them, and a bar on a terminal that says how far a long loop is."""

import sys
import time
from collections.abc import Sequence
from typing import IO

from accelrt.core.printable import printable_lines


def put(text: str, file: IO[str] | None = None, flush: bool = False) -> None:
    """Prints a text, of which no letter does more than to be shown.

    Arguments:
        file: None is standard output.
    """
    print(printable_lines(text), file=file, flush=flush)


def short(size: int | None) -> str:
    """Bytes with a unit in 9 characters at most: "11.8 GiB"; "-" for None."""
    if size is None:
        return "-"
    figure, unit = float(size), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if figure < 999.95 or unit == "TiB":
            break
        figure /= 1024
    return f"{size} B" if unit == "B" else f"{figure:.1f} {unit}"


def pairs(lines: Sequence[tuple[str, str]]) -> str:
    """One name and its value a line, the values below each other."""
    width = max((len(name) for name, _ in lines), default=0)
    return "\n".join(f"  {name:<{width}}  {value}".rstrip() for name, value in lines)


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns that stand to the right, under their names."""
    lines = [header, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    aligned = [[f"{cell:>{width}}" for cell, width in zip(line, widths, strict=True)] for line in lines]
    return "\n".join("  " + "  ".join(line) for line in aligned)


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
        self.drawn: int = 0
        self.next_time: float = 0.0
        self.shown: bool = wanted and total > 0 and sys.stderr.isatty()

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
        sys.stderr.write("\r" + line)  # figures alone
        sys.stderr.flush()
        self.drawn = max(self.drawn, len(line))
