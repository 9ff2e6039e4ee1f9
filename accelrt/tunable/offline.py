"""Tuning what a file names: what record_untuned_enable() had written by a program that did not tune."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable

from accelrt.devices.device import current_device
from accelrt.tunable import operation as registered
from accelrt.tunable import results
from accelrt.tunable.results_file import Result, read_untuned

__all__ = ["tune_gemm_in_file", "tune_in_file"]

GEMMS = ("Gemm", "ScaledGemm")


def tune_in_file(filename: str) -> list[Result]:
    """Times the candidates of the operations and arguments that a file names, on the current device.

    Arguments:
        filename: str, such as accelrt_untuned0.csv; a file of results does too.
    Returns:
        list of Result, of what was tuned; what is known already is left out.  A line that cannot be tuned,
        since no operation of that name is registered or no arguments can be made, is a RuntimeWarning.
    Raises:
        OSError, ValueError: the file cannot be read, or a line is malformed.
    """
    return tune_each(read_untuned(os.fspath(filename)), skip)


def tune_gemm_in_file(filename: str) -> list[Result]:
    """Does as tune_in_file for operations whose names begin with Gemm or ScaledGemm alone; torch's name.

    Arguments, Returns, Raises: as tune_in_file.
    """
    lines = [line for line in read_untuned(os.fspath(filename)) if line[0].startswith(GEMMS)]
    return tune_each(lines, skip)


def skip(operation: str, params: str, reason: str) -> None:
    warnings.warn(f"{operation},{params} is not tuned: {reason}", RuntimeWarning, stacklevel=4)


def tune_each(lines: list[tuple[str, str]], tell: Callable[[str, str, str], None]) -> list[Result]:
    """Tunes each (operation, parameters) of which nothing is known; tells of those that cannot be tuned."""
    tuned = []
    for name, params in lines:
        operation = registered.operations.get(name)
        if operation is None:
            names = ", ".join(sorted(registered.operations)) or "none"
            tell(name, params, f"no operation of that name is registered; there are: {names}")
            continue
        if results.find(current_device(), name, params) is not None:
            continue
        try:
            args, kwargs = operation.arguments_for(params)
            called = operation.params_of(*args, **kwargs)
        except (ValueError, TypeError) as error:
            tell(name, params, str(error))
            continue
        if called != params:
            tell(name, params, f"the arguments that were made for it are called {called!r}")
            continue
        tuned.append(operation.tune(*args, **kwargs))
    return tuned
