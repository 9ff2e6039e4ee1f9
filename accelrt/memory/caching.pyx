# cython: embedsignature=False
"""The caching allocator as Python sees it: torch.cuda.memory's names for raw pointers.

A hit keeps the GIL; whatever may wait lets go of it.
"""
import numbers

from cpython.exc cimport PyErr_Clear, PyErr_SetObject, PyErr_WriteUnraisable
from cpython.long cimport PyLong_CheckExact
from cpython.ref cimport PyObject, Py_DECREF, Py_INCREF
from libc.stdint cimport uint64_t

from accelrt.core.integers cimport checked_address_int, exact_int
from accelrt.core.process import call_at_exit
from accelrt.devices.device cimport await_device, current_ordinal, ordinal_of, this_thread
cimport accelrt.driver.registry as registry
from accelrt.driver.registry import cause_of_refusal as driver_refusal, driver_name
from accelrt.driver.waiting cimport INTERRUPTED, drop_with_gil, make_thread_state, raise_interruption
from accelrt.errors import ArgumentError, CaptureError, OutOfMemoryError
from accelrt.allocator.backing.pages cimport connect_peers, connect_two
from accelrt.allocator.device_pools cimport MAX_DEVICES, pool_if_made, pool_of
from accelrt.allocator.event_ring cimport take_stack
from accelrt.allocator.history_types cimport CONTEXT_ALL
cimport accelrt.allocator.miss as ladder
from accelrt.allocator.pool cimport (
    allocate_interruptibly, empty_named, knows_stream, locate, release, release_after, set_limit, try_allocate, try_release,
    use_across, use_on,
)
from accelrt.allocator.private.suspended cimport has_suspended_pools, sweep_suspended
from accelrt.allocator.read_stats cimport allocated_bytes, limit_of, reserved_bytes
from accelrt.allocator.pool_settings cimport limit_of_fraction
from accelrt.allocator.sizes cimport ROUND_LIMIT
from accelrt.allocator.types cimport Pool
cimport accelrt.allocator.external.callbacks as callbacks
from accelrt.allocator.settings.apply cimport backend_name
from accelrt.runtime.init import later
from accelrt.runtime.release_queue cimport DEVICE_BYTES, any_waits, dispose, drain
cimport accelrt.runtime.sanitizer_hooks as watch
from accelrt.status cimport (
    CAPTURED_EVENT, CAP_REACHED, INVALID_DEVICE, NOT_ALLOCATED, NOT_READY, OUT_OF_MEMORY, POOL_CAP_REACHED, raise_status,
    refuse_copy,
)
from accelrt.streams.event cimport Event
from accelrt.streams.current cimport current_handle, stream_for, stream_of
from accelrt.streams.stream cimport Stream

cdef extern from *:
    """
    static __thread int accelrt_catches;       /* an allocation of this thread will raise what is kept */
    static __thread PyObject* accelrt_kept;    /* owned: what ended a Python function of this thread, or NULL */
    static __thread PyObject* accelrt_refusal; /* owned: the MemoryError of an allocator that is a function, or NULL */
    """
    int catches "accelrt_catches"
    PyObject* kept "accelrt_kept"
    PyObject* refusal "accelrt_refusal"

cdef extern from "Python.h":
    int PyThreadState_SetAsyncExc(unsigned long thread, object error) except -1
    size_t PyLong_AsSize_t(object number) noexcept  # (size_t)-1 with an error set where it does not fit


cdef inline bint is_size(object size, size_t* out_size) noexcept:
    # An exact int that fits is one conversion; everything else is distinguished in the slow path.
    if not PyLong_CheckExact(size):
        return False
    out_size[0] = PyLong_AsSize_t(size)
    if not out_size[0] >> ROUND_LIMIT:
        return True
    PyErr_Clear()
    return False


cdef size_t checked_size(object size, str name) except? <size_t>-1:
    cdef size_t checked
    return checked if is_size(size, &checked) else checked_size_slow(size, name)


cdef size_t checked_request(object size, str name, object device) except? <size_t>-1:
    # As checked_size; what no device has is refused with the figures of the one that was asked for.
    cdef size_t checked
    return checked if is_size(size, &checked) else checked_request_slow(size, name, device)


cdef size_t checked_request_slow(object size, str name, object device) except? <size_t>-1:
    try:
        return checked_size_slow(size, name)
    except OutOfMemoryError as error:
        requested = error.requested
    raise out_of_memory(ordinal_of(device), requested, 0, OUT_OF_MEMORY)


cdef size_t checked_size_slow(object size, str name) except? <size_t>-1:
    if isinstance(size, bool):
        raise TypeError(f"{name} is {size!r}, a bool; pass a number of bytes as int")
    size = exact_int(size, name, "bytes as int")
    if size < 0:
        raise ValueError(f"{name} is {size}; a number of bytes is 0 or more")
    if size >> ROUND_LIMIT:
        error = OutOfMemoryError(
            f"out of memory. Tried to allocate {size} bytes: {name} is 2**{ROUND_LIMIT} or more, which nothing has, so "
            "nothing was asked for it",
            OUT_OF_MEMORY, "OUT_OF_MEMORY", "allocate",
        )
        error.requested = size
        raise error
    return size


cdef uintptr_t allocate_bytes(int ordinal, size_t size, uintptr_t stream) except? <size_t>-1:
    cdef uintptr_t address = 0
    cdef int code = try_allocate(ordinal, size, stream, &address)
    if code == NOT_READY:
        if any_waits():
            drain()
        code = allocate_slow(ordinal, size, stream, &address)
    if code:
        raise_refusal(code, ordinal, size, stream)
    if watch.sanitizing:
        watch.note_allocated(ordinal, stream, address, size)
    return address


cdef int allocate_slow(int ordinal, size_t size, uintptr_t stream, uintptr_t* out_address) except? -1:
    # The only call that may ask callbacks, and an allocator that is a Python function.  What interrupts one of them is
    # raised here, with no lock held, and what was allocated in spite of it goes back.
    global catches
    cdef int code, before = catches
    catches = 1
    with nogil:
        code = allocate_interruptibly(ordinal, size, stream, out_address)
    catches = before
    if refusal != NULL and (kept != NULL or not is_lack(code)):
        take_refusal()  # the request was served in the end, or failed of something else
    if kept != NULL:
        if code == 0:
            give_back(ordinal, out_address[0])
        raise_kept()
    if code == INTERRUPTED:
        raise_interruption()
    return code


cdef void keep_interrupt(object error) noexcept:
    # Code without Python between here and the caller, such as the Cython API's, cannot raise: there the thread raises
    # an error of the type at its next step of Python.
    global kept
    if not catches:
        PyThreadState_SetAsyncExc(this_thread(), type(error))
    elif kept == NULL:
        Py_INCREF(error)
        kept = <PyObject*>error


cdef void keep_failure(object error) noexcept:
    # Of an allocator that is a Python function.  Code without Python cannot raise: there it is reported.
    global refusal
    if isinstance(error, MemoryError):
        if catches:
            take_refusal()  # the one before; what dies with it may allocate
            Py_INCREF(error)
            refusal = <PyObject*>error
    elif not catches and isinstance(error, Exception):
        PyErr_SetObject(type(error), error)
        PyErr_WriteUnraisable(None)
    else:
        keep_interrupt(error)


cdef object take_refusal():
    global refusal
    cdef PyObject* taken = refusal
    refusal = NULL
    if taken == NULL:
        return None
    error = <object>taken
    Py_DECREF(error)
    return error


cdef int raise_kept() except -1:
    global kept
    error = <object>kept
    Py_DECREF(error)
    kept = NULL
    raise error


cdef inline void give_back(int ordinal, uintptr_t address) noexcept:
    if address and try_release(ordinal, address) == NOT_READY:
        dispose(DEVICE_BYTES, ordinal, address)


cdef inline bint is_lack(int code) noexcept:
    return code == OUT_OF_MEMORY or code == CAP_REACHED or code == POOL_CAP_REACHED


cdef int raise_refusal(int code, int ordinal, size_t size, uintptr_t stream) except -1:
    if not is_lack(code):
        arguments = ("device", ordinal, "size", size, "stream", stream, "backend", backend_name())
        raise_status(code, "allocate", arguments)
    error = out_of_memory(ordinal, size, stream, code)
    cause = take_refusal()
    if cause is not None:  # None would hide what the caller is handling
        error.__cause__ = cause
    raise error


cdef object process_source = None  # from an ordinal to what NVML lists of its processes


def ask_processes(function):
    """Sets what lists a device's processes for the out of memory error: that is above this package."""
    global process_source
    process_source = function


cdef object out_of_memory(int ordinal, object size, uintptr_t stream, int code):
    # The module that explains is imported when it is needed.  What interrupts it is raised from the error.
    cause = driver_refusal() if code == OUT_OF_MEMORY and size >> ROUND_LIMIT == 0 else ""
    module = None
    try:
        module = later("accelrt.memory.refusal")
        error = module.explained(ordinal, size, stream, code, cause, process_source)
    except Exception as failure:
        error = unexplained(ordinal, size, code, cause, failure)
    if module is not None:
        try:
            module.tell(error, ordinal)
        except BaseException as interruption:
            raise interruption from error
    return error


cdef object out_of_memory_to_wake(int ordinal, tuple pool, object size, int code, str call, str waking):
    # Beside the retry ladder: a pool's pages that the device does not give again.
    try:
        return later("accelrt.memory.refusal").explained_wake(ordinal, pool, size, code, call, waking, process_source)
    except Exception as failure:
        return unexplained(ordinal, size, code, waking, failure)


cdef object unexplained(int ordinal, object size, int code, str cause, object failure):
    # Where reading the state failed: the refusal is what the caller has to hear.
    cdef size_t free = 0, capacity = 0
    with nogil:
        registry.active().memory_info(ordinal, &free, &capacity)  # a refusal leaves zeros, which say so
    facts = {"driver": driver_name(), "device": ordinal, "requested": size, "capacity": capacity, "free": free}
    error = OutOfMemoryError(
        f"{later('accelrt.memory.explain').first_line(facts)}\n"
        f"{cause or 'The rest could not be read'} ({type(failure).__name__}: {failure})",
        code, "OUT_OF_MEMORY", "allocate",
    )
    error.device, error.requested, error.capacity, error.free = ordinal, size, capacity, free
    return error


cdef void release_bytes(int ordinal, uintptr_t address) noexcept:
    if watch.sanitizing:
        watch.note_freed(address)
    give_back(ordinal, address)


cdef inline bint is_known(int ordinal, object stream, uintptr_t* out_handle) noexcept:
    # A handle that needs no judgement, as of most allocations by handle.
    out_handle[0] = PyLong_AsSize_t(stream)
    if out_handle[0] != <size_t>-1:
        return knows_stream(ordinal, out_handle[0])
    PyErr_Clear()
    return False


def caching_allocator_alloc(size, device=None, stream=None):
    """Allocates device memory from the cache.

    Arguments:
        size: int, bytes.
        device: int, "cuda:1", "host:0", an object with an index; None is the current device.
        stream: Stream, handle as int, or None for the current stream: the one whose order the memory follows.  One that
            others own has to live until the memory is given back.
    Returns:
        int, the address, a multiple of 512; 0 for 0 bytes.
    Raises:
        OutOfMemoryError: no room after the cache's idle memory went back; its text and attributes say why.
        ValueError, TypeError: size is negative or no int, or device or stream names none, or the stream is on another
            device.
        KeyboardInterrupt: Ctrl-C while it waits for memory in use, on the main thread, or what another signal's handler
            raised.
    """
    cdef int ordinal
    cdef uintptr_t handle
    cdef size_t bytes_ = checked_request(size, "size", device)
    if device is not None or current_ordinal(&ordinal):
        ordinal = ordinal_of(device)
    if stream is None:
        handle = current_handle(ordinal)
    elif PyLong_CheckExact(stream) and is_known(ordinal, stream, &handle):
        pass
    else:
        handle = stream_for(stream, ordinal, "the memory").handle
    return allocate_bytes(ordinal, bytes_, handle)


def caching_allocator_delete(mem_ptr):
    """Gives memory back to the cache it came from.

    Arguments:
        mem_ptr: int, an address that caching_allocator_alloc returned; 0 does nothing.
    Raises:
        ValueError: the address is not allocated, or was given back before.
    """
    cdef uintptr_t address = checked_address(mem_ptr)
    cdef int ordinal = 0
    cdef int code = NOT_READY
    if watch.sanitizing:
        watch.note_freed(address)
    if address == 0:
        return
    if current_ordinal(&ordinal) == 0:
        code = try_release(ordinal, address)
        if code == 0:
            return
    if code != NOT_READY:  # freed, and its audit found something
        raise_for_address(code, "caching_allocator_delete", address)
    with nogil:
        code = release(ordinal, address)
        if code == NOT_ALLOCATED:
            code = locate(ordinal, address, &ordinal)
            if code == 0:
                code = release(ordinal, address)
    raise_for_address(code, "caching_allocator_delete", address)


cdef inline uintptr_t checked_address(object address) except? <uintptr_t>-1:
    cdef size_t value
    if PyLong_CheckExact(address):
        value = PyLong_AsSize_t(address)
        if value != <size_t>-1:
            return value
        PyErr_Clear()
    return checked_address_slow(address)


cdef uintptr_t checked_address_slow(object address) except? <uintptr_t>-1:
    return checked_address_int(address, "mem_ptr")


cdef int raise_for_address(int code, str call, uintptr_t address) except -1:
    if code == NOT_ALLOCATED:
        raise ArgumentError(
            f"{call}: {address:#x} is not allocated (invalid device pointer): accelrt did not hand it out, or it was given "
            "back already; pass the address that caching_allocator_alloc returned, once"
        )
    if code:
        raise_status(code, call, ("mem_ptr", address))
    return 0


def free_on(mem_ptr, device, stream):
    """Gives memory back for a library that names the stream behind whose work it is free: another one than the memory
    was allocated on counts as one that used it.

    Arguments:
        mem_ptr: int, an address that caching_allocator_alloc returned; 0 does nothing.
        device: int, the ordinal of the device that it is on.
        stream: int, a handle of that device; one of a stream that is gone changes nothing.
    Raises:
        ValueError: the address is not allocated there, or was given back before.
    """
    cdef uintptr_t address = checked_address(mem_ptr)
    cdef uintptr_t handle = checked_address_int(stream, "stream")
    cdef int ordinal = device
    cdef int code = INVALID_DEVICE
    if address == 0:
        return
    if watch.sanitizing:
        watch.note_use_on(address, ordinal, handle)
        watch.note_freed(address)
    if 0 <= ordinal < MAX_DEVICES:
        with nogil:
            code = use_on(ordinal, address, handle)
            if code == 0:
                code = release(ordinal, address)
    raise_for_address(code, "free_on", address)


def record_stream(mem_ptr, stream):
    """Says that another stream uses memory: once given back, it is not reused before that work is done.

    Arguments:
        mem_ptr: int, an address that caching_allocator_alloc returned.
        stream: Stream, of another device too, or a handle as int; the stream that the memory was allocated on changes
            nothing.
    Raises:
        ValueError: the address is not allocated, or the driver knows no such stream.
    """
    cdef uintptr_t address = checked_address(mem_ptr)
    cdef int ordinal = ordinal_of(None)
    cdef Stream chosen
    cdef int code
    with nogil:
        code = locate(ordinal, address, &ordinal)
    raise_for_address(code, "record_stream", address)
    chosen = stream_of(stream, ordinal)
    with nogil:
        code = use_across(ordinal, address, chosen.device_index, chosen.handle)
    raise_for_address(code, "record_stream", address)
    if watch.sanitizing:
        watch.note_use_on(address, chosen.device_index, chosen.handle)


def free_after(mem_ptr, event):
    """Gives memory back as of an event: it is free once the event is complete, and a stream that waits for the
    event (Stream.wait_event) may take it at once, without a wait for the work before it.

        done = side.record_event()              # the last work on the memory, on whichever stream
        accelrt.memory.free_after(pointer, done)
        main.wait_event(done)
        again = accelrt.caching_allocator_alloc(size, stream=main)  # the same memory, if the size is about the same

    Arguments:
        mem_ptr: int, an address that caching_allocator_alloc returned.
        event: Event, recorded, of the memory's device.  It may be recorded anew or dropped afterwards.
    Raises:
        ValueError: the address is not allocated, or the event was never recorded or is of another device.
        CaptureError: the event was last recorded in a capture, where it stands for no moment.
    """
    cdef uintptr_t address = checked_address(mem_ptr)
    cdef int ordinal = ordinal_of(None)
    cdef Event chosen
    cdef int code
    if not isinstance(event, Event):
        raise TypeError(f"event is {event!r} of type {type(event).__name__}; pass an Event")
    chosen = event
    if chosen.handle == 0:
        raise ValueError("the event was never recorded; record it behind the last work on the memory")
    with nogil:
        code = locate(ordinal, address, &ordinal)
    raise_for_address(code, "free_after", address)
    if chosen.device_index != ordinal:
        raise ValueError(f"the event is of device {chosen.device_index}, the memory of device {ordinal}")
    if chosen.captured:
        raise CaptureError(
            "free_after: the event was last recorded in a capture, which happens at no moment or at many; record it "
            "outside captures, or use record_stream and free the memory",
            CAPTURED_EVENT, "CAPTURED_EVENT", "free_after",
        )
    with nogil:
        code = release_after(ordinal, address, chosen.handle, chosen.record_number)
    raise_for_address(code, "free_after", address)
    if watch.sanitizing:
        watch.note_freed_after(address, chosen.handle)


def enable_peer_access():
    """Lets every device read and write the memory of the others, for the rest of the process.

    As far as can_device_access_peer says so, kernels of a device may use memory that the allocator has on another,
    whether it was allocated before this call or after, once something was allocated on both.  Each further device
    makes growth of the others dearer by one driver call.  The modules of accelrt.interop call it, since the
    libraries under which they put accelrt expect of its memory what cudaDeviceEnablePeerAccess does for their own.
    Copies between devices need none of it; a captured one opens its two devices to each other itself.  Memory of a
    backend other than native stays as that has it.

    Raises:
        CudaError: the driver refused for memory that there is; calling it again tries again.
    """
    cdef int code
    with nogil:
        code = connect_peers()
    if code:
        raise_status(code, "memory_access")


cdef int connect_devices(int device, int other) noexcept nogil:
    return connect_two(registry.active(), device, other)


def empty_cache():
    """Gives every idle segment of every device back to the driver, after waiting for memory in use on other
    streams.  Memory that is live stays, and so does what a graph holds or a MemPool keeps; inside use_mem_pool
    the pool's idle memory goes back too.  Beside a capture what streams may still use stays.

    Raises:
        CudaError: the driver refused; the memory then stays cached.
        KeyboardInterrupt: Ctrl-C while it waits, on the main thread, or what another signal's handler raised.
    """
    cdef int ordinal
    watch.before_wait("empty_cache")
    drain()
    for ordinal in range(MAX_DEVICES):
        empty_device(ordinal, NULL, "empty_cache")
    if watch.sanitizing:
        watch.note_emptied()


cdef int empty_device(int ordinal, const uint64_t* name, str call) except -1:
    # name: of the private pool to empty; NULL: all that empty_cache gives back.
    cdef Pool* pool = pool_if_made(ordinal)
    cdef bint waits
    cdef int code
    if pool == NULL:
        return 0
    # Pages are unmapped once the device is idle; whole segments need no such wait.
    with nogil:
        waits = pool.settings.virtual_memory and reserved_bytes(pool) > allocated_bytes(pool)
    if waits:
        await_device(ordinal)
    take_stack(pool, CONTEXT_ALL, "empty_cache")
    with nogil:
        code = empty_named(ordinal, name)
    if code:
        raise_status(code, call, ("device", ordinal))
    if has_suspended_pools():
        with nogil:
            sweep_suspended(ordinal)
    return 0


cdef int empty_pool(int ordinal, const uint64_t* name, str call) except -1:
    watch.before_wait(call)
    drain()
    empty_device(ordinal, name, call)
    if watch.sanitizing:
        watch.note_emptied()
    return 0


def set_per_process_memory_fraction(fraction, device=None):
    """Limits what the allocator reserves of a device; a request beyond it is retried in the same steps as one that
    the device refuses, and then raises OutOfMemoryError.

    Arguments:
        fraction: float from 0 to 1, of the device's total memory.
        device: as in memory_stats.
    Raises:
        TypeError, ValueError: fraction is no number, or out of its range.
    """
    cdef int ordinal = ordinal_of(device)
    cdef size_t total = 0, limit
    cdef double share
    cdef int code
    if isinstance(fraction, bool) or not isinstance(fraction, numbers.Real):
        raise TypeError(f"fraction is {fraction!r} of type {type(fraction).__name__}; pass a float from 0 to 1")
    try:
        share = float(fraction)
    except OverflowError:
        share = 2.0
    if not 0 <= share <= 1:
        raise ValueError(f"fraction is {fraction}; it goes from 0 to 1")
    with nogil:
        code = registry.active().device_memory(ordinal, &total)
        if code == 0:
            limit = limit_of_fraction(share, total)
            code = set_limit(ordinal, limit)
    if code:
        raise_status(code, "set_per_process_memory_fraction", ("fraction", share, "device", ordinal))


def get_per_process_memory_fraction(device=None):
    """The part of a device's memory that the allocator may reserve, as set_per_process_memory_fraction or the setting
    per_process_memory_fraction limits it.

    Arguments:
        device: as in memory_stats.
    Returns:
        float from 0 to 1; 1.0 without a limit.  A limit is kept in whole bytes.
    """
    cdef int ordinal = ordinal_of(device)
    cdef size_t total = 0, limit = 0
    cdef Pool* pool
    cdef int code
    with nogil:
        code = registry.active().device_memory(ordinal, &total)
        if code == 0:
            code = pool_of(ordinal, &pool)
        if code == 0:
            limit = limit_of(pool)
    if code:
        raise_status(code, "get_per_process_memory_fraction", ("device", ordinal))
    return 1.0 if limit >= total else limit / <double>total


# Python functions that are asked for memory before a request is refused

cdef extern from *:
    """
    static __thread int accelrt_asking;  /* this thread is inside a callback */
    static int accelrt_asked_last;       /* the interpreter ends: make no more callbacks */
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
    """FreeMemoryCallback()\n--\n\n\
    A registered function; remove() ends it.  Made by register_free_memory_callback."""

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


call_at_exit("memory.caching", "callbacks", _stop_asking)
callbacks.on_failure = keep_failure
