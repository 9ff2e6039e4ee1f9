"""Chooses the driver that this process runs on, and has its rows as Python methods.

Drivers offer their table when their module is imported; init picks one and activates it.  Nothing
here opens a driver library.
"""
from cpython.bytearray cimport PyByteArray_AS_STRING
from libc.string cimport memset
from posix.unistd cimport close
from libc.stdint cimport uint64_t, uintptr_t

from accelrt import env
from accelrt.core.interpreter cimport interpreter_is_gone
from accelrt.core.locks cimport load_count, store_count
from accelrt.core.process cimport FORK_DRIVER, at_fork
from accelrt.core.process import call_at_exit
from accelrt.driver.guard cimport are_abandoned, begin_wait, drop_with_gil, end_wait, guard_table, make_thread_state
from accelrt.driver.node_params cimport NodeParams, host_fn
from accelrt.driver.table cimport Table, TABLE_VERSION
from accelrt.status cimport DEINITIALIZED, FORKED, INIT_FAILED, NOT_SUPPORTED, keep_init_error, raise_status, refuse_copy

include "registry_rows.pxi"

DRIVERS = {**{name: f"accelrt.driver.{name}.driver" for name in env.DRIVERS}, "faults": "accelrt.driver.testing"}

# stub: DRIVERS: dict[str, str]
# stub: ROW_NAMES: tuple[str, ...]

cdef Table sentinel_table
cdef Table forked_table
cdef Table* in_use = &sentinel_table
cdef Table* opened = NULL  # in use, or set aside until an initialisation that failed is tried again
cdef dict offered = {}
cdef Table* outer = NULL   # a table that forwards to another: testing's; NULL where none was offered
cdef Table** inner = NULL  # where it keeps the other, NULL there until it has one
cdef object first_use = None
cdef object refusal_cause = None


cdef void begin_table(Table* table, const char* name) noexcept nogil:
    memset(table, 0, sizeof(Table))
    table.version = TABLE_VERSION
    table.size = sizeof(Table)
    table.name = name
    fill_unfilled(table)


cdef void finish_table(Table* table) noexcept nogil:
    table.rows = count_filled(table)


cdef void offer(str name, Table* table):
    offered[name] = <uintptr_t>table


cdef void offer_over(str name, Table* table, Table** wrapped):
    global outer, inner
    outer, inner = table, wrapped
    offer(name, table)


cdef Table* table_named(str name) except NULL:
    if name not in DRIVERS:
        raise ValueError(f"driver {name!r} is not known; the drivers are {', '.join(DRIVERS)}")
    __import__(DRIVERS[name])
    cdef Table* table = <Table*><uintptr_t>offered[name]
    if table.version != TABLE_VERSION or table.size != sizeof(Table):
        raise ImportError(
            f"driver {name!r} was built for table version {table.version} of {table.size} bytes, this accelrt "
            f"has version {TABLE_VERSION} of {sizeof(Table)} bytes; build both from the same source"
        )
    return table


cdef int activate(Table* table) except -1:
    # Init's last step; the table lives for ever.
    # The guard stands under the outer table: a thread that is made to wait there does not count as one that asks.
    cdef Table blank
    begin_table(&blank, table.name)
    if table == outer:
        inner[0] = guard_table(inner[0], &blank)
    else:
        table = guard_table(table, &blank)
    store_table(&in_use, table)
    return 0


def on_first_use(function: Callable[[], object]) -> None:
    """Sets what the sentinel's rows call, with the GIL, before they call again: lazy's init."""
    global first_use
    first_use = function


def explain_refusals(function: Callable[[], str]) -> None:
    """Sets what tells why the calling thread's last request for memory was refused, where it was not for memory."""
    global refusal_cause
    refusal_cause = function


def cause_of_refusal() -> str:
    """Tells why a driver refused the calling thread memory that the device has, as str; empty where it told nothing."""
    return "" if refusal_cause is None else refusal_cause()


def open_and_activate(str name) -> int:
    """Opens a driver and makes it the active one; returns its status code, and activates nothing unless 0.

    Raises what interrupted it.
    """
    global opened
    cdef Table* table = table_named(name)
    cdef int code
    with nogil:
        code = table.open()
    if code == INIT_FAILED:
        raise_status(code, "open")
    if code == 0:
        opened = table
        activate(table)
    return code


def wrapped_driver() -> str:
    """The driver that the table "faults" forwards to: "host" or "cuda"; "" where it forwards to none."""
    return "" if inner == NULL or inner[0] == NULL else inner[0].name.decode()


def set_aside() -> None:
    """After an initialisation that failed once its driver was open: the next call of a row initialises again."""
    store_table(&in_use, &sentinel_table)


def opened_name() -> str:
    """The name of the driver that is open, though perhaps set aside; "sentinel" where none is."""
    return (active() if opened == NULL or active() == &forked_table else opened).name.decode()


def close_active() -> int:
    """The end of the process: waits for what still runs.  Returns the driver's status code.

    Raises what a signal's handler raises; the driver is closed all the same.
    """
    cdef int code
    if opened == NULL or active() == &forked_table:
        return 0
    begin_wait(True)
    with nogil:
        code = opened.close()
    end_wait(0 if are_abandoned() else code)  # that was told before
    return code


def active_device_count() -> int:
    """Returns how many devices the active driver has; before init this initialises.

    Raises what the driver answers.
    """
    cdef int count = 0
    cdef int code = active().device_count(&count)
    if code:
        raise_status(code, "device_count")
    return count


def driver_name() -> str:
    """The name of the active table: "sentinel" before init, "forked" in a child forked after it."""
    return active().name.decode()


cdef int bring_up() noexcept nogil:
    # The sentinel's rows may be called by any thread without the GIL, so never under a lock of ours.
    # By itself, for Cython takes the GIL at every return of a function that has Python's objects.
    return DEINITIALIZED if interpreter_is_gone() else bring_up_in_python()


cdef int bring_up_in_python() noexcept nogil:
    cdef bint is_new = make_thread_state()
    with gil:
        drop_with_gil(is_new)
        try:
            first_use()
        except BaseException as error:
            keep_init_error(error)
            return INIT_FAILED
        else:
            keep_init_error(None)  # the last attempt's
    if active() == &sentinel_table:
        return INIT_FAILED
    return 0


cdef void after_fork_in_child() noexcept nogil:
    if opened != NULL:
        store_table(&in_use, &forked_table)


# --- rows for Python -----------------------------------------------------------------------------------------

cdef union Value:  # an argument of a row, or what the row writes
    int number
    unsigned int count
    size_t size
    uintptr_t address
    uint64_t wide
    float real
    char* text

cdef extern from "Python.h":
    object PyMethod_New(object function, object bound_to)

ctypedef int (*row_fn)(Table* table, Value* values) noexcept nogil


cdef class RowTable:
    """A driver's table."""
    cdef Table* table

    def __cinit__(self, str driver=None):
        self.table = active() if driver is None else table_named(driver)

    def __reduce__(self):
        refuse_copy(self, "it is a driver's table of this process; make another one with Rows(name)")


include "python_rows.pxi"

ROW_NAMES = tuple([text.partition("(")[0] for text in ROW_TEXTS.splitlines()])


cdef enum Kind:  # of an argument, or of what the row writes
    INT
    UNSIGNED
    SIZE
    WIDE
    REAL
    FLAG
    TEXT
    ROOM
    ADDRESS

cdef dict KINDS = {"int": INT, "unsigned int": UNSIGNED, "size_t": SIZE, "uint64_t": WIDE, "float": REAL, "bint": FLAG,
                   "const char*": TEXT}  # every other one is an address

cdef struct Argument:
    Kind kind
    bint is_out
    bint is_text   # of a ROOM: what the row writes ends with a null character
    size_t size    # of a ROOM, bytes


cdef class RowMethod:
    """A row as a method."""
    # stub: def __call__(self, /, *args: object, **kwargs: object) -> object: ...
    cdef int index
    cdef long is_read  # the rest is known, from the first call on
    cdef int count
    cdef int taken     # how many of the arguments a caller gives
    cdef Argument[MOST_VALUES] arguments

    def __get__(self, RowTable rows, owner):
        return self if rows is None else PyMethod_New(self, rows)

    def __call__(self, RowTable rows not None, *arguments, **named):
        cdef Value[MOST_VALUES] values
        cdef Table* table = rows.table
        cdef Argument* argument
        cdef Py_ssize_t at, next_one = 0
        cdef list rooms = []
        cdef int code
        self.read()
        if named:
            arguments = self.__signature__.bind(rows, *arguments, **named).args[1:]
        if len(arguments) != self.taken:
            raise TypeError(f"{self.__name__}() takes exactly {self.taken} positional arguments ({len(arguments)} given)")
        memset(values, 0, sizeof(values))
        for at in range(self.count):
            argument = &self.arguments[at]
            if argument.kind == ROOM:
                rooms.append(bytearray(argument.size))
                values[at].text = PyByteArray_AS_STRING(rooms[len(rooms) - 1])
            elif not argument.is_out:
                give_value(&values[at], argument.kind, arguments[next_one])
                next_one += 1
        with nogil:
            code = row_functions[self.index](table, values)
        try:
            return self.answer_of(code, values, rooms)
        except BaseException:  # Python has no memory: what the row made would be nobody's
            if code == 0 and undo_functions[self.index] != NULL:
                with nogil:
                    undo_functions[self.index](table, values)
            raise

    cdef object answer_of(self, int code, const Value* values, list rooms):
        cdef const Argument* argument
        cdef Py_ssize_t at
        cdef list answers = [code]
        for at in range(self.count):
            argument = &self.arguments[at]
            if argument.kind == ROOM:
                answers.append(text_of(bytes(rooms.pop(0)), argument.is_text))
            elif argument.is_out:
                answers.append(value_of(&values[at], argument.kind))
        return tuple(answers) if len(answers) > 1 else code

    cdef int read(self) except -1:
        # Two threads that come first at once read the same.
        cdef int at, taken = 0
        if load_count(&self.is_read):
            return 0
        pairs = pairs_of(self.index)
        for at, (kind, name) in enumerate(pairs):
            self.arguments[at].is_out = name.startswith("out_")
            taken += not self.arguments[at].is_out
            if kind.startswith("char["):
                self.arguments[at].kind, self.arguments[at].size = ROOM, int(kind[5:-1])
                self.arguments[at].is_text = name in ("out_text", "out_log")
            else:
                self.arguments[at].kind = KINDS.get(kind.removesuffix("*") if self.arguments[at].is_out else kind, ADDRESS)
        self.count, self.taken = len(pairs), taken
        store_count(&self.is_read, True)
        return 0

    @property
    def __name__(self) -> str:
        return ROW_NAMES[self.index]

    @property
    def __signature__(self) -> object:
        from inspect import Parameter, Signature  # which takes long to import

        names = [name for _, name in pairs_of(self.index) if not name.startswith("out_")]
        return Signature([Parameter(name, Parameter.POSITIONAL_OR_KEYWORD) for name in ["self", *names]])

    def __reduce__(self):
        refuse_copy(self, "it is one of a class's methods")


cdef list pairs_of(int index):
    # (type, name) of each argument of a row.
    text = ROW_TEXTS.splitlines()[index].partition("(")[2].removesuffix(")")
    return [argument.rpartition(" ")[::2] for argument in text.split(", ") if argument]


cdef int give_value(Value* value, Kind kind, object argument) except -1:
    if kind == INT:
        value.number = argument
    elif kind == UNSIGNED:
        value.count = argument
    elif kind == SIZE:
        value.size = argument
    elif kind == WIDE:
        value.wide = argument
    elif kind == REAL:
        value.real = argument
    elif kind == FLAG:
        value.number = bool(argument)
    elif kind == TEXT:
        value.text = argument  # the caller's tuple keeps it
    else:
        value.address = argument
    return 0


cdef object value_of(const Value* value, Kind kind):
    if kind == INT:
        return value.number
    if kind == UNSIGNED:
        return value.count
    if kind == SIZE:
        return value.size
    if kind == WIDE:
        return value.wide
    if kind == REAL:
        return value.real
    return value.address


cdef object text_of(bytes written, bint is_text):
    return written.partition(b"\0")[0].decode(errors="replace") if is_text else written


class Rows(RowCalls):
    """The rows of a driver: Rows("cuda"), Rows("host"), Rows("faults"), or the active one: Rows().

        rows = Rows("host")
        code, event = rows.event_create(0, 0)

    A method takes the arguments that its row reads and returns its status code, or a tuple of the code and what the row
    wrote.  Nothing is checked: these are the rows themselves.
    """
    # stub: names: tuple[str, ...]
    # stub: def __new__(cls, driver: str | None = None) -> Self: ...

    names = ROW_NAMES

    @property
    def filled(self) -> int:
        """Returns how many rows the driver fills; the others answer NOT_SUPPORTED."""
        return (<RowTable>self).table.rows

    @property
    def name(self) -> str:
        """The name that the table bears."""
        return (<RowTable>self).table.name.decode()


cdef int add_methods() except -1:
    cdef RowMethod method
    for index, name in enumerate(ROW_NAMES):
        method = RowMethod()
        method.index = index
        setattr(RowCalls, name, method)
    return 0


add_methods()
begin_table(&sentinel_table, b"sentinel")
fill_sentinel(&sentinel_table)
begin_table(&forked_table, b"forked")
fill_forked(&forked_table)
at_fork("driver.registry", FORK_DRIVER, NULL, NULL, &after_fork_in_child)
call_at_exit("driver.registry", "driver", close_active)


# --- nodes of the host's memory ------------------------------------------------------------------------------

cdef extern from *:
    """
    #include <stdio.h>
    #include <unistd.h>
    static int accelrt_is_node(int node) {
        char path[64];
        snprintf(path, sizeof path, "/sys/devices/system/node/node%d", node);
        return access(path, F_OK) == 0;
    }
    """
    bint is_system_node "accelrt_is_node" (int node) noexcept nogil

cdef enum:
    HOST_NUMA_ID = 134  # CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID
    MOST_DEVICES = 64

cdef int[MOST_DEVICES] near  # the node nearest to each device, or -1
cdef long apart = 0          # 1: all memory is equally near; 2: it is not; 0: nobody has looked


cdef void learn_nodes() noexcept nogil:
    # Two threads that look at once find the same.
    cdef int device, count = 0, node, before = -1
    cdef bint differ = False
    if load_count(&apart) or active().device_count(&count):
        return
    for device in range(min(count, MOST_DEVICES)):
        node = -1
        if active().device_attribute(device, HOST_NUMA_ID, &node) or not 0 <= node < MOST_NODES:
            node = -1  # a driver before CUDA 12.2, or a system without
        near[device] = node
        differ = differ or (device > 0 and node != before)
        before = node
    store_count(&apart, 2 if differ or is_system_node(1) else 1)


cdef bint knows_nodes() noexcept nogil:
    return load_count(&apart) != 0


cdef bint tells_nodes_apart() noexcept nogil:
    learn_nodes()
    return load_count(&apart) == 2


cdef int nearest_node(int device) noexcept nogil:
    return near[device] if tells_nodes_apart() and 0 <= device < MOST_DEVICES else -1


cdef bint has_node(int node) noexcept nogil:
    cdef int device
    if not 0 <= node < MOST_NODES:
        return False
    for device in range(MOST_DEVICES):
        if tells_nodes_apart() and near[device] == node:
            return True
    return is_system_node(node)
