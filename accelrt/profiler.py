"""Tells profilers which part of a program to collect, with torch.cuda.profiler's names.

    with accelrt.profiler.profile():
        step()

The calls are cudaProfilerStart's and cudaProfilerStop's.  They tell nsys or ncu where to begin and end (nsys
profile --capture-range=cudaProfilerApi, ncu --profile-from-start off), and do nothing where no tool listens.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from accelrt.runtime.cuda_status import check_error, cudart

__all__ = ["profile", "start", "stop"]


def start() -> None:
    """Has the profiler that listens collect from now on.

    Raises:
        CudaError: the runtime refused.
        DriverNotFoundError: there is no NVIDIA driver or device.
    """
    check_error(cudart().cudaProfilerStart())


def stop() -> None:
    """Has the profiler that listens collect no more.

    Raises: as start.
    """
    check_error(cudart().cudaProfilerStop())


@contextmanager
def profile() -> Iterator[None]:
    """Returns the context, or decorator, in which the profiler that listens collects.

    Raises: as start, when it is entered.
    """
    start()
    try:
        yield
    finally:
        stop()
