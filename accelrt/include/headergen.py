"""Writes the C form of the Cython API from its declarations: accelrt.h, and the functions of libaccelrt.so,
which accelrt_static.h has too for projects that compile them in.

api.pxd and status.pxd are the one source: functions, constants and what their comments say.  A function NAME
is accelrt_NAME in C, a constant NAME ACCELRT_NAME, in the comments too.  setup.py calls write_all() before it
compiles.
"""

import itertools
import re
import textwrap
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path

HERE = Path(__file__).parent
PACKAGE = HERE.parent
FUNCTION = re.compile(r"cdef ([\w ]+\**) ?\b(\w+)\((.*)\) (?:noexcept|except -1) nogil$")
CONSTANT = re.compile(r"(\w+) = (-?\d+)")
TYPES = {
    *("void", "bint", "char", "int", "unsigned int", "long", "unsigned long", "float", "double", "size_t"),
    *("long long", "unsigned long long", "unsigned char", "intptr_t", "uintptr_t"),
    *(f"{sign}int{bits}_t" for sign in ("", "u") for bits in (8, 16, 32, 64)),
}
MACROS = ("API_VERSION", "API_REVISION")  # so that the preprocessor can ask for them
WIDTH = 110

# What a function answers where accelrt cannot be imported, if that is not a status code.
UNLOADED = {
    **dict.fromkeys(
        (
            *("api_version", "api_revision", "memory_allocated", "memory_reserved"),
            *("explain_refusal", "explain_last_refusal"),
        ),
        "0",
    ),
    "raise_failure": "raise_unloaded()",
    "status_name": "unloaded_name(code)",
    "status_text": "unloaded_text(code)",
}

BEFORE = """\
/* The C API of accelrt: the hot paths of its runtime for C and C++ code of other projects.  accelrt.hpp,
   beside this file, has owners and exceptions for C++.  Generated from accelrt/api.pxd, which declares the
   same functions for Cython.

       cc -shared -fPIC -I INCLUDE -o mine.so mine.c LIBRARY -Wl,-rpath,FOLDER_OF_LIBRARY

   where Python says what INCLUDE and LIBRARY are: accelrt.get_include(), accelrt.get_library().  What is
   linked without an rpath finds LIBRARY where the process has loaded it before.

   The process has to run Python with accelrt installed: extension modules, the libraries that they load, and
   programs that embed Python.  The first call of any function imports accelrt, for which it takes the GIL;
   where that is impossible, each call answers ACCELRT_NOT_INITIALIZED.  So call accelrt_import() early, where
   your module is initialised: it imports accelrt and compares versions.  The process's first use of a device
   initialises accelrt, as in Python, and takes the GIL too; set ACCELRT_DRIVER, or call accelrt.init(),
   before.

   A function returns a status code, ACCELRT_SUCCESS or another of enum accelrt_status, and writes what else
   it has to say to its out_ parameters, which must not be null.  Handles and addresses are uintptr_t: a
   cudaStream_t, a cudaEvent_t or a pointer, cast; no CUDA header is needed.  0 is none, and as a stream it is
   the device's legacy default stream.  device is an ordinal.

   Threads: any thread may call any function at any time, with or without the GIL, unless the function's
   comment says otherwise.  Without it is better: a call may wait for another thread's call of the driver, and
   that for a function of Python's.  Apart from the first call and the first use, only
   accelrt_raise_failure, accelrt_explain_refusal and accelrt_explain_last_refusal take the GIL. */
#ifndef ACCELRT_H
#define ACCELRT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* --- status codes: the non-negative ones are CUresult's, the negative ones accelrt's own --- */

"""
AFTER = """
/* Imports accelrt, for which it takes the GIL, and compares versions.  ACCELRT_NOT_INITIALIZED where there is
   no Python, or the import fails, which is told on stderr; ACCELRT_NOT_SUPPORTED where the installed accelrt
   is of another version than this header, or older. */
static inline int accelrt_import(void) {
    int version = accelrt_api_version();
    if (version == 0)
        return ACCELRT_NOT_INITIALIZED;
    if (version != ACCELRT_API_VERSION || accelrt_api_revision() < ACCELRT_API_REVISION)
        return ACCELRT_NOT_SUPPORTED;
    return ACCELRT_SUCCESS;
}

#ifdef __cplusplus
}
#endif

#endif
"""
LIBRARY = """\
/* The functions of accelrt.h, each of which calls accelrt's own.  Generated from accelrt/api.pxd. */
#include "loader.h"
#include "accelrt.h"

#define EXPORT __attribute__((visibility("default")))
"""
STATIC = """\
/* The functions of accelrt.h for a project that links no libaccelrt.so, so that nothing has to be found when
it
   is loaded.  One file of C of an extension or a library, which holds no more than this line, includes it:

       #include <accelrt_static.h>

   The functions are that library's own; glibc before 2.34 needs -ldl.  Generated from accelrt/api.pxd. */
#ifdef __cplusplus
#error "accelrt_static.h is C: include it in a file of C, which the compiler links with your C++"
#endif
#define ACCELRT_LIBRARY "what includes accelrt_static.h"
{loader}
#include "accelrt.h"

#define EXPORT __attribute__((visibility("hidden")))
"""
STATE = """
static const struct functions unloaded;
static struct functions loaded; /* filled with the GIL held, before active points at it */
static const struct functions *active = &unloaded;

static const struct functions *functions(void) { return __atomic_load_n(&active, __ATOMIC_ACQUIRE); }

static int load(void) {
    if (functions() != &loaded) {
        if (!load_functions(names, sizeof(names) / sizeof(names[0]), &loaded))
            return 0;
        __atomic_store_n(&active, &loaded, __ATOMIC_RELEASE);
    }
    return 1;
}
"""


@dataclass(frozen=True)
class Function:
    result: str
    name: str
    parameters: tuple[tuple[str, str], ...]  # type and name

    @property
    def signature(self) -> str:
        return ", ".join(f"{kind}{name}" for kind, name in self.parameters) or "void"

    @property
    def names(self) -> str:
        return ", ".join(name for _, name in self.parameters)


@dataclass(frozen=True)
class Constant:
    name: str
    value: int
    comment: str


@dataclass(frozen=True)
class Member:
    declaration: str  # as C has it
    comment: str


@dataclass(frozen=True)
class Item:
    """A piece of a .pxd: a comment, a declaration, or space; with the comment behind its first line."""

    kind: str  # "comment", "function", "enum", "struct" or "space"
    comment: str = ""
    function: Function | None = None
    constants: tuple[Constant, ...] = ()
    name: str = ""  # of a struct
    members: tuple[Member, ...] = ()


def c_type(text: str, where: str, structs: Collection[str]) -> str:
    """A type of Cython's as C has it, to be followed by a name; ValueError where C has none."""
    bare = " ".join(text.replace("*", " ").replace("const ", " ").split())
    if bare in structs:
        type_ = text.replace(bare, f"struct accelrt_{bare}")
    elif bare in TYPES:
        type_ = text.replace("bint", "int")
    else:
        raise ValueError(
            f"api.pxd: {where} uses {bare!r}, which headergen does not know in C; add it to TYPES"
        )
    return f"{type_.replace('*', '').strip()} {'*' * text.count('*')}"


def read_members(lines: list[str], structs: Collection[str]) -> tuple[Member, ...]:
    """The members of a struct, one a line: "int device", "unsigned int[3] grid"."""
    members = []
    for line in lines:
        code, _, comment = line.partition("#")
        kind, _, name = code.strip().rpartition(" ")
        kind, bracket, size = kind.partition("[")
        members.append(Member(f"{c_type(kind, name, structs)}{name}{bracket}{size}", comment.strip()))
    return tuple(members)


def read_function(text: str, structs: Collection[str] = ()) -> Function:
    """A function from its declaration on one line."""
    match = FUNCTION.match(text)
    if match is None:
        raise ValueError(f"api.pxd: this is no declaration that C can have: {text}")
    result, name, listed = match.groups()
    parameters = []
    for part in filter(None, listed.split(", ")):
        kind, _, parameter = part.rpartition(" ")
        parameters.append((c_type(kind, name, structs), parameter))
    return Function(c_type(result, name, structs), name, tuple(parameters))


def read_constants(lines: list[str]) -> tuple[Constant, ...]:
    constants = []
    for line in lines:
        code, _, comment = line.partition("#")
        pairs = CONSTANT.findall(code)
        constants += [Constant(name, int(value), "") for name, value in pairs[:-1]]
        constants += [Constant(name, int(value), comment.strip()) for name, value in pairs[-1:]]
    return tuple(constants)


def read_items(text: str) -> list[Item]:
    """Returns what a .pxd declares, in order, but for its first comment, imports and inline functions."""
    lines = text.splitlines()
    items: list[Item] = []
    structs: set[str] = set()
    while lines:
        line = lines.pop(0)
        block = []
        if line.startswith(("from ", "cimport ")) and "(" in line:
            while not lines.pop(0).startswith(")"):
                pass
        while lines and lines[0].startswith(" "):
            block.append(lines.pop(0).strip())
        code, _, comment = line.partition("#")
        if line.startswith("#"):
            items.append(Item("comment", line.removeprefix("#").strip()))
        elif line.startswith("cdef enum"):
            items.append(Item("enum", comment.strip(), constants=read_constants(block)))
        elif line.startswith("cdef struct"):
            name = code.removeprefix("cdef struct").strip(" :")
            items.append(Item("struct", comment.strip(), name=name, members=read_members(block, structs)))
            structs.add(name)
        elif line.startswith("cdef ") and not line.startswith("cdef inline"):
            rest, _, behind = " ".join([line, *block]).partition("#")
            items.append(Item("function", behind.strip(), read_function(rest.strip(), structs)))
        elif not code.strip():
            items.append(Item("space"))
    while items and items[0].kind == "comment":
        del items[0]
    return items


def read_statuses(text: str) -> Item:
    """The enum of status.pxd."""
    lines = text[text.index("cdef enum:") :].splitlines()[1:]
    block = itertools.takewhile(lambda line: line.startswith(" ") or not line, lines)
    return Item("enum", constants=read_constants(list(block)))


def comment_of(words: str) -> str:
    """A comment of C, wrapped."""
    return textwrap.fill(words, WIDTH - 6, initial_indent="/* ", subsequent_indent="   ") + " */\n"


def prototype(function: Function) -> str:
    """The declaration as C has it, without a semicolon."""
    start = f"{function.result}accelrt_{function.name}("
    parts = [
        part.replace(" ", "\0") for part in function.signature.split(", ")
    ]  # lines end between parameters
    text = start.replace(" ", "\0") + ", ".join(parts) + ")"
    return textwrap.fill(text, WIDTH, subsequent_indent=" " * len(start)).replace("\0", " ")


def in_c(names: set[str], text: str) -> str:
    """A comment with the names that C has.  Left as they are: one small word, which may be English, what is
    quoted, and attributes of Python's."""

    def put(match: re.Match[str]) -> str:
        word = match[0]
        if word not in names or not (word.isupper() or "_" in word):
            return word
        return f"ACCELRT_{word}" if word.isupper() else f"accelrt_{word}"

    return re.sub(r"(?<![\w.\"])\w+(?!\w)", put, text)


def render_enum(item: Item, tag: str = "") -> str:
    lines = []
    for index, constant in enumerate(item.constants):
        comma = "," if index + 1 < len(item.constants) else ""
        behind = f" /* {constant.comment} */" if constant.comment else ""
        lines.append(f"    ACCELRT_{constant.name} = {constant.value}{comma}{behind}\n")
    before = comment_of(item.comment) if item.comment else ""
    return f"{before}enum {tag}{{\n{''.join(lines)}}};\n"


def render_struct(item: Item) -> str:
    lines = []
    for member in item.members:
        behind = f" /* {member.comment} */" if member.comment else ""
        lines.append(f"    {member.declaration};{behind}\n")
    before = comment_of(item.comment) if item.comment else ""
    return f"{before}struct accelrt_{item.name} {{\n{''.join(lines)}}};\n"


def render_macros(item: Item) -> str:
    return "".join(
        f"{comment_of(each.comment)}#define ACCELRT_{each.name} {each.value}\n" for each in item.constants
    )


def render_item(item: Item) -> str:
    if item.kind == "space":
        return "\n"
    if item.kind == "enum":
        return (render_macros if item.constants[0].name in MACROS else render_enum)(item)
    if item.kind == "struct":
        return render_struct(item)
    assert item.function is not None
    behind = comment_of(item.comment) if item.comment else ""
    return f"{behind}{prototype(item.function)};\n"


def render_header(items: list[Item], statuses: Item) -> str:
    """The text of accelrt.h."""
    names = {item.function.name for item in items if item.function}
    names |= {each.name for item in (*items, statuses) for each in item.constants}
    parts, pending = [], []
    for item in items:
        if item.kind == "comment":
            pending.append(item.comment)
            continue
        if pending:
            parts.append(comment_of(in_c(names, " ".join(pending))))
            pending = []
        parts.append(render_item(replace(item, comment=in_c(names, item.comment))))
    text = re.sub(r"\n{3,}", "\n\n", "".join(parts)).strip("\n")
    return f"{BEFORE}{render_enum(statuses, 'accelrt_status ')}\n{text}\n{AFTER}"


def render_library(functions: list[Function], beginning: str) -> str:
    """The text of libaccelrt.c and, with another beginning, of accelrt_static.h: a table of pointers, which
    the first call of any function fills."""
    pointers, listed, first, exported = [], [], [], []
    for each in functions:
        pointers.append(f"    {each.result}(*{each.name})({each.signature});\n")
        listed.append(f'    "{each.name}",\n')
        otherwise = UNLOADED.get(each.name, "ACCELRT_NOT_INITIALIZED")
        first.append(
            f"static {each.result}first_{each.name}({each.signature}) {{\n"
            f"    return load() ? loaded.{each.name}({each.names}) : {otherwise};\n}}\n"
        )
        exported.append(
            f"EXPORT {each.result}accelrt_{each.name}({each.signature}) {{\n"
            f"    return functions()->{each.name}({each.names});\n}}\n"
        )
    table = "".join(f"    first_{each.name},\n" for each in functions)
    return "".join(
        [
            f"{beginning}\nstruct functions {{\n{''.join(pointers)}}};\n",
            f"\nstatic const char *const names[] = {{ /* as the pointers are */\n{''.join(listed)}}};\n",
            f"{STATE}\n{''.join(first)}",
            f"\nstatic const struct functions unloaded = {{\n{table}}};\n\n{''.join(exported)}",
        ]
    )


def render() -> dict[Path, str]:
    """Path -> text of the three files."""
    items = read_items((PACKAGE / "api.pxd").read_text())
    statuses = read_statuses((PACKAGE / "status.pxd").read_text())
    functions = [item.function for item in items if item.function]
    loader = (PACKAGE / "lib" / "loader.h").read_text().rstrip()
    return {
        HERE / "accelrt.h": render_header(items, statuses),
        PACKAGE / "lib" / "libaccelrt.c": render_library(functions, LIBRARY),
        HERE / "accelrt_static.h": render_library(functions, STATIC.format(loader=loader)),
    }


def write_all() -> None:
    """Writes the files; an unchanged one keeps its time."""
    for path, text in render().items():
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
