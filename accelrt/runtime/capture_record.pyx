"""Captures under way: what their nodes point at has to live as long as the graph, and what broke them has to be told."""
import sys
from collections import namedtuple

from accelrt import errors
from accelrt.core.handle_map cimport map_clear, map_find, map_insert, map_reserve
cimport accelrt.driver.registry as registry
from accelrt.driver.table cimport CAPTURE_ACTIVE, CAPTURE_GLOBAL, CAPTURE_INVALIDATED
from accelrt.allocator.pinned.pool cimport is_cached_pinned, use_pinned_on
from accelrt.allocator.pool cimport in_private, use_across
from accelrt.status import status_error, watch_errors
from accelrt.status cimport CAPTURE_IMPLICIT, CAPTURE_INVALID, NO_HOST_MEMORY, NOT_ALLOCATED, raise_status
cimport accelrt.runtime.sanitizer_hooks as watch

cdef list captures = []    # Records, the newest last: there are few; guarded by the GIL
cdef Record latest = None  # that began and is not over

# What broke a capture: the error's text, the row that answered it, "file:line", and the function and thread there.
Breakage = namedtuple("Breakage", "text call place scene")


cdef class Side:
    """Memory that a captured node reads or writes; kept with what keeps it alive."""


cdef class PoolUse:
    """A private pool, memory of which a captured node reads or writes."""


cdef class Record:
    """One capture, while it is under way."""

    def __dealloc__(self):
        map_clear(&self.sources)

    cdef bint find_breakage(self) noexcept:
        # Whether the driver says that it is broken.
        cdef int status = 0
        cdef int code
        with nogil:
            code = registry.active().stream_is_capturing(self.ordinal, self.origin, &status)
        return code == 0 and status == CAPTURE_INVALIDATED


cdef Record open_capture(int ordinal, uintptr_t origin, uint64_t capture, list kept, Record other):
    global latest
    cdef Record record = Record.__new__(Record)
    record.ordinal = ordinal
    record.origin = origin
    record.capture = capture
    record.kept = kept
    record.outer = other
    captures.append(record)
    latest = record
    return record


cdef int close_capture(Record record) except -1:
    global latest
    if latest is record:
        latest = None
    if record in captures:
        captures.remove(record)
    return 0


# --- what is kept --------------------------------------------------------------------------------------------

cdef Record record_on(int device, uintptr_t stream):
    cdef Record record = latest
    if record is None or record.origin != stream or record.ordinal != device:
        record = find_record(device, stream)
    while record is not None and record.outer is not None:
        record = record.outer
    return record


cdef Record find_record(int device, uintptr_t stream):
    cdef Record record
    for record in captures:
        if record.origin == stream and record.ordinal == device:
            return record
    return ask_for_record(device, stream)


cdef Record ask_for_record(int device, uintptr_t stream):
    cdef bint captured
    return ask_driver(device, stream, &captured) if captures else None


cdef Record ask_driver(int device, uintptr_t stream, bint* out_captured):
    # A thing that is not kept although the capture goes on would be a node's dangling pointer, so this may raise.
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
        for record in captures:
            if record.capture == capture:
                return record
    return None


cdef int keep_where_captured(int device, uintptr_t stream, object thing) except -1:
    cdef bint captured = False
    cdef Record record = ask_driver(device, stream, &captured)
    if record is None:
        return OTHERS if captured else UNCAPTURED
    record.kept.append(thing)
    return KEPT


def capture_of(int device, uintptr_t stream):
    """Whether a stream captures, and the Record of the graph of accelrt's that it captures for, or None."""
    cdef bint captured = False
    cdef Record record = ask_driver(device, stream, &captured)
    while record is not None and record.outer is not None:
        record = record.outer
    return captured, record


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


cdef int keep_side_slow(Record record, object source, object keeper, int ordinal, uintptr_t address) except -1:
    cdef Side side
    cdef uintptr_t key = <uintptr_t><void*>source
    cdef uint64_t[2] pool
    cdef bint private = False
    if map_find(&record.sources, key) != NULL:
        return 1
    if ordinal >= 0:
        with nogil:
            private = in_private(ordinal, address, pool)
    if private:
        note_pool(record, ordinal, pool[0], pool[1])
        return 0
    record.kept.append(source if keeper is None else keeper)
    note_source(record, key)
    side = Side.__new__(Side)
    side.ordinal = ordinal if ordinal >= 0 else PINNED if is_cached_pinned(address) else OTHER_HOST
    side.address = address
    record.kept.append(side)
    return 1


cdef int note_pool(Record record, int ordinal, uint64_t first, uint64_t second) except -1:
    # Once a pool.
    cdef PoolUse use
    name = (ordinal, first, second)
    if record.pools is None:
        record.pools = set()
    if name not in record.pools:
        use = PoolUse.__new__(PoolUse)
        use.ordinal = ordinal
        use.id[0], use.id[1] = first, second
        record.kept.append(use)
        record.pools.add(name)
    return 0


cdef bint note_sides(list sides, int device, uintptr_t stream) except *:
    cdef bint others = False
    cdef Side side
    cdef int code
    for side in sides:
        code = NOT_ALLOCATED
        with nogil:
            if side.ordinal == PINNED:
                code = use_pinned_on(side.address, device, stream)
            elif side.ordinal >= 0:
                code = use_across(side.ordinal, side.address, device, stream)
        if code == 0 and watch.sanitizing:
            watch.note_use_on(side.address, device, stream)
        if code == NO_HOST_MEMORY:
            raise_status(code, "record_stream", ("ptr", side.address, "stream", stream))
        others = others or code != 0
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
    breakage = record.breakage
    return errors.CaptureError(
        f"{breakage.text}; this broke the capture, at {breakage.place}, {breakage.scene}", CAPTURE_INVALID,
        "STREAM_CAPTURE_INVALIDATED", breakage.call,
    )


def note_error(error):
    """Sees every error of a driver call before it is raised: notes which captures it broke, and lets an error that
    an earlier one is the cause of say so."""
    cdef Record record
    for record in list(captures):
        if record.breakage is None and record.find_breakage():
            record.breakage = Breakage(str(error), error.call, *place_of_caller())
        elif record.breakage is not None and error.code == CAPTURE_INVALID and error.__cause__ is None:
            explain(error, record)


cdef int explain(object error, Record record) except -1:
    error.__cause__ = cause_of(record)
    error.broken_by = record.breakage.call
    error.broken_at = record.breakage.place
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
    breakage = record.breakage
    error = status_error(code, call, arguments)
    if breakage is None or not isinstance(error, errors.CaptureError):
        raise error
    error.args = (f"{error}; the call that broke it was {breakage.call} at {breakage.place}, {breakage.scene}",)
    explain(error, record)
    raise error


watch_errors(note_error)
