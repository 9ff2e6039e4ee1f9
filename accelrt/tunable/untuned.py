"""Files of what was not tuned: a line "OPERATION,PARAMETERS" for arguments of which no result was known."""

from __future__ import annotations

import warnings

from accelrt.tunable.results import file_for
from accelrt.tunable.results_file import append_lines

__all__ = ["read", "record"]

_recorded: set[tuple[str, str, str]] = set()  # file, operation, parameters


def record(ordinal: int, operation: str, params: str) -> None:
    """Adds a line to the device's file, once a process; a file that cannot be written is told."""
    path = file_for(ordinal, "ACCELRT_TUNABLE_UNTUNED_FILENAME")
    entry = path, operation, params
    if entry in _recorded:
        return
    _recorded.add(entry)
    try:
        append_lines(path, [f"{operation},{params}"])
    except OSError as error:
        warnings.warn(f"what is not tuned is not recorded: {error}", RuntimeWarning, stacklevel=4)


def read(path: str) -> list[tuple[str, str]]:
    """(operation, parameters) of each line, each once.

    Raises:
        OSError: the file cannot be read.
        ValueError: a line is malformed; the text names it.
    """
    found: dict[tuple[str, str], None] = {}
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            fields = [field.strip() for field in line.split(",")]
            if fields == [""] or fields[0] == "Validator":
                continue
            if len(fields) < 2 or not all(fields[:2]):
                raise ValueError(f"{path}, line {number}: {line.strip()!r} is no line OPERATION,PARAMETERS")
            found[fields[0], fields[1]] = None
    return list(found)
