"""Compiling a kernel at run time: the call, in a fresh process that has imported the library.

First with nothing kept on disk, then with what an earlier process kept there; cuda.core keeps nothing of
itself, so it compiles both times.  Compiling needs no device.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import peers
from rows import Goal, Row
from suite import Suite, options
from timing import Budget, repeated, summary

ROWS = [
    Row("compile_cold", "compile a kernel, nothing on disk"),
    Row("compile_warm", "compile it in a second process", Goal(2e6)),
]
SOURCE = (
    'extern "C" __global__ void scale(float* x, float a, int n) { if (threadIdx.x < n) x[threadIdx.x] *= a; }'
)
CLOCK = "from time import perf_counter_ns as now\n"
PROGRAMS = {
    "accelrt": "import accelrt\nwork = accelrt.compile_image\nstart = now()\nwork(source, arch='sm_90')\n",
    "cuda.core": (
        "from cuda.core import Program, ProgramOptions\nstart = now()\n"
        "Program(source, 'c++', ProgramOptions(arch='sm_90')).compile('cubin')\n"
    ),
}


def nanoseconds(program: str, folder: str) -> float:
    """What a fresh interpreter says that its compilation took, with a folder for what is kept.

    Raises:
        ImportError: it failed; the text is the last line of the interpreter's words.
    """
    here = str(Path(peers.__file__).resolve().parents[2])
    path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), here]))
    done = subprocess.run(
        [sys.executable, "-c", f"{CLOCK}source = {SOURCE!r}\n{program}print(now() - start)"],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parent,  # not the tree's root, whose folder would hide an installed package
        env={**os.environ, "PYTHONPATH": path, "ACCELRT_KERNEL_CACHE": folder},
        timeout=60,
    )
    if done.returncode:
        raise ImportError((done.stderr.strip().splitlines() or ["no words"])[-1])
    return float(done.stdout)


def cold(program: str) -> float:
    with tempfile.TemporaryDirectory() as folder:
        return nanoseconds(program, folder)


def main() -> None:
    """Times every library in turn."""
    chosen = options()
    suite = Suite("compile", ROWS, list(PROGRAMS), chosen.quick)
    budget = Budget(0.1, 1, 1) if suite.quick else Budget(4.0, 3, 15)
    for column, program in PROGRAMS.items():
        with tempfile.TemporaryDirectory() as folder:
            works = {
                "compile_cold": lambda program=program: cold(program),
                "compile_warm": lambda program=program, folder=folder: nanoseconds(program, folder),
            }
            for key, work in works.items():
                try:
                    suite.keep(key, column, summary(repeated(work, budget)))
                except (ImportError, subprocess.TimeoutExpired) as error:
                    suite.absent[column] = f"{type(error).__name__}: {error}"
    suite.print(chosen.json)


if __name__ == "__main__":
    main()
