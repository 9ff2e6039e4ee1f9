"""Shared libraries that tests compile, with the compiler that built this Python's extensions."""

import ctypes
import shlex
import shutil
import subprocess
import sysconfig
from pathlib import Path

COMPILER = shlex.split(sysconfig.get_config_var("CC") or "cc")
if shutil.which(COMPILER[0]) is None:
    COMPILER = ["cc"]


def compile_library(name, folder):
    """Compiles tests/NAME.c into a shared library of a folder; returns its path as str."""
    path = str(Path(folder) / f"lib{name}.so")
    source = Path(__file__).parent / f"{name}.c"
    flags = ["-shared", "-fPIC", "-fvisibility=hidden", "-pthread", "-Wall", "-Werror", "-Wno-pedantic"]
    subprocess.run([*COMPILER, *flags, "-o", path, source, "-ldl"], check=True)
    return path


def typed(library, name, result=ctypes.c_size_t, arguments=()):
    """A function of a loaded library with its types set."""
    function = getattr(library, name)
    function.restype, function.argtypes = result, list(arguments)
    return function
