"""Libraries and extensions that tests compile, with the compiler that built this Python's extensions."""

import ctypes
import functools
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

import pytest

SOURCES = Path(__file__).parent / "sources"
COMPILER = shlex.split(sysconfig.get_config_var("CC") or "cc")
if shutil.which(COMPILER[0]) is None:
    COMPILER = ["cc"]


def find_cxx():
    """The C++ compiler as a list, None where there is none: only C is needed to build accelrt."""
    for command in (sysconfig.get_config_var("CXX"), "g++", "c++"):
        words = shlex.split(command or "")
        if words and shutil.which(words[0]):
            return words
    return None


CXX = find_cxx()
SANITIZE = [f"-fsanitize={kind}" for kind in filter(None, [os.environ.get("ACCELRT_SANITIZE_BUILD")])]


def compile_library(name, folder):
    """Compiles sources/NAME.c into a shared library of a folder; returns its path as str.

    Skips the test where there is no C compiler.
    """
    if shutil.which(COMPILER[0]) is None:
        pytest.skip("no C compiler")
    path = Path(folder) / f"lib{name}.so"
    flags = ("-fvisibility=hidden", "-pthread", "-Wall", "-Werror", "-Wno-pedantic", "-ldl")
    path.write_bytes(library_of((SOURCES / f"{name}.c").read_text(), flags))
    return str(path)


def compile_image(text):
    """The bytes of a shared library of C text, which exports everything."""
    return library_of(text, ("-O1", "-Wall"))


def compile_source(text, folder, name):
    """Writes such a library into a folder; returns its path."""
    path = Path(folder) / f"{name}.so"
    path.write_bytes(compile_image(text))
    return path


@functools.cache
def library_of(text, flags):
    """The shared library of C text, compiled once a process."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "library.so")
        command = [*COMPILER, "-shared", "-fPIC", "-x", "c", "-", "-o", path, *flags]
        subprocess.run(command, input=text.encode(), check=True)
        return path.read_bytes()


def compile_libcuda(folder):
    """Compiles the stand-in for libcuda into a folder, by the name that the loader looks for; the folder."""
    shutil.move(compile_library("fake_libcuda", folder), Path(folder) / "libcuda.so.1")
    return str(folder)


def compile_against(name, folder, links=None, include=None):
    """Compiles sources/NAME.c against accelrt.h into a shared library of a folder; returns its path as str.

    links: what it is linked with; None is libaccelrt.so by its path, found where it is.
    include: the folder of another accelrt.h.
    """
    flags = [*COMPILER, "-std=c99", "-Wpedantic", "-shared", "-fPIC", "-fvisibility=hidden", "-pthread"]
    return compile_linked(flags, f"{name}.c", Path(folder) / f"lib{name}.so", links, include)


def compile_cpp(name, folder):
    """Compiles sources/NAME.cpp against accelrt.hpp into a shared library; returns its path as str."""
    flags = [*CXX, "-std=c++11", "-Wpedantic", "-shared", "-fPIC", "-fvisibility=hidden", "-Wno-self-move"]
    return compile_linked(flags, f"{name}.cpp", Path(folder) / f"lib{name}.so")


def compile_program(name, folder):
    """Compiles sources/NAME.c into a program that is linked with libaccelrt.so; returns its path as str."""
    return compile_linked([*COMPILER, "-std=c99"], f"{name}.c", Path(folder) / name)


def compile_linked(command, source, path, links=None, include=None):
    import accelrt

    found = [accelrt.get_library(), f"-Wl,-rpath,{Path(accelrt.get_library()).parent}"]
    flags = ["-Wall", "-Wextra", "-Werror", *SANITIZE, "-I", include or accelrt.get_include()]
    whole = [*command, *flags, "-o", path, SOURCES / source, *(found if links is None else links)]
    subprocess.run(whole, env=outside_sanitizers(), check=True)
    return str(path)


def outside_sanitizers():
    """The environment for a compiler, which runs without the sanitizer that this process may have."""
    return {key: value for key, value in os.environ.items() if key != "LD_PRELOAD"}


def compile_extension(name, folder, source=None):
    """Compiles sources/NAME.pyx, or a source, against the installed accelrt into a folder, to be imported.

    A sanitizer of accelrt's build is this one's too; the compiler itself runs without it.
    """
    import accelrt

    source, made = source or SOURCES / f"{name}.pyx", Path(folder) / f"{name}.c"
    installed = Path(accelrt.__file__).parent.parent
    outside = outside_sanitizers()
    # A module that says nothing of it turns the GIL on for the process that imports it.
    without_gil = ["-X", "freethreading_compatible=True"]
    cython = [sys.executable, "-m", "cython", "-3", *without_gil, "-I", installed, "-o", made, source]
    subprocess.run(cython, env=outside, check=True)
    flags = ["-O1", "-g", "-fno-omit-frame-pointer", "-shared", "-fPIC", "-I", sysconfig.get_path("include")]
    flags += SANITIZE
    extension = made.with_suffix(sysconfig.get_config_var("EXT_SUFFIX"))
    subprocess.run([*COMPILER, *flags, "-o", extension, made], env=outside, check=True)


def typed(library, name, result=ctypes.c_size_t, arguments=()):
    """A function of a loaded library with its types set."""
    function = getattr(library, name)
    function.restype, function.argtypes = result, list(arguments)
    return function
