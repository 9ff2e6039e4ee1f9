"""Sleep and wake of memory pools: what the calls answer, and the errors that they raise.

MemPool.sleep() and accelrt.memory.sleep() (mempool.pyx) come here; allocator/private/suspend.pyx does the work.
"""
from collections import namedtuple

from libc.stdint cimport uint64_t

from accelrt.devices.device cimport await_device
from accelrt.driver.registry import cause_of_refusal, opened_name
from accelrt.errors import NotSupportedError, OutOfMemoryError
from accelrt.allocator.device_pools cimport pool_if_made
from accelrt.allocator.event_ring cimport take_stack
from accelrt.allocator.history_types cimport CONTEXT_ALL
from accelrt.allocator.private.private_types cimport Moved
from accelrt.allocator.private.routes cimport read_private
from accelrt.allocator.private.suspend cimport (
    BESIDE_CAPTURE, EXPORTED, FREED_CAPTURED, IN_PLAIN, NOT_RETAINED, NOT_SUSPENDED, SUSPENDED, begin_suspension,
    cancel_suspension, finish_suspension, resume_pool,
)
from accelrt.allocator.types cimport Pool
from accelrt.allocator.external.backend cimport require_native
from accelrt.memory.caching cimport out_of_memory_to_wake
from accelrt.runtime.release_queue cimport drain
cimport accelrt.runtime.sanitizer_hooks as watch
from accelrt.status cimport CAP_REACHED, FORKED, NOT_SUPPORTED, OUT_OF_MEMORY, raise_status
from accelrt.uses.access cimport await_uses, exported_from

cdef tuple KEEPS = ("host", "discard")
cdef tuple EXPORTS = ("refuse", "ignore")

cdef enum:
    NAMED = 4  # Arrays that the refusal of a sleep names


class SleepResult(namedtuple("SleepResult", ("bytes", "copied", "seconds", "copy_seconds", "host_seconds"))):
    """What a sleep or a wake moved.

    Attributes:
        bytes: int, physical memory that the device has back (sleep), or that was taken from it (wake).
        copied: int, bytes of contents that went to the host, or came from there; 0 with keep="discard".
        seconds: float, of the whole call, with the wait for the device's work.
        copy_seconds: float, from the first copy to the end of the last: copied / copy_seconds is the link's rate.
        host_seconds: float, to get page-locked memory; near 0 where the cache had it, as from the second sleep on.
    """

    __slots__ = ()


cdef object result_of(Moved moved):
    return SleepResult(moved.bytes, moved.copied, moved.ns / 1e9, moved.copy_ns / 1e9, moved.host_ns / 1e9)


cdef dict REASONS = {
    BESIDE_CAPTURE: "a capture is under way, beside which the device cannot be waited for; sleep before it or after its end",
    FREED_CAPTURED: "memory of it was freed that a stream uses which is capturing; end that capture first",
    EXPORTED: "other processes have memory of it (accelrt.sharing); it can sleep once they have let go of it",
    SUSPENDED: "it sleeps already; wake it first",
    NOT_SUSPENDED: "it does not sleep",
}


cdef int raise_reason(int code, str call, tuple pool, int ordinal) except -1:
    where = f"{call}: pool {pool} of device {ordinal}"
    if code == NOT_RETAINED:
        if opened_name() == "forked":
            raise_status(FORKED, call, ("pool", pool, "device", ordinal))
        raise ValueError(
            f"{call}: device {ordinal} has no memory pool {pool} in use: nothing was allocated into it there, or no "
            "MemPool, context or graph uses it any more"
        )
    if code == IN_PLAIN:
        raise NotSupportedError(
            f"{where} cannot sleep: its memory is in plain segments, whose addresses go when their memory goes; it "
            "takes virtual memory, which ACCELRT_ALLOC_CONF=expandable_segments:True (the default, where the device has it) "
            "gives, and a MemPool without allocator and no_split", NOT_SUPPORTED, "NOT_SUPPORTED", call,
        )
    if code in REASONS:
        raise RuntimeError(f"{where}: {REASONS[code]}")
    return 0


cdef void take_stack_of(int ordinal, const char* entry) noexcept:
    # For the history, with the GIL; suspend.pyx drops it.
    cdef const Pool* pool = pool_if_made(ordinal)
    if pool != NULL:
        take_stack(pool, CONTEXT_ALL, entry)


cdef int refuse_exports(str call, int ordinal, uint64_t first, uint64_t second) except -1:
    # What other libraries hold, they would use without asking.
    cdef list arrays = exported_from(ordinal, first, second)
    if not arrays:
        return 0
    names = ", ".join([repr(array) for array in arrays[:NAMED]])
    more = f" and {len(arrays) - NAMED} more" if len(arrays) > NAMED else ""
    raise BufferError(
        f"{call}: other libraries have memory of pool {(first, second)} of device {ordinal} by DLPack, from {len(arrays)} "
        f"Array{'s' if len(arrays) > 1 else ''}: {names}{more}; they would read and write what is gone.  Drop their arrays, "
        "or pass exports='ignore' and leave these alone until the pool is awake again")


cdef int close_and_wait(str call, int ordinal, uint64_t first, uint64_t second, bint ignores) except -1:
    # Uses are refused from the first step on, and those that began before have reached the driver after the second.
    cdef int code
    with nogil:
        code = begin_suspension(ordinal, first, second)
    if code:
        raise_reason(code, call, (first, second), ordinal)
        raise_status(code, call, ("pool", (first, second), "device", ordinal))
    try:
        await_uses(call)
        if not ignores:
            refuse_exports(call, ordinal, first, second)
        await_device(ordinal)  # on the main thread, where the wait ends at a signal; no more work is put on the memory
    except BaseException:
        with nogil:
            cancel_suspension(ordinal, first, second)
        raise
    return 0


cdef object put_to_sleep(str call, int ordinal, uint64_t first, uint64_t second, object keep, object exports):
    cdef Moved moved
    cdef bint keeps, ignores
    cdef int code
    if keep not in KEEPS:
        raise ValueError(f"keep is {keep!r}; it may be 'host', to keep the contents in page-locked memory, or 'discard'")
    if exports not in EXPORTS:
        raise ValueError(f"exports is {exports!r}; it may be 'refuse', or 'ignore' where nobody touches what other "
                         "libraries have of the memory")
    keeps, ignores = keep == "host", exports == "ignore"
    require_native(call)
    watch.before_wait(call)
    drain()
    close_and_wait(call, ordinal, first, second, ignores)
    take_stack_of(ordinal, "sleep")
    with nogil:
        code = finish_suspension(ordinal, first, second, keeps, &moved)
    raise_reason(code, call, (first, second), ordinal)
    row = call if moved.row == NULL else moved.row.decode()
    if code == OUT_OF_MEMORY and row == "host_alloc":
        cause = cause_of_refusal()
        raise OutOfMemoryError(
            f"{call}: the driver has no page-locked host memory for the contents of pool {(first, second)} of device "
            f"{ordinal}; nothing was changed; {cause or 'let the process lock more memory (ulimit -l)'}, call "
            "host_empty_cache() where its idle pieces do not fit, or pass keep='discard' if the contents may go",
            OUT_OF_MEMORY, "OUT_OF_MEMORY", "host_alloc",
        )
    if code:
        left = "it sleeps all the same: its pages could not be had back; wake it" if moved.down else "it is as it was"
        raise_status(code, row, ("pool", (first, second), "device", ordinal, "keep", keep),
                     f"{call} did not put the pool to sleep, and {left}")
    if watch.sanitizing:
        watch.note_device_reached(ordinal)
    return result_of(moved)


cdef object wake_up(str call, int ordinal, uint64_t first, uint64_t second):
    cdef Moved moved
    cdef size_t asleep
    cdef int code
    require_native(call)
    watch.before_wait(call)
    drain()
    take_stack_of(ordinal, "wake")
    with nogil:
        code = resume_pool(ordinal, first, second, &moved)
    raise_reason(code, call, (first, second), ordinal)
    if code == OUT_OF_MEMORY or code == CAP_REACHED:
        what = "its limit (set_per_process_memory_fraction) leaves" if code == CAP_REACHED else "the device has"
        with nogil:
            asleep = read_private(ordinal, first, second, False).sleeping
        raise out_of_memory_to_wake(
            ordinal, (first, second), asleep, code, call,
            f"{call}: {what} no room on device {ordinal} for the pages of pool {(first, second)}, even after the idle "
            "memory went back; it sleeps on, and its contents are kept",
        )
    if code:
        raise_status(code, call if moved.row == NULL else moved.row.decode(),
                     ("pool", (first, second), "device", ordinal),
                     f"{call} failed: the pool sleeps on, and its contents are kept; wake it again")
    return result_of(moved)
