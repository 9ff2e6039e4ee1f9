"""Texts of other people's (tags, names of files and functions) as a terminal can show them."""

__all__ = ["printable", "printable_lines"]


def printable(text: str) -> str:
    """A text with its control characters, line breaks among them, and halves of surrogates escaped."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else escaped(each) for each in text)


def printable_lines(text: str) -> str:
    """The same for a text of several lines, whose line breaks stay."""
    return text if text.isprintable() else "\n".join(map(printable, text.split("\n")))


def escaped(letter: str) -> str:
    return letter.encode("unicode_escape").decode("ascii")
