"""accelrt config: print flags and folders for compilers, CMake and pkg-config.

The library finds accelrt in the Python that loads it, so that a program links it and runs with that Python.
"""

import argparse
import shlex
import sysconfig
from collections.abc import Callable
from pathlib import Path

import accelrt
from accelrt.tools.cli.text import put

LIBRARY = Path(accelrt.get_library())
ANSWERS: dict[str, tuple[str, Callable[[], list[str]]]] = {
    "cflags": ("the compiler's flags for accelrt.h and accelrt.hpp", lambda: [f"-I{accelrt.get_include()}"]),
    "libs": (
        "the linker's flags, with an rpath",
        lambda: [f"-L{LIBRARY.parent}", f"-Wl,-rpath,{LIBRARY.parent}", "-laccelrt"],
    ),
    "python-cflags": (
        "the same as --cflags with Python's headers, for extensions in C",
        lambda: [f"-I{accelrt.get_include()}", f"-I{sysconfig.get_path('include')}"],
    ),
    "includes": ("the folder of the headers", lambda: [accelrt.get_include()]),
    "library": ("the shared library's file", lambda: [str(LIBRARY)]),
    "static": (
        "the header that one file of C includes to have the functions compiled in, without a library",
        lambda: [str(Path(accelrt.get_include(), "accelrt_static.h"))],
    ),
    "cmake": (
        "the folder for CMake's accelrt_ROOT; find_package(accelrt) makes the target accelrt::accelrt",
        lambda: [str(LIBRARY.parent)],
    ),
    "pkgconfig": ("the folder for PKG_CONFIG_PATH", lambda: [str(LIBRARY.parent / "pkgconfig")]),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    for name, (text, _) in ANSWERS.items():
        add = parser.add_argument
        add(f"--{name}", action="append_const", const=name, dest="asked", help=text)


def run(asked: list[str] | None) -> int:
    """The command: what is asked for as words for the shell, on one line; or all of it with its names."""
    if not asked:
        for name, (_, answer) in ANSWERS.items():
            put(f"{name:<14} {shlex.join(answer())}")
        return 0
    put(shlex.join([word for name in asked for word in ANSWERS[name][1]()]))
    return 0
