"""accelrt tune offline: time the candidates of operations that a program recorded.

The operations are accelrt.tunable's, and a file names the arguments that they are timed for.  A program
writes the file that runs with ACCELRT_TUNABLE_ENABLED=1, ACCELRT_TUNABLE_TUNING=0 and
ACCELRT_TUNABLE_RECORD_UNTUNED=1.
"""

import argparse
import importlib
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

from accelrt import tunable
from accelrt.tools.cli import options
from accelrt.tools.cli.choice import open_driver
from accelrt.tools.cli.text import put, table
from accelrt.tunable import offline, results_file


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.prog = "accelrt tune offline"
    parser.add_argument("files", nargs="+", metavar="FILE", help="such as accelrt_untuned0.csv")
    text = "a module, or a file of Python, that registers the operations; may be given several times"
    parser.add_argument("--import", dest="modules", metavar="MODULE", action="append", default=[], help=text)
    text = "of results; default: accelrt.tunable's own"
    parser.add_argument("-o", "--output", metavar="FILE", help=text)
    options.add_driver(parser)


def run(files: Sequence[str], modules: Sequence[str], driver: str | None, output: str | None) -> int:
    """Tunes what the files name.  Returns the exit status: 1 where a line could not be tuned."""
    lines = list(dict.fromkeys(line for file in files for line in results_file.read_untuned(file)))
    put(open_driver(driver))
    for module in modules:
        load(module)
    if output is not None:
        tunable.set_filename(output)
    skipped: list[str] = []

    def tell(operation: str, params: str, reason: str) -> None:
        skipped.append(f"accelrt tune offline: {operation},{params} is not tuned: {reason}")

    tuned = offline.tune_each(lines, tell)
    if tuned:
        rows = [[one.operation, one.params, one.candidate, f"{one.time:.4g}"] for one in tuned]
        put(table(["operation", "arguments", "fastest", "ms"], rows))
    known = len(lines) - len(tuned) - len(skipped)
    path = tunable.get_filename()
    put(f"{len(tuned)} tuned, {known} known before, {len(skipped)} left out; results in {path}")
    for line in skipped:
        put(line, file=sys.stderr)
    return 1 if skipped else 0


def load(module: str) -> None:
    """Imports a module, or runs a file of Python, for the operations that it registers."""
    if module.endswith(".py"):
        if not Path(module).is_file():
            raise FileNotFoundError(f"{module} is not there; pass a module's name or a file of Python")
        runpy.run_path(module)
        return
    if "" not in sys.path:
        sys.path.insert(0, "")  # as python -m has it
    importlib.import_module(module)
