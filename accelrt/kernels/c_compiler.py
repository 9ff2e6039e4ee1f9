"""Kernels of the host device: C, compiled by the system's compiler into the bytes of a shared object."""

from __future__ import annotations

import os

from accelrt.errors import CompileError, CompilerNotFoundError
from accelrt.kernels import cache as kept
from accelrt.kernels.diagnostics import error_text
from accelrt.kernels.image import ModuleImage
from accelrt.runtime import init

__all__ = ["compile_c"]

COMPILERS = ("cc", "gcc", "clang")
# No instructions beyond those of every machine of the architecture: machines may share the cache's folder.
FLAGS = ("-std=gnu11", "-O3", "-fPIC", "-shared", "-fno-math-errno", "-ffp-contract=off", "-pipe")
SECONDS = 300.0

_compiler: tuple[str, bytes] | None = None


def compiler() -> tuple[str, bytes]:
    """The path of the C compiler, and what changes where another one takes its place; looked for once.

    Raises:
        CompilerNotFoundError: there is none.
    """
    global _compiler
    if _compiler is None:
        which = init.later("shutil").which
        path = next(filter(None, map(which, COMPILERS)), None)
        if path is None:
            raise CompilerNotFoundError(
                "the host device's kernels are compiled by a C compiler, and none of "
                f"{', '.join(COMPILERS)} is in PATH; install one, such as gcc"
            )
        facts = os.stat(path)
        known = f"{os.path.realpath(path)} {facts.st_size} {facts.st_mtime_ns} {os.uname().machine}"
        _compiler = path, f"{known} {os.confstr('CS_GNU_LIBC_VERSION')}".encode()
    return _compiler


def compile_c(text: str, name: str) -> ModuleImage:
    """A shared object of C, from the cache where it is there.

    Arguments:
        text: str, the source; its key in the cache counts no files beside those of the system.
        name: str, what messages call it.
    Raises:
        CompileError: the compiler refused it.
        CompilerNotFoundError: there is none.
    """
    path, stamp = compiler()
    key = kept.digest([b"c", stamp, " ".join(FLAGS).encode(), name.encode(), text.encode()])
    found = kept.lookup(key)
    if found is None:
        found = run(path, text, name)
        kept.store(key, found)
    return found


def run(path: str, text: str, name: str) -> ModuleImage:
    subprocess, tempfile = init.later("subprocess"), init.later("tempfile")
    with tempfile.TemporaryDirectory(prefix="accelrt-") as folder:
        made = os.path.join(folder, "made.so")
        done = subprocess.run(
            [path, *FLAGS, "-x", "c", "-", "-o", made, "-lm"],
            input=text.encode(),
            capture_output=True,
            timeout=SECONDS,
            check=False,
        )
        log = done.stderr.decode(errors="replace").replace("<stdin>", name).strip("\n")
        if done.returncode:
            raise CompileError(f"{path} refused {name}:\n{error_text(log, {name: text})}", log, name, path)
        with open(made, "rb") as file:
            return ModuleImage(file.read(), "so", os.uname().machine, None, log, path)
