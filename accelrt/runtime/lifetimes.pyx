"""Keeps alive what work has not passed yet: records of captures, host functions, and late releases; and the pools that
driver streams and events return to.  Reports what is alive still at the end of the process."""
cimport cython
import sys
from cpython.exc cimport PyErr_SetObject, PyErr_WriteUnraisable
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdio cimport fprintf, stderr
from libc.stdlib cimport calloc, free
from libc.string cimport memset, strdup

from accelrt import errors
from accelrt.allocator.heaps cimport Heap, heap_at, trust_stream
from accelrt.allocator.pinned.cache cimport (
    is_cached_pinned, PinnedStats, read_pinned_stats, record_deferred_pinned, release_pinned, tidy_pinned, use_pinned_on,
)
from accelrt.allocator.pool cimport (
    MAX_DEVICES, in_private, is_lent, pool_if_made, record_deferred_uses, release, try_use_across, use_across,
)
from accelrt.allocator.readers cimport list_live, list_live_pools, LiveBlock, LivePool, record_array
from accelrt.core.handle_map cimport map_clear, map_find, map_insert, map_remove, map_reserve
from accelrt.core.locks cimport add_count, add_in_turn, begin_turn, end_turn, load_count, spin_lock, spin_unlock, store_count
from accelrt.core.process cimport FORK_RUNTIME, at_fork
from accelrt.core.process import call_at_exit, call_at_fork
from accelrt.core.slots cimport Slot
from accelrt.core.threads cimport pause
from accelrt.driver.guard cimport (
    abandon_waits, ask_stream, ask_use, begin_wait, drop_with_gil, end_wait, enter_asking, enter_wait, go_relaxed,
    GONE, INTERRUPTED, is_capturing, is_device_lost, is_idle_or_gone, leave_asking, leave_wait, make_event,
    make_thread_state, mark_use, meaning_of, poll, PooledEvent, query_uncaptured, release_event, restore_mode,
    return_event, take_event, take_spare, Use,
)
cimport accelrt.driver.registry as registry
from accelrt.driver.table cimport (
    CAPTURE_ACTIVE, CAPTURE_GLOBAL, CAPTURE_INVALIDATED, CAPTURE_NONE, EVENT_INTERPROCESS, STREAM_NON_BLOCKING,
)
from accelrt.status cimport (
    CAPTURE_IMPLICIT, CAPTURE_INVALID, DEINITIALIZED, FORKED, INVALID_HANDLE, NO_HOST_MEMORY, NOT_ALLOCATED, NOT_READY,
    SLEEPING, raise_status, refuse_copy,
)
from accelrt.status import status_error, watch_errors
cimport accelrt.runtime.access as watch
from accelrt.runtime.init import later


# --- capture record ---------------------------------------------------------------------------------------------------
# Captures under way: what their nodes point at has to live as long as the graph, and what broke them has to be told.

cdef list captures = []    # Records, the newest last: there are few
cdef Record latest = None  # that began and is not over; in turn
cdef int latest_lock = 0


# stub: class Side:
@cython.freelist(16)
cdef class Side:
    """Memory that a captured node reads or writes; kept with what keeps it alive."""


# stub: class Sleeper:
cdef class Sleeper:
    """The base of what a captured node uses and may be put to sleep: its graph keeps it, and asks before each replay."""

    cdef int refuse_asleep(self) except -1:
        return 0


# stub: class PoolUse(Sleeper):
cdef class PoolUse(Sleeper):
    """A private pool, memory of which a captured node reads or writes."""

    cdef int refuse_asleep(self) except -1:
        if not watch.is_pool_awake(self.ordinal, self.id[0], self.id[1]):
            raise_status(SLEEPING, "replay", ("pool", (self.id[0], self.id[1]), "device", self.ordinal))
        return 0


# stub: class Record:
cdef class Record:
    """One capture, while it is under way."""

    def __dealloc__(self):
        map_clear(&self.sources)

    cdef bint find_breakage(self) noexcept:
        # Whether the driver says that it is broken.
        cdef int status = 0, code
        with nogil:
            code = registry.active().stream_is_capturing(self.ordinal, self.origin, &status)
        return code == 0 and status == CAPTURE_INVALIDATED


cdef Record open_capture(int ordinal, uintptr_t origin, uint64_t capture, list kept, Record other, const uint64_t* pool):
    cdef Record record = Record.__new__(Record)
    record.ordinal = ordinal
    record.origin = origin
    record.capture = capture
    record.kept = kept
    record.pool[0], record.pool[1] = pool[0], pool[1]
    record.outer = other
    captures.append(record)
    set_latest(record)
    return record


cdef void set_latest(Record record) noexcept:
    global latest
    begin_turn(&latest_lock)
    before = latest  # no-cython-lint  it is to die behind the lock
    latest = record
    end_turn(&latest_lock)


cdef int close_capture(Record record) except -1:
    if latest is record:
        set_latest(None)
    try:
        captures.remove(record)
    except ValueError:  # it is closed already
        pass
    return 0


# --- what is kept --------------------------------------------------------------------------------------------

cdef Record record_on(int device, uintptr_t stream):
    cdef Record record
    begin_turn(&latest_lock)
    record = latest
    end_turn(&latest_lock)
    if record is None or record.origin != stream or record.ordinal != device:
        record = find_record(device, stream)
    return outermost(record)


cdef inline Record outermost(Record record):
    while record is not None and record.outer is not None:
        record = record.outer
    return record


cdef Record find_record(int device, uintptr_t stream):
    cdef Record record
    cdef bint captured
    for record in list(captures):  # another thread may end a capture, here and below
        if record.origin == stream and record.ordinal == device:
            return record
    return ask_driver(device, stream, &captured) if captures else None


cdef Record ask_driver(int device, uintptr_t stream, bint* out_captured):
    # An owner that is not kept although the capture goes on would be a node's dangling pointer, so this may raise.
    cdef Record record
    cdef uint64_t capture = 0
    cdef int status = 0
    cdef int code
    out_captured[0] = False
    with nogil:  # another thread's copy may hold the driver's lock until a function of Python's has run
        code = registry.active().capture_status(device, stream, &status, &capture)
    if code == CAPTURE_IMPLICIT:  # the legacy stream while another one captures: it does not capture itself
        return None
    if code:
        raise_status(code, "capture_status", ("device", device, "stream", stream))
    out_captured[0] = status == CAPTURE_ACTIVE
    if out_captured[0]:
        for record in list(captures):
            if record.capture == capture:
                return record
    return None


cdef int keep_where_captured(int device, uintptr_t stream, object owner) except -1:
    cdef bint captured = False
    cdef Record record = ask_driver(device, stream, &captured)
    if record is None:
        return OTHERS if captured else UNCAPTURED
    record.kept.append(owner)
    return KEPT


def capture_of(int device, uintptr_t stream) -> tuple[bool, Record | None]:
    """Tells whether a stream captures, and the Record of the graph of accelrt's that it captures for, or None."""
    cdef bint captured = False
    cdef Record record = ask_driver(device, stream, &captured)
    return captured, outermost(record)


cdef int note_source(Record record, uintptr_t source) except -1:
    # The third is the first that needs the map.
    cdef uintptr_t oldest = record.recent[1]
    if oldest:
        if map_reserve(&record.sources):
            raise MemoryError("no host memory to note what a capture keeps alive")
        map_insert(&record.sources, oldest, <void*>oldest)
    record.recent[1] = record.recent[0]
    record.recent[0] = source
    return 0


@cython.critical_section
cdef int keep_side_slow(Record record, object source, object keeper, int ordinal, uintptr_t address) except -1:
    cdef uintptr_t key = <uintptr_t><void*>source
    cdef PoolUse use
    cdef Side side
    if map_find(&record.sources, key) != NULL:
        return 1
    use = pool_of(ordinal, address)
    if use is not None:
        note_pool(record, use)
        if use.id[0] == record.pool[0] and use.id[1] == record.pool[1] and ordinal == record.ordinal:
            if not is_lent(address):  # else a pool on top of it may hand it to others
                return 0  # it stays the graph's, which may use it for several things one after the other
    record.kept.append(source if keeper is None else keeper)
    note_source(record, key)
    side = Side.__new__(Side)
    side.ordinal, side.address = side_ordinal(ordinal, address), address
    record.kept.append(side)
    return 1


cdef int side_ordinal(int ordinal, uintptr_t address) noexcept:
    return ordinal if ordinal >= 0 else PINNED if is_cached_pinned(address) else OTHER_HOST


cdef PoolUse pool_of(int ordinal, uintptr_t address):
    # Most memory is no private pool's, which is seen without a lock.
    cdef const Heap* heap = heap_at(address) if ordinal >= 0 else NULL
    cdef PoolUse use
    cdef bint private
    if heap == NULL or heap.owner == NULL:
        return None
    use = PoolUse.__new__(PoolUse)
    use.ordinal = ordinal
    with nogil:
        private = in_private(ordinal, address, use.id)
    return use if private else None


cdef int note_pool(Record record, PoolUse use) except -1:
    # Notes each pool once.
    name = (use.ordinal, use.id[0], use.id[1])
    if record.pools is None:
        record.pools = set()
    if name not in record.pools:
        record.kept.append(use)
        record.pools.add(name)
    return 0


cdef int note_side(int ordinal, uintptr_t address, int device, uintptr_t stream) except -1:
    cdef int code = NOT_ALLOCATED
    if ordinal == PINNED:
        code = use_pinned_on(address, device, stream)  # a spin lock, held for bookkeeping alone
    elif ordinal >= 0:  # most uses are known, which is seen without a wait
        code = try_use_across(ordinal, address, device, stream)
        if code == NOT_READY:
            with nogil:
                code = use_across(ordinal, address, device, stream)
    if code == 0:
        watch.note_use_on(address, device, stream)
    if code == NO_HOST_MEMORY:
        raise_status(code, "record_stream", ("ptr", address, "stream", stream))
    return code != 0


cdef bint note_sides(list things, int device, uintptr_t stream) except *:
    cdef bint others = False
    for thing in things or ():
        if isinstance(thing, Side):
            others = note_side((<Side>thing).ordinal, (<Side>thing).address, device, stream) or others
    return others


# --- what breaks them ----------------------------------------------------------------------------------------

cdef tuple place_of_caller():
    # The innermost line of Python that is not accelrt's own.
    import threading

    frame = sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "accelrt":
        frame = frame.f_back
    scene = f"in {frame.f_code.co_name}, thread {threading.current_thread().name}"
    return f"{frame.f_code.co_filename}:{frame.f_lineno}", scene


cdef object cause_of(Record record):
    text, call, place, scene = record.breakage
    return errors.CaptureError(
        f"{text}; this broke the capture, at {place}, {scene}", CAPTURE_INVALID, "STREAM_CAPTURE_INVALIDATED", call,
    )


def note_error(error: BaseException) -> None:
    """Sees every error of a driver call before it is raised: notes which captures it broke, and lets an error that
    an earlier one is the cause of say so."""
    cdef Record record
    if is_device_lost(error.code) and "logging" in sys.modules:
        tell_loss(error)
    for record in list(captures):
        if record.breakage is None and record.find_breakage():
            record.breakage = (str(error), error.call, *place_of_caller())
        elif record.breakage is not None and error.code == CAPTURE_INVALID and error.__cause__ is None:
            explain(error, record)


cdef int tell_loss(object error) except -1:
    # To the program's log; of what its handlers raise only what interrupts is raised here.
    try:
        later("accelrt.core.logs").tell_loss(error)
    except Exception as failure:
        PyErr_SetObject(type(failure), failure)
        PyErr_WriteUnraisable(None)
    return 0


cdef int explain(object error, Record record) except -1:
    error.__cause__ = cause_of(record)
    _, error.broken_by, error.broken_at, _ = record.breakage
    return 0


cdef str mode_name(int mode):
    return ("global", "thread_local", "relaxed")[mode]  # by the driver's numbers


cdef int raise_unbegun(int code, str call, object stream, int mode) except -1:
    if code != CAPTURE_INVALID:
        return raise_status(code, "capture_status", ("stream", stream))
    calls = "a wait for the device, or a question or a wait for this stream"
    advice = "keep such calls away and begin it anew"
    if mode == CAPTURE_GLOBAL:
        calls += ", or another call that mode 'global' forbids"
        advice += ", or pass capture_error_mode='thread_local'"
    raise errors.CaptureError(
        f"{call}(stream={stream!r}, mode={mode_name(mode)!r}) answered STREAM_CAPTURE_INVALIDATED ({code}): a call of "
        f"another thread broke the capture as soon as it began: {calls}; {advice}",
        code, "STREAM_CAPTURE_INVALIDATED", call,
    )


cdef int raise_broken(Record record, int code, str call, tuple arguments) except -1:
    error = status_error(code, call, arguments)
    if record.breakage is None or not isinstance(error, errors.CaptureError):
        raise error
    _, broken_by, place, scene = record.breakage
    error.args = (f"{error}; the call that broke it was {broken_by} at {place}, {scene}",)
    explain(error, record)
    raise error


watch_errors(note_error)


# --- release queue ----------------------------------------------------------------------------------------------------
# Driver objects on their way out.
#
# A destructor can run anywhere: in another thread's capture, on a driver that refuses just now, in a host function,
# where a call of the driver may wait for the function's own end, at the interpreter's exit.  What cannot be given
# back at once waits here and is tried again by drain, which synchronising calls, empty_cache and the end of a
# capture make.

cdef extern from *:
    """
    static __thread int accelrt_in_host_function;
    """
    int in_host_function "accelrt_in_host_function"

cdef struct Waiting:
    int kind
    int device
    uintptr_t handle
    uint64_t capture  # of a CAPTURE
    Use use           # of REPLAYS: the stream's
    PyObject* kept    # likewise, a reference
    Waiting* next

cdef extern from *:
    const int ACQ_REL "__ATOMIC_ACQ_REL"
    Waiting* load_waiting "accelrt_load_pointer" (Waiting** place) noexcept nogil
    Waiting* exchange_waiting "__atomic_exchange_n" (Waiting** place, Waiting* entry, int order) noexcept nogil
cdef Waiting* waiting = NULL  # written in turn; whether there is any, allocations of all threads look
cdef int waiting_lock = 0
cdef draining drain_more = NULL


cdef bint any_waits() noexcept:
    return load_waiting(&waiting) != NULL


cdef int give_back(int kind, int device, uintptr_t handle) noexcept nogil:
    # A driver refuses some of these beside a capture, and breaks the capture, unless the caller is relaxed.
    cdef int mode, code
    if kind == DEVICE_BYTES or kind == HOST_BYTES:
        # A refusal can only mean that the process was forked, or that the bytes are gone already.
        if kind == DEVICE_BYTES:
            release(device, handle)
        else:
            release_pinned(handle)
        return 0
    if kind == GRAPH:
        return registry.active().graph_destroy(handle)
    if kind == EVENT:
        return registry.active().event_destroy(device, handle)
    code = go_relaxed(registry.active(), &mode)
    if code:
        return code
    if kind == GRAPH_EXEC:
        code = registry.active().graph_exec_destroy(handle)
    elif kind == MODULE:
        code = registry.active().module_unload(device, handle)
    elif kind == ARRAY:
        code = registry.active().array_destroy(device, handle)
    elif kind == MIPMAP:
        code = registry.active().mipmap_destroy(device, handle)
    elif kind == TEXTURE or kind == SURFACE:
        code = registry.active().texture_destroy(device, handle, kind == SURFACE)
    else:
        code = registry.active().host_unregister(device, handle)
    restore_mode(registry.active(), mode)
    return code


cdef void dispose(int kind, int device, uintptr_t handle) noexcept:
    cdef Waiting* entry
    cdef int code = NOT_READY
    if not in_host_function:
        with nogil:
            code = give_back(kind, device, handle)
    if code and code != FORKED:
        entry = new_waiting(kind, device, handle)
        if entry != NULL:
            add_waiting(entry)


cdef void follow_capture() noexcept nogil:
    if not in_host_function:
        record_deferred_uses()
        record_deferred_pinned()


cdef bint still_in(int device, uintptr_t stream, uint64_t named) noexcept nogil:
    # Whether the stream is in the capture that had that id, 0 for a broken one, a moment ago.
    cdef uint64_t current = 0
    cdef int status = CAPTURE_NONE
    cdef int code = registry.active().capture_status(device, stream, &status, &current)
    return code != 0 or (status != CAPTURE_NONE and current == named)


cdef int end_capture(int device, uintptr_t stream, uint64_t capture, uintptr_t* out_graph) noexcept nogil:
    # Answers 0 where the stream is not in that capture any more, whichever thread ended it.  The driver names an
    # active capture only; a broken one has to be ended whichever it is, and is over although the driver says why.
    cdef uint64_t current = 0
    cdef int status = CAPTURE_NONE
    cdef int code = registry.active().capture_status(device, stream, &status, &current)
    if code or status == CAPTURE_NONE or (status == CAPTURE_ACTIVE and capture and current != capture):
        return code
    code = registry.active().capture_end(device, stream, out_graph)
    return code if code and still_in(device, stream, current) else 0


cdef int end_capture_again(int device, uintptr_t stream, uint64_t capture, uintptr_t* out_graph) noexcept nogil:
    # No other capture begins meanwhile, which on the same stream might be taken for this one.
    cdef int code = NOT_READY
    if enter_wait():
        code = end_capture(device, stream, capture, out_graph)
        leave_wait()
    return code


cdef void dispose_capture(int kind, int device, uintptr_t stream, uint64_t capture) noexcept:
    cdef uintptr_t graph = 0
    cdef int code = NOT_READY
    if not in_host_function:
        with nogil:
            code = end_capture(device, stream, capture, &graph)
    close_disposal(kind, device, stream, capture, graph, code)


cdef void dispose_capture_again(const Waiting* entry) noexcept:
    cdef uintptr_t graph = 0
    cdef int code
    with nogil:
        code = end_capture_again(entry.device, entry.handle, entry.capture, &graph)
    close_disposal(entry.kind, entry.device, entry.handle, entry.capture, graph, code)


cdef void close_disposal(int kind, int device, uintptr_t stream, uint64_t capture, uintptr_t graph, int code) noexcept:
    cdef Waiting* entry
    if graph and kind == CAPTURE:  # a body belongs to its node
        dispose(GRAPH, device, graph)
    if code and code != FORKED:
        entry = new_waiting(kind, device, stream)
        if entry != NULL:
            entry.capture = capture
            add_waiting(entry)


cdef Waiting* new_waiting(int kind, int device, uintptr_t handle) noexcept:
    # To be filled in and added.
    cdef Waiting* entry = <Waiting*>calloc(1, sizeof(Waiting))
    if entry == NULL:
        return NULL  # without 64 bytes for the note the handle is lost, and so, soon, is the process
    entry.kind = kind
    entry.device = device
    entry.handle = handle
    return entry


cdef void add_waiting(Waiting* entry) noexcept:
    begin_turn(&waiting_lock)
    entry.next = exchange_waiting(&waiting, entry, ACQ_REL)
    end_turn(&waiting_lock)


# --- what replays use ----------------------------------------------------------------------------------------

cdef int mark(Use* use) noexcept nogil:
    # Puts an event behind the stream's work, unless there is none.
    cdef int code = ask_stream(registry.active(), use.device, use.stream)
    if meaning_of(code) == GONE and not is_device_lost(code) and not is_idle_or_gone(
            registry.active(), use.device, use.stream):
        code = NOT_READY
    if code == NOT_READY:
        code = mark_use(registry.active(), use)
        return code if code else NOT_READY
    return code


cdef bint passed(Use* use) noexcept nogil:
    # A stream that is gone, or whose device failed, uses nothing more; and what cannot be asked now is asked again.
    cdef int code = NOT_READY
    if use.event != NULL:
        code = ask_use(registry.active(), use, False)
    if code == NOT_READY and use.event == NULL:
        code = mark(use)
    return code == 0 or meaning_of(code) == GONE or is_device_lost(code)


cdef void keep_until_passed(int device, uintptr_t stream, object owner) noexcept:
    cdef Use use = Use(stream, device, 0, 0, NULL, NULL)
    cdef Waiting* entry
    cdef bint over = False
    if not in_host_function:
        with nogil:
            over = passed(&use)
    if over:
        return
    Py_INCREF(owner)  # for good, where there is no memory for the note
    entry = new_waiting(REPLAYS, device, stream)
    if entry != NULL:
        entry.use = use
        entry.kept = <PyObject*>owner
        add_waiting(entry)


def keep_until_past(device: int, stream: int, owner: object) -> None:
    """Keeps an object until a stream, by its handle, is past the work that it has; nothing waits."""
    keep_until_passed(device, stream, owner)


cdef void drain() noexcept:
    cdef Waiting *entry, *left = NULL
    if any_capture() or in_host_function:
        return
    if any_waits():  # else nothing is written that other threads read
        begin_turn(&waiting_lock)
        left = exchange_waiting(&waiting, NULL, ACQ_REL)
        end_turn(&waiting_lock)
    while left != NULL:
        entry, left = left, left.next
        if entry.kind == REPLAYS:
            retry_replays(entry)
            continue
        if entry.kind == CAPTURE or entry.kind == BODY:
            dispose_capture_again(entry)
        else:
            dispose(entry.kind, entry.device, entry.handle)
        free(entry)
    with nogil:
        if drain_more != NULL:
            drain_more()
        tidy_pinned()  # what it is refused stays pending, and the next miss is told


cdef void retry_replays(Waiting* entry) noexcept:
    cdef bint over
    with nogil:
        over = passed(&entry.use)
    if not over:
        add_waiting(entry)
        return
    Py_DECREF(<object>entry.kept)
    free(entry)


cdef void drain_too(draining more) noexcept:
    global drain_more
    begin_turn(&waiting_lock)
    drain_more = more
    end_turn(&waiting_lock)


# --- objects by handle ---------------------------------------------------------------------------------------

cdef long[MAX_DEVICES] bytes_of_arrays
cdef long[MAX_DEVICES] count_of_arrays
cdef dict live_arrays = {}  # of these, (device, handle) -> what reports tell of one
array_bytes = bytes_of_arrays


cdef int add_array(DriverObject held, dict facts) except -1:
    live_arrays[held.device, held.handle] = facts
    count_array(held, 1)
    return 0


cdef void count_array(DriverObject held, long change) noexcept:
    add_count(&bytes_of_arrays[held.device], change * held.nbytes)
    add_count(&count_of_arrays[held.device], change)
    record_array(held.device, change > 0, held.handle, held.nbytes)


@cython.no_gc_clear  # what it is made of goes after it
cdef class DriverObject:
    """An array, a mipmap, a texture or a surface of the driver's, which goes when nothing has it any more."""

    def __dealloc__(self):
        if self.handle and not self.borrowed:
            # Before the driver may give the handle to another one; a forked child has none.
            if self.nbytes and live_arrays.pop((self.device, self.handle), None) is not None:
                count_array(self, -1)
            dispose(self.kind, self.device, self.handle)

    def __reduce__(self):
        refuse_copy(self, "it owns an object of the driver's")


@cython.no_gc_clear  # the destructor keeps the driver's object until the work is past
cdef class AccessDescriptor:
    """Tells work of memory in place of its address; it may be closed, or die, while work uses it."""

    def __dealloc__(self):
        self.let_go()

    def __reduce__(self):
        refuse_copy(self, "it is of this process's memory; make another")

    cdef void let_go(self) noexcept:
        if self.used_on is not None and self.held is not None:
            for stream in self.used_on:
                keep_until_passed(self.device_index, stream, self.held)
        self.held = None

    cdef int check_open(self, str name) except -1:
        if self.closed:
            raise ValueError(f"{name} is a {type(self).__name__} that was closed; make another, or close it later")
        return 0

    @cython.critical_section
    cdef int note_stream(self, uintptr_t stream, object keeper) except -1:
        self.used_on = add_stream(self.used_on, stream, keeper)
        return 0

    cdef int keep_with(self, Record record) except -1:
        cdef DriverObject held = self.held
        if held is not None:
            keep_side(record, <PyObject*>held, None, OTHER_HOST, held.handle)
        return 0

    def _describe(self, array: object, int device, uintptr_t address, data: bytes | None, bint writes) -> None:
        """Takes what a kernel is told, once, of an Array that begins at an address.

        Raises:
            RuntimeError: it was told before.
        """
        if self.held is not None or self.closed:
            raise RuntimeError(f"a {type(self).__name__} is made once; make another one")
        self.array, self.device_index, self.address = array, device, address
        self.data, self.writes = data, writes


def cuda_arrays(int device) -> list[dict[str, Any]]:
    """Lists the CUDA arrays that accelrt made and that have not gone yet, the largest first: handle, nbytes, shape, dtype
    (a name), channels, levels (0 but of mipmaps), kinds (words), and frames where history was recorded."""
    arrays = [{"handle": key[1], **facts} for key, facts in list(live_arrays.items()) if key[0] == device]
    return sorted(arrays, key=lambda array: -array["nbytes"])


# --- host func --------------------------------------------------------------------------------------------------------
# Python functions in a stream's order: cuLaunchHostFunc with a Python callable.
#
# A function runs on a thread of the driver.  What it raises is kept and raised by the next synchronize, or query that
# finds its work complete: the first function_errors with their tracebacks, the rest counted.  What no call has
# raised by the interpreter's exit goes to sys.unraisablehook.

cdef enum:
    MOST_ERRORS = 32      # that are kept; a traceback holds the variables of all its frames
    REFUSAL_NS = 1000000  # so that a thread which tries again and again leaves the GIL to the functions under way
    UNCOUNTED = -1

SHORT_TURN = 5e-5  # seconds
# stub: SHORT_TURN: float

cdef long outstanding = 0                   # runs enqueued from Python and not yet over
cdef long[MAX_DEVICES] outstanding_on       # of them, those of each device
cdef list function_errors = []     # of (error, function)
cdef long more_errors = 0  # that came later and were not kept
cdef object telling = object()  # in whose critical section the two are read and written
cdef bint is_exiting = False
cdef long closing = 0      # 1: the interpreter ends, so that no function runs any more


cdef class HostCall:
    """HostCall(function, device)\n--\n\n\
    A function on its way to a stream.  Each run that is enqueued holds a reference of its own, so that the
    function outlives a graph that dies while a launch of it is under way.  Launches by the Cython API hold
    none: there the caller keeps the graph."""

    cdef object function
    cdef int device
    cdef long runs     # enqueued from Python and not yet over, each with its reference
    cdef bint is_node  # of a graph that keeps it: every launch runs it
    cdef object mark   # its place in the order, for the race detector; None while that is off

    def __init__(self, function: Callable[[], object], int device) -> None:
        self.function = function
        self.device = device


cdef void count_run(int device, long change) noexcept nogil:
    add_count(&outstanding, change)
    add_count(&outstanding_on[device], change)


@cython.critical_section
cdef void begin_run(HostCall host_call) noexcept:
    Py_INCREF(host_call)
    host_call.runs += 1
    count_run(host_call.device, 1)


@cython.critical_section
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
    cdef bint new_state
    cdef int device
    if load_count(&closing) == 0:
        new_state = make_thread_state()
        with gil:
            drop_with_gil(new_state)
            device = call(<HostCall>data)
        if device != UNCOUNTED:
            count_run(device, -1)


cdef int call(HostCall host_call) noexcept:
    # What dies in it, its own reference too, waits: a host function must not call the driver.
    global in_host_function, more_errors
    cdef int device
    in_host_function += 1
    watch.note_run(host_call.mark, True)
    try:
        host_call.function()
    except BaseException as error:
        with cython.critical_section(telling):
            if len(function_errors) < MOST_ERRORS:
                function_errors.append((error, host_call.function))
            else:
                more_errors += 1
    watch.note_run(host_call.mark, False)
    device = end_run(host_call)
    in_host_function -= 1
    return device


cdef bint functions_wait() noexcept:
    return load_count(&outstanding) > 0


cdef list nodes_of(list kept):
    return [each for each in kept if isinstance(each, HostCall) and (<HostCall>each).is_node]


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
        pause(REFUSAL_NS)
    return raise_status(DEINITIALIZED, call, arguments)


cdef int enqueue_callback(int device, uintptr_t stream, object function) except -1:
    cdef HostCall host_call = HostCall(function, device)
    cdef int code
    if not callable(function):
        raise TypeError(f"a host function is called with nothing, but {function!r} cannot be called")
    if is_exiting:
        refuse_at_exit("stream_host_func", ("device", device, "stream", stream, "fn", function))
    drain()
    cdef int keeping = keep_where_captured(device, stream, host_call)
    if keeping == UNCAPTURED:
        begin_run(host_call)
    elif keeping == OTHERS:
        Py_INCREF(host_call)  # for good: their graph may launch it at any time, and nothing says when it is destroyed
    host_call.mark = watch.note_host_function(device, stream)
    cdef void* data = <void*>host_call
    with nogil:
        code = registry.active().stream_host_func(device, stream, run, data)
    if code:
        if keeping == UNCAPTURED:
            take_back_run(host_call)
        elif keeping == OTHERS:
            Py_DECREF(host_call)
        raise_status(code, "stream_host_func", ("device", device, "stream", stream, "fn", function))
    host_call.is_node = keeping == KEPT
    return 0


cdef object node_call(object function, int device, host_fn* out_fn):
    cdef HostCall host_call
    if not callable(function):
        raise TypeError(f"a host function is called with nothing, but {function!r} cannot be called")
    host_call = HostCall(function, device)
    host_call.is_node = True
    out_fn[0] = run
    return host_call


cdef object find_call(list kept, const void* address):
    for each in kept:
        if <const void*>each == address and isinstance(each, HostCall):
            return each
    return None


cdef object function_of(object host_call):
    return (<HostCall>host_call).function


cdef int raise_callback_errors() except -1:
    if function_errors:
        error = take_errors()
        if error is not None:  # unless another thread was faster
            raise error
    return 0


cdef object take_errors():
    global more_errors
    cdef list raised
    cdef long more
    with cython.critical_section(telling):
        raised = [error for error, _ in function_errors]
        more = more_errors
        del function_errors[:len(raised)]  # more may have come
        more_errors -= more
    if len(raised) < 2 and more == 0:
        return raised[0] if raised else None  # another thread was faster
    text = f"{len(raised) + more} host functions raised"
    return BaseExceptionGroup(text + f"; the first {len(raised)} are here" if more else text, raised)


cdef void show_error(object error, object function) noexcept:
    PyErr_SetObject(type(error), error)
    PyErr_WriteUnraisable(function)


cdef void show_errors() noexcept:
    global more_errors
    while function_errors:
        error, function = function_errors.pop(0)
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


def finish_host_functions() -> None:
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


def forget_in_child() -> None:
    """In a forked child, where the parent's functions do not run: the parent tells what they raised."""
    global more_errors, is_exiting
    function_errors.clear()
    live_arrays.clear()
    more_errors = 0
    store_count(&outstanding, 0)
    memset(outstanding_on, 0, sizeof(outstanding_on))
    is_exiting = False
    store_count(&closing, 0)


# --- streams that are handed out again --------------------------------------------------------------------------------
# A Stream that dies returns its driver stream, and nogil code the handle that it took; it is handed out again only when
# its work is complete.  So no two holders share a stream, and none is destroyed while the allocator still has memory
# filed under it.  That memory serves the next holder of the stream.  The driver is asked whether the work is complete only
# where there may be some: a stream whose holder did nothing with it is as idle as before.

cdef struct Returned:  # streams of one device, kind and priority, the one returned first at the front
    PooledStream* first
    PooledStream* last

cdef enum:
    LEVELS = 8       # priorities kept apart
    MAX_QUERIES = 4  # a request: one stream that is busy for long must not hide the others

cdef Returned[MAX_DEVICES][2][LEVELS] returned  # the second index is the streams' flags; under the lock
cdef AddressMap streams                      # handle -> PooledStream, of all; under the lock
cdef AddressMap events                       # handle -> PooledEvent, of those that nogil code has; under the lock
cdef long event_holders = 0                  # Events that have a PooledEvent; in turn
cdef int pool_lock = 0                       # held for no call of the driver's


cdef inline Returned* returned_like(int device, unsigned int flags, int priority) noexcept nogil:
    return &returned[device][flags][-priority & (LEVELS - 1)]


cdef PooledStream* pop(Returned* queue) noexcept nogil:
    # The stream that was returned first, or NULL.  Takes the lock.
    cdef PooledStream* pooled
    spin_lock(&pool_lock)
    pooled = queue.first
    if pooled != NULL:
        queue.first = pooled.next
        pooled.idle = False
    spin_unlock(&pool_lock)
    return pooled


cdef void push_locked(PooledStream* stream) noexcept nogil:
    cdef Returned* queue = returned_like(stream.device, stream.flags, stream.priority)
    if stream.sharers:  # one of its holders is gone
        stream.sharers -= 1
        return
    stream.idle = True
    stream.next = NULL
    if queue.first == NULL:
        queue.first = stream
    else:
        queue.last.next = stream
    queue.last = stream


cdef void return_stream(PooledStream* stream, bint used) noexcept nogil:
    spin_lock(&pool_lock)
    if used:
        stream.used = True
    push_locked(stream)
    spin_unlock(&pool_lock)


cdef PooledStream* share_stream(int device, uintptr_t stream, int* out_code) noexcept nogil:
    # Takes the lock.
    cdef PooledStream* pooled
    out_code[0] = 0
    spin_lock(&pool_lock)
    pooled = <PooledStream*>map_find(&streams, stream)
    if pooled != NULL and (pooled.idle or pooled.device != device):
        out_code[0] = INVALID_HANDLE
        pooled = NULL
    elif pooled != NULL:
        pooled.sharers += 1
    spin_unlock(&pool_lock)
    return pooled


cdef int take_idle(
    int device, unsigned int flags, int priority, PooledStream** out_stream, const char** out_row
) noexcept nogil:
    # A stream whose work is complete; NOT_READY where the ones that were queried are busy, which go to the end, or
    # where there is none.  A stream is not in the pool while it is queried, so that no other thread takes it too.
    cdef Returned* queue = returned_like(device, flags, priority)
    cdef PooledStream* stream
    cdef bint is_last
    cdef int code, _query
    for _query in range(MAX_QUERIES):
        stream = pop(queue)
        if stream == NULL:
            return NOT_READY
        is_last = stream.next == NULL
        out_stream[0] = stream
        if not stream.used:
            return 0
        code = query_uncaptured(registry.active(), device, stream.handle, out_row)
        if code == 0:
            stream.used = False
            return 0
        return_stream(stream, True)
        if is_last or code != NOT_READY:  # the device's work failed, which the caller has to hear
            return code
    return NOT_READY


cdef int take_idle_after_end(
    int device, int flags, int priority, PooledStream** out_stream, const char** out_row
) noexcept nogil:
    # The same, once no capture ends: beside one nothing can be asked, and each such moment would cost a stream more.
    cdef Slot* asker = enter_asking(False)
    cdef int code = take_idle(device, flags, priority, out_stream, out_row)
    leave_asking(asker)
    return code


cdef int enlist(AddressMap* holders, uintptr_t handle, void* pooled) noexcept nogil:
    # Takes the lock.
    cdef int code
    spin_lock(&pool_lock)
    code = map_reserve(holders)
    if code == 0:
        map_insert(holders, handle, pooled)
    spin_unlock(&pool_lock)
    return code


cdef int make_stream(int device, unsigned int flags, int priority, PooledStream** out_stream) noexcept nogil:
    # Takes the lock, but not for the driver's call, which may wait.
    cdef PooledStream* stream = <PooledStream*>calloc(1, sizeof(PooledStream))
    cdef int code
    if stream == NULL:
        return NO_HOST_MEMORY
    stream.device = device
    stream.flags = flags
    stream.priority = priority
    code = registry.active().stream_create(device, flags, priority, &stream.handle)
    if code == 0:
        code = enlist(&streams, stream.handle, stream)
        if code:
            registry.active().stream_destroy(device, stream.handle)
    if code:
        free(stream)
        return code
    trust_stream(stream.handle)  # where that fails, its memory serves no other stream
    out_stream[0] = stream
    return 0


cdef PooledStream* take_stream(int device, unsigned int flags, int priority) except NULL:
    # The GIL is released where a copy of another thread's may hold a lock of the driver's until a function of Python's
    # has run.
    cdef PooledStream* pooled = NULL
    cdef const char* row = NULL
    cdef int code
    if functions_wait():
        with nogil:
            code = take_idle(device, flags, priority, &pooled, &row)
    else:
        code = take_idle(device, flags, priority, &pooled, &row)
    if code == NOT_READY:
        with nogil:
            code = take_idle_after_end(device, flags, priority, &pooled, &row)
    if code == NOT_READY:
        with nogil:
            code = make_stream(device, flags, priority, &pooled)
        if code:
            raise_status(code, "stream_create", ("device", device, "flags", flags, "priority", priority))
    elif code:
        raise_status(code, row.decode(), ("stream", pooled.handle))
    watch.note_stream(device, pooled.handle)
    return pooled


# --- streams by handles, without the GIL ---------------------------------------------------------------------

cdef int clamp_priority(int device, int* priority) noexcept nogil:
    cdef int least = 0, greatest = 0
    cdef int code
    if priority[0] == 0:
        return 0
    code = registry.active().stream_priority_range(device, &least, &greatest)
    priority[0] = max(greatest, min(least, priority[0]))
    return code


cdef int take_handle(int device, int priority, uintptr_t* out_stream) noexcept nogil:
    # Takes the lock.
    cdef PooledStream* pooled = NULL
    cdef const char* row = NULL
    cdef int code = clamp_priority(device, &priority)
    out_stream[0] = 0
    if code:
        return code
    code = take_idle_after_end(device, STREAM_NON_BLOCKING, priority, &pooled, &row)
    if code == NOT_READY:
        code = make_stream(device, STREAM_NON_BLOCKING, priority, &pooled)
    if code:
        return code
    spin_lock(&pool_lock)
    pooled.by_handle = True
    pooled.used = True
    spin_unlock(&pool_lock)
    out_stream[0] = pooled.handle
    return 0


cdef int return_handle(int device, uintptr_t stream) noexcept nogil:
    # Takes the lock.
    cdef PooledStream* pooled
    cdef int code = INVALID_HANDLE
    spin_lock(&pool_lock)
    pooled = <PooledStream*>map_find(&streams, stream)
    if pooled != NULL and pooled.by_handle and pooled.device == device:
        pooled.by_handle = False
        push_locked(pooled)
        code = 0
    spin_unlock(&pool_lock)
    return code


cdef size_t streams_in_use() noexcept nogil:
    # Takes the lock.
    cdef const PooledStream* stream
    cdef size_t count
    cdef Returned* queue = &returned[0][0][0]
    cdef int index
    spin_lock(&pool_lock)
    count = streams.count
    for index in range(MAX_DEVICES * 2 * LEVELS):
        stream = queue[index].first
        while stream != NULL:
            count -= 1
            stream = stream.next
    spin_unlock(&pool_lock)
    return count


# --- events, of Events and by handles ------------------------------------------------------------------------
# Their own pool, by device and flags, is that of driver/guard.pyx.

cdef PooledEvent* take_for_event(int device, unsigned int flags, bint fresh) except NULL:
    cdef PooledEvent* event = NULL if fresh else take_spare(device, flags)
    cdef int code
    if event == NULL:
        with nogil:
            code = make_event(registry.active(), device, flags, &event)
        if code:
            raise_status(code, "event_create", ("device", device, "flags", flags))
    add_in_turn(&event_holders, 1)
    return event


cdef void return_from_event(PooledEvent* event) noexcept:
    # An interprocess event is destroyed: what another process did with it is unknown.  So is one that was captured: the
    # graph may be another library's, or wait to be destroyed itself.
    add_in_turn(&event_holders, -1)
    if event.flags & EVENT_INTERPROCESS or event.captured:
        dispose(EVENT, event.device, event.handle)
        free(event)
    else:
        return_event(event)


cdef long events_in_use() noexcept nogil:
    return event_holders + <long>events.count


cdef int take_event_handle(int device, unsigned int flags, uintptr_t* out_event) noexcept nogil:
    # Takes the lock, but not for the driver's call.
    cdef PooledEvent* event
    cdef int code = take_event(registry.active(), device, flags, &event)
    out_event[0] = 0
    if code:
        return code
    code = enlist(&events, event.handle, event)
    if code:
        return_event(event)
        return code
    out_event[0] = event.handle
    return 0


cdef int return_event_handle(int device, uintptr_t event) noexcept nogil:
    # Takes the lock, but not for the driver's call.
    cdef PooledEvent* pooled
    spin_lock(&pool_lock)
    pooled = <PooledEvent*>map_find(&events, event)
    if pooled != NULL and pooled.device == device:
        map_remove(&events, event)
    else:
        pooled = NULL
    spin_unlock(&pool_lock)
    if pooled == NULL:
        return INVALID_HANDLE
    release_event(registry.active(), pooled)
    return 0


cdef void note_record(int device, uintptr_t event, uintptr_t stream) noexcept nogil:
    # Takes the lock, but not for the driver's call.
    cdef PooledEvent* pooled
    cdef int code
    if not is_capturing(registry.active(), device, stream, &code):
        return
    spin_lock(&pool_lock)
    pooled = <PooledEvent*>map_find(&events, event)
    if pooled != NULL:
        pooled.captured = True
    spin_unlock(&pool_lock)


# --- what is live at the end of the process ------------------------------------------------------------------------
# The report of ACCELRT_LEAKS: device memory, page-locked memory, streams, events, and private pools with their MemPools and
# graphs.
#
# What the interpreter frees as it ends, such as the variables of modules, is no leak, so the report is made by C code that
# runs after that (Py_AtExit), when there is no Python any more.  What Python knows of each block, its stack, its tag and the
# object that owns it, is written down before, when the exit begins (memory/live.py).

cdef extern from "Python.h":
    int Py_AtExit(void (*function)() noexcept nogil)

cdef extern from "<unistd.h>" nogil:
    int getpid()

cdef enum:
    SHOWN = 20  # blocks and pools of a device that are listed

# stub: LEAKS_SHOWN: int
LEAKS_SHOWN = SHOWN

cdef AddressMap notes          # address -> what Python knew of the block there, a C string
cdef LiveBlock[MAX_DEVICES][SHOWN] reachable  # when the exit began, by device, the largest first
cdef size_t[MAX_DEVICES] reachable_count
cdef size_t reachable_blocks = 0  # that were live when the exit began; those that are not at its end, Python freed
cdef size_t reachable_bytes = 0
cdef int reporting_process = 0  # that asked for the report; 0: none did


def handles_in_use() -> tuple[int, int]:
    """Counts the streams and events in use, of Streams, Events and nogil code, on all devices: (streams, events)."""
    cdef size_t streams_taken
    cdef long events_taken
    with nogil:
        streams_taken, events_taken = streams_in_use(), events_in_use()
    return streams_taken, max(events_taken, 0)


def report_live_at_exit() -> bool:
    """Has this process report what is live once the interpreter has ended; False where it has no room for that."""
    global reporting_process
    if reporting_process == 0 and Py_AtExit(&report_at_exit):
        return False
    reporting_process = getpid()
    return True


def reports_live_at_exit() -> bool:
    """Tells whether this process is to report; a child of a fork has none of its parent's."""
    return reporting_process == getpid()


def forget_reachable() -> None:
    """Begins the list of what is live as the exit begins."""
    global reachable_blocks, reachable_bytes
    reachable_blocks = reachable_bytes = 0
    memset(reachable_count, 0, sizeof(reachable_count))


# stub: def add_reachable(ordinal: int, block: dict[str, Any], text: bytes) -> None: ...
def add_reachable(int ordinal, dict block, bytes text) -> None:
    """Adds a block that is live as the exit begins, a device's largest first, and what Python knows of it."""
    global reachable_blocks, reachable_bytes
    cdef LiveBlock entry = LiveBlock(block["address"], block["size"], block["stream"])
    cdef char* copy
    reachable_blocks += 1
    reachable_bytes += entry.size
    if reachable_count[ordinal] < SHOWN:
        reachable[ordinal][reachable_count[ordinal]] = entry
        reachable_count[ordinal] += 1
    if text and not map_reserve(&notes):
        copy = strdup(text)
        free(map_remove(&notes, entry.address))
        if copy != NULL:
            map_insert(&notes, entry.address, copy)


cdef int headed = 0  # whether the report's first line is written


cdef void head() noexcept nogil:
    global headed
    if not headed:
        fprintf(stderr, "accelrt: still live at the end of process %d (ACCELRT_LEAKS):\n", getpid())
    headed = 1


cdef void print_size(size_t size) noexcept nogil:
    if size >> 20:
        fprintf(stderr, "%.2f MiB", size / 1048576.0)
    else:
        fprintf(stderr, "%zu bytes", size)


cdef const char* plural(long long count) noexcept nogil:
    if count == 1:
        return ""
    return "s"


cdef void report_block(const LiveBlock* block) noexcept nogil:
    cdef const char* note = <const char*>map_find(&notes, block.address)
    fprintf(stderr, "    ")
    print_size(block.size)
    fprintf(stderr, " at %#zx, stream %#zx", <size_t>block.address, <size_t>block.stream)
    if note != NULL:
        fprintf(stderr, ": %s", note)
    fprintf(stderr, "\n")


cdef size_t live_blocks_left = 0
cdef size_t live_bytes_left = 0


cdef void report_memory(int device) noexcept nogil:
    global live_blocks_left, live_bytes_left
    cdef LiveBlock[SHOWN] blocks
    cdef size_t count = 0, total = 0, index
    if not list_live(device, blocks, SHOWN, &count, &total):
        head()
        fprintf(stderr, "  device %d: not read, since another thread is inside its allocator\n", device)
        return
    if count == 0:
        return
    head()
    live_blocks_left += count
    live_bytes_left += total
    fprintf(stderr, "  device %d: ", device)
    print_size(total)
    fprintf(stderr, " of memory in %zu block%s\n", count, plural(count))
    if pool_if_made(device) != NULL and pool_if_made(device).external != NULL:
        return
    for index in range(min(count, <size_t>SHOWN)):
        report_block(&blocks[index])
    if count > SHOWN:
        fprintf(stderr, "    and %zu smaller ones\n", count - SHOWN)


cdef void report_pools(int device) noexcept nogil:
    cdef LivePool[SHOWN] pools
    cdef size_t index, count = list_live_pools(device, pools, SHOWN)
    for index in range(count):
        head()
        fprintf(stderr, "  device %d, pool (%llu, %llu): %d graphs, %d MemPools; reserved ", device, pools[index].first,
                pools[index].second, pools[index].graphs, pools[index].users)
        print_size(pools[index].reserved)
        fprintf(stderr, ", live ")
        print_size(pools[index].live)
        fprintf(stderr, "\n")


cdef void report_reachable() noexcept nogil:
    # Reports the rest of what was live when the exit began.
    cdef size_t blocks
    cdef int device
    if not headed:
        fprintf(stderr, "accelrt: nothing is live at the end of process %d (ACCELRT_LEAKS)\n", getpid())
    if reachable_blocks <= live_blocks_left or reachable_bytes < live_bytes_left:
        return
    blocks = reachable_blocks - live_blocks_left
    fprintf(stderr, "  still reachable when the exit began, and freed by it: ")
    print_size(reachable_bytes - live_bytes_left)
    fprintf(stderr, " of memory in %zu block%s\n", blocks, plural(blocks))
    for device in range(MAX_DEVICES):
        if reachable_count[device]:
            report_freed(device)


cdef void report_freed(int device) noexcept nogil:
    # The largest blocks that the exit freed, and who held them.
    cdef LiveBlock[SHOWN] left
    cdef size_t count = 0, total = 0, index, other
    if not list_live(device, left, SHOWN, &count, &total):
        return
    for index in range(reachable_count[device]):
        for other in range(min(count, <size_t>SHOWN)):
            if left[other].address == reachable[device][index].address:
                break
        else:
            report_block(&reachable[device][index])


cdef void report_at_exit() noexcept nogil:
    cdef PinnedStats pinned
    cdef size_t streams_left
    cdef long events_left
    cdef int device
    if reporting_process != getpid():  # a child of a fork has none of its parent's
        return
    for device in range(MAX_DEVICES):
        report_memory(device)
        report_pools(device)
        if count_of_arrays[device] > 0:
            head()
            fprintf(stderr, "  device %d: ", device)
            print_size(bytes_of_arrays[device])
            fprintf(stderr, " in %ld CUDA array%s\n", count_of_arrays[device], plural(count_of_arrays[device]))
    pinned = read_pinned_stats()
    if pinned.blocks.current:
        head()
        fprintf(stderr, "  page-locked memory: ")
        print_size(pinned.block_bytes.current)
        fprintf(stderr, " in %lld block%s\n", pinned.blocks.current, plural(pinned.blocks.current))
    streams_left, events_left = streams_in_use(), events_in_use()
    if streams_left:
        head()
        fprintf(stderr, "  streams: %zu\n", streams_left)
    if events_left > 0:
        head()
        fprintf(stderr, "  events: %ld\n", events_left)
    report_reachable()


cdef void forget_in_fork() noexcept nogil:
    # The parent's objects, and a lock that another of its threads may have held.
    global waiting, pool_lock, event_holders, waiting_lock
    waiting = NULL
    pool_lock = waiting_lock = event_holders = 0
    memset(returned, 0, sizeof(returned))
    memset(&streams, 0, sizeof(streams))
    memset(&events, 0, sizeof(events))
    memset(bytes_of_arrays, 0, sizeof(bytes_of_arrays))
    memset(count_of_arrays, 0, sizeof(count_of_arrays))


at_fork("runtime.lifetimes", FORK_RUNTIME, NULL, NULL, &forget_in_fork)
call_at_exit("runtime.lifetimes", "host functions", finish_host_functions)
call_at_fork("runtime.lifetimes", "runtime", child=forget_in_child)
