"""The cache of page-locked host memory as Python sees it: torch.cuda's names for its figures.

A hit keeps the GIL; whatever may wait lets go of it.
"""
from cpython.long cimport PyLong_AsLongLongAndOverflow, PyLong_CheckExact

from accelrt.core.integers cimport checked_address_int
from accelrt.devices.device cimport await_device, ordinal_of
from accelrt.driver.registry import cause_of_refusal, opened_name
from accelrt.errors import ArgumentError, OutOfMemoryError
from accelrt.allocator.device_pools cimport MAX_DEVICES, pool_if_made
from accelrt.allocator.private.suspended cimport has_suspended_pools, sweep_suspended
from accelrt.memory.caching cimport checked_size
from accelrt.allocator.pinned.block cimport ROUND_LIMIT, PinnedStats, Tally, Timing
from accelrt.allocator.pinned.pool cimport (
    allocate_pinned_on, empty_pinned, pinned_audit_failure, read_pinned_stats, release_pinned, reset_pinned_peaks,
    reset_pinned_sums, try_allocate_pinned, try_release_pinned,
)
from accelrt.runtime.init import later
from accelrt.runtime.release_queue cimport HOST_BYTES, dispose, drain
cimport accelrt.runtime.sanitizer_hooks as watch
from accelrt.status cimport NOT_ALLOCATED, NOT_READY, OUT_OF_MEMORY, raise_status

cdef size_t checked_host_size(object size, str name) except? 0:
    # An exact int is converted directly; anything else goes to the function that raises the precise error.
    cdef int overflow = 0
    cdef long long value
    if PyLong_CheckExact(size):
        value = PyLong_AsLongLongAndOverflow(size, &overflow)
        if value >= 0 and not overflow and not value >> ROUND_LIMIT:
            return value
    return checked_size(size, name)


cdef uintptr_t allocate_host_bytes(object device, size_t size) except? 0:
    cdef uintptr_t address = 0
    cdef int ordinal = -1
    cdef int code = try_allocate_pinned(size, &address)
    if code == NOT_READY:
        if device is not None:  # checked even where the cache has memory, by the caller
            ordinal = ordinal_of(device)
        with nogil:
            code = allocate_pinned_on(ordinal, size, &address)
    if code == OUT_OF_MEMORY:
        raise out_of_memory(size)
    if code:
        raise_status(code, "allocate_pinned", ("size", size))
    if watch.sanitizing:
        watch.note_allocated(-1, 0, address, size)
    return address


cdef object out_of_memory(size_t size):
    # Whatever fails while the state is read leaves a short text.
    cause = cause_of_refusal()
    try:
        return later("accelrt.memory.refusal").explained_pinned(size, cause)
    except Exception as failure:
        error = OutOfMemoryError(
            f"Host out of memory. Tried to allocate {size} bytes of page-locked memory, which the driver refused. "
            f"{cause or 'The rest could not be read'} ({type(failure).__name__}: {failure})",
            OUT_OF_MEMORY, "OUT_OF_MEMORY", "allocate_pinned",
        )
        error.requested = size
        return error


cdef void release_host_bytes(uintptr_t address) noexcept:
    if watch.sanitizing:
        watch.note_freed(address)
    if address and try_release_pinned(address) == NOT_READY:
        dispose(HOST_BYTES, 0, address)


def caching_host_allocator_alloc(size):
    """Allocates page-locked host memory from the cache; copies read and write it asynchronously.

    Arguments:
        size: int, bytes.
    Returns:
        int, the address, a multiple of 64, and of 4096 for sizes from 32 KiB on; 0 for 0 bytes.
    Raises:
        OutOfMemoryError: the driver has no such memory, even after the cache's idle memory went back.
        ValueError, TypeError: size is negative or no int.
    """
    return allocate_host_bytes(None, checked_host_size(size, "size"))


cdef uintptr_t checked_address(object mem_ptr) except? 0:
    return checked_address_int(mem_ptr, "mem_ptr")


def caching_host_allocator_delete(mem_ptr):
    """Gives page-locked memory back to the cache.  Work on a stream that was recorded for it may still be under
    way: the memory is handed out again when that is done.

    Arguments:
        mem_ptr: int, an address that caching_host_allocator_alloc returned; 0 does nothing.
    Raises:
        ValueError: the address is not allocated, or was given back before.
        TypeError: mem_ptr is no int.
    """
    cdef uintptr_t address = checked_address(mem_ptr)
    cdef int code
    if watch.sanitizing:
        watch.note_freed(address)
    if address == 0 or try_release_pinned(address) == 0:
        return
    with nogil:
        code = release_pinned(address)
    if code == NOT_ALLOCATED:
        raise ArgumentError(
            f"caching_host_allocator_delete: {address:#x} is not allocated: accelrt did not hand it out, or it was given "
            "back already; pass the address that caching_host_allocator_alloc returned, once"
        )
    if code:
        raise_status(code, "caching_host_allocator_delete", ("mem_ptr", address))


def host_empty_cache():
    """Gives the idle page-locked memory back to the driver, after waiting for memory in use on streams.  While a
    capture is under way nothing goes back.

    Raises:
        CudaError: the driver refused; the memory then stays cached.
        KeyboardInterrupt: Ctrl-C while it waits, on the main thread, or what another signal's handler raised.
    """
    cdef PinnedStats stats
    cdef int ordinal, code
    watch.before_wait("host_empty_cache")
    drain()
    if has_suspended_pools():
        for ordinal in range(MAX_DEVICES):
            with nogil:
                sweep_suspended(ordinal)
    stats = read_pinned_stats()
    if stats.segments.current > stats.blocks.current:  # the driver waits for the device before it frees one
        for ordinal in range(MAX_DEVICES):
            if pool_if_made(ordinal) != NULL:
                await_device(ordinal)
    with nogil:
        code = empty_pinned()
    if code:
        raise_status(code, "host_empty_cache")


cdef int add_tally(dict answer, str name, Tally tally) except -1:
    answer[f"{name}.current"] = tally.current
    answer[f"{name}.peak"] = tally.peak
    answer[f"{name}.allocated"] = tally.allocated
    answer[f"{name}.freed"] = tally.freed
    return 0


cdef int add_timing(dict answer, str name, Timing timing) except -1:
    answer[f"{name}.total"] = timing.total
    answer[f"{name}.max"] = timing.largest
    answer[f"{name}.min"] = timing.least
    answer[f"{name}.count"] = timing.count
    answer[f"{name}.avg"] = timing.total // timing.count if timing.count else 0
    return 0


def host_memory_stats():
    """The figures of the page-locked memory, with torch's keys (torch.cuda.host_memory_stats).

    Returns:
        dict: "allocations" and "allocated_bytes": memory taken from the driver, in calls and bytes;
        "active_requests" and "active_bytes": blocks handed out, or given back and still in use on a stream, rounded
        as handed out; each ".current", ".peak", ".allocated", ".freed".  "num_host_alloc", "num_host_free": the
        driver's successes.  "host_alloc_time", "host_free_time": of those calls, in microseconds, each ".total",
        ".max", ".min", ".count", ".avg".  {} before the first use of a device, as in torch.
    """
    if opened_name() in ("sentinel", "forked"):
        return {}
    cdef PinnedStats stats = read_pinned_stats()
    cdef dict answer = {}
    add_tally(answer, "allocations", stats.segments)
    add_tally(answer, "allocated_bytes", stats.segment_bytes)
    add_tally(answer, "active_requests", stats.blocks)
    add_tally(answer, "active_bytes", stats.block_bytes)
    add_timing(answer, "host_alloc_time", stats.take)
    add_timing(answer, "host_free_time", stats.give)
    answer["num_host_alloc"] = stats.take.count
    answer["num_host_free"] = stats.give.count
    return dict(sorted(answer.items()))


def reset_peak_host_memory_stats():
    """Sets every peak of the page-locked memory to the current figure."""
    reset_pinned_peaks()


def reset_accumulated_host_memory_stats():
    """Sets the "allocated" and "freed" figures of the page-locked memory, its counts of driver calls and their times
    to 0."""
    reset_pinned_sums()


def host_audit():
    """Walks every identity of the page-locked memory (accelrt/memory/DESIGN.md).

    Raises:
        AssertionError: one is violated; the text says which.
    """
    cdef const char* found
    with nogil:
        found = pinned_audit_failure()
    if found != NULL:
        raise AssertionError(found.decode())
