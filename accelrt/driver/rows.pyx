"""The rows of a driver's table as Python methods, and a table of which a chosen call fails: both for tests.

**Rows.**  Every row as a method, for contract tests and raw-driver benchmarks:

    rows = Rows("host")
    code, event = rows.event_create(0, 0)

A method takes the arguments that its row reads and returns its status code, or a tuple of the code and
what the row wrote.  Nothing is checked: these are the rows themselves.

**Faults.**  The driver "faults" wraps any other:

    from accelrt.driver import rows
    rows.wrap("host")                      # before init(driver="faults")
    rows.arm(call=3, code=2, mode="once")  # the third call from now answers OUT_OF_MEMORY

Modes: "once", the call is not made and answers the code; "onward", so does every one after it;
"late", the call is made and succeeds, and the next call that asks how the work went (a query or a
synchronize) answers the code, as a GPU reports a failed kernel.
"""
from libc.stdint cimport uint64_t, uintptr_t
from libc.string cimport memset

from accelrt.driver.registry cimport active, begin_table, offer, table_named
from accelrt.driver.registry import ROW_NAMES
from accelrt.driver.table cimport Table, host_fn
from accelrt.status cimport refuse_copy

cdef extern from "<stdatomic.h>" nogil:
    ctypedef long long counter "atomic_llong"
    long long atomic_fetch_add(counter* object, long long value)
    long long atomic_load(counter* object)
    void atomic_store(counter* object, long long value)
    bint atomic_compare_exchange_strong(counter* object, long long* expected, long long desired)

cdef enum:
    OFF = 0
    ONCE = 1
    ONWARD = 2
    LATE = 3

cdef dict MODES = {"once": ONCE, "onward": ONWARD, "late": LATE}
cdef tuple ASKING = ("device_synchronize", "stream_query", "stream_synchronize", "event_query", "event_synchronize")

cdef Table table
cdef Table* inner = NULL
cdef counter[128] calls    # by row
cdef counter total         # counted calls since arm
cdef counter mode          # OFF, ONCE, ...; set last by arm
cdef counter owed          # a late failure that nobody has been told of
cdef long long trigger     # fail the call with this number
cdef int failure
cdef bint[128] counted     # rows that count and may fail
cdef bint[128] asks        # rows that report a late failure

include "python_rows.pxi"
include "fault_rows.pxi"


cdef class Rows(RowCalls):
    """The rows of a driver: Rows("cuda"), Rows("host"), Rows("faults"), or the active one: Rows()."""

    names = ROW_NAMES

    def __cinit__(self, str driver=None):
        self.table = active() if driver is None else table_named(driver)

    def __reduce__(self):
        refuse_copy(self, "it is a driver's table of this process; make another one with Rows(name)")

    @property
    def filled(self):
        """How many rows the driver fills; the others answer NOT_SUPPORTED."""
        return self.table.rows

    @property
    def name(self):
        """The name that the table bears."""
        return self.table.name.decode()


# faults

cdef int intercept(int row) noexcept nogil:
    cdef long long number, armed, one = 1
    atomic_fetch_add(&calls[row], 1)
    if asks[row] and atomic_load(&owed) and atomic_compare_exchange_strong(&owed, &one, 0):
        return failure
    if not counted[row]:
        return 0
    number = atomic_fetch_add(&total, 1) + 1
    armed = atomic_load(&mode)
    if armed == OFF or number < trigger:
        return 0
    if armed == ONWARD or (armed == ONCE and number == trigger):
        return failure
    if armed == LATE and number == trigger:
        atomic_store(&owed, 1)
    return 0


def wrap(str driver):
    """Wraps the table of a driver ("host" or "cuda"); the table "faults" then forwards to it."""
    global inner
    inner = table_named(driver)
    table.rows = inner.rows


def arm(long long call, int code, str mode="once", rows=None):
    """Makes a call fail.

    Arguments:
        call: int, 1 is the next counted call.
        code: int, the status code to answer.
        mode: "once", "onward" or "late".
        rows: names of the rows that count and may fail; None is all but open and close.
    Raises:
        ValueError: an unknown mode or row, or a call below 1.
    """
    global trigger, failure
    if mode not in MODES:
        raise ValueError(f"mode {mode!r} is not known; the modes are {', '.join(MODES)}")
    if call < 1:
        raise ValueError(f"call is {call}; the first call is 1")
    unknown = set(rows or ()) - set(ROW_NAMES)
    if unknown:
        raise ValueError(f"no such rows: {', '.join(sorted(unknown))}")
    disarm()
    for index, name in enumerate(ROW_NAMES):
        counted[index] = name in rows if rows is not None else name not in ("open", "close")
    trigger = call
    failure = code
    set_mode(MODES[mode])


cdef void set_mode(long long value) noexcept nogil:
    atomic_store(&mode, value)


def disarm():
    """Lets every call through again and forgets a late failure that is still owed."""
    atomic_store(&mode, OFF)
    atomic_store(&owed, 0)
    atomic_store(&total, 0)


def fired():
    """How many counted calls were made since arm or disarm."""
    return atomic_load(&total)


def call_counts():
    """Row name -> calls since the module was loaded or reset_call_counts."""
    return {name: atomic_load(&calls[index]) for index, name in enumerate(ROW_NAMES)}


def reset_call_counts():
    """Sets every row's count of calls to 0."""
    for index in range(len(ROW_NAMES)):
        atomic_store(&calls[index], 0)


cdef int set_up() except -1:
    begin_table(&table, b"faults")
    fill_fault(&table)
    for index, name in enumerate(ROW_NAMES):
        counted[index] = name not in ("open", "close")
        asks[index] = name in ASKING
    offer("faults", &table)
    return 0


set_up()
