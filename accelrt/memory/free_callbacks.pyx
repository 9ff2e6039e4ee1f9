"""Python functions that are asked for memory before a request is refused."""
import atexit

from cpython.exc cimport PyErr_SetObject, PyErr_WriteUnraisable

from accelrt.core.attach cimport drop_with_gil, make_thread_state
from accelrt.memory.caching cimport keep_interrupt
cimport accelrt.memory.allocator.miss as ladder
from accelrt.status cimport refuse_copy

cdef extern from *:
    """
    static __thread int accelrt_asking;  /* this thread is inside a callback */
    static int accelrt_asked_last;       /* the interpreter ends: ask nobody any more */
    #define is_asking() accelrt_asking
    #define set_asking(state) (accelrt_asking = (state))
    #define is_over() __atomic_load_n(&accelrt_asked_last, __ATOMIC_ACQUIRE)
    #define set_over() __atomic_store_n(&accelrt_asked_last, 1, __ATOMIC_RELEASE)
    """
    bint is_asking() noexcept nogil
    void set_asking(bint state) noexcept nogil
    bint is_over() noexcept nogil
    void set_over() noexcept nogil

cdef tuple registered = ()  # of FreeMemoryCallback, in order; replaced as a whole, under the GIL


cdef class FreeMemoryCallback:
    """A registered function; remove() ends it.  Made by register_free_memory_callback."""

    cdef object function
    cdef object __weakref__

    def __reduce__(self):
        refuse_copy(self, "it is one registration; register the function again")

    def remove(self):
        """Ends the registration; again, it does nothing.  A call that is under way goes on."""
        global registered
        registered = tuple([other for other in registered if other is not self])
        if not registered:
            ladder.on_refusal = NULL

    def __repr__(self):
        state = "" if self in registered else ", removed"
        return f"<accelrt.memory.FreeMemoryCallback {self.function!r}{state}>"


cdef int call(object function, int device, size_t size) noexcept:
    # Whether memory was given back; -1 where the function was interrupted.
    try:
        return bool(function(device, size))
    except Exception as error:
        PyErr_SetObject(type(error), error)
        PyErr_WriteUnraisable(function)
        return 0
    except BaseException as error:
        keep_interrupt(error)
        return -1


cdef int call_all(int device, size_t size) noexcept nogil:
    cdef int freed = 0, answer
    cdef bint made = make_thread_state()
    with gil:
        drop_with_gil(made)
        for callback in registered:
            answer = call((<FreeMemoryCallback>callback).function, device, size)
            if answer < 0:
                break
            freed |= answer
    return freed


cdef int ask(int device, size_t size) noexcept nogil:
    # Under no lock of ours.  What a callback allocates and does not get is refused without asking again.
    cdef int freed
    if is_asking() or is_over():
        return 0
    set_asking(True)
    freed = call_all(device, size)
    set_asking(False)
    return freed


def register_free_memory_callback(fn):
    """Has a function asked for memory whenever a request would else have to wait for the cache to be given back.

        handle = accelrt.memory.register_free_memory_callback(lambda device, nbytes: my_cache.shrink(nbytes))

    Arguments:
        fn: callable as fn(device, nbytes): an ordinal, and the bytes that are wanted, rounded as allocated.  What it
            answers is true if it gave memory back; then the request is tried again before anything else is done.
    Returns:
        FreeMemoryCallback, whose remove() ends it.  It holds the function; dropping it does not end it.
    Raises:
        TypeError: fn cannot be called.

    It is called on the thread that allocates, under no lock, also while that thread captures; the functions in the
    order of their registration, all of them.  It may allocate and free, and is not asked again for what it allocates.
    An Exception that it raises is reported by sys.unraisablehook and counts as False.  What else it raises, such as
    KeyboardInterrupt and SystemExit, ends the asking, and is raised to the caller, once the allocation is over and what it
    got was given back.
    """
    global registered
    cdef FreeMemoryCallback callback
    if not callable(fn):
        raise TypeError(f"fn is {fn!r} of type {type(fn).__name__}; pass a callable as fn(device, nbytes)")
    callback = FreeMemoryCallback.__new__(FreeMemoryCallback)
    callback.function = fn
    registered = (*registered, callback)
    ladder.on_refusal = ask
    return callback


def _stop_asking():
    set_over()


atexit.register(_stop_asking)
