"""A snapshot's file as a dict."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from accelrt import memory

__all__ = ["read_snapshot"]


def read_snapshot(path: str | Path) -> dict[str, Any]:
    """Reads a snapshot: what accelrt.memory.load_snapshot reads, and the same dict as JSON.

    Nothing of the file is run.

    Arguments:
        path: str or Path.
    Raises:
        OSError: the file cannot be read.
        ValueError: it holds no snapshot; the text says what was expected.
    """
    with open(path, "rb") as file:
        is_json = file.read(1) in (b"{", b"[")
    return read_json(path) if is_json else memory.load_snapshot(path)


def read_json(path: str | Path) -> dict[str, Any]:
    with open(path, "rb") as file:
        try:
            found = json.load(file)
        except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
            raise ValueError(f"{path} is no snapshot: JSON was expected ({error})") from None
    if not isinstance(found, dict):
        raise ValueError(f"{path} is no snapshot: an object with 'segments' and 'device_traces' was expected")
    return found
