"""The packages that some commands need beyond accelrt's own."""

from __future__ import annotations

import importlib
from typing import Any

__all__ = ["need"]


def need(package: str, module: str, command: str) -> Any:
    """Imports a module of an optional package.

    Arguments:
        package, module: str, its names on PyPI and in Python.
        command: str, who needs it.
    Raises:
        ImportError: it is not installed; the text says how to install it.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if not module.startswith(str(error.name)):
            raise  # it is there, but one of its own is not
        raise ImportError(
            f"'accelrt {command}' needs the package {package}, which is not installed: "
            "python -m pip install 'accelrt[cli]'"
        ) from None
