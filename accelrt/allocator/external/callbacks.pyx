# cython: embedsignature=False
"""Memory from two Python functions, for libraries whose allocators are Python objects.

The functions run with the GIL, with the device current, in relaxed capture mode, and without the pool's lock.  The
thread may hold the pool's relief, which is recursive, and which nothing waits for with the GIL held: so a function may
use accelrt, and even free and allocate its memory.
"""
from cpython.exc cimport PyErr_Fetch, PyErr_Restore, PyErr_SetObject, PyErr_WriteUnraisable
from cpython.ref cimport PyObject, Py_INCREF
from libc.stdint cimport uintptr_t
from libc.stdlib cimport calloc

from accelrt.core.integers cimport checked_address_int
from accelrt.core.process import call_at_exit
from accelrt.driver.waiting cimport drop_with_gil, make_thread_state
from accelrt.allocator.external.backend cimport Pluggable, Visit, enter, fill_pluggable, leave
from accelrt.allocator.external.external_types cimport ExternalPool, Record
from accelrt.status cimport DEINITIALIZED, OUT_OF_MEMORY, UNKNOWN

cdef extern from *:
    """
    static __thread int accelrt_callback_depth;  /* allocate functions that this thread is inside of */
    static int accelrt_callbacks_over;           /* the interpreter ends: call no more functions */
    #define load_over() __atomic_load_n(&accelrt_callbacks_over, __ATOMIC_ACQUIRE)
    #define store_over() __atomic_store_n(&accelrt_callbacks_over, 1, __ATOMIC_RELEASE)
    """
    int depth "accelrt_callback_depth"
    bint load_over() noexcept nogil
    void store_over() noexcept nogil

cdef extern from "Python.h":
    int PyThreadState_SetAsyncExc(unsigned long thread, object error) except -1
    unsigned long PyThread_get_thread_ident() noexcept

cdef enum:
    MAX_DEPTH = 8  # a function that allocates what it is asked for from accelrt would call itself without end


# --- the rows -------------------------------------------------------------------------------------------------

cdef void tell(object error) noexcept:
    if on_failure != NULL:
        on_failure(error)


cdef uintptr_t address_in(const Callbacks* callbacks, const Record* record, int device) except? 0:
    # What the function answers: 0 and None are no memory.
    if depth > MAX_DEPTH:
        raise RecursionError("it asks accelrt for the memory, which asks it")
    answer = (<object>callbacks.allocate)(record.size, device, record.stream)
    return 0 if answer is None else checked_address_int(answer, "what it returned")


cdef uintptr_t ask(const Callbacks* callbacks, const Record* record, int device, int* out_code) noexcept:
    # With the GIL.
    global depth
    cdef uintptr_t address = 0
    out_code[0] = OUT_OF_MEMORY
    depth += 1
    try:
        address = address_in(callbacks, record, device)
        if address:
            out_code[0] = 0
    except MemoryError as error:
        tell(error)
    except Exception as error:
        out_code[0] = UNKNOWN
        name = (<bytes>callbacks.name).decode()
        failure = RuntimeError(
            f"the allocator {name!r} failed: allocate({record.size}, device {device}, stream {record.stream:#x}) raised "
            f"{type(error).__name__}: {error}; nothing was allocated"
        )
        failure.__cause__ = error
        tell(failure)
    except BaseException as error:
        out_code[0] = UNKNOWN
        tell(error)
    depth -= 1
    return address


cdef int take(ExternalPool* pool, Record* record) noexcept nogil:
    cdef Visit visit
    cdef bint made
    cdef int code
    if load_over():
        return DEINITIALIZED
    code = enter(pool, &visit)
    if code:
        return code
    made = make_thread_state()
    with gil:
        drop_with_gil(made)
        record.address = ask(<const Callbacks*>pool.backend, record, pool.device, &code)
    leave(pool, &visit)
    return code


def report(error, function):
    """Has sys.unraisablehook tell of an exception of a function that has no caller to raise it to."""
    PyErr_SetObject(type(error), error)
    PyErr_WriteUnraisable(function)


cdef void call_free(const Callbacks* callbacks, const Record* record, int device) noexcept:
    # With the GIL; an exception may be under way, as where a destructor frees.  What the function raises can reach no
    # caller, for it is called late, and by whichever thread comes by; and the memory is not asked back twice.
    cdef PyObject* kind
    cdef PyObject* value
    cdef PyObject* trace
    PyErr_Fetch(&kind, &value, &trace)
    try:
        (<object>callbacks.free)(record.address, record.size, device, record.stream)
    except Exception as error:
        report(error, <object>callbacks.free)
    except BaseException as error:
        PyThreadState_SetAsyncExc(PyThread_get_thread_ident(), type(error))
    PyErr_Restore(kind, value, trace)


cdef int give(ExternalPool* pool, const Record* record) noexcept nogil:
    cdef Visit visit
    cdef bint made
    cdef int code
    if load_over():  # the memory goes with the process
        return 0
    code = enter(pool, &visit)
    if code:
        return code
    made = make_thread_state()
    with gil:
        drop_with_gil(made)
        call_free(<const Callbacks*>pool.backend, record, pool.device)
    leave(pool, &visit)
    return 0


# --- the allocator --------------------------------------------------------------------------------------------

cdef class CallbackAllocator(Allocator):
    """CallbackAllocator(allocate, free, name="callbacks")\n--\n\n\
    An allocator of two Python functions, for change_current_allocator.

    Arguments:
        allocate: callable as allocate(size, device, stream): bytes, an ordinal, and a stream's handle as int.  It
            returns the address as int, and 0 or None, or raises MemoryError, where it has no memory.
        free: callable as free(address, size, device, stream), with what allocate was given and returned.
        name: str, what get_allocator_backend() and errors call it.
    Raises:
        TypeError, ValueError: allocate or free cannot be called, or name is no str, is empty, or names a backend of
            accelrt's own.

    Both are called from any thread, with the GIL, with the device current.  They may use accelrt, but begin no capture,
    and not wait for another thread that allocates: it may be waiting for them.  free is called when the other streams
    that were recorded on the memory are done with it; that it follows the work of its own stream is the function's part.

    What allocate raises, the allocation raises: an OutOfMemoryError of a MemoryError once nothing helped, and of any
    other Exception a RuntimeError, whose __cause__ it is.  What free raises is reported by sys.unraisablehook; the
    memory counts as given back.  At the interpreter's exit neither is called any more.
    """

    def __init__(self, allocate, free, name="callbacks"):
        cdef Callbacks* made
        for function, use in ((allocate, "allocate(size, device, stream)"), (free, "free(address, size, device, stream)")):
            if not callable(function):
                raise TypeError(f"{function!r} of type {type(function).__name__} cannot be called; pass a callable as {use}")
        if not isinstance(name, str):
            raise TypeError(f"name is {name!r} of type {type(name).__name__}; pass a str")
        if not name or "\0" in name or name in ("native", "cudaMallocAsync", "pluggable"):
            raise ValueError(f"name is {name!r}; pass a name that no backend of accelrt's has, without a null character")
        if self.backend != NULL:
            raise RuntimeError("a CallbackAllocator is initialised once")
        text = name.encode()
        made = <Callbacks*>calloc(1, sizeof(Callbacks))
        if made == NULL:
            raise MemoryError("no host memory for an allocator's record")
        for kept in (text, allocate, free):  # pools may stand on them for as long as the process lives
            Py_INCREF(kept)
        made.name = <PyObject*>text
        made.allocate = <PyObject*>allocate
        made.free = <PyObject*>free
        fill_pluggable(<Pluggable*>made)  # whose rows between taking and giving serve these too
        made.backend.name = text
        made.backend.take = take
        made.backend.give = give
        self.backend = &made.backend
        self.allocate, self.free, self.name = allocate, free, name

    def __repr__(self):
        return f"<accelrt.memory.CallbackAllocator {self.name!r}: {self.allocate!r}, {self.free!r}>"


def _stop_calling():
    store_over()


call_at_exit("allocator.external.callbacks", "callbacks", _stop_calling)
