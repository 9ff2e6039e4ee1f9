"""accelrt info --process: what accelrt's modules do around a fork and at the end of a process, in order."""

import importlib
import pkgutil
from contextlib import suppress
from typing import Any

import accelrt
from accelrt.core import process
from accelrt.tools.cli.text import pairs

FOR_TESTS = "accelrt.driver.testing"  # which no program imports
FORK = "around a fork (children in this order, C's before Python's; locks are taken in reverse)"
EXIT = "at the end of a process"


def import_all() -> None:
    """Imports every module that a program may, since each registers when it is imported; opens no driver."""
    for module in pkgutil.walk_packages(accelrt.__path__, "accelrt."):
        if module.name != FOR_TESTS:
            with suppress(ImportError):  # of another library that is not installed
                importlib.import_module(module.name)


def collect() -> dict[str, list[dict[str, Any]]]:
    """The two lists: of each entry its rank, its module, and of forks its language and phases too."""
    import_all()
    names = ("rank", "module", "language", "phases")
    return {
        "fork": [dict(zip(names, entry, strict=True)) for entry in process.registered_at_fork()],
        "exit": [dict(zip(names, entry, strict=False)) for entry in process.registered_at_exit()],
    }


def fork_lines(entries: list[dict[str, Any]]) -> list[tuple[str, str]]:
    width = max(len(entry["module"]) for entry in entries)
    return [
        (entry["rank"], f"{entry['module']:<{width}}  {entry['language']:<6}  {' '.join(entry['phases'])}")
        for entry in entries
    ]


def describe(lists: dict[str, list[dict[str, Any]]]) -> str:
    """The two lists as text."""
    ends = [(entry["rank"], entry["module"]) for entry in lists["exit"]]
    return f"{FORK}\n{pairs(fork_lines(lists['fork']))}\n{EXIT}\n{pairs(ends)}"
