"""Which driver this process runs on; and, for tests above all, its rows as Python methods, and calls that fail.

Drivers offer their table when their module is imported; init picks one and activates it.  Nothing
here opens a driver library.
"""
import importlib

from libc.string cimport memset
from libc.stdint cimport uint64_t, uintptr_t

from accelrt.driver.table cimport Table, TABLE_VERSION, host_fn
from accelrt.driver.waiting cimport are_abandoned, begin_wait, drop_with_gil, end_wait, make_thread_state
from accelrt.status cimport FORKED, INIT_FAILED, NOT_SUPPORTED, keep_init_error, raise_status, refuse_copy

cdef extern from "<pthread.h>" nogil:
    int pthread_atfork(void (*prepare)() noexcept, void (*parent)() noexcept, void (*child)() noexcept)

include "registry_rows.pxi"

DRIVERS = {"cuda": "accelrt.driver.cuda.driver", "host": "accelrt.driver.host.driver", "faults": "accelrt.driver.registry"}

cdef Table sentinel_table
cdef Table forked_table
cdef Table* in_use = &sentinel_table
cdef Table* opened = NULL  # in use, or set aside until an initialisation that failed is tried again
cdef dict offered = {}
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


cdef Table* table_named(str name) except NULL:
    if name not in DRIVERS:
        raise ValueError(f"driver {name!r} is not known; the drivers are {', '.join(DRIVERS)}")
    importlib.import_module(DRIVERS[name])
    cdef Table* table = <Table*><uintptr_t>offered[name]
    if table.version != TABLE_VERSION or table.size != sizeof(Table):
        raise ImportError(
            f"driver {name!r} was built for table version {table.version} of {table.size} bytes, this accelrt "
            f"has version {TABLE_VERSION} of {sizeof(Table)} bytes; build both from the same source"
        )
    return table


cdef int activate(Table* table) except -1:
    store_table(&in_use, table)
    return 0


def on_first_use(function):
    """Sets what the sentinel's rows call, with the GIL, before they call again: lazy's init."""
    global first_use
    first_use = function


def explain_refusals(function):
    """Sets what tells why the calling thread's last request for memory was refused, where it was not for memory."""
    global refusal_cause
    refusal_cause = function


def cause_of_refusal():
    """Why a driver refused the calling thread memory that the device has, as str; empty where it told nothing."""
    return "" if refusal_cause is None else refusal_cause()


def open_and_activate(str name):
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


def set_aside():
    """After an initialisation that failed once its driver was open: the next call of a row initialises again."""
    store_table(&in_use, &sentinel_table)


def opened_name():
    """The name of the driver that is open, though perhaps set aside; "sentinel" where none is."""
    return (active() if opened == NULL or active() == &forked_table else opened).name.decode()


def close_active():
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


def active_device_count():
    """How many devices the active driver has; before init this initialises.

    Raises what the driver answers.
    """
    cdef int count = 0
    cdef int code = active().device_count(&count)
    if code:
        raise_status(code, "device_count")
    return count


def driver_name():
    """The name of the active table: "sentinel" before init, "forked" in a child forked after it."""
    return active().name.decode()


cdef int bring_up() noexcept nogil:
    # The sentinel's rows may be called by any thread without the GIL, so never under a lock of ours.
    cdef bint made = make_thread_state()
    with gil:
        drop_with_gil(made)
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


# --- rows as Python methods ----------------------------------------------------------------------------------

include "python_rows.pxi"


cdef class Rows(RowCalls):
    """The rows of a driver: Rows("cuda"), Rows("host"), Rows("faults"), or the active one: Rows().

        rows = Rows("host")
        code, event = rows.event_create(0, 0)

    A method takes the arguments that its row reads and returns its status code, or a tuple of the code and what the row
    wrote.  Nothing is checked: these are the rows themselves.
    """

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


# --- faults: a table of which a chosen call fails ------------------------------------------------------------

#     registry.wrap("host")                      # before init(driver="faults")
#     registry.arm(call=3, code=2, mode="once")  # the third call from now answers OUT_OF_MEMORY
#
# Modes: "once", the call is not made and answers the code; "onward", so does every one after it; "late", the call is made
# and succeeds, and the next call that asks how the work went (a query or a synchronize) answers the code, as a GPU reports
# a failed kernel; "slow", it and every one after it takes up to so many microseconds longer, as a GPU's calls for memory do,
# while other threads go on.
cdef extern from "<stdatomic.h>" nogil:
    ctypedef long long counter "atomic_llong"
    long long atomic_fetch_add(counter* object, long long value)
    long long atomic_load(counter* object)
    void atomic_store(counter* object, long long value)
    bint atomic_compare_exchange_strong(counter* object, long long* expected, long long desired)

cdef extern from "<unistd.h>" nogil:
    int usleep(unsigned int microseconds)

cdef enum:
    OFF = 0
    ONCE = 1
    ONWARD = 2
    LATE = 3
    SLOW = 4

cdef dict MODES = {"once": ONCE, "onward": ONWARD, "late": LATE, "slow": SLOW}
cdef tuple ASKING = ("device_synchronize", "stream_query", "stream_synchronize", "event_query", "event_synchronize")

cdef Table fault_table
cdef Table* wrapped = NULL
cdef counter[128] calls    # by row
cdef counter total         # counted calls since arm
cdef counter mode          # OFF, ONCE, ...; set last by arm
cdef counter owed          # a late failure that no call has reported yet
cdef long long trigger     # fail the call with this number
cdef int failure
cdef bint[128] counted     # rows that count and may fail
cdef bint[128] asks        # rows that report a late failure

include "fault_rows.pxi"


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
    if armed == SLOW and number % 3 == 0:
        usleep(<unsigned int>(number * 7919 % failure))
    return 0


def wrap(str driver):
    """Wraps the table of a driver ("host" or "cuda"); the table "faults" then forwards to it."""
    global wrapped
    wrapped = table_named(driver)
    fault_table.rows = wrapped.rows


def arm(long long call, int code, str mode="once", rows=None):
    """Makes a call fail.

    Arguments:
        call: int, 1 is the next counted call.
        code: int, the status code to answer; in mode "slow" microseconds, at least 1.
        mode: "once", "onward", "late" or "slow".
        rows: names of the rows that count and may fail; None is all but open and close.
    Raises:
        ValueError: an unknown mode or row, a call below 1, or no time.
    """
    global trigger, failure
    if mode not in MODES:
        raise ValueError(f"mode {mode!r} is not known; the modes are {', '.join(MODES)}")
    if call < 1:
        raise ValueError(f"call is {call}; the first call is 1")
    if mode == "slow" and code < 1:
        raise ValueError(f"code is {code}; a slow call takes 1 microsecond or more")
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


cdef int set_up_faults() except -1:
    begin_table(&fault_table, b"faults")
    fill_fault(&fault_table)
    for index, name in enumerate(ROW_NAMES):
        counted[index] = name not in ("open", "close")
        asks[index] = name in ASKING
    offer("faults", &fault_table)
    return 0


begin_table(&sentinel_table, b"sentinel")
fill_sentinel(&sentinel_table)
begin_table(&forked_table, b"forked")
fill_forked(&forked_table)
pthread_atfork(NULL, NULL, &after_fork_in_child)
set_up_faults()
