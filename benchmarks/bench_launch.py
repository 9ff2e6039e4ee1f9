"""Launches of kernels that do nothing, elementwise calls, and arrays handed to other libraries: the call.

Launches are put in by the 500, which a GPU's queue holds, and waited for outside the clock.  The kernel of 16
parameters takes eight pointers, four integers and four doubles.  By DLPack's C exchange API a loop of C
exports an array and gives it back.
"""

import ctypes
import os
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import rawc
import threads
from rows import Goal, Row
from suite import run
from timing import FULL, QUICK, repeated, summary
from worker import Worker

HERE = Path(__file__).parent
FOLDER = "BENCH_LAUNCH_FOLDER"  # where the processes keep what they compiled
BATCH = 500
ROWS = [
    Row("launch_1", "launch, one pointer", Goal(150, plus="raw C"), batch=BATCH),
    Row("launch_16", "launch, 16 arguments", Goal(300, plus="raw C"), batch=BATCH),
    Row("launch_nogil", "launch, one pointer, Cython, no GIL", Goal(30, plus="raw C")),
    Row("elementwise_1kib", "elementwise z = 2 * x of 1 KiB, into z", batch=BATCH),
    Row("elementwise_new", "elementwise z = 2 * x of 1 KiB, into new memory", batch=BATCH),
    Row("dlpack", "__dlpack__() of an array, capsule dropped", Goal(400)),
    Row("exchange", "export by DLPack's C exchange API, in C", Goal(100)),
]


def exports_of(folder: str, array: object) -> Callable[[int], int]:
    """A loop of exports of an array: count -> nanoseconds."""
    made = Path(folder) / "exports.so"
    if not made.exists():
        command = [rawc.compiler(), *rawc.FLAGS, "-shared", "-fPIC", str(HERE / "exports.c"), "-o", str(made)]
        subprocess.run(command, check=True, timeout=rawc.TIMEOUT)
    loop, pointer = ctypes.PyDLL(str(made)).exports, ctypes.pythonapi.PyCapsule_GetPointer
    loop.argtypes, loop.restype = [ctypes.c_void_p, ctypes.py_object, ctypes.c_long], ctypes.c_int64
    pointer.argtypes, pointer.restype = [ctypes.py_object, ctypes.c_char_p], ctypes.c_void_p
    api = pointer(type(array).__dlpack_c_exchange_api__, b"dlpack_exchange_api")
    return lambda count: loop(api, array, count)


def more(worker: Worker) -> None:
    """The rows of compiled loops, for the libraries that have what they call."""
    budget = QUICK if worker.quick else FULL
    peer, folder = worker.peer, os.environ[FOLDER]

    def launches() -> dict:
        loop = threads.compiled(HERE / "raw" / "nogil_launches.pyx", folder).launches
        subject = peer.launch_subject()

        def once() -> float:
            taken = loop(*subject, BATCH) / BATCH
            peer.settle()
            return taken

        return summary(repeated(once, budget))

    def exports() -> dict:
        loop = exports_of(folder, peer.array())
        return summary(repeated(lambda: loop(BATCH) / BATCH, budget))

    if hasattr(peer, "launch_subject"):
        worker.attempt("launch_nogil", launches)
    if hasattr(peer, "array"):
        worker.attempt("exchange", exports)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        os.environ.setdefault(FOLDER, made)
        run("launch", ROWS, ["torch", "CuPy", "cuda.core"], more, rounds=2)
