"""CUDA C++ for the host device: which kernels a text has, and the C++ around it for a shared object of them.

The text is compiled as it is, behind `cuda_on_host/accelrt_kernels.hpp`, which declares what CUDA does.  What
follows it exports each kernel by the host device's own interface (kernels/DESIGN.md).  The kernels, and the
names of dynamic shared memory, are found in the preprocessed text.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, NamedTuple

from accelrt.kernels import host_compiler
from accelrt.kernels.host_compiler import HEADERS, line_directive, run_checked

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from accelrt.kernels.image import ModuleImage

EXPRESSION = "accelrt_expression_"  # and a number: what a name expression's kernel is exported as
STRING = re.compile(
    r'R"(?P<mark>[^\s()\\]*)\(.*?\)(?P=mark)"|"(?:[^"\\\n]|\\.)*"|' + r"'(?:[^'\\\n]|\\.)+'", re.S
)
TOKEN = re.compile(r"extern_C|[A-Za-z_]\w*|::|[{}();<>\[\]]|\S")
NAMES = re.compile(r"\bextern_C\b")
TEXTURES = re.compile(r"\bcuda(?:Texture|Surface)Object_t\b")
WAITS = re.compile(r"sync|volatile|nanosleep|atomicCAS|atomicExch|activemask")
WORDS = "__launch_bounds__ __maxnreg__ __cluster_dims__ __block_size__ __attribute__ __align__ alignas"
ATTRIBUTES = frozenset(WORDS.split())
FORWARDED = re.compile(
    r"-D|-U|-I|--define-macro(?==|$)|--undefine-macro(?==|$)|--include-path(?==|$)|-include-path(?==|$)"
    r"|-include(?==|$)|--pre-include(?==|$)"
)
SHORT = {
    "--define-macro": "-D",
    "--undefine-macro": "-U",
    "--include-path": "-I",
    "-include-path": "-I",
    "--pre-include": "-include",
}
STANDARD = re.compile(r"--?std=(?P<name>.+)")
STANDARDS = {"c++20": "-std=gnu++20", "c++23": "-std=gnu++23"}  # others are compiled as C++17
# Bytes of dynamic shared memory that a block may have, as on an H200.  A thread of the host has one such
# array for each module, of which pages are taken as they are touched.
MOST_SHARED = 227 << 10


class Scan(NamedTuple):
    """The contents of a preprocessed text.

    Attributes:
        kernels: dict from each kernel that is extern "C" to its name with namespaces.
        templates: set of str, the other kernels' names.
        shared: list of str, the symbols of dynamic shared memory.
        waits: bool, whether threads may wait for each other.
        textures: bool, whether it names textures or surfaces.
    """

    kernels: dict[str, str]
    templates: set[str]
    shared: list[str]
    waits: bool
    textures: bool


class Scope(NamedTuple):
    """The place where a brace was opened: in a namespace of this name, in extern "C", or in neither."""

    namespace: str = ""
    is_c: bool = False


def find_kernels(text: str) -> Scan:
    """Reads a preprocessed text."""
    plain = STRING.sub('""', re.sub(r'\bextern\s*"C"', "extern_C", text))
    tokens = TOKEN.findall(plain)
    scan = Scan({}, set(), [], WAITS.search(plain) is not None, TEXTURES.search(plain) is not None)
    scopes: list[Scope] = []
    start = 0  # of the statement
    for number, token in enumerate(tokens):
        if token == "{":
            scopes.append(scope_of(tokens[start:number]))
            start = number + 1
        elif token == "}":
            if scopes:
                scopes.pop()
            start = number + 1
        elif token == ";":
            note_shared(tokens[start:number], scopes, scan)
            start = number + 1
        elif token == "__global__":
            note_kernel(tokens, start, number, scopes, scan)
    return scan


def scope_of(before: Sequence[str]) -> Scope:
    if before and before[0] == "inline":
        before = before[1:]
    if before and before[0] == "namespace":
        return Scope(namespace="".join(before[1:]))
    return Scope(is_c=list(before) == ["extern_C", '"', '"'] or list(before) == ["extern_C"])


def note_kernel(tokens: Sequence[str], start: int, number: int, scopes: Sequence[Scope], scan: Scan) -> None:
    """Takes note of the kernel whose __global__ is the token of that number, where it is defined here."""
    before = tokens[start:number]
    at = number + 1
    while at < len(tokens) and tokens[at] not in ";{}":
        if tokens[at] == "(":
            end = closing(tokens, at)
            if tokens[at - 1] not in ATTRIBUTES:
                break
            at = end
        at += 1
    else:
        return
    name, end = tokens[at - 1], closing(tokens, at)
    if end + 1 >= len(tokens) or tokens[end + 1] != "{" or not re.fullmatch(r"[A-Za-z_]\w*", name):
        return  # a declaration
    is_c = "extern_C" in before or any(each.is_c for each in scopes)
    if is_c and "template" not in before:
        scan.kernels[name] = "::".join([*(each.namespace for each in scopes if each.namespace), name])
    else:
        scan.templates.add(name)


def closing(tokens: Sequence[str], at: int) -> int:
    """The number of the parenthesis that closes the one at a number."""
    depth = 0
    for number in range(at, len(tokens)):
        depth += (tokens[number] == "(") - (tokens[number] == ")")
        if depth == 0:
            return number
    return len(tokens)


def note_shared(statement: Sequence[str], scopes: Sequence[Scope], scan: Scan) -> None:
    if "__shared__" not in statement or "extern" not in statement:
        return
    for at in range(2, len(statement)):
        if statement[at] == "]" and statement[at - 1] == "[":
            name = statement[at - 2]
            around = [each.namespace for each in scopes if each.namespace]
            parts = [part for each in around for part in each.split("::")]
            symbol = f"_ZN{''.join(f'{len(part)}{part}' for part in (*parts, name))}E" if parts else name
            if symbol not in scan.shared:
                scan.shared.append(symbol)
            return


def build(
    texts: Mapping[str, str],
    folders: Sequence[str],
    options: Sequence[str],
    headers: Mapping[str, str],
    expressions: Sequence[str],
) -> ModuleImage:
    """A shared object of one or several texts.

    Arguments:
        texts: mapping from each source's name to its text.
        folders: where headers are looked for.
        options: NVRTC's; macros, folders and the language's version count, others are for a GPU.
        headers: mapping from what an #include says to the header's text.
        expressions: names of kernels, such as "scale<float>", of the first text.
    Raises:
        CompileError: the compiler refused it.
        CompilerNotFoundError: there is none.
        ValueError: a header's name leads out of the folder that the headers are put into.
    """
    compiler = host_compiler.find_compiler()
    flags = ["-I", "{folder}/headers", "-I", HEADERS]
    flags += [part for folder in folders for part in ("-I", folder)]
    flags += host_options(options)
    files = {f"headers/{checked_name(name)}": text for name, text in headers.items()}
    sources = {**headers, **texts}
    called = next(iter(texts))
    scans = []
    for name, text in texts.items():
        scanned = {**files, "scan.cpp": "#define accelrt_scan 1\n" + started(name, text)}
        command = [compiler.path, *compiler.flags, *flags, "-E", "-P", "scan.cpp", "-o", "scanned.txt"]
        done = run_checked(command, scanned, "scanned.txt", called, sources)
        scans.append(find_kernels(done.data.decode(errors="replace")))
    kernels = {*scans[0].kernels, *scans[0].templates}
    names, instances = {}, {}
    for number, expression in enumerate(expressions):
        word = re.split(r"[<\s(]", expression.strip().removeprefix("&"), maxsplit=1)[0].rpartition("::")[2]
        if word in kernels or "<" in expression:
            names[expression] = instances[expression] = f"{EXPRESSION}{number}"
        else:
            names[expression] = word  # a variable, whose name C++ leaves as it is outside of namespaces
    shared = list(dict.fromkeys(symbol for each in scans for symbol in each.shared))
    for number, (name, text) in enumerate(texts.items()):
        parts = [started(name, text, scans[number].textures), exports(scans[number])]
        if number == 0:
            parts += [expression_exports(instances, scans[0].waits), dynamic_memory(shared)]
        files[f"source{number}.cpp"] = "".join(parts)
    sources |= {f"name expression {expression}": expression for expression in expressions}
    inputs = [f"source{number}.cpp" for number in range(len(texts))]
    return host_compiler.compile_files(compiler, flags, files, inputs, called, sources, names)


def started(name: str, text: str, textures: bool = False) -> str:
    headers = ["accelrt_kernels.hpp", *["accelrt_textures.hpp"] * textures]
    return "".join(f'#include "{each}"\n' for each in headers) + line_directive(1, name) + text + "\n"


def exports(scan: Scan) -> str:
    lines = [export(name, called, scan.waits) for name, called in scan.kernels.items()]
    return line_directive(1, "accelrt") + "".join(lines)


def expression_exports(names: Mapping[str, str], waits: bool) -> str:
    lines = []
    for expression, symbol in names.items():
        lines.append(line_directive(1, f"name expression {expression}"))
        lines.append(export(symbol, expression.strip().removeprefix("&"), waits))
    return "".join(lines)


def export(symbol: str, kernel: str, waits: bool) -> str:
    """Returns what the host device calls for each block of a kernel, and the sizes of its parameters.

    It is one line, so that messages name the expression that the kernel was asked for by.
    """
    kind = f"accelrt_host::Kernel<accelrt_kind_{symbol}>"
    return (
        f"typedef decltype(&{kernel}) accelrt_kind_{symbol}; "
        f"static void accelrt_thread_{symbol}(void** values) {{ {kind}::call(&{kernel}, values); }} "
        f'extern "C" {{ void accelrt_block_{symbol}(const accelrt_block* block, void** values) {{ '
        f"accelrt_host::run_block(block, values, accelrt_thread_{symbol}, {str(waits).lower()}); }} "
        f"extern const {kind}::Sizes {symbol}_parameters; "
        f"const {kind}::Sizes {symbol}_parameters = {kind}::sizes(); }}\n"
    )


def dynamic_memory(symbols: Sequence[str]) -> str:
    """The dynamic shared memory of a block, which has all of its names."""
    if not symbols:
        return ""
    aliases = "".join(f".globl {symbol}\\n.set {symbol}, accelrt_dynamic\\n" for symbol in symbols)
    return (
        line_directive(1, "accelrt")
        + 'extern "C" { __attribute__((used, aligned(1024))) '
        + f"thread_local char accelrt_dynamic[{MOST_SHARED}]; }}\n"
        + f'__asm__("{aliases}");\n'
    )


def host_options(options: Sequence[str]) -> list[str]:
    """The options that mean something here, as compilers of C++ call them."""
    flags = []
    rest = iter(options)
    for option in rest:
        if match := STANDARD.match(option):
            flags.append(STANDARDS.get(match["name"].lower(), "-std=gnu++17"))
        elif match := FORWARDED.match(option):
            value = option[match.end() :].removeprefix("=").strip() or next(rest, "")
            kind = SHORT.get(match[0], match[0])
            flags += [kind, os.path.abspath(value) if kind == "-I" else value]
    return flags


def checked_name(name: str) -> str:
    path = os.path.normpath(name)
    if os.path.isabs(path) or path.split(os.sep)[0] == "..":
        raise ValueError(f"headers has {name!r}, which leads out of a folder; name it by a relative path")
    return path
