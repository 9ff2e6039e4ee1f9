"""A snapshot's file as a dict."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

__all__ = ["read_snapshot"]


def read_snapshot(path: str | Path) -> dict[str, Any]:
    """Reads a snapshot.

    Arguments:
        path: str or Path of a file of JSON.
    Raises:
        OSError: the file cannot be read.
        ValueError: it holds no snapshot.
    """
    with open(path, "rb") as file:
        try:
            found = json.load(file)
        except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
            raise ValueError(f"{path} is no snapshot: JSON was expected ({error})") from None
    if not isinstance(found, dict):
        raise ValueError(f"{path} is no snapshot: an object with 'segments' and 'device_traces' was expected")
    return found
