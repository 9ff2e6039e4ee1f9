"""How a process that measures tells its parent what it found: JSON objects, one a line, each said at once, so
that a process that dies has said what it knew.

    {"version": "2.11"}                     the library's
    {"absent": "ImportError: ..."}          it cannot be used
    {"cells": {"pair_512": {"value": 95.1}}}
    {"row": "pair_4mib", "error": "..."}    one row failed
"""

import gc
import importlib
import json
import os
import subprocess
from collections.abc import Callable


def resident_bytes() -> int:
    """Returns how much of this process is in memory (RSS)."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def say(**words: object) -> None:
    """Says one of the above."""
    print(json.dumps(words), flush=True)


def say_rows(module: str, rows: dict[str, Callable[[], dict]]) -> None:
    """Says the version of a module, and what each row gives; where the module is not there, that alone.

    Arguments:
        module: its name, to be imported.
        rows: name -> what measures it and returns its cells.
    """
    try:
        version = importlib.import_module(module).__version__
    except ImportError as error:
        say(absent=f"{type(error).__name__}: {error}")
        return
    say(version=version)
    gc.disable()
    for row, measure in rows.items():
        gc.collect()
        try:
            say(cells=measure())
        except Exception as error:
            say(row=row, error=f"{type(error).__name__}: {error}")


def listen(command: list[str], timeout: float, environment: dict | None = None) -> tuple[list[dict], str]:
    """Runs a process and hears it out.

    Arguments:
        command: what to run.
        timeout: seconds after which it is stopped.
        environment: variables set beside those of this process.
    Returns:
        what it said, and how it ended: "" where it ended well.
    """
    child = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **(environment or {})},
    )
    try:
        out, complaints = child.communicate(timeout=timeout)
        end = f"the process ended with {child.returncode}: {complaints[-1000:]}" if child.returncode else ""
    except subprocess.TimeoutExpired:
        child.kill()
        out, complaints = child.communicate()
        end = f"the process was stopped after {timeout:g} s: {complaints[-1000:]}"
    return [json.loads(line) for line in out.splitlines() if line.startswith("{") and line.endswith("}")], end
