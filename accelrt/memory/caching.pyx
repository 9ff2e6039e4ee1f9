"""The allocator as Python sees it: torch.cuda.memory's names for addresses and statistics."""
cimport cython
import sys
from cpython.exc cimport PyErr_Clear, PyErr_SetObject, PyErr_WriteUnraisable
from cpython.long cimport PyLong_CheckExact
from cpython.ref cimport Py_DECREF, Py_INCREF, PyObject
from libc.stdint cimport int64_t, uint64_t

from accelrt.allocator.backing.pages cimport connect_two
from accelrt.allocator.event_ring cimport take_stack
cimport accelrt.allocator.external.external_pool as external
from accelrt.allocator.external.external_pool cimport Allocator, choose_backend
from accelrt.allocator.external.external_pool import backend_name
from accelrt.allocator.external.external_pool import choose_by_name
from accelrt.allocator.history_types cimport CONTEXT_ALL
cimport accelrt.allocator.miss as ladder
from accelrt.allocator.pinned.cache cimport pinned_around
from accelrt.allocator.pool cimport (
    MAX_DEVICES, allocate_interruptibly, block_around, device_at, empty_named, imported_around, knows_stream,
    let_devices_reach, locate, pool_if_made, pool_of, release, release_after, set_limit, try_allocate, try_release,
    use_across, use_on,
)
from accelrt.allocator.pool_settings cimport limit_of_fraction
from accelrt.allocator.private.sleep cimport sweep_suspended
from accelrt.allocator.readers cimport (
    allocated_bytes, find_audit_failure, largest_free, limit_of, max_split_of, peak_of, pool_bytes, read_current,
    read_stats, reserved_bytes, reset_accumulated, reset_peaks, try_current,
)
from accelrt.allocator.readers import record_snapshot, segments
from accelrt.allocator.settings.apply import backend_to_come, read_environment
from accelrt.allocator.sizes cimport LARGE, ROUND_LIMIT, SMALL
from accelrt.allocator.stats cimport (
    ACTIVE_BYTES, ALLOCATED_BYTES, PER_HEAP, RESERVED_BYTES, STATS, Counter, current_of, load_news, Stats,
)
from accelrt.allocator.types cimport Pool
from accelrt.core.locks cimport load_count
from accelrt.core.integers cimport checked_address_int, exact_int
from accelrt.core.process cimport raise_soon
from accelrt.core.process import call_at_exit
from accelrt.devices.device cimport (
    await_device, count_devices, current_ordinal, device_total, known_devices, ordinal_of, parse,
)
from accelrt.driver.guard cimport INTERRUPTED, captures_open, drop_with_gil, make_thread_state, raise_interruption
from accelrt.driver.memory cimport KIND_DEVICE, KIND_MANAGED
from accelrt.driver.registry import cause_of_refusal as driver_refusal, driver_name, opened_name
cimport accelrt.driver.registry as registry
from accelrt.errors import ArgumentError, CaptureError, NotSupportedError, OutOfMemoryError
from accelrt.memory.history.recording import name_all, tag_stats
from accelrt.runtime.init import later
from accelrt.runtime.lifetimes cimport DEVICE_BYTES, any_waits, array_bytes, dispose, drain
from accelrt.status cimport (
    CAPTURED_EVENT, INVALID_DEVICE, INVALID_VALUE, NOT_ALLOCATED, NOT_READY, NOT_SUPPORTED, OUT_OF_MEMORY, raise_status,
    refuse_copy, refuse_unmade,
)
from accelrt.streams.stream cimport current_handle, Event, is_of, mark_used, ordinal_beside, Stream, stream_for, stream_of
cimport accelrt.runtime.access as watch


# --- caching ----------------------------------------------------------------------------------------------------------
# The caching allocator as Python sees it: torch.cuda.memory's names for raw pointers.
#
# A hit keeps the GIL; whatever may wait lets go of it.

cdef extern from *:
    """
    static __thread int accelrt_catches;         /* an allocation of this thread will raise what is kept */
    static __thread PyObject* accelrt_interrupt; /* owned: what ended a Python function of this thread, or NULL */
    static __thread PyObject* accelrt_refusal;   /* owned: the MemoryError of an allocator that is a function, or NULL */
    """
    int catches "accelrt_catches"
    PyObject* interrupt "accelrt_interrupt"
    PyObject* refusal "accelrt_refusal"

cdef extern from *:
    """
    #define accelrt_load_told(place) __atomic_load_n(place, __ATOMIC_RELAXED)
    #define accelrt_store_told(place, count) __atomic_store_n(place, count, __ATOMIC_RELAXED)
    """
    int64_t load_told "accelrt_load_told"(const int64_t* place) noexcept nogil
    void store_told "accelrt_store_told"(int64_t* place, int64_t count) noexcept nogil

cdef extern from "Python.h":
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


cdef size_t checked_request(object size, str name, object device, object stream) except? <size_t>-1:
    # As checked_size; what no device has is refused with the figures of the one that was asked for.
    cdef size_t checked
    return checked if is_size(size, &checked) else checked_request_slow(size, name, device, stream)


cdef size_t checked_request_slow(object size, str name, object device, object stream) except? <size_t>-1:
    try:
        return checked_size_slow(size, name)
    except OutOfMemoryError as error:
        requested = error.requested
    ordinal = ordinal_of(device) if device is not None else ordinal_beside(stream)
    raise out_of_memory(ordinal, requested, 0, OUT_OF_MEMORY)


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
    return allocate_hooked(ordinal, size, stream) if hooked and not is_hooking() else allocate_now(ordinal, size, stream)


cdef inline uintptr_t allocate_now(int ordinal, size_t size, uintptr_t stream) except? <size_t>-1:
    cdef uintptr_t address = 0
    cdef int code = try_allocate(ordinal, size, stream, &address)
    if code == NOT_READY:
        if any_waits():
            drain()
        code = allocate_slow(ordinal, size, stream, &address)
    if code:
        raise_refusal(code, ordinal, size, stream)
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
    if refusal != NULL and (interrupt != NULL or not is_lack(code)):
        take_refusal()  # the request was served in the end, or failed of something else
    if interrupt != NULL:
        if code == 0:
            give_back(ordinal, out_address[0])
        raise_interrupt()
    if code == INTERRUPTED:
        raise_interruption()
    if code == 0 and has_news(ordinal):
        try:
            tell_news(ordinal, size)
        except BaseException:
            give_back(ordinal, out_address[0])
            raise
    return code


cdef int64_t[MAX_DEVICES] told_news  # by device: the count of news (allocator/stats.pxd) when they were told last


cdef int64_t count_news(int ordinal) noexcept nogil:
    cdef Pool* pool = pool_if_made(ordinal)
    if pool == NULL:
        return 0
    return load_news(&pool.stats if pool.external == NULL else &pool.external.stats)


cdef inline bint has_news(int ordinal) noexcept nogil:
    return count_news(ordinal) != load_told(&told_news[ordinal])


cdef int tell_news(int ordinal, object size) except -1:
    # Tells the log what the allocator had to do since it was told last, for nogil code too.  size: bytes requested, None
    # where nothing was.  Another backend's figures are asked of the driver, so beside a capture they wait.
    cdef bint own = backend_name() == "native"
    if not own and captures_open():
        return 0
    store_told(&told_news[ordinal], count_news(ordinal))
    return tell_log("tell_changes", (ordinal, size, memory_stats, own))


cdef int tell_log(str name, tuple arguments) except -1:
    # Calls a function of memory/notices.py, unless the program keeps no log.  Handlers are the program's code, so no lock is
    # held; of what they raise only what interrupts is raised here.
    if "logging" in sys.modules:
        try:
            getattr(later("accelrt.memory.notices"), name)(*arguments)
        except Exception as failure:
            PyErr_SetObject(type(failure), failure)
            PyErr_WriteUnraisable(None)
    return 0


cdef void keep_interrupt(object error) noexcept:
    # Raised by the calling thread's allocation as soon as that is over.
    # Code without Python between here and the caller, such as the Cython API's, cannot raise: there the thread raises
    # it at its next step of Python.
    global interrupt
    if not catches:
        raise_soon(error)
    elif interrupt == NULL:
        Py_INCREF(error)
        interrupt = <PyObject*>error


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
    cdef PyObject* pointer = refusal
    refusal = NULL
    if pointer == NULL:
        return None
    error = <object>pointer
    Py_DECREF(error)
    return error


cdef int raise_interrupt() except -1:
    global interrupt
    error = <object>interrupt
    Py_DECREF(error)
    interrupt = NULL
    raise error


cdef inline void give_back(int ordinal, uintptr_t address) noexcept:
    if address and try_release(ordinal, address) == NOT_READY:
        dispose(DEVICE_BYTES, ordinal, address)


cdef str NOT_AN_ALLOCATORS = (
    "the allocator of a MemPool returned an address that is no multiple of 512, or memory that accelrt handed out itself; "
    "it was given back")


cdef int raise_refusal(int code, int ordinal, size_t size, uintptr_t stream) except -1:
    if not is_lack(code):
        arguments = ("device", ordinal, "size", size, "stream", stream, "backend", backend_name())
        raise_status(code, "allocate", arguments, NOT_AN_ALLOCATORS if code == INVALID_VALUE else "")
    error = out_of_memory(ordinal, size, stream, code)
    cause = take_refusal()
    if cause is not None:  # None would hide what the caller is handling
        error.__cause__ = cause
    raise error


cdef object process_source = None  # from an ordinal to what NVML lists of its processes


def ask_processes(function: Callable[[int], object]) -> None:
    """Sets what lists a device's processes for the out of memory error: that is above this package."""
    global process_source
    process_source = function


cdef object out_of_memory(int ordinal, object size, uintptr_t stream, int code):
    # The module that explains is imported when it is needed.  What interrupts it is raised from the error.
    cause = driver_refusal() if code == OUT_OF_MEMORY and size >> ROUND_LIMIT == 0 else ""
    module = None
    try:
        module = later("accelrt.memory.live")
        error = module.explained(ordinal, size, stream, code, cause, process_source)
    except Exception as failure:
        error = unexplained(ordinal, size, code, cause, failure)
    if module is not None:
        try:
            module.tell(error, ordinal)
            # What is beyond every device was never counted as refused.
            tell_log("tell_refusal", (error, None if size >> ROUND_LIMIT else ordinal))
            tell_news(ordinal, size)
        except BaseException as interruption:
            raise interruption from error
    return error


cdef object out_of_memory_to_wake(int ordinal, tuple pool, object size, int code, str call, str waking):
    # Beside the retry ladder: a pool's pages that the device does not give again.
    try:
        return later("accelrt.memory.live").explained_wake(ordinal, pool, size, code, call, waking, process_source)
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
    cdef bint tells = hooked and address and not is_hooking()
    if tells:
        tell_freeing(ordinal, address, False)
    watch.note_freed(address)
    give_back(ordinal, address)
    if tells:
        tell_freeing(ordinal, address, True)


cdef inline bint is_known(int ordinal, object stream, uintptr_t* out_handle) noexcept:
    # A handle that needs no judgement, as of most allocations by handle.
    out_handle[0] = PyLong_AsSize_t(stream)
    if out_handle[0] != <size_t>-1:
        return knows_stream(ordinal, out_handle[0])
    PyErr_Clear()
    return False


def caching_allocator_alloc(size: int, device: DeviceArgument | None = None, stream: Stream | int | None = None) -> int:
    """Allocates device memory from the cache.

    Arguments:
        size: int, bytes.
        device: int, "cuda:1", "host:0", an object with an index; None is the current device, or the stream's.
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
    cdef size_t bytes_ = checked_request(size, "size", device, stream)
    if stream is None:
        if device is not None or current_ordinal(&ordinal):
            ordinal = ordinal_of(device)
        return allocate_bytes(ordinal, bytes_, current_handle(ordinal))
    if device is None and not PyLong_CheckExact(stream):
        ordinal = ordinal_beside(stream)
    elif device is not None or current_ordinal(&ordinal):
        ordinal = ordinal_of(device)
    if PyLong_CheckExact(stream) and is_known(ordinal, stream, &handle):
        pass
    elif is_of(stream, ordinal):
        handle = mark_used(<Stream>stream)
    else:
        handle = stream_for(stream, ordinal, "the memory").handle
    return allocate_bytes(ordinal, bytes_, handle)


def caching_allocator_delete(mem_ptr: int) -> None:
    """Gives memory back to the cache it came from.

    Arguments:
        mem_ptr: int, an address that caching_allocator_alloc returned; 0 does nothing.
    Raises:
        ValueError: the address is not allocated, or was given back before.
    """
    cdef uintptr_t address = checked_address(mem_ptr)
    cdef int ordinal = 0 if device_total == 1 else device_at(address)
    cdef int code = NOT_READY
    if hooked and address and not is_hooking():
        free_hooked(ordinal, address)
        return
    watch.note_freed(address)
    if address == 0:
        return
    if ordinal >= 0 or current_ordinal(&ordinal) == 0:
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


cdef int likely_ordinal(uintptr_t address) except -1:
    # The device to look for an address on first: the one that it belonged to last, else the current one.
    cdef int ordinal = device_at(address)
    return ordinal if ordinal >= 0 else ordinal_of(None)


cdef inline uintptr_t checked_address(object address) except? <uintptr_t>-1:
    cdef size_t value
    if PyLong_CheckExact(address):
        value = PyLong_AsSize_t(address)
        if value != <size_t>-1:
            return value
        PyErr_Clear()
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


def free_on(mem_ptr: int, device: int, stream: int) -> None:
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
    watch.note_use_on(address, ordinal, handle)
    watch.note_freed(address)
    if 0 <= ordinal < MAX_DEVICES:
        with nogil:
            code = use_on(ordinal, address, handle)
            if code == 0:
                code = release(ordinal, address)
    raise_for_address(code, "free_on", address)


def record_stream(mem_ptr: int, stream: Stream | int) -> None:
    """Says that another stream uses memory: once given back, it is not reused before that work is done.

    Arguments:
        mem_ptr: int, an address that caching_allocator_alloc returned.
        stream: Stream, of another device too, or a handle as int; the stream that the memory was allocated on changes
            nothing.
    Raises:
        ValueError: the address is not allocated, or the driver knows no such stream.
    """
    cdef uintptr_t address = checked_address(mem_ptr)
    cdef int ordinal = likely_ordinal(address)
    cdef Stream chosen
    cdef int code
    with nogil:
        code = locate(ordinal, address, &ordinal)
    raise_for_address(code, "record_stream", address)
    chosen = stream_of(stream, ordinal)
    with nogil:
        code = use_across(ordinal, address, chosen.device_index, chosen.handle)
    raise_for_address(code, "record_stream", address)
    watch.note_use_on(address, chosen.device_index, chosen.handle)


def free_after(mem_ptr: int, event: Event) -> None:
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
        TypeError: one of them is none.
        CaptureError: the event was last recorded in a capture, where it stands for no moment.
    """
    cdef uintptr_t address = checked_address(mem_ptr)
    cdef int ordinal = likely_ordinal(address)
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
    watch.note_freed_after(address, chosen.handle)


def enable_peer_access() -> None:
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
        code = let_devices_reach()
    if code:
        raise_status(code, "memory_access")


cdef int connect_devices(int device, int other) noexcept nogil:
    return connect_two(registry.active(), device, other)


def empty_cache() -> None:
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
    watch.note_emptied()
    for ordinal in range(MAX_DEVICES):
        if has_news(ordinal):
            tell_news(ordinal, None)


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
        if code == 0:
            sweep_suspended(ordinal)
    if code:
        raise_status(code, call, ("device", ordinal))
    return 0


cdef int empty_pool(int ordinal, const uint64_t* name, str call) except -1:
    watch.before_wait(call)
    drain()
    empty_device(ordinal, name, call)
    watch.note_emptied()
    return 0


def set_per_process_memory_fraction(fraction: float, device: DeviceArgument | None = None) -> None:
    """Limits what the allocator reserves of a device; a request beyond it is retried in the same steps as one that
    the device refuses, and then raises OutOfMemoryError.

    Arguments:
        fraction: float from 0 to 1, of the device's total memory.
        device: as in memory_stats.
    Raises:
        TypeError, ValueError: fraction is no number, or out of its range.
    """
    from numbers import Real

    cdef int ordinal = ordinal_of(device)
    cdef size_t total = 0, limit
    cdef double share
    cdef int code
    if isinstance(fraction, bool) or not isinstance(fraction, Real):
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


def get_per_process_memory_fraction(device: DeviceArgument | None = None) -> float:
    """Returns the part of a device's memory that the allocator may reserve, as set_per_process_memory_fraction or the
    setting per_process_memory_fraction limits it.

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


# --- hooks: Python functions before and after each allocation and free of Python code's ------------------------------

cdef extern from *:
    """
    static __thread int accelrt_hooking;  /* this thread is inside a hook */
    #define is_hooking() accelrt_hooking
    #define set_hooking(state) (accelrt_hooking = (state))
    """
    bint is_hooking() noexcept nogil
    void set_hooking(bint state) noexcept nogil

cdef bint hooked = False            # whether there are any; read by each allocation
cdef tuple hooks_in_force = ()      # of AllocationHooks, in order; read and replaced as `registered` is


cdef tuple hooks_now():
    with cython.critical_section(turn):
        return hooks_in_force


cdef int call_hook(object function, tuple arguments) except -1:
    # What it allocates and frees calls no hook.
    if function is None:
        return 0
    set_hooking(True)
    try:
        function(*arguments)
    finally:
        set_hooking(False)
    return 0


cdef uintptr_t allocate_hooked(int ordinal, size_t size, uintptr_t stream) except? <size_t>-1:
    cdef tuple hooks = hooks_now()
    cdef uintptr_t address
    for hook in hooks:
        call_hook((<AllocationHooks>hook).before_allocate, (ordinal, size, stream))
    address = allocate_now(ordinal, size, stream)
    try:
        for hook in hooks:
            call_hook((<AllocationHooks>hook).after_allocate, (ordinal, address, size, stream))
    except BaseException:
        watch.note_freed(address)
        give_back(ordinal, address)
        raise
    return address


cdef void tell_freeing(int ordinal, uintptr_t address, bint after) noexcept:
    # The memory goes, whatever they raise: a destructor may be at work.
    if is_over():
        return
    for hook in hooks_now():
        function = (<AllocationHooks>hook).after_free if after else (<AllocationHooks>hook).before_free
        try:
            call_hook(function, (ordinal, address))
        except BaseException as error:
            PyErr_SetObject(type(error), error)
            PyErr_WriteUnraisable(function)


cdef int free_hooked(int ordinal, uintptr_t address) except -1:
    # caching_allocator_delete, between the hooks.
    tell_freeing(ordinal, address, False)
    set_hooking(True)
    try:
        caching_allocator_delete(address)
    finally:
        set_hooking(False)
    tell_freeing(ordinal, address, True)
    return 0


cdef class AllocationHooks:
    """AllocationHooks(*, before_allocate=None, after_allocate=None, before_free=None, after_free=None)\n--\n\n\
    Functions that are called before and after each allocation and free of device memory by Python code.

        with accelrt.memory.AllocationHooks(after_allocate=lambda device, address, size, stream: print(size)):
            buffer = accelrt.Buffer(4096)

    Arguments:
        before_allocate: callable(device, size, stream): an ordinal, bytes, and a stream's handle as int.
        after_allocate: callable(device, address, size, stream).
        before_free, after_free: callable(device, address).
    Raises:
        TypeError: one of them cannot be called.

    They are in force inside the context, or from register() to remove(), on all threads, and are called on the thread that
    allocates or frees, with the GIL and under no lock, in the order in which they came into force.  What before_allocate
    raises, the allocation raises, and nothing is allocated; what after_allocate raises too, and the memory goes back.  What
    the others raise goes to sys.unraisablehook.  Memory that a hook itself allocates or frees calls none.  Allocations of
    nogil code, of Reservations and of other libraries that accelrt's allocator serves have none.
    """

    cdef readonly object before_allocate
    cdef readonly object after_allocate
    cdef readonly object before_free
    cdef readonly object after_free
    cdef object __weakref__

    def __init__(
        self, *, before_allocate: Callable[[int, int, int], object] | None = None,
        after_allocate: Callable[[int, int, int, int], object] | None = None,
        before_free: Callable[[int, int], object] | None = None, after_free: Callable[[int, int], object] | None = None,
    ) -> None:
        for name, function in (("before_allocate", before_allocate), ("after_allocate", after_allocate),
                               ("before_free", before_free), ("after_free", after_free)):
            if function is not None and not callable(function):
                raise TypeError(f"{name} is {function!r} of type {type(function).__name__}; pass a callable, or None")
        self.before_allocate, self.after_allocate = before_allocate, after_allocate
        self.before_free, self.after_free = before_free, after_free

    def register(self) -> Self:
        """Brings them into force, until remove(); again, it does nothing.

        Returns:
            AllocationHooks, itself.
        """
        global hooked, hooks_in_force
        with cython.critical_section(turn):
            if self not in hooks_in_force:
                hooks_in_force = (*hooks_in_force, self)
            hooked = True
        return self

    def remove(self) -> None:
        """Ends it; again, it does nothing.  A call that is under way goes on."""
        global hooked, hooks_in_force
        with cython.critical_section(turn):
            hooks_in_force = tuple([other for other in hooks_in_force if other is not self])
            hooked = len(hooks_in_force) > 0

    def __enter__(self) -> Self:
        return self.register()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.remove()

    def __reduce__(self):
        refuse_copy(self, "it is in force in this process; make another one of the same functions")

    def __repr__(self):
        return f"<accelrt.memory.AllocationHooks{'' if self in hooks_now() else ', not in force'}>"


cdef tuple memory_views = ()


def provide_views(buffer_over: Callable[..., object], array: type, asarray: Callable[..., object]) -> None:
    """Sets what makes a Buffer over memory that something else keeps, and Array, which are above this package."""
    global memory_views
    memory_views = buffer_over, array, asarray


def views_of_memory() -> tuple[Callable[..., object], type, Callable[..., object]]:
    return memory_views


def find_memory(address: int) -> tuple[str, int, int, int] | None:
    """The allocators' memory that contains an address: (kind, ordinal, first address, bytes), or None.

    The kind is "device", of a live block, "idle", of the pool's memory that is in none, with 0 and 0, "pinned" or
    "imported"; the ordinal of page-locked memory is -1.
    """
    cdef uintptr_t at = checked_address_int(address, "address"), low = 0, high = 0
    cdef int ordinal = device_at(at), code = 0
    if ordinal >= 0:
        with nogil:
            code = block_around(ordinal, at, &low, &high)
        if code == NOT_ALLOCATED:
            return "idle", ordinal, 0, 0
        if high:
            return "device", ordinal, low, high - low
    ordinal = imported_around(at, &low, &high)
    if ordinal >= 0:
        return "imported", ordinal, low, high - low
    return ("pinned", -1, low, high - low) if pinned_around(at, &low, &high) else None


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

cdef object turn = object()  # in whose critical section the tuple below is read and replaced
cdef tuple registered = ()  # of FreeMemoryCallback, in order


cdef tuple registered_now():
    with cython.critical_section(turn):
        return registered


cdef class FreeMemoryCallback:
    """FreeMemoryCallback()\n--\n\n\
    A registered function; remove() ends it.  Made by register_free_memory_callback."""

    cdef object function
    cdef object __weakref__

    def __reduce__(self):
        refuse_copy(self, "it is one registration; register the function again")

    def remove(self) -> None:
        """Ends the registration; again, it does nothing.  A call that is under way goes on."""
        global registered
        with cython.critical_section(turn):
            registered = tuple([other for other in registered if other is not self])
            if not registered:
                ladder.on_refusal = NULL

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.remove()

    def __repr__(self):
        state = "" if self in registered_now() else ", removed"
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
    cdef int freed = 0, outcome
    cdef bint new_state = make_thread_state()
    with gil:
        drop_with_gil(new_state)
        for callback in registered_now():
            outcome = call((<FreeMemoryCallback>callback).function, device, size)
            if outcome < 0:
                break
            freed |= outcome
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


def register_free_memory_callback(fn: Callable[[int, int], object]) -> FreeMemoryCallback:
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
    with cython.critical_section(turn):
        registered = (*registered, callback)
        ladder.on_refusal = ask
    return callback


def _stop_asking():
    set_over()


def _tell_what_is_live():
    # At the exit, while the log is still open.
    cdef int ordinal
    cdef int64_t live
    for ordinal in range(MAX_DEVICES):
        live = current_of_pool(pool_if_made(ordinal), ALLOCATED_BYTES)
        if live:
            tell_log("tell_end", (ordinal, live))


call_at_exit("memory.caching", "leaks", _tell_what_is_live)
call_at_exit("memory.caching", "callbacks", _stop_asking)
external.on_failure = keep_failure


# --- the backend ------------------------------------------------------------------------------------------------------
# Where memory comes from: accelrt's own pool, the driver's, or a library's.  The choice is the process's, and is made before
# the first use of any device's memory.

def change_current_allocator(allocator: Allocator) -> None:
    """Has a library allocate instead of accelrt, for the whole process and every device.

    Arguments:
        allocator: CUDAPluggableAllocator, or CallbackAllocator, as accelrt.interop.rmm.from_rmm and
            accelrt.interop.cuda_core.from_resource make.
    Raises:
        RuntimeError: a device's memory was used already.
        TypeError: allocator is none.

    Streams, events, copies, record_stream, limits and statistics work as before.  Allocating on a stream that is
    capturing and snapshots raise NotSupportedError: they need accelrt's own pool.
    """
    if not isinstance(allocator, Allocator):
        raise TypeError(
            f"allocator is {allocator!r} of type {type(allocator).__name__}; pass a CUDAPluggableAllocator or a "
            "CallbackAllocator"
        )
    if (<Allocator>allocator).backend == NULL:
        refuse_unmade(allocator)
    read_environment()  # what the environment chose is replaced by this, not the other way round at first use
    choose_backend((<Allocator>allocator).backend, "change_current_allocator")
    external.chosen_allocators.append(allocator)


def select_backend(name: str) -> None:
    """Chooses the backend by its name, as the setting `backend` of ACCELRT_ALLOC_CONF does.

    Arguments:
        name: "native", accelrt's own pool; or "cudaMallocAsync", the driver's stream-ordered pool.  The host device
            has no such pool, and says so at the first allocation.
    Raises:
        RuntimeError: a device's memory was used already, from another backend.
        ValueError: no such backend.
    """
    read_environment()
    if name == "pluggable":
        raise ValueError("backend 'pluggable' is chosen by change_current_allocator(CUDAPluggableAllocator(...))")
    if name not in ("native", "cudaMallocAsync"):
        raise ValueError(f"backend {name!r} is not known; it may be native or cudaMallocAsync")
    choose_by_name(name, "select_backend")


cdef str backend_in_effect():
    return backend_to_come() or backend_name()


def get_allocator_backend() -> str:
    """Tells where memory comes from, or will at first use: "native", "cudaMallocAsync", "pluggable", or the name of a
    CallbackAllocator, such as "rmm".

    Raises:
        SettingsError: before first use, ACCELRT_ALLOC_CONF is malformed.
    """
    return backend_in_effect()


cdef int require_native(str feature) except -1:
    name = backend_in_effect()
    if name != "native":
        raise NotSupportedError(
            f"{feature} is not supported by the backend {name!r}, which keeps no segments of its own; choose the "
            "backend 'native'", NOT_SUPPORTED, "NOT_SUPPORTED", feature,
        )
    return 0


# --- statistics -------------------------------------------------------------------------------------------------------
# The caching allocator's figures as Python sees them, with torch.cuda.memory's names.

cdef bint is_unused():
    # Before first use: a figure that is asked for then opens no driver, so that the process may still fork.  A child that
    # was forked after it has no memory of its own either.
    return known_devices() == 0 and opened_name() in ("sentinel", "forked")


cdef Pool* pool_at(object device) except? NULL:
    # NULL before the device's first allocation.
    cdef int ordinal = 0
    if known_devices() == 0 and is_unused():
        if device is not None:
            parse(device)
        return NULL
    if device is not None or current_ordinal(&ordinal):
        ordinal = ordinal_of(device)
    return pool_if_made(ordinal)


def ordinal_for_figures(device: DeviceArgument | None = None) -> int | None:
    """The ordinal that a report is of; None before first use, which it is not."""
    if is_unused():
        pool_at(device)
        return None
    return ordinal_of(device)


cdef int64_t current_of_pool(Pool* pool, int figure) noexcept:
    # Like a hit, with the GIL unless another thread has the pool's lock.
    cdef int64_t value
    if not try_current(pool, figure, &value):
        with nogil:
            value = read_current(pool, figure)
    return value


cdef int64_t read_peak(Pool* pool, int figure) noexcept:
    cdef int64_t value
    with nogil:
        value = peak_of(pool, figure)
    return value


def memory_allocated(device: DeviceArgument | None = None) -> int:
    """Returns the bytes of live blocks of a device, rounded as allocated: to 512, and not at all by another backend.

    Arguments:
        device: int, "cuda:1", ...; None is the current device.
    """
    return current_of_pool(pool_at(device), ALLOCATED_BYTES)


def memory_reserved(device: DeviceArgument | None = None) -> int:
    """Returns the bytes that the allocator holds from a device, live and idle, without what sleeps; with the backend
    cudaMallocAsync, what the driver's pool holds for everybody in the process.

    Arguments:
        device: int, "cuda:1", ...; None is the current device.
    """
    return current_of_pool(pool_at(device), RESERVED_BYTES)


def sleeping(device: DeviceArgument | None = None) -> int:
    """Returns the bytes of pools that sleep: live or idle, they keep their addresses, and the device has the memory back.

    Arguments:
        device: int, "cuda:1", ...; None is the current device.
    """
    cdef Pool* pool = pool_at(device)
    cdef Stats stats
    with nogil:
        stats = read_stats(pool)
    return stats.sleeping_bytes


def max_memory_allocated(device: DeviceArgument | None = None) -> int:
    """Returns the most bytes that memory_allocated was since the start or reset_peak_memory_stats.

    Arguments:
        device: int, "cuda:1", ...; None is the current device.
    """
    return read_peak(pool_at(device), ALLOCATED_BYTES)


def max_memory_reserved(device: DeviceArgument | None = None) -> int:
    """Returns the most bytes that memory_reserved was since the start or reset_peak_memory_stats.

    Arguments:
        device: int, "cuda:1", ...; None is the current device.
    """
    return read_peak(pool_at(device), RESERVED_BYTES)


# In the order of the figures in allocator/stats.pxd.
cdef tuple FIGURE_NAMES = (
    "allocation", "active", "inactive_split", "allocated_bytes", "active_bytes", "inactive_split_bytes",
    "requested_bytes", "segment", "reserved_bytes",
)
cdef tuple POOLS = ("small_pool", "large_pool", "all")
cdef tuple FIELDS = ("current", "peak", "allocated", "freed")
cdef tuple OVERSIZE_NAMES = ("oversize_allocations", "oversize_segments")
# The keys of memory_stats that have four fields: first of the figures, each of three pools, then of OVERSIZE_NAMES.
cdef tuple FIELD_KEYS = tuple([
    f"{name}.{field}"
    for name in [f"{name}.{pool}" for name in FIGURE_NAMES for pool in POOLS] + list(OVERSIZE_NAMES)
    for field in FIELDS
])
# Key of a figure -> (figure, pool, field), as numbers.
cdef dict PLACES = {
    key: (index // 12, index // 4 % 3, index % 4) for index, key in enumerate(FIELD_KEYS) if index < 12 * STATS
}
cdef dict stats_layout = None  # the keys of memory_stats without tags, sorted; None before the first call


cdef inline bint shares_segments(const Pool* pool) noexcept nogil:
    # Whether small and large blocks lie in the same segments, which grow page by page.
    return pool != NULL and pool.external == NULL and pool.settings.virtual_memory


cdef Counter reserved_of_kind(const Stats* stats, int kind) noexcept nogil:
    # Of segments that both kinds share: the small pool has what small blocks occupy, the large pool the rest.  What a
    # small block takes leaves the large pool.
    cdef Counter small = stats.counters[ACTIVE_BYTES][SMALL]
    cdef Counter rest = stats.counters[RESERVED_BYTES][LARGE]
    small.current = min(small.current, rest.current)  # what sleeps is not reserved
    if kind == SMALL:
        return small
    rest.current -= small.current
    rest.allocated += small.freed
    rest.freed += small.allocated
    return rest


cdef Counter counter_of(const Stats* stats, int figure, int kind, bint shared) noexcept nogil:
    # kind 2 is both together, with the peak of the sum.
    cdef Counter total
    if kind < 2 and shared and figure == RESERVED_BYTES:
        return reserved_of_kind(stats, kind)
    if kind < 2:
        return stats.counters[figure][kind]
    total.current = stats.counters[figure][0].current + stats.counters[figure][1].current
    total.peak = stats.peak_all[figure]
    total.allocated = stats.counters[figure][0].allocated + stats.counters[figure][1].allocated
    total.freed = stats.counters[figure][0].freed + stats.counters[figure][1].freed
    return total


cdef int set_fields(dict answer, int first, const Counter* counter) except -1:
    # first: the place of "current" in FIELD_KEYS.
    answer[FIELD_KEYS[first]] = counter.current
    answer[FIELD_KEYS[first + 1]] = counter.peak
    answer[FIELD_KEYS[first + 2]] = counter.allocated
    answer[FIELD_KEYS[first + 3]] = counter.freed
    return 0


cdef tuple fields_of(Counter counter):
    return counter.current, counter.peak, counter.allocated, counter.freed


cdef dict figures_beside(Pool* pool, object device):
    # Of what is no part of a pool, and which a device without one may have.
    cdef int64_t arrays = 0, pooled = 0
    cdef int ordinal
    if pool != NULL or not is_unused():
        ordinal = pool.device if pool != NULL else ordinal_of(device)
        arrays = load_count(&array_bytes[ordinal])
        pooled = load_count(&pool_bytes[KIND_DEVICE][ordinal]) + load_count(&pool_bytes[KIND_MANAGED][ordinal])
    return {"cuda_array_bytes": arrays, "driver_pool_bytes": pooled}


cdef dict single_figures(const Stats* stats, Pool* pool, object device):
    cdef int64_t idle = current_of(stats, RESERVED_BYTES) + stats.sleeping_bytes - current_of(stats, ACTIVE_BYTES)
    cdef int64_t largest, limit
    with nogil:
        largest = largest_free(pool)
        limit = max_split_of(pool)
    return {
        "num_alloc_retries": stats.num_alloc_retries,
        "num_ooms": stats.num_ooms,
        "num_oom_rejections": stats.num_oom_rejections,
        "num_sync_all_streams": stats.num_sync_all_streams,
        "num_device_alloc": stats.num_device_alloc,
        "num_device_free": stats.num_device_free,
        "max_split_size": limit,
        "virtual_memory_calls": stats.virtual_memory_calls,
        "stitched_bytes": stats.stitched_bytes,
        "reserved_addresses": stats.reserved_addresses,
        "sleeping_bytes": stats.sleeping_bytes,
        "managed_bytes": stats.managed_bytes,
        **figures_beside(pool, device),
        "largest_free_block": largest,
        "fragmentation": 1 - largest / idle if idle else 0.0,
    }


def memory_stats(device: DeviceArgument | None = None) -> dict[str, Any]:
    """Returns the allocator's figures for one device, with torch's keys (torch.cuda.memory_stats) and some more.

    Arguments:
        device: int, "cuda:1", ...; None is the current device.
    Returns:
        dict: "allocated_bytes.all.current" and the like: nine figures, for all and the small and large pools,
        current, peak, allocated and freed, in blocks or bytes; "oversize_allocations.current" and the like;
        counts of retries, failures, those of throw_on_cudamalloc_oom and device calls.  Beyond torch's:
        virtual_memory_calls, calls of the driver's virtual memory; stitched_bytes, mapped a second time; reserved_addresses,
        bytes of address space; sleeping_bytes, which the device has back until their pools wake; managed_bytes, of the
        reserved bytes those of managed memory, which the device holds as far as it has room; cuda_array_bytes, of
        CUDAArrays, and driver_pool_bytes, what DriverPools gave of device and managed memory, which are no part of the
        reserved bytes; largest_free_block, bytes; fragmentation, the part of the idle bytes outside that block, 0 to 1;
        "tag.NAME.allocated_bytes.current" and the like for each tag (accelrt.memory.tag), bytes and blocks.
        Where segments grow (expandable_segments), small and large blocks share them.  reserved_bytes.small_pool is then
        what small blocks occupy, live or pending, and large_pool the rest, idle memory included, with the peak of all;
        segments and splits all count as large.
        {} before the first use of a device, as in torch; every other figure is 0 then, and none is a first use.
    """
    cdef Pool* pool = pool_at(device)
    if pool == NULL and is_unused():
        return {}
    cdef Stats stats
    cdef Counter counter
    cdef bint shared = shares_segments(pool)
    cdef int index
    cdef dict singles, figures
    with nogil:
        stats = read_stats(pool)
    singles = single_figures(&stats, pool, device)
    figures = laid_out(singles)
    figures.update(singles)
    for index in range(3 * STATS):
        counter = counter_of(&stats, index // 3, index % 3, shared)
        set_fields(figures, 4 * index, &counter)
    set_fields(figures, 12 * STATS, &stats.oversize_allocations)
    set_fields(figures, 12 * STATS + 4, &stats.oversize_segments)
    return figures if pool == NULL or pool.history == NULL else with_tags(figures, pool.device)


cdef dict laid_out(dict singles):
    # A new dict with every key in its place, so that nothing has to be sorted.
    global stats_layout
    with cython.critical_section(turn):
        if stats_layout is None:
            stats_layout = dict.fromkeys(sorted([*singles, *FIELD_KEYS]), 0)
    return stats_layout.copy()


cdef dict with_tags(dict answer, int device):
    for tag, figures in tag_stats(device).items():
        for name, fields in figures.items():
            answer.update({f"tag.{tag}.{name}.{field}": value for field, value in fields.items()})
    return dict(sorted(answer.items()))


def memory_stat(key: str, device: DeviceArgument | None = None) -> int | float:
    """Returns one figure of memory_stats, without the others.

    Arguments:
        key: str, a key of memory_stats.
        device: as in memory_stats.
    Returns:
        int, or float for "fragmentation".
    Raises:
        KeyError: there is no such key.
    """
    cdef Pool* pool = pool_at(device)
    cdef Stats stats
    position = PLACES.get(key)
    if position is not None and position[1] == 2 and position[2] == 0 and position[0] < PER_HEAP:
        return current_of_pool(pool, position[0])
    with nogil:
        stats = read_stats(pool)
    if position is not None:
        return fields_of(counter_of(&stats, position[0], position[1], shares_segments(pool)))[position[2]]
    single = single_figures(&stats, pool, device)
    if key in single:
        return single[key]
    name, _, field = str(key).partition(".")
    if field in FIELDS and name in OVERSIZE_NAMES:
        counter = stats.oversize_allocations if name == "oversize_allocations" else stats.oversize_segments
        return fields_of(counter)[FIELDS.index(field)]
    near = later("accelrt.core.instead").nearest(str(key), memory_stats(device))
    raise KeyError(f"{key!r} is no key of memory_stats{near}")


def memory_snapshot(
    device: DeviceArgument | tuple[int, int] | None = None, include_traces: bool = True, *,
    mempool_id: tuple[int, int] | None = None,
) -> list[dict[str, Any]]:
    """Returns the segments and blocks that the allocator holds.

    Arguments:
        device: as in memory_stats, but None means all devices.  A tuple of two ints is a mempool_id, which is what torch
            takes in this place.
        include_traces: for torch's sake; there are none in segments.
        mempool_id: (int, int), as MemPool.id: only the segments of that pool.
    Returns:
        list of dicts, one a segment, with torch's keys (torch.cuda.memory_snapshot) and "serial", the number
        of the segment in the order in which its device's were taken, "asleep", whether its pool sleeps, and "managed",
        whether its memory is.
    Raises:
        NotSupportedError: the backend is not accelrt's own pool.
    """
    if isinstance(device, tuple):
        device, mempool_id = None, device
    states = read_states(device, "memory_snapshot")
    for ordinal, _, _ in states:
        record_snapshot(ordinal)
    snapshot = [segment for _, held, _ in states for segment in held]
    if mempool_id is not None and not hasattr(mempool_id, "__iter__"):
        raise TypeError(f"mempool_id is {mempool_id!r:.60} of type {type(mempool_id).__name__}; pass two ints, MemPool.id")
    if mempool_id is None or tuple(mempool_id) == (0, 0):
        return snapshot
    return [segment for segment in snapshot if segment["segment_pool_id"] == tuple(mempool_id)]


def read_states(device: DeviceArgument | None, call: str) -> list[tuple[int, list[dict[str, Any]], int]]:
    """Returns what a device's pool holds, or every device's.

    Returns:
        list of (int, list, int): an ordinal, its segments as memory_snapshot gives them, and the number of the first
        event that came later; of every device that is known, or of the one that was asked for.
    """
    require_native(call)
    if is_unused():
        pool_at(device)
        return []
    ordinals = range(count_devices()) if device is None else (ordinal_of(device),)
    states = [(ordinal, segments(ordinal)) for ordinal in ordinals]
    return [(ordinal, name_all(held), mark) for ordinal, (held, mark) in states]


def reset_peak_memory_stats(device: DeviceArgument | None = None) -> None:
    """Sets every peak of a device to the current figure.

    Arguments:
        device: int, "cuda:1", ...; None is the current device.
    """
    cdef Pool* pool = pool_at(device)
    with nogil:
        reset_peaks(pool)


def reset_accumulated_memory_stats(device: DeviceArgument | None = None) -> None:
    """Sets a device's "allocated" and "freed" figures, and its counts of retries and failures, to 0.

    Arguments:
        device: int, "cuda:1", ...; None is the current device.
    """
    cdef Pool* pool = pool_at(device)
    with nogil:
        reset_accumulated(pool)


def audited_hits(device: DeviceArgument | None = None) -> tuple[int, int]:
    """Returns what took the allocator's fast path under ACCELRT_DEBUG 1 or 2, for tests: the calls that were audited, and
    those among them that freed or allocated a block by turns.  (0, 0) at level 0, where nothing is counted."""
    cdef Pool* pool = pool_at(device)
    if pool == NULL:
        return 0, 0
    return pool.audited_hits, pool.audited_cached


def audit(device: DeviceArgument | None = None) -> None:
    """Checks that the allocator's figures and lists agree with its blocks.

    Arguments:
        device: as in memory_stats, but None means all devices.
    Raises:
        AssertionError: one is violated; the text says which, and on which device.
    """
    if is_unused():
        pool_at(device)
        return
    ordinals = range(MAX_DEVICES) if device is None else (ordinal_of(device),)
    for ordinal in ordinals:
        failure = find_audit_failure(pool_if_made(ordinal))
        if failure is not None:
            raise AssertionError(f"device {ordinal}: violated: {failure}")
