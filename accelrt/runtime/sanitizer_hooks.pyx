"""What is watched: every call that waits (sync debug mode), and every use of memory (the race detector).

The detector itself is plain Python, in accelrt/sanitizer, which turns it on.
"""
import numbers
import warnings

from cpython.buffer cimport PyBUF_READ
from cpython.memoryview cimport PyMemoryView_FromMemory

from accelrt.core.process import call_at_exit, call_at_fork
from accelrt.errors import ArgumentError, ArgumentTypeError, SyncDebugError, SyncDebugWarning
cimport accelrt.driver.registry as registry
from accelrt.driver.table cimport CAPTURE_NONE, STREAM_BLOCKING
from accelrt.allocator.pinned.pool cimport is_cached_pinned
from accelrt.status cimport CAPTURE_IMPLICIT

SYNC_MODES = ("default", "warn", "error")

cdef object detector = None
cdef object crc32 = None  # zlib's, from the first start on


# --- sync debug mode ---------------------------------------------------------------------------------------

cdef int before_wait_slow(str call) except -1:
    text = f"called a synchronizing operation: {call} waits for the device (sync debug mode {SYNC_MODES[sync_mode]!r})"
    if sync_mode == 2:
        raise SyncDebugError(text + "; do without it, or call set_sync_debug_mode('default')")
    warnings.warn(text, SyncDebugWarning, stacklevel=1)
    return 0


def set_sync_debug_mode(debug_mode):
    """What happens where a call of accelrt's waits for the device (torch.cuda.set_sync_debug_mode).

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
    if isinstance(debug_mode, numbers.Integral) and not isinstance(debug_mode, bool):
        debug_mode = int(debug_mode)
    if isinstance(debug_mode, bool) or not isinstance(debug_mode, (int, str)):
        raise ArgumentTypeError(f"debug_mode is {debug_mode!r} of type {type(debug_mode).__name__}; pass 0, 1, 2 or a name")
    if debug_mode in SYNC_MODES:
        sync_mode = SYNC_MODES.index(debug_mode)
    elif isinstance(debug_mode, int) and 0 <= debug_mode <= 2:
        sync_mode = debug_mode
    else:
        raise ArgumentError(f"debug_mode is {debug_mode!r}; it may be 0, 1, 2, {', '.join(map(repr, SYNC_MODES))}")


def get_sync_debug_mode():
    """The sync debug mode as int: 0 is default, 1 is warn, 2 is error."""
    return sync_mode


# --- the race detector -------------------------------------------------------------------------------------

def capture_of(int ordinal, uintptr_t stream):
    """The driver's id of the capture that a stream is in, or 0; -1 where the driver does not say."""
    cdef uint64_t capture = 0
    cdef int status = CAPTURE_NONE
    cdef int code = registry.active().capture_status(ordinal, stream, &status, &capture)
    if code and code != CAPTURE_IMPLICIT:  # the legacy stream while another one captures: it does not itself
        return -1
    return capture if code == 0 and status != CAPTURE_NONE else 0


def is_blocking(int ordinal, uintptr_t stream):
    """Whether a stream waits for the legacy default stream, and that one for it."""
    cdef unsigned int flags = 0
    cdef int code = registry.active().stream_flags(ordinal, stream, &flags)
    return code == 0 and flags == STREAM_BLOCKING


def fingerprint(uintptr_t address, size_t size):
    """A sum of the content of page-locked memory of the cache's; None for all other memory."""
    if not is_cached_pinned(address) or not is_cached_pinned(address + size - 1):
        return None
    return crc32(PyMemoryView_FromMemory(<char*>address, size, PyBUF_READ))


def start(found):
    """Turns the race detector on; see accelrt.sanitizer.enable.

    Arguments:
        found: Detector, which is told from now on.
    """
    global detector, sanitizing, crc32
    from zlib import crc32

    detector = found
    sanitizing = 1


def stop():
    """Turns the race detector off; what it reported stays."""
    global sanitizing
    sanitizing = 0


def watching():
    """The race detector that is on or was on last, or None."""
    return detector


def is_watching():
    """Whether the race detector is on."""
    return sanitizing != 0


cdef int note_copy(
    int ordinal, uintptr_t stream, uintptr_t dst, uintptr_t src, size_t size, bint reads, bint writes
) except -1:
    cdef list spans = []
    if reads:
        spans.append((src, size, "r"))
    if writes:
        spans.append((dst, size, "w"))
    detector.work(ordinal, stream, "copy", spans)
    return 0


cdef int note_access(int ordinal, uintptr_t stream, uintptr_t address, size_t size, str mode, str call) except -1:
    detector.work(ordinal, stream, call, [(address, size, mode)])
    return 0


cdef int note_launch(int ordinal, uintptr_t stream, str call, list uses) except -1:
    detector.work(ordinal, stream, call, uses)
    return 0


cdef int note_host_access(uintptr_t address, size_t size, str mode, str call) except -1:
    detector.host_work(call, [(address, size, mode)])
    return 0


cdef int note_replay(int ordinal, uintptr_t stream, uint64_t capture) except -1:
    detector.replayed(capture, ordinal, stream)
    return 0


cdef int note_stream(int ordinal, uintptr_t stream) except -1:
    detector.made_stream(ordinal, stream)
    return 0


cdef int note_record(int ordinal, uintptr_t stream, uintptr_t event) except -1:
    detector.recorded(ordinal, stream, event)
    return 0


cdef int note_wait(int ordinal, uintptr_t stream, uintptr_t event) except -1:
    detector.waited(ordinal, stream, event)
    return 0


cdef int note_point(int ordinal, uintptr_t stream, uintptr_t event, bint waits) except -1:
    detector.captured_point(ordinal, stream, event, waits)
    return 0


cdef int note_reached(int ordinal, uintptr_t stream) except -1:
    detector.reached_stream(ordinal, stream)
    return 0


cdef int note_event_reached(uintptr_t event) except -1:
    detector.reached_event(event)
    return 0


cdef int note_device_reached(int ordinal) except -1:
    detector.reached_device(ordinal)
    return 0


cdef object note_host_function(int ordinal, uintptr_t stream):
    return detector.host_function(ordinal, stream)


cdef void begin_host_function(object mark) noexcept:
    detector.runs(mark)


cdef void end_host_function() noexcept:
    detector.runs(None)


cdef int note_captured(uint64_t capture) except -1:
    detector.captured(capture)
    return 0


cdef int note_changed(uint64_t capture, tuple old, tuple new) except -1:
    detector.changed(capture, old, new)
    return 0


cdef void note_dropped(uint64_t capture) noexcept:
    detector.dropped(capture)


cdef void note_allocated(int ordinal, uintptr_t stream, uintptr_t address, size_t size) noexcept:
    if address:
        detector.allocated(address, size, ordinal, stream)


cdef void note_freed(uintptr_t address) noexcept:
    if address:
        detector.freed(address)


cdef int note_freed_after(uintptr_t address, uintptr_t event) except -1:
    detector.freed_after(address, event)
    return 0


cdef int note_use_on(uintptr_t address, int ordinal, uintptr_t stream) except -1:
    detector.recorded_use(address, ordinal, stream)
    return 0


cdef int note_emptied() except -1:
    detector.emptied()
    return 0


cdef int note_forgotten(uintptr_t address, size_t size) except -1:
    detector.forget(address, address + size)
    return 0


def finish():
    """The interpreter's exit: tells what was found and not told, and watches nothing any more."""
    if sanitizing:
        stop()
        detector.finish()


call_at_exit("runtime.sanitizer_hooks", "race detector", finish)
# The child cannot use the device, and the detector may be in use.
call_at_fork("runtime.sanitizer_hooks", "runtime", child=stop)
