"""Reads what the CUDA runtime says of its errors: names and texts, which it tells without a driver."""

from __future__ import annotations

import importlib
import operator
from types import ModuleType

UNKNOWN_TEXT = "unrecognized error code"  # as the runtime says it


def bindings() -> ModuleType:
    """cuda.bindings.runtime, imported where it is needed: that takes long."""
    return importlib.import_module("cuda.bindings.runtime")


def error_text(code: int, function: str) -> str:
    """Returns what cudaGetErrorName or cudaGetErrorString, which asked names, says of a code."""
    runtime = bindings()
    try:
        error = runtime.cudaError_t(operator.index(code))
    except ValueError:
        return UNKNOWN_TEXT
    text: bytes = getattr(runtime, function)(error)[1]
    return text.decode()
