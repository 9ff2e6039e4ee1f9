"""The door for uses of memory, with the race detector's hooks."""
cimport cython
from cpython.buffer cimport PyBUF_READ, PyBuffer_FillInfo
from cpython.exc cimport PyErr_CheckSignals
from cpython.memoryview cimport PyMemoryView_FromMemory
from cpython.object cimport PyObject
from libc.stdint cimport uint64_t, uintptr_t

from accelrt.allocator.heaps cimport LEGACY, PER_THREAD, thread_number
from accelrt.allocator.pinned.cache cimport is_cached_pinned
from accelrt.allocator.private.sleep cimport is_of_suspended
from accelrt.allocator.readers cimport add_pooled, end_pooled, PoolMemory, take_pooled
from accelrt.core.integers cimport is_integer
from accelrt.core.interpreter cimport PyThread_get_thread_ident
from accelrt.core.locks cimport begin_turn, end_turn
from accelrt.core.process cimport FORK_USES, at_fork
from accelrt.core.process import call_at_exit, call_at_fork
from accelrt.core.slots cimport (
    enter_inner, enter_outermost, fence_slots, first_slot, has_left, my_slot, open_slots, section_of, Slot,
    slots_fenced, take_slot,
)
from accelrt.core.threads cimport pause, sched_yield
from accelrt.driver.guard cimport captures_open
cimport accelrt.driver.registry as registry
from accelrt.driver.memory cimport KIND_DEVICE, KIND_HOST, KIND_MANAGED, KIND_NONE
from accelrt.driver.table cimport CAPTURE_NONE, STREAM_BLOCKING
from accelrt.errors import ArgumentError, ArgumentTypeError, SyncDebugError, SyncDebugWarning
from accelrt.status cimport CAPTURE_IMPLICIT, CAPTURE_UNSUPPORTED, raise_status, refuse_copy


# stub: SYNC_MODES: tuple[str, ...]

# --- who watches ------------------------------------------------------------------------------------------------------
# What is watched: every call that waits (sync debug mode), and every use of memory (the race detector).
#
# The detector itself is plain Python, in accelrt/sanitizer, which turns it on.

SYNC_MODES = ("default", "warn", "error")

cdef int detector_lock = 0
cdef object detector = None  # accelrt.sanitizer's Detector that is on, or was on last
cdef object crc32 = None  # zlib's, from the first start on


# --- sync debug mode ---------------------------------------------------------------------------------------

cdef int before_wait_slow(str call) except -1:
    text = f"called a synchronizing operation: {call} waits for the device (sync debug mode {SYNC_MODES[sync_mode]!r})"
    if sync_mode == 2:
        raise SyncDebugError(text + "; do without it, or call set_sync_debug_mode('default')")
    import warnings

    warnings.warn(text, SyncDebugWarning, stacklevel=1)
    return 0


def set_sync_debug_mode(debug_mode: int | Literal["default", "warn", "error"]) -> None:
    """Chooses what happens where a call of accelrt's waits for the device (torch.cuda.set_sync_debug_mode).

    Arguments:
        debug_mode: "default" or 0, nothing; "warn" or 1, a SyncDebugWarning at the caller's line; "error" or 2,
            a SyncDebugError before anything is waited for or put into a stream.
    Raises:
        ValueError, TypeError: it is none of these.

    The calls are synchronize() of devices, streams and events, copies and fills with blocking=True, copies to host
    memory that is not page-locked, empty_cache(), host_empty_cache(), and RegisteredMemory.unregister().  What an
    allocation waits for before it gives up, and destructors, are not among them.
    """
    global sync_mode
    if is_integer(debug_mode):
        debug_mode = int(debug_mode)
    if isinstance(debug_mode, bool) or not isinstance(debug_mode, (int, str)):
        raise ArgumentTypeError(f"debug_mode is {debug_mode!r} of type {type(debug_mode).__name__}; pass 0, 1, 2 or a name")
    if debug_mode in SYNC_MODES:
        sync_mode = SYNC_MODES.index(debug_mode)
    elif isinstance(debug_mode, int) and 0 <= debug_mode <= 2:
        sync_mode = debug_mode
    else:
        raise ArgumentError(f"debug_mode is {debug_mode!r}; it may be 0, 1, 2, {', '.join(map(repr, SYNC_MODES))}")


def get_sync_debug_mode() -> int:
    """Returns the sync debug mode as int: 0 is default, 1 is warn, 2 is error."""
    return sync_mode


# --- the race detector -------------------------------------------------------------------------------------

def capture_of(int ordinal, uintptr_t stream) -> int:
    """The driver's id of the capture that a stream is in, or 0; -1 where the driver does not say."""
    cdef uint64_t capture = 0
    cdef int status = CAPTURE_NONE
    cdef int code = registry.active().capture_status(ordinal, stream, &status, &capture)
    if code and code != CAPTURE_IMPLICIT:  # the legacy stream while another one captures: it does not itself
        return -1
    return capture if code == 0 and status != CAPTURE_NONE else 0


def is_blocking(int ordinal, uintptr_t stream) -> bool:
    """Tells whether a stream waits for the legacy default stream, and that one for it."""
    cdef unsigned int flags = 0
    cdef int code = registry.active().stream_flags(ordinal, stream, &flags)
    return code == 0 and flags == STREAM_BLOCKING


def fingerprint(uintptr_t address, size_t size) -> int | None:
    """A sum of the content of page-locked memory of the cache's; None for all other memory."""
    if not is_cached_pinned(address) or not is_cached_pinned(address + size - 1):
        return None
    return crc32(PyMemoryView_FromMemory(<char*>address, size, PyBUF_READ))


cdef object current_detector():
    # The detector.  Another thread may be about to replace it, so that its reference is taken in turn.
    begin_turn(&detector_lock)
    current = detector
    end_turn(&detector_lock)
    return current


def start(chosen: Detector) -> None:
    """Turns the race detector on; see accelrt.sanitizer.enable.

    Arguments:
        chosen: Detector, which is told from now on.
    """
    global detector, sanitizing, crc32
    from zlib import crc32

    begin_turn(&detector_lock)
    before = detector  # no-cython-lint  it is to die behind the lock
    detector = chosen
    end_turn(&detector_lock)
    sanitizing = 1


def stop() -> None:
    """Turns the race detector off; what it reported stays."""
    global sanitizing
    sanitizing = 0


def watching() -> Detector | None:
    """The race detector that is on or was on last, or None."""
    return current_detector()


def is_watching() -> bool:
    """Tells whether the race detector is on."""
    return sanitizing != 0


cdef int note_work(int ordinal, uintptr_t stream, str call, list uses) except -1:
    current_detector().work(ordinal, stream, call, uses)
    return 0


cdef int note_host_work(str call, list uses) except -1:
    current_detector().host_work(call, uses)
    return 0


cdef int note_changed(uint64_t capture, tuple old, tuple new) except -1:
    current_detector().changed(capture, old, new)
    return 0


cdef int note_moved(uint64_t capture, uintptr_t address, size_t size, uintptr_t to) except -1:
    if detects_races():
        current_detector().moved(capture, address, size, to)
    return 0


cdef int note_access_slow(int ordinal, uintptr_t stream, uintptr_t address, size_t size, str mode, str call) except -1:
    return note_work(ordinal, stream, call, [(address, size, mode)])


cdef int note_record_slow(int ordinal, uintptr_t stream, uintptr_t event, bint is_node) except -1:
    if is_node:
        current_detector().captured_point(ordinal, stream, event, False)
    else:
        current_detector().recorded(ordinal, stream, event)
    return 0


cdef int note_wait_slow(int ordinal, uintptr_t stream, uintptr_t event, bint is_node) except -1:
    if is_node:
        current_detector().captured_point(ordinal, stream, event, True)
    else:
        current_detector().waited(ordinal, stream, event)
    return 0


cdef int note_reached_slow(int ordinal, uintptr_t stream) except -1:
    current_detector().reached_stream(ordinal, stream)
    return 0


cdef int note_event_reached_slow(uintptr_t event) except -1:
    current_detector().reached_event(event)
    return 0


cdef int note_use_on_slow(uintptr_t address, int ordinal, uintptr_t stream) except -1:
    current_detector().recorded_use(address, ordinal, stream)
    return 0


cdef void note_allocated_slow(int ordinal, uintptr_t stream, uintptr_t address, size_t size) noexcept:
    if address:
        current_detector().allocated(address, size, ordinal, stream)


cdef void note_freed_slow(uintptr_t address) noexcept:
    if address:
        current_detector().freed(address)


cdef int note_replay(int ordinal, uintptr_t stream, uint64_t capture) except -1:
    if detects_races():
        current_detector().replayed(capture, ordinal, stream)
    return 0


cdef int note_stream(int ordinal, uintptr_t stream) except -1:
    if detects_races():
        current_detector().made_stream(ordinal, stream)
    return 0


cdef int note_device_reached(int ordinal) except -1:
    if detects_races():
        current_detector().reached_device(ordinal)
    return 0


cdef object note_host_function(int ordinal, uintptr_t stream):
    return current_detector().host_function(ordinal, stream) if detects_races() else None


cdef void note_run(object mark, bint begins) noexcept:
    if mark is not None:
        current_detector().runs(mark if begins else None)


cdef int note_captured(uint64_t capture) except -1:
    if detects_races():
        current_detector().captured(capture)
    return 0


cdef void note_dropped(uint64_t capture) noexcept:
    if detects_races():
        current_detector().dropped(capture)


cdef int note_freed_after(uintptr_t address, uintptr_t event) except -1:
    if detects_races():
        current_detector().freed_after(address, event)
    return 0


cdef int note_emptied() except -1:
    if detects_races():
        current_detector().emptied()
    return 0


cdef int note_forgotten(uintptr_t address, size_t size) except -1:
    if detects_races():
        current_detector().forget(address, address + size)
    return 0


def finish() -> None:
    """The interpreter's exit: tells what was found and not told, and watches nothing any more."""
    if sanitizing:
        stop()
        current_detector().finish()


call_at_exit("runtime.access", "race detector", finish)
# The child cannot use the device, and the detector may be in use.
call_at_fork("runtime.access", "runtime", child=stop)


# --- access -----------------------------------------------------------------------------------------------------------
# Uses of memory that are under way: what frees and sleeps wait for, see access.pxd and DESIGN.md.

cdef extern from *:
    """
    #define pass_barrier() __atomic_thread_fence(__ATOMIC_SEQ_CST)
    """
    void pass_barrier() noexcept nogil

cdef enum:
    PAUSE_NS = 50000  # most uses end within microseconds; what waits for a stream takes as long as that
    SHORT = 100       # looks at a section before the thread yields
    LONG = 10000      # looks before it sleeps between them

cdef Deferral waiting = None  # the first of those that wait
cdef Export* first_export = NULL
cdef int exports_lock = 0     # of that list, where there is no GIL; sleep.pyx's lock is taken under it


# --- uses by nogil code --------------------------------------------------------------------------------------------

cdef Slot* begin_nogil_use_slow() noexcept nogil:
    # The thread's first use, or one within another.
    cdef Slot* slot = my_slot
    if slot == NULL:
        slot = take_slot()
    if slot != NULL and not enter_outermost(slot, 0):
        enter_inner(slot)
    pass_barrier()
    return slot


cdef Slot* begin_nogil_use() noexcept nogil:
    cdef Slot* slot = my_slot
    if likely_true(slot != NULL) and likely_true(enter_outermost(slot, 0)):
        if slots_fenced:
            pass_barrier()
        return slot
    return begin_nogil_use_slow()


# --- frees ---------------------------------------------------------------------------------------------------------

cdef inline bint is_named(const Access* access, PyObject* owner) noexcept:
    if access.names != NULL:
        return access.names(access, owner)
    return access.first == owner or access.second == owner


cdef class Deferral:
    """Deferral()\n--\n\n\
    Memory that is given back once the uses that were under way have ended."""

    def __init__(self) -> None:
        raise TypeError("a Deferral is made by a free() beside a use")


cdef uint64_t newest_naming(PyObject* owner) noexcept:
    # The number of the newest use under way that names the owner; 0: there is none.
    cdef const Access* access
    cdef uint64_t last = 0
    begin_turn(&door.lock)
    access = door.newest
    while access != NULL and not is_named(access, owner):
        access = access.before
    if access != NULL:
        last = access.serial
    end_turn(&door.lock)
    return last


cdef Deferral deferral_slow(PyObject* owner):
    cdef Deferral deferral
    cdef uint64_t last = newest_naming(owner)
    if last == 0:
        return None
    deferral = Deferral.__new__(Deferral)
    deferral.last = last
    return deferral


cdef Deferral look_closed(Deferral deferral, PyObject* owner):
    cdef uint64_t last = newest_naming(owner)
    if last == 0:
        return None
    try:
        if deferral is None:
            deferral = Deferral.__new__(Deferral)
        deferral.last = last
    except MemoryError:  # the object looks freed already
        while newest_naming(owner):
            with nogil:
                pause(PAUSE_NS)
    return deferral


cdef void defer_release(Deferral deferral, releasing release, int device, uintptr_t address, object keeper) noexcept:
    global waiting
    deferral.release = release
    deferral.device = device
    deferral.address = address
    deferral.keeper = keeper
    begin_turn(&door.lock)
    deferral.after = waiting
    waiting = deferral
    door.deferred = True
    end_turn(&door.lock)
    give_deferred()  # the use may have ended meanwhile


cdef Deferral take_due():
    # One whose uses have ended; None: there is none.
    cdef Deferral due
    begin_turn(&door.lock)
    due = take_due_in_turn()
    end_turn(&door.lock)
    return due


cdef Deferral take_due_in_turn():
    # With the door's lock.  Nothing dies here: what leaves the list is answered.
    global waiting
    cdef Deferral before = None, deferral = waiting
    while deferral is not None and door.oldest != NULL and door.oldest.serial <= deferral.last:
        before, deferral = deferral, deferral.after
    if deferral is None:
        return None
    if before is None:
        waiting = deferral.after
    else:
        before.after = deferral.after
    deferral.after = None
    door.deferred = waiting is not None
    return deferral


cdef void give_deferred() noexcept:
    # What is dropped may run Python code, which may free and use other memory.
    cdef Deferral deferral = take_due()
    while deferral is not None:
        if deferral.release != NULL:
            deferral.release(deferral.device, deferral.address)
        deferral.keeper = None
        deferral = take_due()


# --- memory of a driver's pool ---------------------------------------------------------------------------------------

cdef enum:
    MOST_TRIES = 8

cdef list put_off = []  # blocks that could not be given back: in a capture, or refused as their owner died


# stub: def free_in_pool(device: int, stream: object, address: int) -> int: ...
def free_in_pool(int device, stream, uintptr_t address):
    """Gives memory of a pool back, in a stream's order; later where the stream is captured.

    Returns:
        int, the driver's code.
    """
    cdef PoolBlock later = PoolBlock(device, stream)
    cdef int code
    later.address = address
    code = later.give_back()
    if code:
        later.address = 0
    return code


def free_put_off() -> None:
    """Tries again with what could not be given back."""
    global put_off
    if put_off:
        blocks = put_off  # no-cython-lint  what is refused again is put off anew as it dies
        put_off = []


# stub: def destroy_pool(answer: tuple[int, int]) -> None: ...
def destroy_pool(tuple answer):
    """Gives a pool up that a row made: (code, handle)."""
    cdef uintptr_t handle = answer[1]
    if answer[0] == 0:
        with nogil:
            registry.active().pool_destroy(handle)


@cython.no_gc_clear  # it goes back in the stream's order
cdef class PoolBlock:
    """Memory of a driver's pool, given back by free(), or when it dies.

    Arguments:
        device: int, the ordinal of the pool's device.
        stream: Stream of that device, in whose order the memory goes back.
        pool: object that destroys the pool, kept until the memory went back.
        nbytes: int.
        pinned: bool, whether it is page-locked memory, which then has the buffer protocol.
        managed: bool, whether it is managed memory.
        is_mapped: bool, whether it is another process's.
    """
    # stub: def __buffer__(self, flags: int, /) -> memoryview: ...

    def __init__(
        self, int device, stream: object, pool: object = None, size_t nbytes=0, bint pinned=False, bint managed=False,
        bint is_mapped=False,
    ) -> None:
        if self.address:
            raise RuntimeError("it has memory; make another one")
        self.device_index, self.stream, self.handle, self._pool = device, stream, stream.handle, pool
        self.thread = thread_number()
        self.nbytes, self.pinned, self.managed, self.is_mapped = nbytes, pinned, managed, is_mapped

    def __dealloc__(self):
        cdef PoolBlock later
        cdef int code
        if self.address == 0:
            return
        code = self.give(False)
        if code == 0 or code != CAPTURE_UNSUPPORTED and self.tries >= MOST_TRIES:
            return
        later = self.move_out()
        later.tries += code != CAPTURE_UNSUPPORTED
        put_off.append(later)

    def __reduce__(self):
        refuse_copy(self, "it owns memory; allocate more")

    cdef PoolBlock move_out(self):
        cdef PoolBlock later = PoolBlock.__new__(PoolBlock)
        later.device_index, later.stream, later.handle, later.tries = self.device_index, self.stream, self.handle, self.tries
        later.nbytes, later.thread = self.nbytes, self.thread
        later.pinned, later.managed, later.is_mapped = self.pinned, self.managed, self.is_mapped
        later.address, later._pool, self.address = self.address, self._pool, 0
        return later

    cdef int give(self, bint is_kept) noexcept:
        # The row frees memory of every pool; unlike async_free it refuses a stream that is captured.
        cdef PoolMemory* record = NULL if self.is_mapped else take_pooled(self.address)
        cdef uintptr_t stream = self.handle
        cdef int code = 0
        if stream == PER_THREAD and self.thread != thread_number():
            # It names another stream here; the legacy one is behind both, and would break captures.
            stream = LEGACY
            code = CAPTURE_UNSUPPORTED if captures_open() else 0
        if code == 0:
            with nogil:
                code = registry.active().managed_pool_free(self.device_index, stream, self.address)
        end_pooled(record, code == 0 or code == CAPTURE_UNSUPPORTED or not is_kept)
        return code

    cdef int give_back(self) except? -1:
        cdef int code = self.give(True)
        if code == CAPTURE_UNSUPPORTED:
            put_off.append(self)
            return 0
        if code == 0:
            self.address = 0
        return code

    # stub: def _take(self, row: Callable[..., tuple[int, int]], *arguments: object) -> int: ...
    def _take(self, row, *arguments):
        """Calls a row that answers a code and an address, whose memory it holds from then on, and returns the code."""
        if self.address:
            raise RuntimeError("it has memory; make another one")
        code, address = row(*arguments)
        if code == 0:
            self.address = address
        if code == 0 and not self.is_mapped:
            kind = KIND_HOST if self.pinned else KIND_MANAGED if self.managed else KIND_DEVICE
            add_pooled(self.device_index, kind, self.address, self.nbytes, self.handle)
        return code

    def _find_range(self) -> tuple[int, int, int]:
        """Asks the driver about memory that another process allocated: whether it is page-locked is known then.

        Returns:
            (code, start, nbytes): the driver's status, and what was allocated in one call.
        """
        cdef uintptr_t address = self.address, start = 0
        cdef size_t size = 0
        cdef int kind = KIND_NONE, device = -1, code
        with nogil:
            code = registry.active().pointer_range(address, &kind, &device, &start, &size)
        if code == 0:
            self.pinned = kind == KIND_HOST
        return code, start, size

    def __getbuffer__(self, Py_buffer* view, int flags):
        with cython.critical_section(self):
            if not self.pinned:
                raise TypeError(f"{self!r} is no memory of the host's; copy() brings its bytes there")
            if self.address == 0:
                raise BufferError(f"{self!r} was given back; allocate other memory")
            PyBuffer_FillInfo(view, self, <void*>self.address, self.nbytes, 0, flags)
            self.exports += 1

    def __releasebuffer__(self, Py_buffer* view):
        with cython.critical_section(self):
            self.exports -= 1

    @property
    def _is_freed(self) -> bool:
        return self.address == 0

    @property
    def ptr(self) -> int:
        """Its address.

        Raises:
            ValueError: it was given back.
        """
        if self.address == 0:
            raise ValueError(f"{self!r} was given back; allocate other memory")
        return self.address

    @cython.critical_section
    def free(self) -> None:
        """Gives the memory back to the pool in its stream's order; again, it does nothing.

        Beside a copy or a launch that another thread is about to put into a stream, it goes behind that.

        Raises:
            BufferError: an array or memoryview on it is alive.
            CudaError: the driver refused; the memory stays allocated.
        """
        cdef Deferral deferral
        cdef PoolBlock later
        cdef int code
        if self.address == 0:
            return
        if self.exports:
            raise BufferError(f"{self.exports} views of {self!r} are alive; drop them before free()")
        deferral = deferral_for(<PyObject*>self)
        later = self.move_out()
        deferral = deferral_closed(deferral, <PyObject*>self)
        if deferral is not None:
            defer_release(deferral, NULL, 0, 0, later)
            return
        code = later.give_back()
        if code:
            self.address, later.address = later.address, 0
            raise_status(code, "managed_pool_free", ("address", self.address))


@cython.no_gc_clear  # the destructor counts it out
cdef class PoolView:
    """PoolView(block)\n--\n\n\
    What keeps memory of a driver's pool from being given back while there is an Array on it."""

    def __init__(self, PoolBlock block not None) -> None:
        if self.block is not None:
            raise RuntimeError("a PoolView is initialised once")
        with cython.critical_section(block):
            if block.address == 0:
                raise ValueError(f"{block!r} was given back; allocate other memory")
            block.exports += 1
        self.block = block

    def __dealloc__(self):
        if self.block is not None:
            with cython.critical_section(self.block):
                self.block.exports -= 1

    def __reduce__(self):
        refuse_copy(self, "it counts as one view of the memory")


# --- sleeps ----------------------------------------------------------------------------------------------------------

cdef bint holds_up(const Access* access, int device, uint64_t first, uint64_t second) noexcept:
    # Whether a pool that is suspended has to wait for a use: its work is yet to reach the driver.
    cdef size_t index
    if access.enqueued or access.addresses == NULL:
        return not access.enqueued
    for index in range(access.count):
        if is_of_suspended(device, first, second, access.addresses[index]):
            return True
    return False


cdef bint is_under_way(uint64_t last, int device, uint64_t first, uint64_t second) noexcept:
    # Whether a use that began no later than `last` holds it up.
    cdef const Access* access
    cdef bint is_found = False
    begin_turn(&door.lock)
    access = door.oldest
    while access != NULL and access.serial <= last and not is_found:
        is_found = holds_up(access, device, first, second)
        access = access.next
    end_turn(&door.lock)
    return is_found


cdef int refuse_inside(str call) except -1:
    cdef unsigned long thread = PyThread_get_thread_ident()
    cdef const Access* access
    cdef bint inside = False
    begin_turn(&door.lock)
    access = door.oldest
    while access != NULL and not inside:
        inside = access.thread == thread and not access.enqueued
        access = access.next
    end_turn(&door.lock)
    if inside:
        raise RuntimeError(f"{call}: the calling thread is in the midst of a use of memory, from which this was called "
                           "(by a finalizer or a signal's handler); call it after that")
    return 0


cdef void await_sections() noexcept nogil:
    cdef Slot* slot
    cdef uint64_t section
    cdef int rounds
    if not fence_slots():
        return
    slot = first_slot()
    while slot != NULL:
        section = section_of(slot) if slot != my_slot else 0
        rounds = 0
        while section and not has_left(slot, section):
            rounds += 1
            if rounds > LONG:
                pause(PAUSE_NS)
            elif rounds > SHORT:
                sched_yield()
        slot = slot.next


cdef int await_uses(str call, int device, uint64_t first, uint64_t second) except -1:
    # Waits for all uses begun before the call, of Python and of nogil code, but for those that wait for other threads and
    # have no memory of the suspended pool (of none on device -1).  On the main thread a signal's handler may end it.
    # RuntimeError where the calling thread itself is in the midst of a use.
    cdef uint64_t last
    refuse_inside(call)
    last = door.serial
    with nogil:
        await_sections()
    while is_under_way(last, device, first, second):
        with nogil:
            pause(PAUSE_NS)
        PyErr_CheckSignals()
    return 0


cdef void await_others(Access* access, const uintptr_t* addresses, size_t count) noexcept:
    begin_turn(&door.lock)
    access.addresses = addresses
    access.count = count
    end_turn(&door.lock)


# --- exports --------------------------------------------------------------------------------------------------------

cdef void link_export(Export* export, uintptr_t address, PyObject* array) noexcept:
    global first_export
    export.address = address
    export.array = array
    export.before = NULL
    begin_turn(&exports_lock)
    export.next = first_export
    if first_export != NULL:
        first_export.before = export
    first_export = export
    end_turn(&exports_lock)


cdef void unlink_export(Export* export) noexcept:
    global first_export
    begin_turn(&exports_lock)
    if export.next != NULL:
        export.next.before = export.before
    if export.before != NULL:
        export.before.next = export.next
    else:
        first_export = export.next
    end_turn(&exports_lock)


cdef list exported_from(int device, unsigned long long first, unsigned long long second):
    # What is listed has a reference of its tensors', so that counts do not fall to 0 here.
    cdef list arrays = []
    cdef const Export* export
    begin_turn(&exports_lock)
    export = first_export
    while export != NULL:
        if export.address and is_of_suspended(device, first, second, export.address):
            arrays.append(<object>export.array)
        export = export.next
    end_turn(&exports_lock)
    return arrays


# --- forks ----------------------------------------------------------------------------------------------------------

cdef void forget_uses() noexcept nogil:
    # In a forked child: other threads are gone, and their stacks with them.  The forking thread may be in a use, from which
    # a signal's handler forked, say.
    global exports_lock
    cdef unsigned long thread = PyThread_get_thread_ident()
    cdef Access* access = door.oldest
    cdef Access* after
    door.lock = exports_lock = 0
    door.oldest = door.newest = NULL
    while access != NULL:
        after = access.next
        if access.thread == thread:
            append_use(access)
        access = after
    open_slots()


open_slots()
at_fork("runtime.access", FORK_USES, NULL, NULL, &forget_uses)
