"""Texts of other people's (tags, names of files and functions) as a terminal can show them, and sizes."""

import sys

UNITS = ("KiB", "MiB", "GiB", "TiB")


def printable(text: str) -> str:
    """A text with its control characters, line breaks among them, and halves of surrogates escaped."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else escaped(each) for each in text)


def printable_lines(text: str) -> str:
    """The same for a text of several lines, whose line breaks stay."""
    return text if text.isprintable() else "\n".join(map(printable, text.split("\n")))


def say(text: str) -> None:
    """A line on standard error, where there is one."""
    if sys.stderr is not None:
        print(printable(text), file=sys.stderr)


def escaped(letter: str) -> str:
    return letter.encode("unicode_escape").decode("ascii")


def size_text(size: int, units: tuple[str, ...] = UNITS) -> str:
    """Bytes with a unit: size_text(12_650_429_560) is "11.78 GiB", size_text(512) "512 bytes"."""
    for power in range(len(units), 0, -1):
        if size >= 1024**power:
            return f"{size / 1024**power:.2f} {units[power - 1]}"
    return f"{size} bytes"
