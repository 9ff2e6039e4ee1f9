"""Memory of accelrt's caches as CuPy holds it, which stream of CuPy's it follows, and captures that CuPy begins.

CuPy has one current stream a thread and device.  A block belongs to the one that was current when it was allocated.  If
another one is current when CuPy drops it, that stream may have used it too, so it is recorded on the block first.
"""
cimport cython
from cpython.pycapsule cimport PyCapsule_GetPointer, PyCapsule_IsValid
from libc.stdint cimport intptr_t, uint64_t, uintptr_t

from accelrt.core.interpreter cimport interpreter_is_gone
from accelrt.devices.device cimport ordinal_of
from accelrt.driver cimport registry
from accelrt.driver.guard cimport (
    ask_stream, count_out_told_capture, expect_told_capture, go_relaxed, is_capturing, is_device_lost, is_idle_or_gone,
    restore_mode,
)
from accelrt.driver.registry import driver_name
from accelrt.driver.table cimport EVENT_DISABLE_TIMING, STREAM_NON_BLOCKING, Table
from accelrt.errors import OutOfMemoryError
from accelrt.graphs.graph import graph_pool_handle
from accelrt.allocator.pool cimport forget_stream, use_across
from accelrt.allocator.private.routes cimport (
    begin_capture_on, end_capture, expect_idle, hide_replays, release_pool, retain_pool,
)
from accelrt.memory.caching cimport allocate_bytes, checked_request, release_bytes
from accelrt.memory.mempool cimport allocate_host_bytes, checked_host_size, release_host_bytes
from accelrt.allocator.pinned.cache cimport forget_stream_pinned, use_pinned_on
from accelrt.runtime.lifetimes cimport close_capture, follow_capture, open_capture, Record
cimport accelrt.runtime.access as watch
from accelrt.status cimport INVALID_DEVICE, raise_status, refuse_copy, refuse_unmade

cdef extern from *:
    """
    /* Whether the place was empty and has the stream now; else its stream is stored. */
    static inline int accelrt_put_heir(uintptr_t *place, uintptr_t *stream) {
        uintptr_t found = 0;
        if (__atomic_compare_exchange_n(place, &found, *stream, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
            return 1;
        *stream = found;
        return 0;
    }
    """
    bint put_heir "accelrt_put_heir" (uintptr_t* place, uintptr_t* stream) nogil

ctypedef int (*DeviceFunction)(int skip_dispatch) except? -1
ctypedef intptr_t (*StreamFunction)(int device) except? -1

cdef enum:
    PER_THREAD = 2  # one handle for a stream of each thread

# How CuPy's modules declare these two to each other, which is what their capsules are called.
cdef const char* DEVICE_SIGNATURE = "int (int __pyx_skip_dispatch)"
cdef const char* STREAM_SIGNATURE = "intptr_t (int)"

cdef object device_memory = None   # CuPy's UnownedMemory, MemoryPointer and PinnedMemoryPointer
cdef object device_pointer = None
cdef object host_pointer = None
cdef object find_device = None     # () -> ordinal, (ordinal) -> handle: where CuPy has no such C function
cdef object find_stream = None
cdef object as_theirs = None       # accelrt's OutOfMemoryError -> one that CuPy's users catch too
cdef DeviceFunction device_of_thread = NULL
cdef StreamFunction stream_of_thread = NULL


def connect(
    classes: tuple[object, object, object], functions: tuple[Callable[[], int], Callable[[int], int]],
    translate: Callable[[OutOfMemoryError], Exception], device_api: Mapping[str, object],
    stream_api: Mapping[str, object],
) -> bool:
    """Learns what the two functions below hand out, and how CuPy is asked for its device and stream.

    Arguments:
        classes: CuPy's UnownedMemory, MemoryPointer and PinnedMemoryPointer.
        functions: the current device's ordinal, of no arguments; the handle of a device's current stream.
        translate: from an OutOfMemoryError of accelrt's to what is raised to CuPy.
        device_api, stream_api: the C functions of CuPy's modules, by name; where they are not as expected, functions
            are called.
    Returns:
        bool: whether the C functions are used.
    """
    global device_memory, device_pointer, host_pointer, find_device, find_stream, as_theirs
    global device_of_thread, stream_of_thread
    device_memory, device_pointer, host_pointer = classes
    find_device, find_stream = functions
    as_theirs = translate
    device, stream = device_api.get("get_device_id"), stream_api.get("get_stream_ptr")
    device_of_thread = NULL
    stream_of_thread = NULL
    if PyCapsule_IsValid(device, DEVICE_SIGNATURE) and PyCapsule_IsValid(stream, STREAM_SIGNATURE):
        device_of_thread = <DeviceFunction>PyCapsule_GetPointer(device, DEVICE_SIGNATURE)
        stream_of_thread = <StreamFunction>PyCapsule_GetPointer(stream, STREAM_SIGNATURE)
    return stream_of_thread != NULL


cdef inline int current_device() except -1:
    return find_device() if device_of_thread == NULL else device_of_thread(0)


cdef inline uintptr_t current_stream(int device) except? <uintptr_t>-1:
    return find_stream(device) if stream_of_thread == NULL else <uintptr_t>stream_of_thread(device)


cdef bint ask_user(int device, uintptr_t* out_stream) noexcept:
    # For destructors: the stream that is current on this thread; False where CuPy cannot say, as at the process's end.
    if interpreter_is_gone():
        return False
    try:
        out_stream[0] = current_stream(device)
    except BaseException:
        return False
    return True


# stub: class DeviceBlock:
cdef class DeviceBlock:
    """Device memory that goes back to the cache with the object."""

    cdef int ordinal
    cdef uintptr_t address
    cdef uintptr_t stream  # whose order it follows
    cdef object __weakref__

    def __dealloc__(self):
        cdef uintptr_t user = 0
        if self.address == 0:
            return
        if ask_user(self.ordinal, &user) and (user != self.stream or user == PER_THREAD):
            with nogil:
                use_across(self.ordinal, self.address, self.ordinal, user)
            watch.note_use_on(self.address, self.ordinal, user)
        release_bytes(self.ordinal, self.address)

    def __reduce__(self):
        refuse_copy(self, "it owns its memory; copy the CuPy array")


# stub: class HostBlock:
cdef class HostBlock:
    """Page-locked memory that goes back to the cache with the object, behind the work of CuPy's current stream.

    Attributes:
        ptr, size: int, as CuPy reads them.
    """

    cdef readonly uintptr_t ptr
    cdef readonly size_t size
    cdef int ordinal       # the device that was current
    cdef object __weakref__

    def __dealloc__(self):
        cdef uintptr_t user = 0
        if self.ptr == 0:
            return
        if ask_user(self.ordinal, &user):
            with nogil:
                use_pinned_on(self.ptr, self.ordinal, user)
        release_host_bytes(self.ptr)

    def __reduce__(self):
        refuse_copy(self, "it owns its memory; copy the array on it")


def allocate(size: int) -> object:
    """Returns what CuPy's set_allocator takes: device memory of CuPy's current device, in the order of its current stream.

    Arguments:
        size: int, bytes.
    Returns:
        cupy.cuda.MemoryPointer.
    Raises:
        OutOfMemoryError: the device has no room; it is CuPy's OutOfMemoryError too.
        ValueError, TypeError: size is negative or no int.
    """
    cdef int device = current_device()
    cdef DeviceBlock block = DeviceBlock.__new__(DeviceBlock)
    cdef size_t wanted
    try:
        wanted = checked_request(size, "size", device, None)
        block.ordinal = ordinal_of(device)
        block.stream = current_stream(device)
        block.address = allocate_bytes(device, wanted, block.stream)
    except OutOfMemoryError as error:
        raise as_theirs(error) from None
    return device_pointer(device_memory(block.address, wanted, block, device), 0)


def allocate_pinned(size: int) -> object:
    """Returns what CuPy's set_pinned_memory_allocator takes: page-locked host memory.

    Arguments:
        size: int, bytes.
    Returns:
        cupy.cuda.PinnedMemoryPointer.
    Raises:
        OutOfMemoryError: the driver has no such memory; it is CuPy's OutOfMemoryError too.
        ValueError, TypeError: size is negative or no int.
    """
    cdef HostBlock block = HostBlock.__new__(HostBlock)
    cdef size_t wanted = checked_host_size(size, "size")
    block.ordinal = current_device()
    try:
        block.ptr = allocate_host_bytes(ordinal_of(block.ordinal), wanted)
    except OutOfMemoryError as error:
        raise as_theirs(error) from None
    block.size = wanted
    return host_pointer(block, 0)


cdef enum:
    MOST_DEVICES = 64

cdef uintptr_t[MOST_DEVICES] heirs  # one a device, for good: streams that stand in the place of destroyed ones


cdef int heir_of(Table* table, int device, uintptr_t* out_heir) noexcept nogil:
    cdef uintptr_t heir = 0
    cdef int code = 0
    if not 0 <= device < MOST_DEVICES:
        return INVALID_DEVICE
    out_heir[0] = heirs[device]
    if out_heir[0] == 0:
        code = table.stream_create(device, STREAM_NON_BLOCKING, 0, &heir)
        if code == 0:
            out_heir[0] = heir
            if not put_heir(&heirs[device], out_heir):
                table.stream_destroy(device, heir)
    return code


cdef int bequeath(Table* table, int device, uintptr_t stream, uintptr_t* out_heir) noexcept nogil:
    # The heir waits for the stream's work.  Nobody else uses the stream, so it is in no capture that could begin now.
    cdef uintptr_t event = 0
    cdef int mode
    cdef int code = go_relaxed(table, &mode)
    if code:
        return code
    code = heir_of(table, device, out_heir)
    if code == 0:
        code = table.event_create(device, EVENT_DISABLE_TIMING, &event)
    if code == 0:
        code = table.event_record(device, event, stream)
        if code == 0:
            code = table.stream_wait_event(device, out_heir[0], event)
        table.event_destroy(device, event)
    restore_mode(table, mode)
    return code


cdef bint find_heir(int device, uintptr_t stream, uintptr_t* out_heir) noexcept nogil:
    # False where the stream may have work, and nothing can be put behind it.
    cdef Table* table = registry.active()
    cdef int captured
    cdef int code = ask_stream(table, device, stream)
    out_heir[0] = 0
    if code == 0 or is_device_lost(code) or is_capturing(table, device, stream, &captured):
        return True
    if bequeath(table, device, stream, out_heir) == 0:
        return True
    out_heir[0] = 0
    return is_idle_or_gone(table, device, stream)


def stream_goes(int device, uintptr_t stream) -> bool:
    """A stream of CuPy's is about to be destroyed, perhaps with work under way: its handle is not used any more afterwards,
    and memory that its work uses waits for that.

    Arguments:
        device: int, the stream's ordinal.
        stream: int, its handle.
    Returns:
        bool: whether it may be destroyed; not where the driver refuses to put anything behind its work.
    """
    cdef uintptr_t heir = 0
    cdef bint known
    if interpreter_is_gone() or driver_name() in ("sentinel", "forked"):
        return True
    with nogil:
        known = find_heir(device, stream, &heir)
        if known:
            forget_stream(device, stream, heir)
            forget_stream_pinned(device, stream, heir)
    return known


# --- captures that another library begins ------------------------------------------------------------------

# Allocations on the captured streams come from a private pool of the capture's own, and nothing of accelrt's breaks it.

@cython.no_gc_clear  # a destructor that finds no record would leave the stream in its capture
cdef class ExternalCapture:
    """One capture: make it, have the library begin the capture, call begun(); have the library end it, call over().

    Arguments:
        device: int, an ordinal.
        stream: int, the handle of the stream that is going to capture.
    Raises:
        CudaError: the device has no pool, or no host memory for one.

    The graph's memory serves others once the object is dropped, which has to live as long as the graph does, and once
    the device is known to be past its replays.  Dropping it ends what begun() began.
    """
    # stub: @property
    # stub: def kept(self) -> list[object] | None: ...

    cdef int ordinal
    cdef uintptr_t stream
    cdef uint64_t[2] pool_id
    cdef uint64_t capture      # the driver's id of it, from begun() to over()
    cdef bint retains_pool     # the pool counts it
    cdef bint counted          # as a capture under way
    cdef readonly list kept    # what captured copies of accelrt's read and write
    cdef Record record         # from begun() to over()
    cdef object __weakref__

    def __init__(self, device: DeviceArgument, uintptr_t stream) -> None:
        cdef int code
        cdef int ordinal = ordinal_of(device)
        if self.retains_pool:
            raise RuntimeError("an ExternalCapture is of one capture; make another")
        first, second = graph_pool_handle()
        self.ordinal, self.stream, self.kept = ordinal, stream, []
        self.pool_id[0], self.pool_id[1] = first, second
        with nogil:
            code = retain_pool(self.ordinal, self.pool_id[0], self.pool_id[1], False, 0)
        if code:
            raise_status(code, "capture_begin", ("device", device))
        self.retains_pool = True
        with nogil:
            expect_idle(self.ordinal)
            expect_told_capture()
        self.counted = True

    def __dealloc__(self):
        self.leave()
        if self.retains_pool:
            with nogil:
                hide_replays(self.ordinal, self.pool_id[0], self.pool_id[1])
                release_pool(self.ordinal, self.pool_id[0], self.pool_id[1], False)

    cdef int leave(self) noexcept:
        cdef Record record = self.record
        cdef uint64_t capture = self.capture
        cdef bint counted = self.counted
        self.record = None
        self.capture = 0
        self.counted = False
        if counted:
            count_out_told_capture()
            with nogil:
                if capture:
                    end_capture(self.ordinal, capture)
                follow_capture()
        if record is not None:
            close_capture(record)
        return 0

    def begun(self) -> None:
        """Sends what is allocated on the capturing streams to the private pool.

        Raises:
            CudaError: the stream does not capture.
        """
        cdef int code
        if not self.counted or self.capture:
            refuse_unmade(self)
        with nogil:
            code = begin_capture_on(self.ordinal, self.stream, self.pool_id[0], self.pool_id[1], &self.capture)
        if code:
            self.capture = 0
            raise_status(code, "capture_begin", ("device", self.ordinal, "stream", self.stream))
        self.record = open_capture(self.ordinal, self.stream, self.capture, self.kept, None, self.pool_id)

    def over(self) -> None:
        """The library has ended the capture, or given it up.  Doing it again does nothing."""
        self.leave()

    def __reduce__(self):
        refuse_copy(self, "it is of one capture; capture anew")

    def __repr__(self):
        state = "under way" if self.capture else "over"
        return f"<accelrt.interop ExternalCapture of stream {self.stream:#x} on device {self.ordinal}, {state}>"
