"""accelrt's memory and streams under other libraries, each by its install(), which imports that library.

cupy               CuPy: device and page-locked memory, captures that CuPy begins
cupy_memory        the memory as CuPy holds it
external_captures  captures that another library begins, and the private pool that each has
numba              numba-cuda: its memory manager
"""

import importlib

_libraries = ("cupy", "numba")


def __getattr__(name: str) -> object:
    """A library's module is imported when it is asked for; it imports the library in install()."""
    if name not in _libraries:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return importlib.import_module(f"{__name__}.{name}")
