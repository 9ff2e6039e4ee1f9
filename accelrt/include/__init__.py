"""The C and C++ forms of the Cython API, and where they are installed.

accelrt.h    every function and constant of accelrt/api.pxd for C and C++; written by headergen
accelrt_static.h  the library's functions, for projects that compile them in; written by headergen too
accelrt.hpp  owners for C++: buffers, streams, events and graphs that give back what they hold; exceptions
headergen    writes accelrt.h, and the library's functions, from api.pxd and status.pxd when accelrt is built

../lib/ has the library: loader.h, which finds accelrt in the Python that runs; libaccelrt.c, written by
headergen; and libaccelrt.so, built of them.
"""

from __future__ import annotations

import os

from accelrt.runtime import init as lazy

__all__ = ["get_include", "get_library"]

_HERE = os.path.dirname(os.path.abspath(__file__))


def get_include() -> str:
    """Returns the folder of accelrt.h and accelrt.hpp, for a compiler's -I.

    Returns:
        str, an absolute path.
    """
    return _HERE


def get_library() -> str:
    """Returns the file of the shared library libaccelrt.so, which exports the functions of accelrt.h.

    Returns:
        str, an absolute path, to link or to dlopen.  What was linked to it finds it by an rpath or, since the
        loader goes by the name, where the process has loaded it: `ctypes.CDLL(accelrt.get_library())`.  What
        has accelrt_static.h compiled in needs no library.

    It works in a process that runs Python with accelrt installed: extension modules, libraries that they load
    and programs that embed Python.  The first call imports accelrt.  Elsewhere each call answers
    NOT_INITIALIZED.
    """
    return os.path.join(os.path.dirname(_HERE), "lib", "libaccelrt.so")


def _capsules() -> dict[str, object]:
    """The functions of accelrt.api by name, as capsules; the library asks for them at its first call."""
    capsules: dict[str, object] = lazy.later("accelrt.api").__pyx_capi__
    return capsules
