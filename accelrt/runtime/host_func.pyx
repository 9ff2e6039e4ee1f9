"""Python functions in a stream's order: cuLaunchHostFunc with a Python callable.

A function runs on a thread of the driver.  What it raises is kept and raised by the next synchronize, or query that
finds its work complete: the first errors with their tracebacks, the rest counted.  What no call has
raised by the interpreter's exit goes to sys.unraisablehook.
"""
import sys

from cpython.exc cimport PyErr_SetObject, PyErr_WriteUnraisable
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.string cimport memset

from accelrt.core.locks cimport add_count, load_count, store_count
from accelrt.core.process import call_at_exit, call_at_fork
cimport accelrt.driver.registry as registry
from accelrt.driver.waiting cimport (
    INTERRUPTED, abandon_waits, begin_wait, drop_with_gil, end_wait, make_thread_state, poll,
)
from accelrt.allocator.device_pools cimport MAX_DEVICES
from accelrt.runtime.capture_record cimport KEPT, OTHERS, UNCAPTURED, keep_where_captured
from accelrt.runtime.release_queue cimport begin_host_function, drain, end_host_function
cimport accelrt.runtime.sanitizer_hooks as watch
from accelrt.status cimport DEINITIALIZED, NOT_READY, raise_status

cdef extern from "<unistd.h>" nogil:
    int usleep(unsigned int us)

cdef enum:
    MOST_ERRORS = 32   # that are kept; a traceback holds the variables of all its frames
    REFUSAL_US = 1000  # so that a thread which tries again and again leaves the GIL to the functions under way
    UNCOUNTED = -1

SHORT_TURN = 5e-5  # seconds

cdef long outstanding = 0                   # runs enqueued from Python and not yet over
cdef long[MAX_DEVICES] outstanding_on       # of them, those of each device
cdef list errors = []     # of (error, function)
cdef long more_errors = 0  # that came later and were not kept
cdef bint is_exiting = False
cdef long closing = 0      # 1: the interpreter ends, so that no function runs any more


cdef class HostCall:
    """A function on its way to a stream.  Each run that is enqueued holds a reference of its own, so that the
    function outlives a graph that dies while a launch of it is under way.  Launches by the Cython API hold
    none: there the caller keeps the graph."""

    cdef object function
    cdef int device
    cdef long runs     # enqueued from Python and not yet over, each with its reference
    cdef bint is_node  # of a graph that keeps it: every launch runs it
    cdef object mark   # its place in the order, for the race detector; None while that is off

    def __init__(self, function, int device):
        self.function = function
        self.device = device


cdef void count_run(int device, long change) noexcept nogil:
    add_count(&outstanding, change)
    add_count(&outstanding_on[device], change)


cdef void begin_run(HostCall host_call) noexcept:
    Py_INCREF(host_call)
    host_call.runs += 1
    count_run(host_call.device, 1)


cdef int end_run(HostCall host_call) noexcept:
    # Answers the device to count the run out of, or UNCOUNTED.
    cdef int device = host_call.device
    if host_call.runs == 0:
        return UNCOUNTED
    host_call.runs -= 1
    Py_DECREF(host_call)
    return device


cdef void take_back_run(HostCall host_call) noexcept:
    cdef int device = end_run(host_call)
    if device != UNCOUNTED:
        count_run(device, -1)


cdef void run(void* data) noexcept nogil:
    # On a thread of the driver, which must not wait for an interpreter that ends: the exit goes on once the run is
    # counted out, so that comes after the last use of the GIL.
    cdef bint made
    cdef int device
    if load_count(&closing) == 0:
        made = make_thread_state()
        with gil:
            drop_with_gil(made)
            device = call(<HostCall>data)
        if device != UNCOUNTED:
            count_run(device, -1)


cdef int call(HostCall host_call) noexcept:
    cdef int device
    begin_host_function()
    call_function(host_call)
    device = end_run(host_call)
    end_host_function()
    return device


cdef void call_function(HostCall host_call) noexcept:
    if host_call.mark is not None:
        watch.begin_host_function(host_call.mark)
    try:
        host_call.function()
    except BaseException as error:
        note_error(error, host_call.function)
    if host_call.mark is not None:
        watch.end_host_function()


cdef void note_error(object error, object function) noexcept:
    global more_errors
    if len(errors) < MOST_ERRORS:
        errors.append((error, function))
    else:
        more_errors += 1


cdef bint functions_wait() noexcept:
    return load_count(&outstanding) > 0


cdef list nodes_of(list kept):
    return [thing for thing in kept if isinstance(thing, HostCall) and (<HostCall>thing).is_node]


cdef int begin_runs(list nodes) except -1:
    if nodes and is_exiting:
        refuse_at_exit("graph_launch", ("host_functions", len(nodes)))
    for node in nodes:
        begin_run(node)
    return 0


cdef void take_back_runs(list nodes) noexcept:
    for node in nodes:
        take_back_run(node)


cdef int refuse_at_exit(str call, tuple arguments) except -1:
    with nogil:
        usleep(REFUSAL_US)
    return raise_status(DEINITIALIZED, call, arguments)


cdef int enqueue_callback(int device, uintptr_t stream, object function) except -1:
    cdef HostCall host_call = HostCall(function, device)
    cdef int code
    if not callable(function):
        raise TypeError(f"a host function is called with nothing, but {function!r} cannot be called")
    if is_exiting:
        refuse_at_exit("stream_host_func", ("device", device, "stream", stream, "fn", function))
    drain()
    cdef int taken = keep_where_captured(device, stream, host_call)
    if taken == UNCAPTURED:
        begin_run(host_call)
    elif taken == OTHERS:
        Py_INCREF(host_call)  # for good: their graph may launch it at any time, and nothing says when it is destroyed
    if watch.sanitizing:
        host_call.mark = watch.note_host_function(device, stream)
    cdef void* data = <void*>host_call
    with nogil:
        code = registry.active().stream_host_func(device, stream, run, data)
    if code:
        if taken == UNCAPTURED:
            take_back_run(host_call)
        elif taken == OTHERS:
            Py_DECREF(host_call)
        raise_status(code, "stream_host_func", ("device", device, "stream", stream, "fn", function))
    host_call.is_node = taken == KEPT
    return 0


cdef int raise_callback_errors() except -1:
    if errors:
        raise take_errors()
    return 0


cdef object take_errors():
    global more_errors
    cdef list found = [error for error, _ in errors]
    cdef long more = more_errors
    del errors[:len(found)]  # more may have come
    more_errors -= more
    if len(found) == 1:
        return found[0]
    text = f"{len(found) + more} host functions raised"
    return BaseExceptionGroup(text + f"; the first {len(found)} are here" if more else text, found)


cdef void show_error(object error, object function) noexcept:
    PyErr_SetObject(type(error), error)
    PyErr_WriteUnraisable(function)


cdef void show_errors() noexcept:
    global more_errors
    while errors:
        error, function = errors.pop(0)
        show_error(error, function)
    if more_errors:
        show_error(RuntimeError(f"{more_errors} more host functions raised"), None)
        more_errors = 0


cdef int ask_device(int device, uintptr_t unused) noexcept nogil:
    # Whether functions are left that the device will run: one that failed says so, and runs none.
    cdef size_t free_bytes, total_bytes
    cdef int code
    if load_count(&outstanding_on[device]) == 0:
        return 0
    code = registry.active().memory_info(device, &free_bytes, &total_bytes)
    return code if code else NOT_READY


cdef int await_all() except -1:
    # Not by device_synchronize: a driver refuses that beside a capture that another thread has open, and breaks it.
    cdef int device, count = 0, code = 0
    if not functions_wait() or registry.active().device_count(&count):
        return 0
    begin_wait(True)
    with nogil:
        for device in range(count):
            if code != INTERRUPTED:
                code = poll(ask_device, device, 0)
    if code == INTERRUPTED:
        abandon_waits()
    end_wait(code)
    return 0


def finish():
    """The interpreter's exit: takes no more functions, lets those that are on their way run, then lets none start.

    Raises what a signal's handler raises, Ctrl-C's for one; then nothing is waited for any more.
    """
    global is_exiting
    is_exiting = True
    interval = sys.getswitchinterval()
    try:
        # Daemon threads that go on would have each function wait for its turn for so long.
        sys.setswitchinterval(SHORT_TURN)
        await_all()
    finally:
        sys.setswitchinterval(interval)
        store_count(&closing, 1)
        show_errors()


def forget_in_child():
    """In a forked child, where the parent's functions do not run: the parent tells what they raised."""
    global more_errors, is_exiting
    errors.clear()
    more_errors = 0
    store_count(&outstanding, 0)
    memset(outstanding_on, 0, sizeof(outstanding_on))
    is_exiting = False
    store_count(&closing, 0)


call_at_exit("runtime.host_func", "host functions", finish)
call_at_fork("runtime.host_func", "runtime", child=forget_in_child)
