"""The blocks of Python in a page of Markdown, and a child that runs those of one page.

A fence's first line says what a block needs: "python {needs: torch, gpu}" is skipped where torch or a GPU is
not there, and so are two_devices and cuda_13_1, a driver of that version; "python {alone}" is a program of
its own, in a file, as what starts processes has to be.
"""

import importlib.util
import json
import os
import re
import signal
import sys
import textwrap
import traceback

SECONDS = 300  # that a block may take
FENCE = re.compile(r"^( *)```([^\n]*)\n(.*?)^\1```$", re.M | re.S)
INFO = re.compile(r"(\w*)(?: \{(.*)\})?")


def blocks(text):
    """(line, language, marks, source) of each fence; marks is {"needs": [...], "alone": bool}."""
    for match in FENCE.finditer(text):
        info = INFO.fullmatch(match[2])
        if match[2].startswith("{"):
            continue  # a directive of Sphinx's, such as {toctree}
        if info is None:
            raise ValueError(f"a block begins with {match[2]!r}; write a language, or python {{needs: NAME}}")
        line = text.count("\n", 0, match.start()) + 2
        words = [word.strip() for word in (info[2] or "").replace("needs:", ",").split(",") if word.strip()]
        marks = {"needs": [word for word in words if word != "alone"], "alone": "alone" in words}
        yield line, info[1], marks, textwrap.dedent(match[3])


def absent(needs, has_gpu):
    """The first of what a block needs that is not there; empty where all is."""
    return next((need for need in needs if not is_there(need, has_gpu)), "")


def is_there(need, has_gpu):
    if need == "gpu":
        return has_gpu
    if need == "two_devices":  # as the host device has
        return not has_gpu or importlib.import_module("accelrt").device_count() > 1
    if version := re.fullmatch(r"cuda_(\d+)_(\d+)", need):
        return importlib.import_module("accelrt").driver_version() >= (int(version[1]), int(version[2]))
    try:
        # The host device has collectives of its own.
        return (need == "nccl" and not has_gpu) or importlib.util.find_spec(need) is not None
    except ImportError:  # of the package that a module is in
        return False


def run_all(page, sources):
    """Runs each block in a fork of this process, which has imported much and initialised nothing."""
    import numpy  # noqa: F401  what blocks import, once

    import accelrt

    assert not accelrt.is_initialized()
    failed = []
    for line, source in sources:
        child = os.fork()
        if child == 0:
            signal.alarm(SECONDS)
            raise SystemExit(run_one(page, line, source))
        if os.waitpid(child, 0)[1] != 0:
            failed.append(f"{page}:{line}")
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


def run_one(page, line, source):
    """Runs a block as a program of its own; the exit status."""
    try:
        exec(compile("\n" * (line - 1) + source, page, "exec"), {"__name__": "__main__"})
    except Exception:
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    if os.path.dirname(os.path.abspath(__file__)) in sys.path:
        sys.path.remove(os.path.dirname(os.path.abspath(__file__)))  # blocks import what users can
    run_all(sys.argv[1], json.load(sys.stdin))
