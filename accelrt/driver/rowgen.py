"""Reads driver/table.pxd and the drivers' modules, and writes what can be written from them alone.

Four sets of rows do little more than forward: those of the table that initialises at first use, those of
the table that injects faults, those that the end of a capture excludes, and those that Python sees.  Each is
derived from the contract at build time, so that a row is declared once.  A driver fills the rows that its
modules define: a module that includes NAME_rows.pxi has in it fill_NAME, which puts every function that bears
a row's name into the table, and, in the cuda driver, asks the library for the functions whose types
cuda/functions.pxd declares.  setup.py calls write_all() before it cythonizes.
"""

import re
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
ROW = re.compile(r"^    int \(\*(\w+)\)\((.*)\) noexcept nogil")
# buffers that a row fills: name -> (bytes, expression of what Python gets)
BUFFERS = {
    "out_text": (256, "out_text.decode()"),
    "out_uuid": (16, "(<char*>out_uuid)[:16]"),
    "out_log": (4096, "out_log.decode(errors='replace')"),
    "out_ipc": (64, "(<char*>out_ipc)[:64]"),
}
# Rows that name a stream or an event and are not held back: one may be asked at any time, two wait, so that
# their drivers hold back the calls that they are made of.
AT_ANY_TIME = ("stream_is_capturing", "stream_synchronize", "event_synchronize")
# Rows that may wait within the driver, for room in a queue or for work of the stream.
MAY_WAIT = re.compile(
    "copy|fill|kernel_launch|graph_launch|graph_upload|stream_host_func|async_|conditional_"
)
DEFINED = re.compile(r"^cdef int (\w+)\(", re.M)
INCLUDED = re.compile(r'^include "(\w+)_rows\.pxi"', re.M)
SYMBOL = re.compile(r"ctypedef int \(\*PFN_(cu\w+)_v(\d+)\)\([^)]*\) noexcept nogil  # (.+)")


@dataclass(frozen=True)
class Argument:
    type: str
    name: str

    @property
    def is_out(self) -> bool:
        return self.name.startswith("out_")


@dataclass(frozen=True)
class Row:
    name: str
    arguments: tuple[Argument, ...]

    @property
    def signature(self) -> str:
        return ", ".join(f"{a.type} {a.name}" for a in self.arguments)

    @property
    def names(self) -> str:
        return ", ".join(a.name for a in self.arguments)


@dataclass(frozen=True)
class Symbol:
    """A function of libcuda, with the version that names its ABI."""

    name: str
    version: int
    needed: bool
    rows: tuple[str, ...]

    @property
    def type(self) -> str:
        return f"PFN_{self.name}_v{self.version}"


def read_rows(path: Path = HERE / "table.pxd") -> list[Row]:
    """The rows of the contract, in order."""
    rows = []
    for line in path.read_text().splitlines():
        match = ROW.match(line)
        if match:
            words = [part.rsplit(" ", 1) for part in match[2].split(", ") if part]
            rows.append(Row(match[1], tuple(Argument(type_, name) for type_, name in words)))
    return rows


def forward(prefix: str, before: str, target: str, row: Row, index: int) -> str:
    """One row that calls `before` and, where that answers SUCCESS, the same row of `target`."""
    return (
        f"cdef int {prefix}_{row.name}({row.signature}) noexcept nogil:\n"
        f"    cdef int code = {before.format(index=index)}\n"
        f"    if code:\n"
        f"        return code\n"
        f"    return {target}.{row.name}({row.names})\n"
    )


def intercepted(row: Row, index: int) -> str:
    """One row of the table that injects faults: a thread may stop before the call, or behind it."""
    return (
        f"cdef int fault_{row.name}({row.signature}) noexcept nogil:\n"
        f"    cdef long long point = 0\n"
        f"    cdef int code = intercept({index}, &point)\n"
        f"    if code:\n"
        f"        return code\n"
        f"    code = wrapped.{row.name}({row.names})\n"
        f"    if point:\n"
        f"        park_at(point)\n"
        f"    return code\n"
    )


def is_guarded(row: Row) -> bool:
    """Whether a row is about a stream or an event, so that no capture may end meanwhile."""
    named = {"stream", "event", "start"} & {argument.name for argument in row.arguments}
    return bool(named) and row.name not in AT_ANY_TIME


def guarded(row: Row) -> str:
    """One row of the table that the end of a capture excludes; the end itself excludes all the others."""
    if row.name == "capture_end":
        before, after = "cdef int code", "finish_end()"
        call = f"    begin_end()\n    code = inner.{row.name}({row.names})\n"
    else:
        may_wait = MAY_WAIT.match(row.name) is not None
        before, after = f"cdef Slot* asker = enter_asking_here({may_wait})", "leave_asking_here(asker)"
        call = f"    cdef int code = inner.{row.name}({row.names})\n"
    return (
        f"cdef int guarded_{row.name}({row.signature}) noexcept nogil:\n"
        f"    {before}\n{call}    {after}\n    return code\n"
    )


def guard(rows: list[Row]) -> str:
    """The function that puts the guarded rows over those that a driver fills."""
    lines = "\n".join(
        f"    if table.{name} != blank.{name}:\n        to.{name} = guarded_{name}"
        for name in (row.name for row in rows)
    )
    return f"cdef void fill_guarded(Table* to, Table* table, Table* blank) noexcept nogil:\n{lines}\n"


def constant(prefix: str, answer: str, row: Row) -> str:
    """One row that does nothing but answer."""
    return f"cdef int {prefix}_{row.name}({row.signature}) noexcept nogil:\n    return {answer}\n"


def fill(prefix: str, rows: list[Row]) -> str:
    """The function that points every row of a table at the rows of one prefix."""
    lines = "\n".join(f"    table.{row.name} = {prefix}_{row.name}" for row in rows)
    return f"cdef void fill_{prefix}(Table* table) noexcept nogil:\n{lines}\n"


def count_filled(rows: list[Row]) -> str:
    lines = "\n".join(f"    filled += table.{row.name} != unfilled_{row.name}" for row in rows)
    return (
        "cdef unsigned int count_filled(Table* table) noexcept nogil:\n"
        f"    cdef unsigned int filled = 0\n{lines}\n    return filled\n"
    )


def python_call(row: Row) -> str:
    """One method: takes the arguments that are read, returns (code, what was written, ...)."""
    read = [a for a in row.arguments if not a.is_out]
    declared, passed, answers = [], [], ["code"]
    for argument in row.arguments:
        value = argument.name
        if argument.name in BUFFERS:
            size, answer = BUFFERS[argument.name]
            declared.append(f"cdef char[{size}] {argument.name}")
            declared.append(f"memset({argument.name}, 0, {size})")
            answers.append(answer)
        elif argument.is_out:
            declared.append(f"cdef {argument.type.removesuffix('*')} {argument.name} = 0")
            value = f"&{argument.name}"
            answers.append(argument.name)
        elif argument.type in ("host_fn", "void*", "void**"):
            value = f"<{argument.type}>{argument.name}_"
        passed.append(value)
    pointers = [a for a in read if a.type in ("host_fn", "void*", "void**")]
    declared += [f"cdef uintptr_t {a.name}_ = {a.name}" for a in pointers]
    taken = ", ".join(a.name if a in pointers else f"{a.type} {a.name}" for a in read)
    body = "".join(f"        {line}\n" for line in declared)
    return (
        f"    def {row.name}(self{', ' if taken else ''}{taken}):\n"
        f"        cdef int code\n{body}"
        f"        with nogil:\n"
        f"            code = self.table.{row.name}({', '.join(passed)})\n"
        f"        return {'code' if len(answers) == 1 else '(' + ', '.join(answers) + ')'}\n"
    )


def read_symbols(text: str) -> list[Symbol]:
    """The functions of libcuda that the cuda driver has typed.

    Each is a pointer's type as cudaTypedefs.h names it, which ends in the version of the ABI, and a
    comment: the rows that cannot work without the function, or "needed" where opening fails without it, or
    "not needed" where the driver itself looks whether it is there.
    """
    found = []
    for name, version, note in SYMBOL.findall(text):
        said = note.partition(";")[0]
        rows = () if said in ("needed", "not needed") else tuple(said.split(", "))
        found.append(Symbol(name, int(version), said == "needed", rows))
    return found


def fill_module(module: str, text: str, rows: list[Row]) -> str:
    """fill_NAME of a module of the host driver: every function that bears a row's name."""
    lines = filled_rows(text, rows)
    return f"cdef void fill_{module}(Table* table) noexcept nogil:\n{lines}\n"


def filled_rows(text: str, rows: list[Row]) -> str:
    defined = set(DEFINED.findall(text))
    return "\n".join(f"    table.{row.name} = {row.name}" for row in rows if row.name in defined)


def fill_cuda(text: str, functions: str, declared: str, rows: list[Row]) -> str:
    """The pointers to libcuda's functions that are typed in functions, and fill_driver, which asks for them.

    A second version of one function bears it in its name.  What the driver's .pxd declares is left to it.
    """
    names: dict[Symbol, str] = {}
    entries: list[str] = []
    for symbol in read_symbols(functions):
        taken = symbol.name in names.values()
        names[symbol] = f"{symbol.name}_v{symbol.version}" if taken else symbol.name
        start = f'Symbol(b"{symbol.name}", {symbol.version}, <void**>&{names[symbol]}'
        places = [f"<void**>&table.{row}" for row in symbol.rows] or ["NULL"]
        entries += [f"        {start}, {place}, {symbol.needed})," for place in places]
    pointers = {symbol.type: name for symbol, name in names.items() if symbol.type not in declared}
    return "\n".join(
        [
            f"from accelrt.driver.cuda.functions cimport {', '.join(pointers)}",
            *(f"cdef {type_} {name}" for type_, name in pointers.items()),
            "cdef int fill_driver(Table* table, Table* blank) except -1:",
            f"    cdef Symbol[{len(entries)}] symbols = [",
            *entries,
            "    ]",
            filled_rows(text, rows),
            f"    return resolve(symbols, {len(entries)}, table, blank)",
            "",
        ]
    )


def render_drivers(rows: list[Row]) -> dict[str, str]:
    """File name -> text of what the modules of the two drivers include."""
    files = {}
    for path in sorted(HERE.glob("*/*.pyx")):
        text, driver, module = path.read_text(), path.parent.name, path.stem
        if module not in INCLUDED.findall(text):
            continue
        if driver == "cuda":
            functions = path.with_name("functions.pxd").read_text()
            declared = path.with_suffix(".pxd").read_text()
            files["cuda/driver_rows.pxi"] = fill_cuda(text, functions, declared, rows)
        else:
            files[f"{driver}/{module}_rows.pxi"] = fill_module(module, text, rows)
    return files


def render() -> dict[str, str]:
    """File name -> text of every file that is derived."""
    rows = read_rows()
    names = "ROW_NAMES = (\n" + "".join(f'    "{row.name}",\n' for row in rows) + ")\n"
    registry = [constant("unfilled", "NOT_SUPPORTED", row) for row in rows]
    registry += [constant("forked", "FORKED", row) for row in rows]
    registry += [forward("sentinel", "bring_up()", "active()", row, i) for i, row in enumerate(rows)]
    registry += [fill(prefix, rows) for prefix in ("unfilled", "forked", "sentinel")]
    registry += [count_filled(rows), names]
    faults = [intercepted(row, i) for i, row in enumerate(rows)]
    faults.append(fill("fault", rows))
    held_back = [row for row in rows if is_guarded(row)]
    calls = ["cdef class RowCalls:\n    cdef Table* table\n", *map(python_call, rows)]
    return {
        "registry_rows.pxi": "\n\n".join(registry),
        "fault_rows.pxi": "\n\n".join(faults),
        "guarded_rows.pxi": "\n\n".join([*map(guarded, held_back), guard(held_back)]),
        "python_rows.pxi": "\n".join(calls),
        **render_drivers(rows),
    }


def write_all() -> None:
    """Writes the derived files beside the contract; an unchanged one keeps its time."""
    for name, text in render().items():
        path = HERE / name
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
