"""Libraries and extensions that tests compile, with the compiler that built this Python's extensions."""

import ctypes
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

SOURCES = Path(__file__).parent / "sources"
COMPILER = shlex.split(sysconfig.get_config_var("CC") or "cc")
if shutil.which(COMPILER[0]) is None:
    COMPILER = ["cc"]


def compile_library(name, folder):
    """Compiles sources/NAME.c into a shared library of a folder; returns its path as str."""
    path = str(Path(folder) / f"lib{name}.so")
    source = SOURCES / f"{name}.c"
    flags = ["-shared", "-fPIC", "-fvisibility=hidden", "-pthread", "-Wall", "-Werror", "-Wno-pedantic"]
    subprocess.run([*COMPILER, *flags, "-o", path, source, "-ldl"], check=True)
    return path


def compile_source(text, folder, name):
    """Compiles C text into a shared library of a folder, which exports everything; returns its path."""
    path, source = Path(folder) / f"{name}.so", Path(folder) / f"{name}.c"
    source.write_text(text)
    subprocess.run([*COMPILER, "-shared", "-fPIC", "-O1", "-Wall", "-o", path, source], check=True)
    return path


def compile_libcuda(folder):
    """Compiles the stand-in for libcuda into a folder, by the name that the loader looks for; the folder."""
    shutil.move(compile_library("fake_libcuda", folder), Path(folder) / "libcuda.so.1")
    return str(folder)


def compile_extension(name, folder, source=None):
    """Compiles sources/NAME.pyx, or a source, against the installed accelrt into a folder, to be imported.

    A sanitizer of accelrt's build is this one's too; the compiler itself runs without it.
    """
    import accelrt

    source, made = source or SOURCES / f"{name}.pyx", Path(folder) / f"{name}.c"
    installed = Path(accelrt.__file__).parent.parent
    outside = {key: value for key, value in os.environ.items() if key != "LD_PRELOAD"}
    cython = [sys.executable, "-m", "cython", "-3", "-I", installed, "-o", made, source]
    subprocess.run(cython, env=outside, check=True)
    flags = ["-O1", "-g", "-fno-omit-frame-pointer", "-shared", "-fPIC", "-I", sysconfig.get_path("include")]
    if sanitizer := os.environ.get("ACCELRT_SANITIZE_BUILD"):
        flags.append(f"-fsanitize={sanitizer}")
    extension = made.with_suffix(sysconfig.get_config_var("EXT_SUFFIX"))
    subprocess.run([*COMPILER, *flags, "-o", extension, made], env=outside, check=True)


def typed(library, name, result=ctypes.c_size_t, arguments=()):
    """A function of a loaded library with its types set."""
    function = getattr(library, name)
    function.restype, function.argtypes = result, list(arguments)
    return function
