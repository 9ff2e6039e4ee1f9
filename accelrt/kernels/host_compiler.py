"""The system's compilers, which make kernels of the host device: C and C++ into the bytes of a shared object.

Texts find the headers of `cuda_on_host/` before the system's; in C++ these have CUDA's device functions.
"""

from __future__ import annotations

import os
import re
from hashlib import blake2b
from typing import TYPE_CHECKING, NamedTuple

from accelrt.errors import CompileError, CompilerNotFoundError
from accelrt.kernels import cache as kept
from accelrt.kernels.build_process import SECONDS, Outcome, run_compiler
from accelrt.kernels.diagnostics import error_text
from accelrt.kernels.image import ModuleImage, sealed
from accelrt.runtime import init

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = [
    "HEADERS",
    "Compiler",
    "compile_c",
    "compile_cpp",
    "find_compiler",
    "line_directive",
    "run_checked",
]

HEADERS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "cuda_on_host")
# No instructions beyond those of every machine of the architecture: machines may share the cache's folder.
FLAGS = ("-O3", "-fPIC", "-shared", "-fno-math-errno", "-ffp-contract=off", "-pipe")
C_FLAGS = ("-std=gnu11", *FLAGS)
# What a GPU's compiler does not assume either: types that memory has, integers that do not overflow.
CPP_FLAGS = (
    "-std=gnu++17",
    *FLAGS,
    "-fno-strict-aliasing",
    "-fwrapv",
    "-fno-exceptions",
    "-fno-rtti",
    "-fno-threadsafe-statics",
    "-U_FORTIFY_SOURCE",  # threads of a block jump from stack to stack
)
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


class Language(NamedTuple):
    """A language of kernels' texts, and its compilers.

    Attributes:
        names: tuple of str, of compilers, the one to take first.  flags: tuple of str.
        gcc_flags: tuple of str, which clang does not know.  suffix: str, of files.
        lack: str, what is said where there is none, with the names put in.
    """

    names: tuple[str, ...]
    flags: tuple[str, ...]
    gcc_flags: tuple[str, ...]
    suffix: str
    lack: str


LANGUAGES = {
    "c": Language(
        ("cc", "gcc", "clang"),
        C_FLAGS,
        (),
        "c",
        "the host device's kernels are compiled by a C compiler, and none of {names} is in PATH; install "
        "one, such as gcc",
    ),
    "c++": Language(
        ("c++", "g++", "clang++"),
        CPP_FLAGS,
        ("-fno-gnu-unique",),  # else templates' variables are one in all modules, and none is ever unloaded
        "cpp",
        "elementwise kernels and CUDA C of the host device are compiled by a C++ compiler, and none of "
        "{names} is in PATH; install one, such as the package g++ of Debian and Ubuntu, or gcc-c++ of Fedora",
    ),
}
_compilers: dict[str, Compiler] = {}  # by language


def find_compiler(language: str) -> Compiler:
    """The compiler of "c" or "c++", looked for once.

    Raises:
        CompilerNotFoundError: there is none.
    """
    compiler = _compilers.get(language)
    if compiler is None:
        wanted = LANGUAGES[language]
        path = first_in_path(wanted.names)
        if path is None:
            raise CompilerNotFoundError(wanted.lack.format(names=", ".join(wanted.names)))
        is_clang = "clang" in os.path.basename(os.path.realpath(path))
        flags = wanted.flags if is_clang else wanted.flags + wanted.gcc_flags
        compiler = _compilers[language] = Compiler(path, flags, stamp_of(path) + header_digest())
    return compiler


def first_in_path(names: Sequence[str]) -> str | None:
    which = init.later("shutil").which
    return next(filter(None, map(which, names)), None)


def stamp_of(path: str) -> bytes:
    facts = os.stat(path)
    known = f"{os.path.realpath(path)} {facts.st_size} {facts.st_mtime_ns} {os.uname().machine}"
    return f"{known} {os.confstr('CS_GNU_LIBC_VERSION')}".encode()


def header_digest() -> bytes:
    """Of the contents of the headers that texts may include."""
    made = blake2b(digest_size=32)
    paths = [os.path.join(folder, name) for folder, _, names in os.walk(HEADERS) for name in names]
    for path in sorted(paths):
        with open(path, "rb") as file:
            content = file.read()
        made.update(f"{path} {len(content)} ".encode() + content)
    return made.digest()


def line_directive(number: int, name: str) -> str:
    """Has messages call the line that follows by this name and number."""
    escaped = name.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ")
    return f'#line {number} "{escaped}"\n'


def compile_c(text: str, name: str) -> ModuleImage:
    """A shared object of C, from the cache where it is there.

    Arguments:
        text: str, the source, which may include the headers of HEADERS; its key in the cache counts those,
            and no others.
        name: str, what messages call it.
    Raises:
        CompileError: the compiler refused it.
        CompilerNotFoundError: there is none.
    """
    return find_or_compile("c", text, name, {name: text})


def compile_cpp(text: str, name: str, sources: Mapping[str, str]) -> ModuleImage:
    """The same of C++.

    Arguments:
        sources: mapping from the names of the parts that a user wrote, as the text's #line directives have
            them, to those parts.
    """
    return find_or_compile("c++", text, name, {**sources, name: text})


def find_or_compile(language: str, text: str, name: str, sources: Mapping[str, str]) -> ModuleImage:
    compiler = find_compiler(language)
    fields = [language, " ".join(compiler.flags + LINK_FLAGS), name, text]
    key = kept.digest([compiler.stamp, *(field.encode(errors="surrogateescape") for field in fields)])
    found = kept.lookup(key)
    if found is None:
        found = compile_text(language, compiler, text, name, sources)
        kept.store(key, found)
    return found


def compile_text(
    language: str, compiler: Compiler, text: str, name: str, sources: Mapping[str, str]
) -> ModuleImage:
    suffix = LANGUAGES[language].suffix
    command = [
        compiler.path,
        *compiler.flags,
        "-I",
        HEADERS,
        f"source.{suffix}",
        "-o",
        "made.so",
        *LINK_FLAGS,
    ]
    files = {f"source.{suffix}": line_directive(1, name) + text}
    done = run_checked(command, files, "made.so", name, sources)
    return ModuleImage(sealed(done.data), "so", os.uname().machine, None, done.log.strip("\n"), compiler.path)


def run_checked(
    command: Sequence[str], files: Mapping[str, str], made: str, name: str, sources: Mapping[str, str]
) -> Outcome:
    """What a compiler made.

    Raises:
        CompileError: it refused the sources; the text shows the lines that it names.
    """
    done = run_compiler(command, files, made)
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
