"""Status codes and the one converter from them to exceptions."""
from accelrt import errors
from accelrt.core.locks cimport begin_turn, end_turn

# stub: FORK_TEXT: str

cdef extern from *:
    """
    /* Cython asks for the interpreter's number before it makes a module, and takes -1 for an error.  Threads of drivers
     * come to Python by PyGILState_Ensure, which knows the main interpreter alone, as signals and the exit do. */
    static PY_INT64_T accelrt_main_interpreter_id(PyInterpreterState *interpreter) {
        if (interpreter == PyInterpreterState_Main()) return PyInterpreterState_GetID(interpreter);
        PyErr_SetString(PyExc_ImportError,
            "accelrt can be imported by the main interpreter of a process alone, and this is a second one: under mod_wsgi "
            "set WSGIApplicationGroup %{GLOBAL}; elsewhere use processes, or threads of the main interpreter");
        return -1;
    }
    #define PyInterpreterState_GetID accelrt_main_interpreter_id
    """


cdef struct Entry:
    int code
    const char* name
    const char* text
    const char* advice

cdef enum:
    ENTRY_COUNT = 59

cdef Entry[ENTRY_COUNT] ENTRIES = [
    Entry(SUCCESS, b"SUCCESS", b"no error", b""),
    Entry(INVALID_VALUE, b"INVALID_VALUE", b"an argument is out of the range that the call takes",
          b"check the arguments named above"),
    Entry(OUT_OF_MEMORY, b"OUT_OF_MEMORY", b"not enough memory on the device",
          b"free what is not needed, or call empty_cache()"),
    Entry(NOT_INITIALIZED, b"NOT_INITIALIZED", b"the driver is not initialised in this process",
          b"call accelrt.init() first; after a fork, use the spawn start method"),
    Entry(DEINITIALIZED, b"DEINITIALIZED", b"the driver is shutting down", b"finish the work before the interpreter exits"),
    Entry(NO_DEVICE, b"NO_DEVICE", b"no device is visible",
          b"check CUDA_VISIBLE_DEVICES (ACCELRT_HOST_DEVICES on the host device), or set ACCELRT_DRIVER=host"),
    Entry(INVALID_DEVICE, b"INVALID_DEVICE", b"no such device", b"ordinals go from 0 to device_count() - 1"),
    Entry(INVALID_IMAGE, b"INVALID_IMAGE", b"this is no code that the device's driver can load",
          b"pass PTX, a cubin or a fatbin on a GPU, a shared object's path or bytes on the host device"),
    Entry(209, b"NO_BINARY_FOR_GPU", b"the image holds no code for this GPU", b"compile it for the device's architecture"),
    Entry(218, b"INVALID_PTX", b"the PTX does not compile", b"assemble it with ptxas to see where"),
    Entry(222, b"UNSUPPORTED_PTX_VERSION", b"the PTX is of a later version than the driver knows",
          b"compile with an older toolkit, or to a cubin, or update the driver"),
    Entry(INVALID_CONTEXT, b"INVALID_CONTEXT", b"no context of this device is current",
          b"call set_device() on this thread first"),
    Entry(PEER_ACCESS_UNSUPPORTED, b"PEER_ACCESS_UNSUPPORTED",
          b"these devices cannot reach each other's memory",
          b"copy through host memory"),
    Entry(OPERATING_SYSTEM, b"OPERATING_SYSTEM", b"a call of the operating system failed",
          b"check paths, permissions and limits (ulimit -n)"),
    Entry(INVALID_HANDLE, b"INVALID_HANDLE", b"a handle is not, or no longer, one of this driver's",
          b"keep the object alive while its handle is in use"),
    Entry(ILLEGAL_STATE, b"ILLEGAL_STATE", b"the object is not in a state that allows this",
          b"check the order of the calls"),
    Entry(NOT_FOUND, b"NOT_FOUND", b"no object of that name", b"check the name"),
    Entry(NOT_READY, b"NOT_READY", b"the work is not complete", b"synchronise first"),
    Entry(ILLEGAL_ADDRESS, b"ILLEGAL_ADDRESS", b"a kernel or a copy touched an address that is not mapped",
          b"the context is lost: restart the process"),
    Entry(PEER_ACCESS_ENABLED, b"PEER_ACCESS_ALREADY_ENABLED", b"peer access is on already", b""),
    Entry(HOST_MEMORY_REGISTERED, b"HOST_MEMORY_ALREADY_REGISTERED",
          b"this host memory is page-locked already",
          b"register a range once"),
    Entry(HOST_MEMORY_NOT_REGISTERED, b"HOST_MEMORY_NOT_REGISTERED", b"this host memory was not registered",
          b"pass the address that was registered"),
    Entry(NOT_PERMITTED, b"NOT_PERMITTED", b"the operation is not permitted", b"a host callback may not call the driver"),
    Entry(NOT_SUPPORTED, b"NOT_SUPPORTED", b"this device or driver cannot do it", b"see accelrt info for what was chosen"),
    Entry(CAPTURE_UNSUPPORTED, b"STREAM_CAPTURE_UNSUPPORTED",
          b"the call is not permitted while a stream is capturing",
          b"move it out of the capture; it may have broken the capture, which then has to be started anew"),
    Entry(CAPTURE_INVALID, b"STREAM_CAPTURE_INVALIDATED", b"an earlier call broke this capture",
          b"look for the first error inside the capture, mend that and capture anew"),
    Entry(CAPTURE_MERGE, b"STREAM_CAPTURE_MERGE", b"the call would join two captures that are independent",
          b"do not wait in one capture for an event of another"),
    Entry(CAPTURE_UNMATCHED, b"STREAM_CAPTURE_UNMATCHED", b"the capture was not begun on this stream",
          b"end it on the stream that began it"),
    Entry(CAPTURE_UNJOINED, b"STREAM_CAPTURE_UNJOINED",
          b"a stream that joined the capture was not joined back",
          b"record an event at its end and let the first stream wait for it before the capture ends"),
    Entry(CAPTURE_ISOLATION, b"STREAM_CAPTURE_ISOLATION",
          b"work in the capture would depend on work outside it",
          b"synchronise, or wait for that work, before the capture begins"),
    Entry(CAPTURE_IMPLICIT, b"STREAM_CAPTURE_IMPLICIT",
          b"the call would depend on a capturing stream through the legacy default stream",
          b"use a stream of your own, created non-blocking"),
    Entry(CAPTURED_EVENT, b"CAPTURED_EVENT",
          b"the event was last recorded inside a capture, so it has no state to ask for",
          b"query and synchronise with events recorded outside captures only"),
    Entry(CAPTURE_WRONG_THREAD, b"STREAM_CAPTURE_WRONG_THREAD", b"the capture was begun by another thread",
          b"end it where it began, or begin it in relaxed mode"),
    Entry(GRAPH_UPDATE_FAILURE, b"GRAPH_EXEC_UPDATE_FAILURE",
          b"the new graph has another shape than the instantiated one",
          b"instantiate it anew"),
    Entry(UNKNOWN, b"UNKNOWN", b"an error without a name", b"run again with ACCELRT_DEBUG=2"),
    Entry(LAUNCH_OUT_OF_RESOURCES, b"LAUNCH_OUT_OF_RESOURCES",
          b"a block needs more registers or shared memory than there are",
          b"make the block smaller; kernel.max_potential_block_size() says how large it may be"),
    Entry(LAUNCH_TIMEOUT, b"LAUNCH_TIMEOUT", b"a kernel ran longer than the display's driver permits",
          b"the context is lost: restart the process"),
    Entry(ASSERT, b"ASSERT", b"an assert() of a kernel failed", b"the context is lost: restart the process"),
    Entry(HARDWARE_STACK_ERROR, b"HARDWARE_STACK_ERROR", b"a kernel corrupted its stack, or had too much on it",
          b"the context is lost: run the program under compute-sanitizer"),
    Entry(ILLEGAL_INSTRUCTION, b"ILLEGAL_INSTRUCTION", b"a kernel met an instruction that is none, or a trap",
          b"the context is lost: run the program under compute-sanitizer"),
    Entry(MISALIGNED_ADDRESS, b"MISALIGNED_ADDRESS", b"a kernel used an address that is not a multiple of the type's size",
          b"the context is lost: run the program under compute-sanitizer"),
    Entry(INVALID_ADDRESS_SPACE, b"INVALID_ADDRESS_SPACE", b"a kernel used an address of the wrong kind of memory",
          b"the context is lost: run the program under compute-sanitizer"),
    Entry(INVALID_PC, b"INVALID_PC", b"a kernel jumped to where no code is",
          b"the context is lost: run the program under compute-sanitizer"),
    Entry(LAUNCH_FAILED, b"LAUNCH_FAILED", b"a kernel failed",
          b"the context is lost: run the program under compute-sanitizer, or on the host device under a debugger"),
    Entry(COOPERATIVE_LAUNCH_TOO_LARGE, b"COOPERATIVE_LAUNCH_TOO_LARGE",
          b"the blocks of a cooperative launch do not all fit on the device at once",
          b"pass at most kernel.occupancy(block) * multi_processor_count blocks"),
    Entry(INVALID_CLUSTER_SIZE, b"INVALID_CLUSTER_SIZE", b"the device does not take clusters of this size",
          b"pass a cluster of at most 8 blocks whose sides divide the grid's"),
    Entry(803, b"SYSTEM_DRIVER_MISMATCH", b"the kernel's and the user's halves of the driver differ",
          b"reboot, or reload the driver's kernel module"),
    Entry(914, b"INVALID_RESOURCE_TYPE", b"the driver has no such resource of a device, or not for this call",
          b"see green_contexts.device_resources() for what there is"),
    Entry(915, b"INVALID_RESOURCE_CONFIGURATION", b"the device's resources cannot be split so",
          b"see green_contexts.device_resources() for the least part and the alignment"),
    Entry(INIT_FAILED, b"INIT_FAILED",
          b"the first use of the device failed: accelrt.init() raises, in Python, the error that says why", b""),
    Entry(FORKED, b"FORKED", b"the process was forked after initialisation", b"use the spawn start method"),
    Entry(CAP_REACHED, b"CAP_REACHED", b"the allocator's own limit is reached", b"raise set_per_process_memory_fraction()"),
    Entry(NOT_ALLOCATED, b"NOT_ALLOCATED",
          b"the address was not handed out by this allocator, or was given back already",
          b"free the pointer that alloc returned, once"),
    Entry(NO_HOST_MEMORY, b"NO_HOST_MEMORY", b"the host has no memory for a record, or starts no thread",
          b"free host memory, or raise the limit of threads (ulimit -u)"),
    Entry(BROKEN, b"BROKEN", b"an identity of the allocator is violated",
          b"call memory.audit() to hear which, and report it"),
    Entry(NO_CAPTURE_MEMORY, b"NO_CAPTURE_MEMORY",
          b"the allocator's backend has no private pools, so nothing can be allocated on a stream that is capturing",
          b"allocate before the capture begins, or choose the backend 'native'"),
    Entry(NO_STREAM_POOL, b"NO_STREAM_POOL",
          b"the device has no stream-ordered memory pool, which the backend 'cudaMallocAsync' needs",
          b"choose the backend 'native' instead"),
    Entry(POOL_CAP_REACHED, b"POOL_CAP_REACHED", b"the memory pool's own limit is reached",
          b"free what is not needed of the pool, or make one with a higher limit"),
    Entry(SLEEPING, b"SLEEPING", b"the memory belongs to a pool that sleeps: the device has its pages back",
          b"wake the pool or the Reservation first (MemPool.wake(), Reservation.wake(), accelrt.memory.wake())"),
]

FORK_TEXT = (
    "Cannot re-initialize CUDA in forked subprocess. "
    "To use CUDA with multiprocessing, you must use the 'spawn' start method"
)

cdef object init_error = None
cdef int init_error_lock = 0
cdef object watcher = None
cdef object fault_cause = None


cdef const Entry* find(int code) noexcept nogil:
    cdef int index
    for index in range(ENTRY_COUNT):
        if ENTRIES[index].code == code:
            return &ENTRIES[index]
    return NULL


cdef const char* status_name(int code) noexcept nogil:
    cdef const Entry* entry = find(code)
    if entry == NULL:
        return "UNKNOWN"
    return entry.name


cdef const char* status_text(int code) noexcept nogil:
    cdef const Entry* entry = find(code)
    if entry == NULL:
        return "an error that accelrt has no name for"
    return entry.text


cdef void keep_init_error(object error) noexcept:
    global init_error
    begin_turn(&init_error_lock)
    before = init_error  # no-cython-lint  it is to die behind the lock
    init_error = error
    end_turn(&init_error_lock)


cdef object kept_init_error():
    begin_turn(&init_error_lock)
    failure = init_error
    end_turn(&init_error_lock)
    return failure


cdef int raise_status(int code, str call, tuple arguments=(), str meaning="") except -1:
    error = status_error(code, call, arguments, meaning)
    if watcher is not None and isinstance(error, errors.CudaError):
        watcher(error)
    raise error


cdef int refuse_copy(object instance, str why) except -1:
    errors.refuse_copy(instance, why)


cdef int refuse_unmade(object instance) except -1:
    raise RuntimeError(
        f"this {type(instance).__name__} was never initialised: a class that derives from one of accelrt's calls "
        "super().__init__() in its own __init__"
    )


def watch_errors(function: Callable[[Exception], object]) -> None:
    """Sets what is shown every CudaError just before it is raised: the captures under way, one of which it may
    have broken."""
    global watcher
    watcher = function


def explain_faults(function: Callable[[], str]) -> None:
    """Sets what says, as text to append, which kernels may have failed: called for errors that only kernels cause,
    and which a call of the driver answers after them."""
    global fault_cause
    fault_cause = function


cdef bint is_fault(int code) noexcept:
    return (ILLEGAL_ADDRESS <= code <= LAUNCH_TIMEOUT and code != LAUNCH_OUT_OF_RESOURCES or code == ASSERT
            or HARDWARE_STACK_ERROR <= code <= LAUNCH_FAILED)


# stub: def status_error(code: int, call: str = "", arguments: tuple[object, ...] = (), meaning: str = "" ) -> Exception: ...
def status_error(int code, str call="", tuple arguments=(), str meaning="") -> Exception:
    """The exception that a status code stands for.

    Arguments:
        code: int, a status code other than 0.
        call: str, the row of the driver table that answered it.
        arguments: tuple (name, value, name, value, ...) of what the call was given.
        meaning: str, what the code means for that call and what to do, where that is more than the code says.

    Returns:
        An exception to raise: CudaError or one of its kinds; for INIT_FAILED the error of the
        initialisation itself; for FORKED a ForkedError.
    """
    cdef object failure = kept_init_error() if code == INIT_FAILED else None
    if failure is not None:
        return failure
    if code == FORKED:
        return errors.ForkedError(FORK_TEXT)
    cdef const Entry* entry = find(code)
    name = status_name(code).decode()
    arguments_text = ", ".join([f"{key}={show(value)}" for key, value in zip(arguments[::2], arguments[1::2], strict=True)])
    text = f"{call}({arguments_text}) answered {name} ({code}): {meaning or status_text(code).decode()}"
    if not meaning and entry != NULL and entry.advice[0]:
        text += f"; {entry.advice.decode()}"
    if fault_cause is not None and is_fault(code):
        text += fault_cause()
    return error_kind(code)(text, code, name, call)


cdef object error_kind(int code):
    if code == OUT_OF_MEMORY or code == CAP_REACHED or code == POOL_CAP_REACHED:
        return errors.OutOfMemoryError
    if code == NOT_SUPPORTED or code == NO_CAPTURE_MEMORY or code == NO_STREAM_POOL:
        return errors.NotSupportedError
    if CAPTURE_UNSUPPORTED <= code <= CAPTURE_WRONG_THREAD:
        return errors.CaptureError
    if code == SLEEPING:
        return errors.SleepingMemoryError
    return errors.CudaError


cdef str show(object value):
    if isinstance(value, int) and value >= 1 << 32:
        return hex(value)
    return repr(value)


def name_of(int code) -> str:
    """The name of a status code: name_of(1) is "INVALID_VALUE"; "UNKNOWN" for a number not listed."""
    return status_name(code).decode()


def text_of(int code) -> str:
    """The sentence for a status code, as str."""
    return status_text(code).decode()


def describe(int code) -> tuple[str, str]:
    """(name, sentence) of a status code."""
    return name_of(code), text_of(code)


errors.describe_codes(describe)
