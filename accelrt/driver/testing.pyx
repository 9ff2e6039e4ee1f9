"""The table "faults", for tests: a chosen call fails, or a thread stops in it.  accelrt itself never imports this.

    testing.wrap("host")                      # before init(driver="faults")
    testing.arm(call=3, code=2, mode="once")  # the third call from now answers OUT_OF_MEMORY

Modes: "once", the call is not made and answers the code; "onward", so does every one after it; "late", the call is made
and succeeds, and the next call that asks how the work went (a query or a synchronize) answers the code, as a GPU reports
a failed kernel; "slow", it and every one after it takes up to so many microseconds longer, as a GPU's calls for memory do,
while other threads go on.

    testing.park("memory_unmap", when="after", thread=other.ident)
    ...                                       # the other thread calls the row
    testing.await_parked(10)                  # it stands behind the call; anything may be done beside it
    testing.go_on()

One thread parks at a time; the others pass.
"""
from libc.stdint cimport uint64_t, uintptr_t

from accelrt.core.locks cimport pthread_mutex_init, pthread_mutex_lock, pthread_mutex_t, pthread_mutex_unlock
from accelrt.core.process cimport FORK_DRIVER, at_fork
from accelrt.core.interpreter cimport holds_gil as has_gil, PyThread_get_thread_ident
from accelrt.core.threads cimport now, pause, pthread_cond_broadcast, pthread_cond_init, pthread_cond_t, wait_on
from accelrt.driver.registry cimport begin_table, offer_over, table_named
from accelrt.driver.node_params cimport NodeParams, host_fn
from accelrt.driver.table cimport Table

from accelrt.driver.registry import ROW_NAMES

# stub: from accelrt.driver.registry import ROW_NAMES as ROW_NAMES
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
    SLOW = 4

cdef dict MODES = {"once": ONCE, "onward": ONWARD, "late": LATE, "slow": SLOW}
cdef tuple ASKING = ("device_synchronize", "stream_query", "stream_synchronize", "event_query", "event_synchronize")

include "fault_rows.pxi"

cdef Table fault_table
cdef Table* wrapped = NULL
cdef counter[ROW_COUNT] calls  # by row
cdef counter total             # counted calls since arm
cdef counter mode              # OFF, ONCE, ...; set last by arm
cdef counter owed              # a late failure that no call has reported yet
cdef long long trigger         # fail the call with this number
cdef int failure
cdef bint[ROW_COUNT] counted   # rows that count and may fail
cdef bint[ROW_COUNT] asks      # rows that report a late failure


cdef int intercept(int row, long long* out_point) noexcept nogil:
    # Before each call.  out_point: where the thread is to park behind the call, for park_at; else unchanged.
    cdef long long number, armed, one = 1
    atomic_fetch_add(&calls[row], 1)
    if atomic_load(&watched):
        watch(row, out_point)
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
        pause(number * 7919 % failure * 1000)
    return 0


def wrap(str driver, bint posing=False) -> None:
    """Wraps the table of a driver; the table "faults" then forwards to it.  Before accelrt is initialised.

    Arguments:
        driver: "host" or "cuda".
        posing: bool, whether the table bears the driver's name, so that accelrt does with it what it does with that
            driver alone: NumPy sees the host device's memory, say, and collectives run there.
    """
    global wrapped
    wrapped = table_named(driver)
    fault_table.rows = wrapped.rows
    fault_table.name = b"faults"
    if posing:
        fault_table.name = wrapped.name


def arm(long long call, int code, str mode="once", rows: Iterable[str] | None = None) -> None:
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


def disarm() -> None:
    """Lets every call through again and forgets a late failure that is still owed."""
    atomic_store(&mode, OFF)
    atomic_store(&owed, 0)
    atomic_store(&total, 0)


def fired() -> int:
    """Returns how many counted calls were made since arm or disarm."""
    return atomic_load(&total)


def call_counts() -> dict[str, int]:
    """Row name -> calls since the module was loaded or reset_call_counts."""
    return {name: atomic_load(&calls[index]) for index, name in enumerate(ROW_NAMES)}


def reset_call_counts() -> None:
    """Sets every row's count of calls to 0."""
    for index in range(len(ROW_NAMES)):
        atomic_store(&calls[index], 0)


# parking: a thread that stops at a chosen call until it is told to go on

# Watched is whether a point is set or calls are traced: while neither is, a call reads that one word.  The mutex is held
# for no call of a driver's and without the GIL.
ctypedef struct Call:
    unsigned long thread
    int row
    bint holds_gil

cdef enum:
    TRACED_CALLS = 1 << 16

cdef enum Place:  # what became of the point that was set
    NO_POINT
    EXPECTED    # no thread has come to it
    PARKED      # a thread stands there
    OVERDUE     # it went on by itself, at its limit
    UNPARKABLE  # it held the GIL, so that nobody could have told it to go on

cdef pthread_mutex_t parking
cdef pthread_cond_t moved        # a thread parked, or is told to go on
cdef counter watched             # a point is set, or calls are traced
cdef bint tracing = False
# The rest under the mutex.
cdef Place place = NO_POINT
cdef long long point = 0         # number of the point that is set; a thread that parked at an earlier one leaves
cdef int point_row = -1          # -1: whichever
cdef unsigned long point_thread = 0  # 0: whichever
cdef long long point_calls = 0   # calls that match until the one that parks
cdef bint point_after = False
cdef long long point_ns = 0      # how long the thread stays at most
cdef int parked_row = -1
cdef Call[TRACED_CALLS] traced
cdef int traced_count = 0


cdef void watch(int row, long long* out_point) noexcept nogil:
    cdef unsigned long thread = PyThread_get_thread_ident()
    cdef bint holds_gil = has_gil()
    pthread_mutex_lock(&parking)
    if tracing and traced_count < TRACED_CALLS:
        note_call(row, thread, holds_gil)
    if place == EXPECTED and point_row in (-1, row) and point_thread in (0, thread):
        meet_point(row, holds_gil, out_point)
    pthread_mutex_unlock(&parking)


cdef void note_call(int row, unsigned long thread, bint holds_gil) noexcept nogil:
    global traced_count
    traced[traced_count].thread = thread
    traced[traced_count].row = row
    traced[traced_count].holds_gil = holds_gil
    traced_count += 1


cdef void meet_point(int row, bint holds_gil, long long* out_point) noexcept nogil:
    global place, point_calls, parked_row
    point_calls -= 1
    if point_calls:
        return
    parked_row = row
    if holds_gil:
        place = UNPARKABLE
        pthread_cond_broadcast(&moved)
    elif point_after:
        out_point[0] = point
    else:
        stay(point)


cdef void stay(long long number) noexcept nogil:
    # Under the mutex, which is open while the thread waits.
    global place
    cdef long long until = now() + point_ns
    place = PARKED
    pthread_cond_broadcast(&moved)
    while place == PARKED and point == number:
        if wait_on(&moved, &parking, until - now()) and place == PARKED and point == number:
            place = OVERDUE
    pthread_cond_broadcast(&moved)


cdef void park_at(long long number) noexcept nogil:
    pthread_mutex_lock(&parking)
    if place == EXPECTED and point == number:
        stay(number)
    pthread_mutex_unlock(&parking)


cdef Place set_point(Place new, int row, long long number, bint after, unsigned long thread, long long ns) noexcept nogil:
    # What became of the point before; a thread that stands there goes on.
    global place, point, point_row, point_calls, point_after, point_thread, point_ns
    cdef Place before
    pthread_mutex_lock(&parking)
    before = place
    place = new
    point += 1
    point_row, point_calls, point_after, point_thread, point_ns = row, number, after, thread, ns
    atomic_store(&watched, tracing or new == EXPECTED)
    pthread_cond_broadcast(&moved)
    pthread_mutex_unlock(&parking)
    return before


# stub: def park(row: str | None = None, number: int = 1, when: Literal["before", "after"] = "before", thread: int | None = None, limit: float = 10.0) -> None: ...  # no-cython-lint
def park(
    row: str | None = None, long long number=1, str when="before", thread: int | None = None, double limit=10.0,
) -> None:
    """Has a thread stop at a call of the table "faults" until go_on; the other threads' calls pass.

    A point that was set before is forgotten, and a thread that stands there goes on.  A call with the GIL held cannot
    stop, for nobody could tell it to go on; await_parked and go_on say so.

    Arguments:
        row: name of the row to stop at; None for any.
        number: int, which of the calls that match, 1 for the next.
        when: "before" the driver's call is made, or "after" it.
        thread: identifier of the thread to stop (threading.Thread.ident); None for whichever comes.
        limit: float, seconds after which the thread goes on by itself.
    Raises:
        ValueError: an unknown row or when, a number below 1, or a limit that is not above 0.
    """
    if row is not None and row not in ROW_NAMES:
        raise ValueError(f"no such row: {row}")
    if when not in ("before", "after"):
        raise ValueError(f"when is {when!r}; it is 'before' or 'after'")
    if number < 1:
        raise ValueError(f"number is {number}; the next call is 1")
    if not 0 < limit < 1e6:
        raise ValueError(f"limit is {limit}; it is seconds, above 0 and below a million")
    cdef int index = -1 if row is None else ROW_NAMES.index(row)
    cdef unsigned long ident = 0 if thread is None else thread
    set_point(EXPECTED, index, number, when == "after", ident, <long long>(limit * 1e9))


def await_parked(double timeout) -> str | None:
    """Waits until a thread has come to the point that park set, without the GIL.

    Arguments:
        timeout: float, seconds.
    Returns: the name of the row that it stands at, or None where no thread came in time.
    Raises:
        RuntimeError: no point is set; the thread held the GIL there, so did not stop; or it went on at its limit.
    """
    cdef long long until = now() + <long long>(min(max(timeout, 0), 1e6) * 1e9)
    cdef Place outcome
    cdef int row
    with nogil:
        pthread_mutex_lock(&parking)
        while place == EXPECTED:
            if wait_on(&moved, &parking, until - now()):
                break
        outcome, row = place, parked_row
        pthread_mutex_unlock(&parking)
    if outcome == NO_POINT:
        raise RuntimeError("no point is set; call park first")
    refuse_missed(outcome, row)
    return None if outcome == EXPECTED else ROW_NAMES[row]


cdef int refuse_missed(Place outcome, int row) except -1:
    if outcome == UNPARKABLE:
        raise RuntimeError(f"the thread holds the GIL in {ROW_NAMES[row]}, so it did not park")
    if outcome == OVERDUE:
        raise RuntimeError(f"the thread that parked at {ROW_NAMES[row]} went on by itself, at its limit")
    return 0


def go_on() -> bool:
    """Lets the parked thread go on, and forgets the point.

    Returns: whether a thread stood there; False where none came, or no point is set.
    Raises:
        RuntimeError: the thread held the GIL there, so did not stop; or it went on at its limit.
    """
    cdef Place outcome = set_point(NO_POINT, -1, 0, False, 0, 0)
    refuse_missed(outcome, parked_row)
    return outcome == PARKED


def begin_trace() -> None:
    """Begins to write down which thread calls which row of the table "faults"; forgets what was written before."""
    set_trace(True)


def end_trace() -> None:
    """Ends what begin_trace began; traced_calls still answers."""
    set_trace(False)


cdef void set_trace(bint on) noexcept nogil:
    global tracing, traced_count
    pthread_mutex_lock(&parking)
    if on:
        traced_count = 0
    tracing = on
    atomic_store(&watched, on or place == EXPECTED)
    pthread_mutex_unlock(&parking)


def traced_calls(thread: int | None = None) -> list[tuple[str, bool]]:
    """The calls since begin_trace, in their order: those of one thread, or of all.  The first 65,536 are kept.

    Arguments:
        thread: identifier of a thread (threading.Thread.ident); None for all threads.
    Returns: list of (row: str, holds_gil: bool): the row, and whether its caller held the GIL, where park cannot stop it.
    """
    cdef unsigned long ident = 0 if thread is None else thread
    cdef int index, count
    with nogil:
        pthread_mutex_lock(&parking)
        count = traced_count
        pthread_mutex_unlock(&parking)
    return [
        (ROW_NAMES[traced[index].row], bool(traced[index].holds_gil))
        for index in range(count) if ident in (0, traced[index].thread)
    ]


cdef void forget_parking() noexcept nogil:
    # In a forked child, whose parent's threads are not here; and at import.
    global place, tracing, traced_count
    pthread_mutex_init(&parking, NULL)
    pthread_cond_init(&moved, NULL)
    place = NO_POINT
    tracing = False
    traced_count = 0
    atomic_store(&watched, 0)


cdef int set_up_faults() except -1:
    forget_parking()
    at_fork("driver.testing", FORK_DRIVER, NULL, NULL, &forget_parking)
    begin_table(&fault_table, b"faults")
    fill_fault(&fault_table)
    for index, name in enumerate(ROW_NAMES):
        counted[index] = name not in ("open", "close")
        asks[index] = name in ASKING
    offer_over("faults", &fault_table, &wrapped)
    return 0


set_up_faults()
