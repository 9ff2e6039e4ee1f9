"""Tells which NVRTC this environment has, without loading it, and where its headers are: to load the library
and to look for headers takes longer than to read a cached kernel.

A file of the cache's folder names the library that an earlier process loaded, another one the folders that it
found.  They count while that library is the same file and nothing was installed since that could change which
library is found.
"""

from __future__ import annotations

import os
import sys

from accelrt.core import files
from accelrt.kernels import cache, nvrtc

# Where cuda.pathfinder and the dynamic linker look for a library.
VARIABLES = ("CUDA_HOME", "CUDA_PATH", "CONDA_PREFIX", "LD_LIBRARY_PATH", "LD_PRELOAD")
PLACES = ("/etc/ld.so.cache", "/usr/local", "/usr/local/cuda")

_known: nvrtc.Compiler | None = None
_environment = ""
_folders: dict[nvrtc.Compiler, list[str]] = {}


def current_compiler() -> nvrtc.Compiler:
    """The NVRTC that a compilation would use; loads it where no file tells.

    Raises:
        CompilerNotFoundError: it is not installed.
    """
    global _known, _environment
    if _known is not None:
        return _known
    _environment = environment()
    _known = read(_environment)
    if _known is None:
        _known = load()
    return _known


def load() -> nvrtc.Compiler:
    """The same, loaded, and told to later processes."""
    global _known
    compiler = nvrtc.load()
    if _known is None or _known.stamp != compiler.stamp or _known.path != compiler.path:
        _known = compiler
        if compiler.stamp:
            numbers = [str(number) for number in (*compiler.version, *compiler.numbers)]
            fields = [compiler.path.encode(), compiler.stamp, " ".join(numbers).encode()]
            cache.write_fields(_environment or environment(), fields)
    return _known


def header_folders(compiler: nvrtc.Compiler) -> list[str]:
    """The folders of a compiler's headers, looked for where no file tells.  A source without #include needs
    none."""
    if compiler not in _folders:
        name = "headers-" + environment()
        fields = cache.read_fields(name)
        if fields and compiler.stamp and fields[0] == compiler.stamp:
            _folders[compiler] = [os.fsdecode(field) for field in fields[1:]]
        else:
            _folders[compiler] = nvrtc.toolkit_folders(compiler)
            if compiler.stamp:
                cache.write_fields(name, [compiler.stamp, *map(os.fsencode, _folders[compiler])])
    return _folders[compiler]


def read(name: str) -> nvrtc.Compiler | None:
    fields = cache.read_fields(name)
    if fields is None or len(fields) != 3:
        return None
    path, stamp = os.fsdecode(fields[0]), fields[1]
    if not stamp or files.stamp(path) != stamp:
        return None
    try:
        major, minor, *numbers = map(int, fields[2].split())
    except ValueError:
        return None
    return nvrtc.Compiler((major, minor), path, stamp, tuple(numbers))


def environment() -> str:
    """The name of the file that says which library is found in an environment such as this one."""
    # Installing and removing a package changes the time of its site-packages.
    folders = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    fields = [sys.prefix, *(os.environ.get(name, "") for name in VARIABLES)]
    for path in (*folders, *PLACES):
        try:
            fields.append(f"{path} {os.stat(path).st_mtime_ns}")
        except OSError:
            fields.append(path)
    return "compiler-" + cache.digest(map(os.fsencode, fields))
