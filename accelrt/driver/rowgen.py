"""Reads driver/table.pxd and the drivers' modules, and writes what can be written from them alone.

Four sets of rows do little more than forward: those of the table that initialises at first use, those of
the table that injects faults, those that the end of a capture excludes, and those that Python sees.  Each is
derived from the contract at build time, so that a row is declared once.

A driver's module that includes NAME_rows.pxi has in it fill_NAME, which puts every row of the module's into
the table; one of the cuda driver also has resolve_NAME, which asks libcuda for the module's functions.  A row
is a function that bears its name, or is derived from what the driver says of it:

- a comment in cuda/functions.pxd or cuda/graph_functions.pxd, "# memory_free(address)": the row is this
  one call of a function of libcuda, in the context of its device, or in any where it names none;
- a function ROW_entered of the cuda driver: the row calls it in such a context;
- a function ROW_gated of the host driver: the row calls it where the gate permits it;
- a function ROW_locked of the host driver: so too, and under the lock, in memory.pyx the memory's and
  elsewhere the queue's.  A stream, event, graph and so on that it takes as a pointer is found by its handle;
  what is none is refused, in the order of the arguments.

What a derived row answers through its arguments is 0 where the row is refused.  setup.py calls write_all()
before it cythonizes.
"""

import re
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
ROW = re.compile(r"^    int \(\*(\w+)\)\((.*)\) noexcept nogil")
# buffers that a row fills: name -> (bytes, the type of what Python gets)
BUFFERS = {
    "out_text": (256, "str"),
    "out_uuid": (16, "bytes"),
    "out_log": (4096, "str"),
    "out_ipc": (64, "bytes"),
}
# What Python gives the address of, as int.
POINTERS = ("host_fn", "void*", "void**", "NodeParams*")
# The member of registry.pyx's Value that has an argument of a type, or what it points at.
MEMBERS = {
    **{"int": "number", "bint": "number", "unsigned int": "count", "size_t": "size", "uintptr_t": "address"},
    **{"uint64_t": "wide", "float": "real", "const char*": "text", "char*": "text"},
    **dict.fromkeys(POINTERS, "address"),
}
MOST_VALUES = 16  # arguments of one row
# Row that makes something -> the call that takes it back where Python has no memory for the row's answer.
UNDONE_BY = {
    **dict.fromkeys(("memory_alloc", "managed_alloc"), "memory_free(device, out_address)"),
    **dict.fromkeys(("async_alloc", "pool_alloc"), "async_free(device, stream, out_address)"),
    "managed_pool_alloc": "managed_pool_free(device, stream, out_address)",
    "pool_pointer_import": "async_free(device, 0, out_address)",
    "host_alloc": "host_free(device, out_address)",
    **dict.fromkeys(("address_reserve", "address_reserve_at"), "address_free(out_address, size)"),
    **dict.fromkeys(("physical_create", "physical_import"), "physical_release(out_handle)"),
    **dict.fromkeys(("physical_export", "pool_export"), "close(out_file)"),
    **dict.fromkeys(
        ("pool_create", "pool_import", "pinned_pool_create", "managed_pool_create"), "pool_destroy(out_pool)"
    ),
    "stream_create": "stream_destroy(device, out_stream)",
    **dict.fromkeys(("event_create", "ipc_event_open"), "event_destroy(device, out_event)"),
    "array_create": "array_destroy(device, out_array)",
    "mipmap_create": "mipmap_destroy(device, out_mipmap)",
    "texture_create": "texture_destroy(device, out_texture, sampling == 0)",
    **dict.fromkeys(("graph_create", "graph_clone", "capture_end"), "graph_destroy(out_graph)"),
    "graph_instantiate": "graph_exec_destroy(out_exec)",
    "graph_node_add": "graph_node_destroy(graph, out_node)",
    **dict.fromkeys(("module_load", "module_register"), "module_unload(device, out_module)"),
    "ipc_memory_open": "ipc_memory_close(device, out_address)",
}
# Rows that name a stream or an event and are not held back: one may be asked at any time, two wait, so that
# their drivers hold back the calls that they are made of.
AT_ANY_TIME = ("stream_is_capturing", "stream_synchronize", "event_synchronize")
# Rows that may wait within the driver, for room in a queue or for work of the stream.
MAY_WAIT = re.compile(
    "copy|fill|array_copy|kernel_launch|graph_launch|graph_upload|stream_host_func|async_|conditional_"
    "|managed_prefetch|managed_discard|managed_pool_(?:alloc|free)|pool_(?:alloc|trim|pointer_import)"
)
# Rows that take memory past the allocator: where the device has none, again once idle memory went back.
TAKES_MEMORY = (
    *("array_create", "async_alloc", "graph_instantiate", "graph_launch", "graph_upload", "kernel_launch"),
    *("kernel_launch_with", "limit_set", "mipmap_create", "module_load", "pool_alloc"),
)
# Rows of the host driver that name a device and, as on a GPU, make no context of it.
IN_NO_CONTEXT = re.compile(
    "device_(?!synchronize)|can_access_peer|granularity|default_pool|pool_(?:create|trim)"
    "|stream_is_capturing|context_"
)
# Of these what says the same of a device whose context is lost.
IN_ANY_STATE = re.compile("device_(name|uuid|pci_bus_id|memory|attribute)$")
DEFINED = re.compile(r"^cdef int (\w+)\(", re.M)
INCLUDED = re.compile(r'^include "(\w+)_rows\.pxi"', re.M)
BODY = re.compile(r"^cdef int (\w+)_(entered|gated|locked)\(([^)]*)\) noexcept nogil:", re.M)
SYMBOL = re.compile(r"ctypedef int \(\*PFN_(cu\w+)_v(\d+)\)\(([^)]*)\) noexcept nogil  # (.+)")
FUNCTIONS = ("functions", "graph_functions")  # the files of cuda/ that list libcuda's
NOTED = re.compile(r"(\w+)(?:\(([^)]*)\))?")
# What libcuda takes for the handles that rows name.
HANDLES = {
    **{"stream": "CUstream", "event": "CUevent", "start": "CUevent", "end": "CUevent"},
    **{"graph": "CUgraph", "body": "CUgraph", "exec_": "CUgraphExec", "exec": "CUgraphExec"},
    **{"node": "CUgraphNode", "module": "CUmodule", "function": "CUfunction"},
    **{"handle": "CUmemGenericAllocationHandle", "pool": "CUmemoryPool", "array": "CUarray"},
    "mipmap": "CUmipmappedArray",
}
# How the host driver finds what a handle names, and what it answers where that is nothing.
LOOK_UPS = {
    "HostStream*": ("find_stream(device, {})", "INVALID_HANDLE"),
    "HostEvent*": ("find_event({})", "INVALID_HANDLE"),
    "HostFunction*": ("find_function({})", "INVALID_HANDLE"),
    "HostModule*": ("find_module({})", "INVALID_HANDLE"),
    "HostPool*": ("find_pool({})", "INVALID_VALUE"),
    "Graph*": ("find_graph({})", "INVALID_VALUE"),
    "Exec*": ("find_exec({})", "INVALID_VALUE"),
}


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

    @property
    def types(self) -> dict[str, str]:
        return {a.name: a.type for a in self.arguments}

    @property
    def clears(self) -> str:
        """The lines that set to 0 what the row answers, but for texts."""
        outs = [a.name for a in self.arguments if a.is_out and a.type != "char*"]
        return "".join(f"    {name}[0] = 0\n" for name in outs)


@dataclass(frozen=True)
class Body:
    """The rest of a row that is derived: a function ROW_entered, ROW_gated or ROW_locked."""

    row: Row
    kind: str
    arguments: tuple[Argument, ...]

    @property
    def call(self) -> str:
        passed = (a.name + "_" * (a.type in LOOK_UPS) for a in self.arguments)
        return f"{self.row.name}_{self.kind}({', '.join(passed)})"


@dataclass(frozen=True)
class Symbol:
    """A function of libcuda, with the version that names its ABI."""

    name: str
    version: int
    parameters: tuple[str, ...]  # their types
    needed: bool
    in_context: bool  # whether it is called in one
    rows: dict[str, tuple[str, ...] | None]  # what each passes; None where the driver's module has it

    @property
    def type(self) -> str:
        return f"PFN_{self.name}_v{self.version}"


def read_rows(path: Path = HERE / "table.pxd") -> list[Row]:
    """The rows of the contract, in order."""
    rows = []
    for line in path.read_text().splitlines():
        match = ROW.match(line)
        if match:
            rows.append(Row(match[1], read_arguments(match[2])))
    return rows


def read_arguments(text: str) -> tuple[Argument, ...]:
    return tuple(Argument(*part.rsplit(" ", 1)) for part in split(text))


def split(text: str) -> tuple[str, ...]:
    """The parts between commas, over several lines too."""
    return tuple(" ".join(part.split()) for part in text.split(",") if part.strip())


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
    """Tells whether a row is about a stream or an event, so that no capture may end meanwhile."""
    named = {"stream", "event", "start"} & {argument.name for argument in row.arguments}
    return bool(named) and row.name not in AT_ANY_TIME


def guarded(row: Row) -> str:
    """One row of the table that the end of a capture excludes, or that asks for memory again; the end itself
    excludes all the others.
    """
    call, enter, leave = f"inner.{row.name}({row.names})", "", ""
    if row.name == "capture_end":
        enter, leave = "begin_end()", "finish_end()"
    elif is_guarded(row):
        may_wait = MAY_WAIT.match(row.name) is not None
        enter, leave = f"asker = enter_asking_here({may_wait})", "leave_asking_here(asker)"
    steps = [step for step in (enter, f"code = {call}", leave) if step]
    lines = ["cdef int code", *(["cdef Slot* asker"] if "asker" in enter else []), *steps]
    if row.name in TAKES_MEMORY:
        lines += ["if code == OUT_OF_MEMORY and has_made_room(device):", *(f"    {step}" for step in steps)]
    body = "".join(f"    {line}\n" for line in [*lines, "return code"])
    return f"cdef int guarded_{row.name}({row.signature}) noexcept nogil:\n{body}"


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


def python_type(type_: str) -> str:
    return {"float": "float", "bint": "bool", "const char*": "bytes"}.get(type_, "int")


def python_stub(row: Row) -> str:
    """The line of the stub that has a row as a method of what it reads, with the type of what it answers."""
    taken, kinds = ["self"], ["int"]
    for argument in row.arguments:
        if argument.name in BUFFERS:
            kinds.append(BUFFERS[argument.name][1])
        elif argument.is_out:
            kinds.append(python_type(argument.type.removesuffix("*")))
        else:
            kind = "object" if argument.type in POINTERS else python_type(argument.type)
            taken.append(f"{argument.name}: {kind}")
    returned = "int" if len(kinds) == 1 else f"tuple[{', '.join(kinds)}]"
    return f"    # stub: def {row.name}({', '.join(taken)}) -> {returned}: ...\n"


def python_call(row: Row) -> str:
    """The function that calls a row with values that Python gave, or that it writes."""
    passed = []
    for index, argument in enumerate(row.arguments):
        is_pointed_at = argument.is_out and argument.name not in BUFFERS
        value = (
            f"values[{index}].{MEMBERS[argument.type.removesuffix('*') if is_pointed_at else argument.type]}"
        )
        cast = f"<{argument.type}>" if argument.type in POINTERS else ""
        passed.append(f"{'&' * is_pointed_at}{cast}{value}")
    return (
        f"cdef int call_{row.name}(Table* table, Value* values) noexcept nogil:\n"
        f"    return table.{row.name}({', '.join(passed)})\n"
    )


def python_undo(row: Row) -> str:
    """The function that takes back what a row made, whose answer Python could not have."""
    name, _, passed = UNDONE_BY[row.name].removesuffix(")").partition("(")
    places = {argument.name: index for index, argument in enumerate(row.arguments)}

    def value_of(match: re.Match[str]) -> str:
        argument = row.arguments[places[match[0]]]
        return f"values[{places[match[0]]}].{MEMBERS[argument.type.removesuffix('*' * argument.is_out)]}"

    call = re.sub(r"[a-z]\w+", value_of, passed)
    target = name if name == "close" else f"table.{name}"
    signature = f"undo_{row.name}(Table* table, Value* values) noexcept nogil"
    return f"cdef int {signature}:\n    return {target}({call})\n"


def python_text(row: Row) -> str:
    """The row's name and arguments, as registry.pyx reads them where the row is first called."""
    arguments = (
        f"{f'char[{BUFFERS[a.name][0]}]' if a.name in BUFFERS else a.type} {a.name}" for a in row.arguments
    )
    return f'    "{row.name}({", ".join(arguments)})\\n"\n'


def python_rows(rows: list[Row]) -> str:
    """The rows that Python sees: a function for each, their texts, and the stub of their class."""
    if most := [row.name for row in rows if len(row.arguments) > MOST_VALUES]:
        raise ValueError(f"{most} have more than {MOST_VALUES} arguments: raise MOST_VALUES")
    functions = ", ".join(f"&call_{row.name}" for row in rows)
    undone = ", ".join(f"&undo_{row.name}" if row.name in UNDONE_BY else "NULL" for row in rows)
    return "\n\n".join(
        [
            f"cdef enum:\n    MOST_VALUES = {MOST_VALUES}\n",
            *map(python_call, rows),
            *(python_undo(row) for row in rows if row.name in UNDONE_BY),
            f"cdef row_fn[{len(rows)}] row_functions = [{functions}]\n",
            f"cdef row_fn[{len(rows)}] undo_functions = [{undone}]\n",
            "cdef str ROW_TEXTS = (\n" + "".join(map(python_text, rows)) + ")\n",
            'class RowCalls(RowTable):\n    """The rows as methods, which registry.pyx adds."""\n'
            + "".join(map(python_stub, rows)),
        ]
    )


def read_symbols(text: str) -> list[Symbol]:
    """The functions of libcuda that the cuda driver has typed.

    Each is a pointer's type as cudaTypedefs.h names it, which ends in the version of the ABI, and a
    comment: the rows that cannot work without the function, or "needed" where opening fails without it, or
    "not needed" where the driver itself looks whether it is there.  Behind a row that is this one call stands
    what it passes; "no context: " before it says that it is called in none.
    """
    symbols = []
    for name, version, parameters, note in SYMBOL.findall(text):
        mark, _, noted = re.split("[;#]", note)[0].strip().rpartition(": ")
        needed, unneeded = noted == "needed", noted == "not needed"
        calls = [] if needed or unneeded else NOTED.finditer(noted)
        rows = {call[1]: None if call[2] is None else split(call[2]) for call in calls}
        symbols.append(Symbol(name, int(version), split(parameters), needed, mark != "no context", rows))
    return symbols


def context_of(row: Row) -> tuple[str, str]:
    """The lines that enter a row's context, and what the row answers behind its call."""
    enter = "enter(device, &pushed)" if "device" in row.types else "enter_any(&pushed)"
    return f"    cdef bint pushed = False\n    cdef int code = {enter}\n", "leave(pushed, code)"


def row_around(row: Row, call: str, context: tuple[str, str], declared: str = "", after: str = "") -> str:
    """A row of the cuda driver with its context around a call."""
    enter, status = context
    return (
        f"cdef int {row.name}({row.signature}) noexcept nogil:\n{declared}{enter}{row.clears}"
        f"    if code == SUCCESS:\n        code = {call}\n{after}    return {status}\n"
    )


def one_call(row: Row, symbol: Symbol, pointer: str, values: tuple[str, ...]) -> str:
    """A row of the cuda driver that is one call.

    What has another type there is cast; an answer is written to a variable of that type first.  What takes
    the device itself is called in no context.
    """
    types, declared, after, passed, checks = row.types, "", "", [], []
    for value, type_ in zip(values, symbol.parameters, strict=True):
        check_handle(row, value, type_.rstrip("*"))
        if type_ == "CUdevice":
            checks.append(f"0 <= {value} < device_total")
            value = f"devices[{value}].handle"
        elif value.startswith("out_") and types[value] not in (type_, "char*"):
            declared += f"    cdef {type_[:-1]} new_{value} = <{type_[:-1]}>0\n"
            after += f"    if code == SUCCESS:\n        {value}[0] = <{types[value][:-1]}>new_{value}\n"
            value = f"&new_{value}"
        elif types.get(value, type_) != type_:
            value = f"<{type_}>{value}"
        passed.append(value)
    context = context_of(row)
    if checks or not symbol.in_context:
        refusal = f" if {' and '.join(checks)} else INVALID_DEVICE" if checks else ""
        context = f"    cdef int code = SUCCESS{refusal}\n", "code"
    return row_around(row, f"{pointer}({', '.join(passed)})", context, declared, after)


def check_handle(row: Row, value: str, type_: str) -> None:
    """Raises ValueError where a handle would be cast to another's type, which no compiler sees."""
    name = value.removeprefix("out_")
    expected = HANDLES.get(name, "no handle")
    if value in row.types and expected != type_ and (name in HANDLES or type_ in HANDLES.values()):
        raise ValueError(f"{row.name} passes {value} ({expected}) for a {type_}")


def gated(body: Body, lock: str) -> str:
    """A row of the host driver, with the gate and the lock around what is left of it."""
    row, handles = body.row, [a for a in body.arguments if a.type in LOOK_UPS]
    if handles and body.kind != "locked":
        raise ValueError(f"{row.name}_{body.kind} takes {handles[0].name} without the lock")
    gate = "gate_any()"
    if "device" in row.types:
        gate = "gate(device)" if IN_NO_CONTEXT.match(row.name) else "enter(device)"
        gate = "gate_device(device)" if IN_ANY_STATE.match(row.name) else gate
    declared, look_ups, value = "", "", body.call
    for handle in reversed(handles):
        look_up, refusal = LOOK_UPS[handle.type]
        declared += f"    cdef {handle.type} {handle.name}_\n"
        look_ups = f"    {handle.name}_ = {look_up.format(handle.name)}\n{look_ups}"
        value = f"{refusal} if {handle.name}_ == NULL else {value}"
    lines = f"    return {value}\n"
    if body.kind == "locked":
        lines = f"    {lock}()\n{look_ups}    code = {value}\n    un{lock}()\n    return code\n"
    return (
        f"cdef int {row.name}({row.signature}) noexcept nogil:\n{declared}"
        f"    cdef int code = {gate}\n{row.clears}    if code:\n        return code\n{lines}"
    )


def read_bodies(text: str, rows: list[Row]) -> list[Body]:
    by_name = {row.name: row for row in rows}
    return [Body(by_name[name], kind, read_arguments(words)) for name, kind, words in BODY.findall(text)]


def fill_rows(text: str, derived: list[str], rows: list[Row]) -> str:
    """The lines that put every row of a module, and those derived for it, into the table."""
    defined = set(DEFINED.findall("\n".join([text, *derived])))
    return "\n".join(f"    table.{row.name} = {row.name}" for row in rows if row.name in defined)


def fill_host(module: str, text: str, rows: list[Row]) -> str:
    """The derived rows of a module of the host driver, and fill_NAME."""
    lock = "lock_memory" if module == "memory" else "lock"
    derived = [gated(body, lock) for body in read_bodies(text, rows)]
    filled = fill_rows(text, derived, rows)
    return "\n\n".join([*derived, f"cdef void fill_{module}(Table* table) noexcept nogil:\n{filled}\n"])


def fill_cuda(
    text: str,
    functions: dict[str, str],
    declared: str,
    rows: list[Row],
    module: str = "driver",
    memory: str = "",
) -> str:
    """The pointers to libcuda's functions, the derived rows, fill_NAME and resolve_NAME.

    functions has the texts of the files that list them, by the files' names.  Those that memory, the text of
    memory.pyx, calls are that module's, and the others are driver.pyx's.
    What is declared, by memory.pxd, has its pointer there, and driver.pyx asks for it.  A second version of
    one function bears it in its name.
    """
    called = set(re.findall(r"\bcu[A-Z]\w+(?=\()", memory))
    by_name = {row.name: row for row in rows}
    pointers: dict[str, str] = {}  # by type, of both modules
    own: dict[str, dict[str, str]] = {file: {} for file in functions}
    of_memory = []
    entries: list[str] = []
    derived = [row_around(each.row, each.call, context_of(each.row)) for each in read_bodies(text, rows)]
    for file, symbol in [(name, each) for name in functions for each in read_symbols(functions[name])]:
        has_pointer = symbol.name in pointers.values()
        pointer = f"{symbol.name}_v{symbol.version}" if has_pointer else symbol.name
        pointers[symbol.type] = pointer
        is_shared = symbol.type in declared
        if (pointer in called and not is_shared) != (module == "memory"):
            continue
        if is_shared:
            of_memory.append(pointer)
        else:
            own[file][symbol.type] = pointer
        start = f'Symbol(b"{symbol.name}", {symbol.version}, <void**>&{pointer}'
        places = [f"<void**>&table.{row}" for row in symbol.rows] or ["NULL"]
        entries += [f"        {start}, {place}, {symbol.needed})," for place in places]
        derived += [
            one_call(by_name[row], symbol, pointer, passed)
            for row, passed in symbol.rows.items()
            if passed is not None
        ]
    types = sorted(set(re.findall(r"\b(?:CU|cuuint)\w+", "\n".join(derived))))
    return "\n".join(
        [
            *(f"from accelrt.driver.cuda.memory cimport {pointer}" for pointer in of_memory),
            *(f"from accelrt.driver.cuda.{file} cimport {', '.join(own[file])}" for file in own if own[file]),
            f"from accelrt.driver.cuda.types cimport {', '.join(types)}",
            "from accelrt.driver.node_params cimport NodeParams, host_fn",
            "from accelrt.driver.table cimport TEXT_BYTES",
            *(f"cdef {type_} {pointer}" for file in own for type_, pointer in own[file].items()),
            *derived,
            f"cdef void fill_{module}(Table* table) noexcept nogil:",
            fill_rows(text, derived, rows),
            f"cdef int resolve_{module}(resolve_fn resolve, Table* table, Table* blank) except -1:",
            f"    cdef Symbol[{len(entries)}] symbols = [",
            *entries,
            "    ]",
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
            functions = {name: path.with_name(f"{name}.pxd").read_text() for name in FUNCTIONS}
            declared, memory = (path.with_name(name).read_text() for name in ("memory.pxd", "memory.pyx"))
            files[f"cuda/{module}_rows.pxi"] = fill_cuda(text, functions, declared, rows, module, memory)
        else:
            files[f"{driver}/{module}_rows.pxi"] = fill_host(module, text, rows)
    return files


def render() -> dict[str, str]:
    """File name -> text of every file that is derived."""
    rows = read_rows()
    registry = [constant("unfilled", "NOT_SUPPORTED", row) for row in rows]
    registry += [constant("forked", "FORKED", row) for row in rows]
    registry += [forward("sentinel", "bring_up()", "active()", row, i) for i, row in enumerate(rows)]
    registry += [fill(prefix, rows) for prefix in ("unfilled", "forked", "sentinel")]
    registry.append(count_filled(rows))
    faults = [f"cdef enum:\n    ROW_COUNT = {len(rows)}\n"]
    faults += [intercepted(row, i) for i, row in enumerate(rows)]
    faults.append(fill("fault", rows))
    held_back = [row for row in rows if is_guarded(row) or row.name in TAKES_MEMORY]
    return {
        "registry_rows.pxi": "\n\n".join(registry),
        "fault_rows.pxi": "\n\n".join(faults),
        "guarded_rows.pxi": "\n\n".join([*map(guarded, held_back), guard(held_back)]),
        "python_rows.pxi": python_rows(rows),
        **render_drivers(rows),
    }


def write_all() -> None:
    """Writes the derived files beside the contract; an unchanged one keeps its time."""
    for name, text in render().items():
        path = HERE / name
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
