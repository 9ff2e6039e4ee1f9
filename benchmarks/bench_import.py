"""Import time: a fresh interpreter that imports the library, less one that imports nothing.

Wall time of the process, with the files in the page cache.  Importing needs no device.
"""

import os
import statistics
import subprocess
import sys
from pathlib import Path
from time import perf_counter

import peers
from rows import Goal, Row
from suite import Suite, options
from timing import Budget, repeated, summary

ROWS = [Row("import", "import", Goal(0.05), unit="s")]
STATEMENTS = {
    "accelrt": "import accelrt",
    "cuda.bindings": "from cuda.bindings import driver",
    "torch": "import torch",
    "CuPy": "import cupy",
    "cuda.core": "import cuda.core",
    "RMM": "import rmm",
}


def seconds(statement: str) -> float:
    """Wall time of a fresh interpreter that runs a statement.

    Raises:
        ImportError: it failed; the text is the last line of the interpreter's words.
    """
    here = str(Path(peers.__file__).resolve().parents[2])
    path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), here]))
    start = perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", statement],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parent,  # not the tree's root, whose folder would hide an installed package
        env={**os.environ, "PYTHONPATH": path},
        timeout=60,
    )
    taken = perf_counter() - start
    if done.returncode:
        raise ImportError(f"{statement}: {(done.stderr.strip().splitlines() or ['no words'])[-1]}")
    return taken


def main() -> None:
    """Times every library in turn."""
    chosen = options()
    suite = Suite("import", ROWS, list(STATEMENTS), chosen.quick)
    budget = Budget(0.1, 1, 1) if suite.quick else Budget(4.0, 3, 15)
    bare = statistics.median(repeated(lambda: seconds("pass"), budget))
    for column, statement in STATEMENTS.items():
        try:
            samples = repeated(lambda statement=statement: seconds(statement), budget)
        except (ImportError, subprocess.TimeoutExpired) as error:
            suite.absent[column] = f"{type(error).__name__}: {error}"
            continue
        suite.keep("import", column, summary(samples, bare))
    suite.print(chosen.json)


if __name__ == "__main__":
    main()
