"""accelrt beside other libraries: one call each, and never at import.

torch  install: accelrt as torch's allocator
"""

import importlib
from types import ModuleType

_modules = ("torch",)


def __getattr__(name: str) -> ModuleType:
    if name not in _modules:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return importlib.import_module(f"{__name__}.{name}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_modules})
