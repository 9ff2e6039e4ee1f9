"""Compiles torch's allocator object (torch_allocator.cpp) against the torch that is installed, and keeps it.

The file is in the user's cache folder (XDG_CACHE_HOME, else ~/.cache) under accelrt/torch; its name is made
of all that it depends on: torch's version, accelrt's, the sources, the compiler and its arguments.  Where
that folder cannot be written, the file is made anew for each process.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from accelrt import env
from accelrt.core import files
from accelrt.interop import torch_sources
from accelrt.interop.torch_sources import MINORS
from accelrt.kernels.cache import digest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType

__all__ = ["CannotCompile", "library"]

COMPILERS = ("c++", "g++", "clang++")
LIMIT = 300  # seconds
LARGEST = 64 << 20  # bytes of a compiled file; it has some 100,000


class CannotCompile(Exception):
    """Says what is missing."""


def library(torch: ModuleType, version: str) -> Path:
    """The shared library for a torch, compiled unless it was before.

    Arguments:
        version: str, accelrt's.
    Raises:
        CannotCompile: this torch, a compiler or a header is missing, or the compiler fails.
    """
    minor = minor_of(torch)
    headers = Path(getattr(torch, "__file__", None) or "torch").parent / "include"
    if not (headers / "c10" / "cuda" / "CUDACachingAllocator.h").is_file():
        raise CannotCompile(f"torch's headers are not in {headers}")
    compiler = find_compiler()
    flags = flags_of(torch, minor, headers)
    parts = [
        torch.__version__,
        str(getattr(torch.version, "git_version", None)),
        version,
        compiler_version(compiler),
        *flags,
    ]
    key = digest([*map(str.encode, parts), *(file.read_bytes() for file in torch_sources.files())])
    name = f"torch-{torch.__version__.partition('+')[0]}-{key[:24]}.so"
    folder = cache_folder()
    if folder is None:
        folder = Path(tempfile.mkdtemp(prefix="accelrt-torch-"))
    path = folder / name
    if not path.is_file():
        compile_to(path, compiler, flags)
    return path


def minor_of(torch: ModuleType) -> int:
    major, minor = (int(part) for part in torch.__version__.split(".")[:2])
    if major != 2 or minor not in MINORS:
        raise CannotCompile(f"torch {torch.__version__} is not one of 2.{MINORS[0]} to 2.{MINORS[-1]}")
    return minor


def find_compiler() -> list[str]:
    """The command of a C++ compiler: $CXX, else the first that there is."""
    chosen = os.environ.get("CXX", "").split()
    if chosen:
        return chosen
    for name in COMPILERS:
        path = shutil.which(name)
        if path is not None:
            return [path]
    raise CannotCompile(f"there is no C++ compiler ({', '.join(COMPILERS)}); install one, or set CXX")


def compiler_version(compiler: list[str]) -> str:
    try:
        done = subprocess.run(
            [*compiler, "--version"], capture_output=True, text=True, timeout=LIMIT, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise CannotCompile(f"the C++ compiler {' '.join(compiler)} does not run: {error}") from error
    return "\0".join([*compiler, done.stdout])


def flags_of(torch: ModuleType, minor: int, headers: Path) -> list[str]:
    abi = int(getattr(torch._C, "_GLIBCXX_USE_CXX11_ABI", True))
    return [*torch_sources.arguments(minor, headers, abi), f"-L{headers.parent / 'lib'}"]


def cache_folder() -> Path | None:
    """The folder, made if need be; None where it cannot be written or is another user's."""
    root = env.cache_home()
    if not os.path.isabs(root):  # the user has no home
        return None
    folder = Path(root) / "accelrt" / "torch"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        own = folder.stat().st_uid == os.geteuid()
    except OSError:
        return None
    return folder if own and os.access(folder, os.W_OK | os.X_OK) else None


def loaded_cpp_library() -> list[str]:
    """The C++ library that torch loaded, by its path: a compiler that has only an archive of its own would
    else put a second one into the object, and the two share the half of their state."""
    with open("/proc/self/maps") as maps:
        paths = [line.partition("/")[2].strip() for line in maps if "/libstdc++.so" in line]
    return [f"/{path}" for path in paths[:1] if os.path.isfile(f"/{path}")]


def compile_to(path: Path, compiler: list[str], flags: list[str]) -> None:
    """Compiles in a folder of its own, and writes the file whole, for other processes may look for it."""
    with tempfile.TemporaryDirectory(prefix="accelrt-torch-") as folder:
        compiled = os.path.join(folder, "torch_allocator.so")
        libraries = [f"-l{name}" for name in torch_sources.LIBRARIES] + loaded_cpp_library()
        command = [*compiler, *flags, str(torch_sources.SOURCE), "-o", compiled, *libraries]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False)
        except (OSError, subprocess.SubprocessError) as error:
            raise CannotCompile(f"the C++ compiler {' '.join(compiler)} does not run: {error}") from error
        if done.returncode != 0:
            lines = [line for line in done.stderr.splitlines() if "error" in line] or done.stderr.splitlines()
            raise CannotCompile(
                f"{' '.join(compiler)} failed with {done.returncode}: " + "; ".join(lines[:3])
            )
        files.write(path, [files.read(compiled, LARGEST)], private=True)
