"""The system's C++ compiler, which makes a text of kernels of the host device a shared object.

Texts find the headers of `cuda_on_host/` before the system's; these have CUDA's device functions.
"""

from __future__ import annotations

import os
import re
from hashlib import blake2b
from typing import TYPE_CHECKING, NamedTuple

from accelrt.core import files
from accelrt.errors import CompileError, CompilerNotFoundError
from accelrt.kernels import cache as image_cache
from accelrt.kernels.build_process import SECONDS, Outcome, run_compiler
from accelrt.kernels.diagnostics import error_text
from accelrt.kernels.image import ModuleImage, sealed
from accelrt.runtime import init

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

HEADERS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "cuda_on_host")
# No instructions beyond those of every machine of the architecture: machines may share the cache's folder.
FLAGS = (
    *("-std=gnu++17", "-O3", "-fPIC", "-shared", "-fno-math-errno", "-ffp-contract=off", "-pipe"),
    # What a GPU's compiler does not assume either: types that memory has, integers that do not overflow.
    *("-fno-strict-aliasing", "-fwrapv", "-fno-exceptions", "-fno-rtti", "-fno-threadsafe-statics"),
    "-U_FORTIFY_SOURCE",  # threads of a block jump from stack to stack
)
# Else templates' variables are one in all modules, and none is ever unloaded.
GCC_FLAGS = ("-fno-gnu-unique",)
NAMES = ("c++", "g++", "clang++")  # the one to take first
LINK_FLAGS = ("-Wl,-Bsymbolic", "-Wl,--no-undefined", "-Wl,--as-needed", "-lm")
UNDEFINED = re.compile(r"undefined reference to [`'](?P<name>[\w:~]+)")


class Compiler(NamedTuple):
    """A compiler of the system's.

    Attributes:
        path: str.  flags: tuple of str.
        stamp: bytes, what changes where another compiler, or other headers, take its place.
    """

    path: str
    flags: tuple[str, ...]
    stamp: bytes

    @property
    def name(self) -> str:
        return self.path

    @property
    def folders(self) -> tuple[str, ...]:
        """Tells where the headers are that the stamp counts."""
        return (HEADERS,)


_compiler: Compiler | None = None


def find_compiler() -> Compiler:
    """The compiler, looked for once.

    Raises:
        CompilerNotFoundError: there is none.
    """
    global _compiler
    if _compiler is None:
        path = next(filter(None, map(init.later("shutil").which, NAMES)), None)
        if path is None:
            names = ", ".join(NAMES)
            raise CompilerNotFoundError(
                f"the host device's kernels are compiled by a C++ compiler, and none of {names} is "
                "in PATH; install one, such as the package g++ of Debian and Ubuntu, or gcc-c++ of Fedora"
            )
        is_clang = "clang" in os.path.basename(os.path.realpath(path))
        flags = FLAGS if is_clang else FLAGS + GCC_FLAGS
        facts = (
            os.path.realpath(path),
            os.uname().machine,
            os.confstr("CS_GNU_LIBC_VERSION"),
            *flags,
            *LINK_FLAGS,
        )
        stamp = files.stamp(path) + " ".join(map(str, facts)).encode() + header_digest()
        _compiler = Compiler(path, flags, stamp)
    return _compiler


def header_digest() -> bytes:
    """Hashes the contents of the headers that texts may include."""
    hasher = blake2b(digest_size=32)
    paths = [os.path.join(folder, name) for folder, _, names in os.walk(HEADERS) for name in names]
    for path in sorted(paths):
        with open(path, "rb") as file:
            content = file.read()
        hasher.update(f"{path} {len(content)} ".encode() + content)
    return hasher.digest()


def line_directive(number: int, name: str) -> str:
    """Has messages call the line that follows by this name and number."""
    escaped = name.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ")
    return f'#line {number} "{escaped}"\n'


def compile_cpp(text: str, name: str, sources: Mapping[str, str]) -> ModuleImage:
    """A shared object of a text, from the cache where it is there.

    Arguments:
        text: str, the source, which may include the headers of HEADERS; its key in the cache counts those,
            and no others.
        name: str, what messages call it.
        sources: mapping from the names of the parts that a user wrote, as the text's #line directives have
            them, to those parts.
    Raises:
        CompileError: the compiler refused it.
        CompilerNotFoundError: there is none.
    """
    compiler = find_compiler()
    key = image_cache.digest(
        [compiler.stamp, *(each.encode(errors="surrogateescape") for each in (name, text))]
    )
    image = image_cache.lookup(key)
    if image is None:
        texts = {"source.cpp": line_directive(1, name) + text}
        image = compile_files(compiler, ["-I", HEADERS], texts, ["source.cpp"], name, {**sources, name: text})
        image_cache.store(key, image)
    return image


def compile_files(
    compiler: Compiler,
    flags: Sequence[str],
    texts: Mapping[str, str],
    inputs: Sequence[str],
    name: str,
    sources: Mapping[str, str],
    names: Mapping[str, str] | None = None,
) -> ModuleImage:
    """The shared object of those of some files that inputs names; names are the image's."""
    command = [compiler.path, *compiler.flags, *flags, *inputs, "-o", "made.so", *LINK_FLAGS]
    done = run_checked(command, texts, "made.so", name, sources)
    log = done.log.strip("\n")
    return ModuleImage(sealed(done.data), "so", os.uname().machine, names, log, compiler.path)


def run_checked(
    command: Sequence[str], files: Mapping[str, str], output: str, name: str, sources: Mapping[str, str]
) -> Outcome:
    """Runs a compiler, and returns what it made.

    Raises:
        CompileError: it refused the sources; the text shows the lines that it names.
    """
    done = run_compiler(command, files, output)
    log = done.log.strip("\n")
    if done.code == 0:
        return done
    if done.code is None:
        text = f"{command[0]} took longer than {SECONDS:.0f} s over {name}"
    else:
        text = f"{command[0]} refused {name}:\n{error_text(placed(log, sources), sources)}"
    raise CompileError(text, log, name, command[0])


def placed(log: str, sources: Mapping[str, str]) -> str:
    """The log, in which the linker's messages name the line where a missing function is first used."""
    lines = []
    for line in log.splitlines():
        if match := UNDEFINED.search(line):
            word = re.compile(rf"\b{re.escape(match['name'].rpartition('::')[2])}\b")
            for name, text in sources.items():
                if use := word.search(text):
                    row = text.count("\n", 0, use.start()) + 1
                    column = use.start() - text.rfind("\n", 0, use.start())
                    line = f"{name}:{row}:{column}: error: {match['name']} is declared, but defined nowhere"
                    break
        if line not in lines:
            lines.append(line)
    return "\n".join(lines)
