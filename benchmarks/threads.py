"""The same work from many threads at once, and from Cython and C without the GIL."""

import ctypes
import functools
import importlib.util
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from itertools import repeat
from pathlib import Path
from time import perf_counter_ns
from types import ModuleType

import rawc
from timing import nothing, summary, time_batch

THREADS = 8
Span = tuple[int, int]  # nanoseconds: when it began and ended


def wall(work: list[Callable[[], Span]], enter: Callable[[], object], pinned: bool = False) -> int:
    """Nanoseconds from the first thread's start to the last one's end.

    Arguments:
        work: one function a thread, which answers when its timed part began and ended.
        enter: called on each thread before all start at once.
        pinned: whether each thread stays on one processor, in turn; else some systems run them all on one.
    Raises:
        Exception: the first that a thread raised.
    """
    barrier = threading.Barrier(len(work))
    spans: list[Span] = []
    failures: list[BaseException] = []
    processors = sorted(os.sched_getaffinity(0))

    def body(number: int, task: Callable[[], Span]) -> None:
        try:
            if pinned:
                os.sched_setaffinity(0, {processors[number % len(processors)]})
            enter()
            barrier.wait()
            spans.append(task())
        except BaseException as error:
            failures.append(error)
            barrier.abort()

    crew = [threading.Thread(target=body, args=each) for each in enumerate(work)]
    for member in crew:
        member.start()
    for member in crew:
        member.join()
    if failures:
        causes = [each for each in failures if not isinstance(each, threading.BrokenBarrierError)]
        raise (causes or failures)[0]
    return max(end for _, end in spans) - min(start for start, _ in spans)


def loop_of(call: Callable[[], object], count: int) -> Callable[[], Span]:
    """A thread's share: a Python loop of calls."""

    def loop() -> Span:
        start = perf_counter_ns()
        for _ in repeat(None, count):
            call()
        return start, perf_counter_ns()

    return loop


def python_wall(call: Callable[[], object], single: float, enter: Callable[[], object], quick: bool) -> dict:
    """A call from eight Python threads at once.

    Arguments:
        call: what each thread calls.
        single: nanoseconds that one thread needs for it; each gets some 10 ms of that, so that threads meet.
        enter: readies a thread.
        quick: bool, little work, once.
    Returns:
        the cell: wall nanoseconds a call, all threads' calls counted together.
    """
    count = max(100, int((1e6 if quick else 1e7) / max(single, 10.0)))
    loop = time_batch(nothing, count) / count
    wall([loop_of(call, min(count, 1000))] * THREADS, enter)
    spans = [wall([loop_of(call, count)] * THREADS, enter) for _ in range(1 if quick else 3)]
    return summary([span / (count * THREADS) for span in spans], loop)


def apart_wall(makers: list[Callable[[], Callable]], enter: Callable[[], object], quick: bool) -> dict:
    """Calls from as many Python threads, each with one that it makes itself, so that no counts are shared.

    Returns:
        the cell: wall nanoseconds a call, all threads' calls counted together.
    """
    count, turns = (5_000, 1) if quick else (200_000, 5)
    loop = time_batch(nothing, count) / count

    def tasks(count: int) -> list[Callable[[], Span]]:
        return [lambda make=make: loop_of(make(), count)() for make in makers]

    wall(tasks(1000), enter, pinned=True)
    spans = [wall(tasks(count), enter, pinned=True) for _ in range(turns)]
    side_by_side = min(len(makers), len(os.sched_getaffinity(0)))
    return summary([span / (count * len(makers)) for span in spans], loop / side_by_side)


@functools.cache
def compiled(source: Path, folder: str) -> ModuleType:
    """Builds a .pyx against the accelrt that is imported, and imports it."""
    from Cython.Build import cythonize
    from setuptools import Distribution, Extension

    include = [str(Path(sys.modules["accelrt"].__file__).parents[1])]
    folder = str(Path(folder) / include[0].strip("/").replace("/", "-"))
    extension = Extension(source.stem, [str(source)], extra_compile_args=["-O3"])
    # A module that says nothing of it turns the GIL on.
    directives = {"freethreading_compatible": True}
    made = cythonize(
        [extension], build_dir=folder, include_path=include, quiet=True, compiler_directives=directives
    )
    command = Distribution({"ext_modules": made}).get_command_obj("build_ext")
    command.build_lib, command.build_temp = folder, folder
    command.ensure_finalized()
    command.run()
    spec = importlib.util.spec_from_file_location(source.stem, command.get_ext_fullpath(source.stem))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def linked(source: Path, folder: str) -> Callable:
    """Builds a .c file against the accelrt that is imported; its function pairs, called without the GIL."""
    accelrt, made = sys.modules["accelrt"], Path(folder) / f"{source.stem}.so"
    library = accelrt.get_library()
    found = [library, f"-Wl,-rpath,{Path(library).parent}"]
    flags = [*rawc.FLAGS, "-shared", "-fPIC", "-I", accelrt.get_include()]
    subprocess.run([rawc.compiler(), *flags, source, *found, "-o", made], check=True, timeout=rawc.TIMEOUT)
    function, moment = ctypes.CDLL(str(made)).pairs, ctypes.c_int64
    function.argtypes = [ctypes.c_int, *[ctypes.c_size_t] * 2, ctypes.c_long, *[ctypes.POINTER(moment)] * 2]

    def pairs(device: int, size: int, stream: int, count: int) -> tuple[int, int]:
        start, end = moment(), moment()
        code = function(device, size, stream, count, start, end)
        if code:
            raise RuntimeError(f"accelrt answered {code}")
        return start.value, end.value

    return pairs


def nogil_wall(pairs: Callable, streams: list[int], enter: Callable[[], object], quick: bool) -> dict:
    """Pairs of 512 bytes from one thread a stream, without the GIL.

    Returns:
        the cell: wall nanoseconds a pair, all threads' pairs counted together.
    """
    count, turns = (5_000, 1) if quick else (500_000, 9)
    for stream in streams:
        pairs(0, 512, stream, 1000)
    tasks = [lambda stream=stream: pairs(0, 512, stream, count) for stream in streams]
    return summary([wall(tasks, enter) / (count * len(streams)) for _ in range(turns)])
