"""Memory pools of the user's own, what is allocated in them and their sleep; and page-locked memory."""
cimport cython
from cpython.number cimport PyIndex_Check, PyNumber_Index
from libc.stdint cimport SIZE_MAX, UINT64_MAX, uint64_t, uintptr_t
from libc.stdlib cimport calloc
from cpython.buffer cimport PyBUF_ANY_CONTIGUOUS, PyBUF_SIMPLE, PyBuffer_Release, PyObject_CheckBuffer, PyObject_GetBuffer
from cpython.long cimport PyLong_AsLongLongAndOverflow, PyLong_CheckExact

from accelrt.allocator.event_ring cimport drop_stack, take_host_stack, take_stack
from accelrt.allocator.external.external_pool cimport source_of
from accelrt.allocator.external.torch_table cimport TORCH_BIT
from accelrt.allocator.heaps cimport thread_number
from accelrt.allocator.history_types cimport CONTEXT_ALL
from accelrt.allocator.pinned.block cimport ANY_NODE, HOST_ROUND_LIMIT, PinnedPool, PinnedStats, Tally, Timing
from accelrt.allocator.pinned.cache cimport (
    allocate_pinned_on, drop_pinned_pool, empty_pinned, empty_pinned_pool, enter_pinned_pool, hold_pinned_pool,
    is_cached_pinned, make_pinned_pool, pinned_limit_here, read_pinned_node, read_pinned_pool, read_pinned_stats,
    release_pinned, share_pinned, try_allocate_pinned, try_release_pinned,
)
from accelrt.allocator.pool cimport MAX_DEVICES, pool_if_made
from accelrt.allocator.private.private_types cimport Moved
from accelrt.allocator.private.routes cimport (
    begin_managed_pool, begin_pool, end_pool, open_pool_to, read_peers, read_private, release_pool, retain_pool,
    set_up_pool,
)
from accelrt.allocator.private.sleep cimport (
    begin_suspension, BESIDE_CAPTURE, cancel_suspension, EXPORTED, finish_suspension, FREED_CAPTURED, IN_PLAIN,
    is_pool_suspended, NOT_RETAINED, NOT_SUSPENDED, resume_pool, SUSPENDED, sweep_suspended,
)
from accelrt.allocator.readers cimport pinned_audit_failure, reset_pinned_peaks, reset_pinned_pool, reset_pinned_sums
from accelrt.allocator.readers import pinned_segments, segments
from accelrt.allocator.sizes cimport GRANULE
from accelrt.allocator.stats cimport (
    ACTIVE, ACTIVE_BYTES, ALLOCATED_BYTES, ALLOCATION, REQUESTED_BYTES, RESERVED_BYTES, SEGMENT,
)
from accelrt.allocator.types cimport Pool
from accelrt.core.integers cimport checked_address_int, exact_int
from accelrt.core.locks cimport number_in_turn
from accelrt.devices.device cimport await_device, ordinal_of
from accelrt.driver.guard cimport await_inside, begin_wait, end_wait, go_relaxed, INTERRUPTED, restore_mode
from accelrt.driver.memory cimport MEMORY_CLOSED, MEMORY_READ, MEMORY_WRITTEN
from accelrt.driver.registry import cause_of_refusal, opened_name
from accelrt.errors import ArgumentError, NotSupportedError, OutOfMemoryError
from accelrt.memory.caching cimport allocate_bytes, checked_size, empty_pool, out_of_memory_to_wake, require_native, tell_log
from accelrt.memory.history.recording import name_all, tag
from accelrt.runtime.access cimport await_uses, exported_from
from accelrt.runtime.init import later
from accelrt.runtime.lifetimes cimport dispose, drain, HOST_BYTES, HOST_REGISTRATION
from accelrt.status import name_of
from accelrt.status cimport (
    CAP_REACHED, FORKED, INVALID_VALUE, NOT_ALLOCATED, NOT_READY, NOT_SUPPORTED, OUT_OF_MEMORY, POOL_CAP_REACHED,
    raise_status, refuse_copy, refuse_unmade,
)
cimport accelrt.driver.registry as registry
cimport accelrt.runtime.access as watch


# --- sleep mode -------------------------------------------------------------------------------------------------------
# Sleep and wake of memory pools: what the calls answer, and the errors that they raise.
#
# MemPool.sleep() and accelrt.memory.sleep() (mempool.pyx) come here; allocator/private/sleep.pyx does the work.

cdef tuple KEEPS = ("host", "discard")
cdef tuple EXPORTS = ("refuse", "ignore")

cdef enum:
    NAMED = 4  # Arrays that the refusal of a sleep names


cdef object result_of(Moved moved):
    SleepResult = later("accelrt.memory.sleep_result").SleepResult  # a named tuple takes long to import
    return SleepResult(moved.bytes, moved.copied, moved.ns / 1e9, moved.copy_ns / 1e9, moved.host_ns / 1e9)


cdef dict SLEEP_REASONS = {
    BESIDE_CAPTURE: "a capture is under way, beside which the device cannot be waited for; sleep before it or after its end",
    FREED_CAPTURED: "memory of it was freed that a stream uses which is capturing; end that capture first",
    EXPORTED: "other processes have memory of it (accelrt.sharing); it can sleep once they have let go of it",
    SUSPENDED: "it sleeps already; wake it first",
    NOT_SUSPENDED: "it does not sleep",
}


cdef str subject_of(int ordinal, uint64_t first, uint64_t second, uintptr_t reservation):
    # What sleeps, for errors: a pool, or the Reservation at an address.
    return f"the Reservation at {reservation:#x}" if reservation else f"pool {(first, second)} of device {ordinal}"


cdef int raise_sleep_reason(int code, str call, tuple pool, int ordinal, uintptr_t reservation) except -1:
    where = f"{call}: {subject_of(ordinal, pool[0], pool[1], reservation)}"
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
            "gives, and a MemPool without allocator, no_split and managed (managed memory leaves the device by itself, "
            "where others need room)", NOT_SUPPORTED, "NOT_SUPPORTED", call,
        )
    if code in SLEEP_REASONS:
        raise RuntimeError(f"{where}: {SLEEP_REASONS[code]}")
    return 0


cdef void take_stack_of(int ordinal, const char* entry) noexcept:
    # For the history, with the GIL; sleep.pyx drops it.
    cdef const Pool* pool = pool_if_made(ordinal)
    if pool != NULL:
        take_stack(pool, CONTEXT_ALL, entry)


cdef int refuse_exports(str call, int ordinal, uint64_t first, uint64_t second, str subject) except -1:
    # What other libraries hold, they would use without asking.
    cdef list arrays = exported_from(ordinal, first, second)
    if not arrays:
        return 0
    names = ", ".join([repr(array) for array in arrays[:NAMED]])
    more = f" and {len(arrays) - NAMED} more" if len(arrays) > NAMED else ""
    raise BufferError(
        f"{call}: other libraries have memory of {subject} by DLPack, from {len(arrays)} "
        f"Array{'s' if len(arrays) > 1 else ''}: {names}{more}; they would read and write what is gone.  Drop their arrays, "
        "or pass exports='ignore' and leave these alone until it is awake again")


cdef int close_and_wait(
    str call, int ordinal, uint64_t first, uint64_t second, bint ignores, uintptr_t reservation
) except -1:
    # Uses are refused from the first step on, and those that began before have reached the driver after the second.
    cdef int code
    with nogil:
        code = begin_suspension(ordinal, first, second)
    if code:
        raise_sleep_reason(code, call, (first, second), ordinal, reservation)
        raise_status(code, call, sleep_facts(ordinal, first, second, reservation))
    try:
        await_uses(call, ordinal, first, second)
        if not ignores:
            refuse_exports(call, ordinal, first, second, subject_of(ordinal, first, second, reservation))
        await_device(ordinal)  # on the main thread, where the wait ends at a signal; no more work is put on the memory
    except BaseException:
        with nogil:
            cancel_suspension(ordinal, first, second)
        raise
    return 0


cdef tuple sleep_facts(int ordinal, uint64_t first, uint64_t second, uintptr_t reservation):
    return ("reservation", reservation) if reservation else ("pool", (first, second), "device", ordinal)


cdef object put_to_sleep(
    str call, int ordinal, uint64_t first, uint64_t second, object keep, object exports, uintptr_t reservation=0
):
    # The reservation is the address of the one whose pool it is, or 0: what errors name.
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
    close_and_wait(call, ordinal, first, second, ignores, reservation)
    take_stack_of(ordinal, "sleep")
    with nogil:
        code = finish_suspension(ordinal, first, second, keeps, &moved)
    raise_sleep_reason(code, call, (first, second), ordinal, reservation)
    subject = subject_of(ordinal, first, second, reservation)
    row = call if moved.row == NULL else moved.row.decode()
    if row == "host_alloc" and code in (OUT_OF_MEMORY, POOL_CAP_REACHED):
        lacking, cause = "the driver has no", cause_of_refusal() or "let the process lock more memory (ulimit -l)"
        if code == POOL_CAP_REACHED:
            lacking, cause = "the limit of the PinnedMemPool in use leaves no", "call it outside of use_mem_pool()"
        raise OutOfMemoryError(
            f"{call}: {lacking} page-locked host memory for the contents of {subject}; "
            f"nothing was changed; {cause}, call host_empty_cache() where its idle pieces do not fit, or pass "
            "keep='discard' if the contents may go",
            code, name_of(code), "host_alloc",
        )
    if code:
        left = "it sleeps all the same: its pages could not be had back; wake it" if moved.down else "it is as it was"
        raise_status(code, row, (*sleep_facts(ordinal, first, second, reservation), "keep", keep),
                     f"{call} did not put {subject} to sleep, and {left}")
    watch.note_device_reached(ordinal)
    return result_of(moved)


cdef object wake_up(str call, int ordinal, uint64_t first, uint64_t second, uintptr_t reservation=0):
    # Answer a SleepResult; call is what the user called, for errors.
    cdef Moved moved
    cdef size_t asleep
    cdef int code
    require_native(call)
    watch.before_wait(call)
    drain()
    take_stack_of(ordinal, "wake")
    with nogil:
        code = resume_pool(ordinal, first, second, &moved)
    raise_sleep_reason(code, call, (first, second), ordinal, reservation)
    if code == OUT_OF_MEMORY or code == CAP_REACHED:
        shortage = "its limit (set_per_process_memory_fraction) leaves" if code == CAP_REACHED else "the device has"
        with nogil:
            asleep = read_private(ordinal, first, second, False).sleeping
        raise out_of_memory_to_wake(
            ordinal, (first, second), asleep, code, call,
            f"{call}: {shortage} no room on device {ordinal} for the pages of "
            f"{subject_of(ordinal, first, second, reservation)}, even after the idle memory went back; it sleeps on, and "
            "its contents are kept",
        )
    if code:
        raise_status(code, call if moved.row == NULL else moved.row.decode(),
                     sleep_facts(ordinal, first, second, reservation),
                     f"{call} failed: {subject_of(ordinal, first, second, reservation)} sleeps on, and its contents are "
                     "kept; wake it again")
    return result_of(moved)


# --- page-locked memory ------------------------------------------------------------------------------------------------
# Page-locked host memory as Python sees it: the cache, with torch.cuda's names for its figures, and memory of the user's
# own.
#
# A hit keeps the GIL; whatever may wait lets go of it.

cdef size_t checked_host_size(object size, str name) except? 0:
    # An exact int is converted directly; anything else goes to the function that raises the precise error.
    cdef int overflow = 0
    cdef long long value
    if PyLong_CheckExact(size):
        value = PyLong_AsLongLongAndOverflow(size, &overflow)
        if value >= 0 and not overflow and not value >> HOST_ROUND_LIMIT:
            return value
    return checked_size(size, name)


cdef uintptr_t allocate_host_bytes(object device, size_t size) except? 0:
    cdef uintptr_t address = 0
    cdef int ordinal = -1
    cdef int code
    take_host_stack()
    code = try_allocate_pinned(size, &address)
    if code == NOT_READY:
        if device is not None:  # checked even where the cache has memory, by the caller
            ordinal = ordinal_of(device)
        with nogil:
            code = allocate_pinned_on(ordinal, size, &address)
    drop_stack()
    if code:
        raise_host_refusal(code, "allocate_pinned", size)
    watch.note_allocated(-1, 0, address, size)
    return address


cdef uintptr_t share_host_bytes(object device, size_t size) except? 0:
    cdef uintptr_t address = 0
    cdef int ordinal = -1, code = 0
    if size:
        if device is not None:
            ordinal = ordinal_of(device)
        with nogil:
            code = share_pinned(ordinal, size, &address)
    if code:
        raise_host_refusal(code, "host_register", size)
    watch.note_allocated(-1, 0, address, size)
    return address


cdef int raise_host_refusal(int code, str call, size_t size) except -1:
    if code == OUT_OF_MEMORY:
        raise out_of_host_memory(size)
    if code == POOL_CAP_REACHED:
        raise beyond_pinned_limit(size)
    raise_status(code, call, ("size", size))
    return -1


cdef object beyond_pinned_limit(size_t size):
    # Nothing that others give back can help.
    cdef size_t limit = pinned_limit_here()
    error = OutOfMemoryError(
        f"Host out of memory. Tried to allocate {size} bytes of page-locked memory, for which the pool's limit of {limit} "
        "bytes leaves no room (PinnedMemPool(limit=...)): free memory of the pool, or make it with more",
        POOL_CAP_REACHED, "POOL_CAP_REACHED", "allocate_pinned",
    )
    error.requested, error.refused_by, error.limit = size, "pool", limit
    error.causes, error.advice = ("pool limit",), ("free memory of the pool", "make the pool with a larger limit")
    return error


cdef object out_of_host_memory(size_t size):
    # Whatever fails while the state is read leaves a short text.
    cause = cause_of_refusal()
    try:
        error = later("accelrt.memory.live").explained_pinned(size, cause)
    except Exception as failure:
        error = OutOfMemoryError(
            f"Host out of memory. Tried to allocate {size} bytes of page-locked memory, which the driver refused. "
            f"{cause or 'The rest could not be read'} ({type(failure).__name__}: {failure})",
            OUT_OF_MEMORY, "OUT_OF_MEMORY", "allocate_pinned",
        )
        error.requested = size
    tell_log("tell_refusal", (error, None))
    return error


cdef void release_host_bytes(uintptr_t address) noexcept:
    watch.note_freed(address)
    if address and try_release_pinned(address) == NOT_READY:
        dispose(HOST_BYTES, 0, address)


def caching_host_allocator_alloc(size: int) -> int:
    """Allocates page-locked host memory from the cache; copies read and write it asynchronously.

    Arguments:
        size: int, bytes.
    Returns:
        int, the address, a multiple of 64, and of 4096 for sizes above 1 MiB; 0 for 0 bytes.
    Raises:
        OutOfMemoryError: the driver has no such memory, even after the cache's idle memory went back.
        ValueError, TypeError: size is negative or no int.
    """
    return allocate_host_bytes(None, checked_host_size(size, "size"))


def caching_host_allocator_delete(mem_ptr: int) -> None:
    """Gives page-locked memory back to the cache.  Work on a stream that was recorded for it may still be under
    way: the memory is handed out again when that is done.

    Arguments:
        mem_ptr: int, an address that caching_host_allocator_alloc returned; 0 does nothing.
    Raises:
        ValueError: the address is not allocated, or was given back before.
        TypeError: mem_ptr is no int.
    """
    cdef uintptr_t address = checked_address_int(mem_ptr, "mem_ptr")
    cdef int code
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


def host_empty_cache() -> None:
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
    with nogil:
        for ordinal in range(MAX_DEVICES):
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


def host_memory_stats() -> dict[str, int]:
    """Returns the figures of the page-locked memory, with torch's keys (torch.cuda.host_memory_stats).

    Returns:
        dict: "allocations" and "allocated_bytes": memory taken from the driver, in calls and bytes;
        "active_requests" and "active_bytes": blocks handed out, or given back and still in use on a stream, rounded
        as handed out; each ".current", ".peak", ".allocated", ".freed".  "num_host_alloc", "num_host_free": the
        driver's successes.  "host_alloc_time", "host_free_time": of those calls, in microseconds, each ".total",
        ".max", ".min", ".count", ".avg".  Where the system has several NUMA nodes "numa_node.N.allocated_bytes.current"
        and "numa_node.N.active_bytes.current": of memory outside PinnedMemPools, by the node that it is to lie on.  {}
        before the first use of a device, as in torch.
    """
    if opened_name() in ("sentinel", "forked"):
        return {}
    cdef dict figures = pinned_figures(read_pinned_stats())
    cdef PinnedStats stats
    cdef int node
    for node in range(registry.MOST_NODES if registry.tells_nodes_apart() else 0):
        stats = read_pinned_node(node)
        if stats.segments.peak:
            figures[f"numa_node.{node}.allocated_bytes.current"] = stats.segment_bytes.current
            figures[f"numa_node.{node}.active_bytes.current"] = stats.block_bytes.current
    return figures


cdef dict pinned_figures(PinnedStats stats):
    cdef dict figures = {}
    add_tally(figures, "allocations", stats.segments)
    add_tally(figures, "allocated_bytes", stats.segment_bytes)
    add_tally(figures, "active_requests", stats.blocks)
    add_tally(figures, "active_bytes", stats.block_bytes)
    add_timing(figures, "host_alloc_time", stats.take)
    add_timing(figures, "host_free_time", stats.give)
    figures["num_host_alloc"] = stats.take.count
    figures["num_host_free"] = stats.give.count
    return dict(sorted(figures.items()))


def host_memory_snapshot() -> list[dict[str, Any]]:
    """Lists the segments and blocks of page-locked memory.

    Returns:
        list of dicts, one a segment: "address", "total_size" in bytes, "device" whose driver locked it, "pool", 0 for the
        common cache and other numbers for those of NUMA nodes and PinnedMemPools, "numa_node" that it is to lie on, or
        None, "registered", whether it is the system's memory, "shared", whether other processes can open it, and "blocks",
        each with "address", "size" and "state": "active_allocated", "active_pending_free" (given back, and in use on a
        stream) or "inactive".
    """
    return pinned_segments()


def reset_peak_host_memory_stats() -> None:
    """Sets every peak of the page-locked memory to the current figure."""
    reset_pinned_peaks()


def reset_accumulated_host_memory_stats() -> None:
    """Sets the "allocated" and "freed" figures of the page-locked memory, its counts of driver calls and their times
    to 0."""
    reset_pinned_sums()


def host_audit() -> None:
    """Checks that the figures and lists of the page-locked memory agree with its blocks.

    Raises:
        AssertionError: one is violated; the text says which.
    """
    cdef const char* failure
    with nogil:
        failure = pinned_audit_failure()
    if failure != NULL:
        raise AssertionError(failure.decode())


# --- the user's own memory, page-locked --------------------------------------------------------------------------

cdef int lock_pages(int device, uintptr_t address, size_t size) noexcept nogil:
    # Refused beside a capture, which it would break, unless the caller is relaxed; and so below.
    cdef int mode
    cdef int code = go_relaxed(registry.active(), &mode)
    if code == 0:
        code = registry.active().host_register(device, address, size)
        restore_mode(registry.active(), mode)
    return code


cdef int unlock_pages(int device, uintptr_t address) noexcept nogil:
    cdef int mode
    cdef int code = await_inside(registry.active(), device)
    if code == 0:
        code = go_relaxed(registry.active(), &mode)
    if code == 0:
        code = registry.active().host_unregister(device, address)
        restore_mode(registry.active(), mode)
    return code


cdef class RegisteredMemory:
    """RegisteredMemory(memory, device=None)\n--\n\n\
    Memory of the user's own, page-locked until unregister() or the object's end (cuMemHostRegister).

        with accelrt.register_host(array):
            buffer.copy_from(array, blocking=False)

    Arguments, Raises: as register_host.
    Attributes:
        ptr: int, the address; 0 once unregistered, and for 0 bytes.
        nbytes: int.

    Before the pages are unlocked its device's work is waited for, but for a capture under way; work of other devices
    is the caller's to wait for.
    """

    cdef readonly uintptr_t ptr   # 0 once unregistered, and for 0 bytes
    cdef readonly size_t nbytes
    cdef int device_index         # whose driver locked it
    cdef Py_buffer view           # keeps the memory where it is
    cdef bint viewed
    cdef object __weakref__

    def __init__(self, memory: Memory, device: DeviceArgument | None = None) -> None:
        cdef int ordinal = ordinal_of(device)
        cdef uintptr_t address
        cdef int code
        if self.viewed:
            raise RuntimeError("a RegisteredMemory is initialised once")
        if not PyObject_CheckBuffer(memory):
            raise TypeError(f"memory is of type {type(memory).__name__}; pass an array or another contiguous buffer")
        PyObject_GetBuffer(memory, &self.view, PyBUF_ANY_CONTIGUOUS | PyBUF_SIMPLE)
        self.viewed = True
        address = <uintptr_t>self.view.buf
        if self.view.len == 0:
            return
        if is_cached_pinned(address):
            raise ValueError(f"memory at {address:#x} comes from accelrt's cache and is page-locked already")
        drain()
        with nogil:
            code = lock_pages(ordinal, address, self.view.len)
        if code:
            raise_status(code, "host_register", ("device", ordinal, "address", address, "size", self.view.len))
        self.ptr = address
        self.nbytes = self.view.len
        self.device_index = ordinal

    def __dealloc__(self):
        cdef int code = 0
        watch.note_forgotten(self.ptr, self.nbytes)
        if self.ptr:
            begin_wait(False)
            with nogil:
                code = unlock_pages(self.device_index, self.ptr)
            if code:
                dispose(HOST_REGISTRATION, self.device_index, self.ptr)
        if self.viewed and code != INTERRUPTED:  # which leaves the memory in use, for as long as the process lives
            PyBuffer_Release(&self.view)
        end_wait(code)

    @cython.critical_section
    def unregister(self) -> None:
        """Unlocks the pages, after the device's work; doing it again does nothing.

        Raises:
            CudaError: the driver refused; the memory then stays registered.
            KeyboardInterrupt: Ctrl-C while it waits, on the main thread, or what another signal's handler raised;
                the memory then stays registered.
        """
        cdef uintptr_t address = self.ptr
        cdef int code = 0
        if address:
            watch.before_wait("RegisteredMemory.unregister")
            self.ptr = 0  # for other threads meanwhile
            try:
                begin_wait(False)
                with nogil:
                    code = unlock_pages(self.device_index, address)
                end_wait(code)
                if code:
                    raise_status(code, "host_unregister", ("address", address))
            except BaseException:
                if code:
                    self.ptr = address
                else:  # a handler raised as the device's work ended
                    self.let_go(address)
                raise
        elif self.nbytes:
            return  # another thread does it
        self.let_go(address)

    cdef int let_go(self, uintptr_t address) except -1:
        watch.note_forgotten(address, self.nbytes)
        self.nbytes = 0
        if self.viewed:
            self.viewed = False
            PyBuffer_Release(&self.view)
        return 0

    def __reduce__(self):
        refuse_copy(self, "it unlocks the pages when it dies; register_host() each memory once")

    def __len__(self) -> int:
        return self.nbytes

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.unregister()

    def __repr__(self):
        return f"<accelrt.RegisteredMemory {self.nbytes} bytes at {self.ptr:#x}>"


def register_host(memory: Memory, device: DeviceArgument | None = None) -> RegisteredMemory:
    """Page-locks memory of your own, so that copies read and write it without a stage and asynchronously.

    Arguments:
        memory: a contiguous array or other buffer; it can be neither resized nor freed while it is registered.
        device: the device whose driver locks it; every device can use it.  None is the current one.
    Returns:
        RegisteredMemory: a context manager, with unregister().
    Raises:
        CudaError: the driver refused, because the range is registered already, say.
        ValueError: the memory comes from accelrt's own cache.
        TypeError, BufferError: memory is none, or not contiguous.
    """
    return RegisteredMemory(memory, device)


# --- mempool ----------------------------------------------------------------------------------------------------------
# Memory pools of the user's own: what a thread allocates inside use_mem_pool lies apart from the rest.
#
# A pool is held by the object, by each context that is entered and by each graph that was captured into it.
# Once nothing holds it, its idle memory goes back to the device as everybody's does; what is live stays valid
# until it is given back.


cdef dict SHOWN = {
    "allocation": ALLOCATION, "active": ACTIVE, "allocated_bytes": ALLOCATED_BYTES, "active_bytes": ACTIVE_BYTES,
    "requested_bytes": REQUESTED_BYTES, "segment": SEGMENT, "reserved_bytes": RESERVED_BYTES,
}

cdef uint64_t last_pool = 0  # of the numbers given to pools


cdef uint64_t next_pool() noexcept:
    return number_in_turn(&last_pool, 1)


cdef bint is_whole(object part) except -1:
    return PyIndex_Check(part) and not isinstance(part, bool) and 0 <= exact_int(part, "pool", "its id") <= UINT64_MAX


cdef int read_pool_id(object pool, uint64_t* out_id) except -1:
    if isinstance(pool, MemPool):
        pool = pool.id
    if not (isinstance(pool, tuple) and len(pool) == 2 and all([is_whole(part) for part in pool])):
        raise TypeError(
            f"pool is {pool!r}; pass a MemPool or its id, or what graph_pool_handle() or a graph's pool() returned"
        )
    out_id[0], out_id[1] = exact_int(pool[0], "pool", "its id"), exact_int(pool[1], "pool", "its id")
    return 0


cdef size_t checked_limit(object limit) except? <size_t>-1:
    # Whatever is larger than any device is a limit like others.
    cdef object most
    if isinstance(limit, bool):
        raise TypeError(f"limit is {limit!r}, a bool; pass bytes as int, or None")
    try:
        most = PyNumber_Index(limit)
    except TypeError:
        raise TypeError(f"limit is {limit!r} of type {type(limit).__name__}; pass bytes as int, or None") from None
    if most < 0:
        raise ValueError(f"limit is {most}; a number of bytes is 0 or more")
    if 0 < most < GRANULE:
        raise ValueError(
            f"limit is {most} bytes, with which the pool could never allocate; {GRANULE} bytes (2 MiB) are the least "
            "that is taken from a device"
        )
    return min(most, SIZE_MAX - 1)


# managed memory

cdef enum:
    MANAGED_MEMORY = 83               # CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY
    CONCURRENT_MANAGED_ACCESS = 89

cdef dict managed_sources = {}  # (prefetch, headroom) -> the Source's address; segments name it, so that it is never freed
cdef uint64_t common_managed = 0   # the pool of managed memory that no MemPool was given for; 0: none was allocated
cdef uint64_t managed_on = 0       # devices that are known to have such memory, a bit each


cdef const Source* managed_source(bint prefetches, size_t headroom) except NULL:
    cdef Source* source
    pointer = managed_sources.get((prefetches, headroom))
    if pointer is not None:
        return <const Source*><size_t>pointer
    source = <Source*>calloc(1, sizeof(Source))
    if source == NULL:
        raise MemoryError("no host memory for a pool's record")
    source.managed = True
    source.prefetches = prefetches
    source.headroom = headroom
    return <const Source*><size_t>managed_sources.setdefault((prefetches, headroom), <size_t>source)


cdef size_t checked_headroom(object headroom) except? <size_t>-1:
    most = exact_int(headroom, "headroom", "bytes as int")
    if most < 0:
        raise ValueError(f"headroom is {most}; a number of bytes is 0 or more")
    return min(most, SIZE_MAX - 1)


cdef int require_managed(int ordinal, bint concurrent) except -1:
    cdef int has = 0, code, attribute = CONCURRENT_MANAGED_ACCESS if concurrent else MANAGED_MEMORY
    with nogil:
        code = registry.active().device_attribute(ordinal, attribute, &has)
    if code:
        raise_status(code, "device_attribute", ("device", ordinal, "attribute", attribute))
    if not has:
        lacks = "does not use managed memory beside the host, so that nothing can say where it lies" if concurrent else \
            "has no managed memory"
        raise NotSupportedError(f"MemPool: device {ordinal} {lacks}", NOT_SUPPORTED, "NOT_SUPPORTED", "managed_alloc")
    return 0


cdef uintptr_t allocate_managed(int ordinal, size_t size, uintptr_t stream) except? <size_t>-1:
    # The common pool has no holder but the allocation under way, so that its idle memory goes back as everybody's does.
    global common_managed, managed_on
    cdef const Source* source = managed_source(False, SIZE_MAX)
    cdef uint64_t number
    cdef int code
    if not managed_on >> ordinal & 1:
        require_native("managed memory")
        require_managed(ordinal, False)
        managed_on |= <uint64_t>1 << ordinal
    if common_managed == 0:
        common_managed = next_pool()
    number = common_managed
    with nogil:
        code = begin_managed_pool(ordinal, stream, number, source)
    if code == NOT_READY:
        return allocate_bytes(ordinal, size, stream)
    if code:
        raise_status(code, "Buffer", ("device", ordinal, "managed", True))
    try:
        return allocate_bytes(ordinal, size, stream)
    finally:
        with nogil:
            end_pool(ordinal, 0, number, thread_number())


cdef dict figures_of(PrivateStats stats):
    cdef dict figures = {"limit": None if stats.limit == SIZE_MAX else stats.limit, "sleeping_bytes": stats.sleeping}
    for name, figure in SHOWN.items():
        figures[f"{name}.current"] = stats.current[<int>figure]
        figures[f"{name}.peak"] = stats.peak[<int>figure]
    return dict(sorted(figures.items()))


cdef class MemPool:
    """MemPool(allocator=None, use_on_oom=False, no_split=False, *, limit=None, device=None, managed=False,
    prefetch=False, headroom=None)\n--\n\n\
    A pool of device memory apart from the rest, as torch.cuda.MemPool.

        pool = accelrt.MemPool(limit=1 << 30)
        with accelrt.use_mem_pool(pool):
            buffer = accelrt.Buffer(4096)       # of the pool
        with accelrt.graph(g, pool=pool.id):
            ...                                 # what the capture allocates, too

    Arguments:
        allocator: CUDAPluggableAllocator or CallbackAllocator, whose functions the pool's segments come from and go back
            to; None is the device.  A library stays loaded.  Such a pool has plain segments, each from one call, and cannot
            sleep.
        use_on_oom: bool, whether the pool's free blocks serve requests outside of it that would be refused otherwise,
            as the last step before that; it takes virtual memory.  What is wholly idle in any MemPool goes back to the
            device before, so that it serves others in any case.  What it served sleeps with the pool.
        no_split: bool, whether each request gets a segment, or a free one that is large enough, to itself: whole
            multiples of 2 MiB, in plain segments, which cannot sleep.
        limit: int, the most bytes to reserve from each device that it is used on; None is no limit of its own.
        device: int, "cuda:1", ...: where it comes into being; None is the current device.
        managed: bool, whether its memory is managed: the host and every device use it at one address, and a device moves it
            to where it is used, so that there may be more than the device has.  It has plain segments, which cannot sleep
            nor be shared, and which no limit counts but the pool's own.
        prefetch: bool, of managed memory: whether each segment goes to its device when it is taken.
        headroom: int, of managed memory: bytes of the device that it leaves free for others.  What of a segment has no room
            beside them prefers the host, and its device reads and writes it there.  None leaves that to the driver.
    Raises:
        ValueError, TypeError: limit is negative, no int, or less than the 2 MiB that are the least to take from a
            device; device names none; allocator is none, or given for managed memory; headroom is negative or no int;
            prefetch or headroom is given for other memory.
        NotSupportedError: the allocator's backend is not accelrt's own, or the device has no managed memory.

    What is idle in the pool is its own: its empty_cache() gives it back to the device, as accelrt.empty_cache() inside
    use_mem_pool does, and a request that would run out of memory, unless a graph uses the pool.  When the object dies, and
    no context and no graph uses the pool, every empty_cache() does.  What is live stays valid until it is given back.
    """

    def __init__(
        self, allocator: Allocator | None = None, bint use_on_oom=False, bint no_split=False, *,
        limit: int | None = None, device: DeviceArgument | None = None, bint managed=False, bint prefetch=False,
        headroom: int | None = None,
    ) -> None:
        if self.number:
            raise RuntimeError("this MemPool is made already")
        if not managed and (prefetch or headroom is not None):
            raise ArgumentError("prefetch and headroom say where managed memory lies; pass managed=True too")
        if managed and allocator is not None:
            raise ArgumentError(f"allocator is {allocator!r}, and managed memory comes from the driver; pass one of the two")
        self.source = NULL if allocator is None else source_of(allocator)
        self.plugged = allocator
        self.lends = use_on_oom
        self.whole = no_split
        self.most = SIZE_MAX if limit is None else checked_limit(limit)
        self.device = ordinal_of(device)
        require_native("MemPool")
        if managed:
            require_managed(self.device, prefetch or headroom is not None)
            self.source = managed_source(prefetch, SIZE_MAX if headroom is None else checked_headroom(headroom))
        self.number = next_pool()
        self.hold_on(self.device)

    def __dealloc__(self):
        cdef int ordinal
        with nogil:
            for ordinal in range(64):
                if self.held >> ordinal & 1:
                    release_pool(ordinal, 0, self.number, True)  # in a forked child there is nothing to let go of
                    sweep_suspended(ordinal)

    @cython.critical_section
    cdef int hold_on(self, int ordinal) except -1:
        cdef int code
        if self.number == 0:
            refuse_unmade(self)
        if self.held >> ordinal & 1:
            return 0
        with nogil:  # the pool's lock is held in calls of the driver that may wait for a function of Python's
            code = retain_pool(ordinal, 0, self.number, True, self.most)
            if code == 0:
                code = set_up_pool(ordinal, 0, self.number, self.source, self.whole, self.lends)
        if code == 0 and self.held >> ordinal & 1:  # another thread was as quick
            with nogil:
                release_pool(ordinal, 0, self.number, True)
            return 0
        if code:
            raise_status(code, "MemPool", ("device", ordinal, "limit", self.most))
        self.held |= <uint64_t>1 << ordinal
        return 0

    cdef PrivateStats read(self, object device, bint reset) except *:
        cdef PrivateStats stats
        cdef int ordinal
        if self.number == 0:
            refuse_unmade(self)
        ordinal = self.device if device is None else ordinal_of(device)
        with nogil:
            stats = read_private(ordinal, 0, self.number, reset)
        return stats

    @property
    def id(self) -> tuple[int, int]:
        """(int, int), unique in the process: what graph(..., pool=) takes, and snapshots call segment_pool_id."""
        if self.number == 0:
            refuse_unmade(self)
        return 0, self.number

    @property
    def allocator(self) -> Allocator | None:
        """The allocator that its memory comes from, as it was given; None for the device."""
        return self.plugged

    @property
    def managed(self) -> bool:
        """bool: whether its memory is managed."""
        return self.source != NULL and bool(self.source.managed)

    @property
    def limit(self) -> int | None:
        """The most bytes that it reserves from a device; None is no limit of its own."""
        return None if self.most == SIZE_MAX else self.most

    def use_count(self, device: DeviceArgument | None = None) -> int:
        """Returns how many hold the pool on a device: this object, contexts and graphs.

        Arguments:
            device: int, "cuda:1", ...; None is the pool's own.
        """
        return self.read(device, False).uses

    def stats(self, device: DeviceArgument | None = None) -> dict[str, int]:
        """Counts what the pool holds, exact at one moment.

        Arguments:
            device: int, "cuda:1", ...; None is the pool's own.
        Returns:
            dict: "allocated_bytes.current", "allocated_bytes.peak" and the like, for live memory (allocation,
            allocated_bytes), live and pending (active, active_bytes, requested_bytes) and what was taken from the
            device (segment, reserved_bytes), in blocks, segments or bytes; "sleeping_bytes", which the device has back
            until wake(); and "limit", bytes or None.  The figures are part of memory_stats' too.
        """
        return figures_of(self.read(device, False))

    def reset_peak_stats(self, device: DeviceArgument | None = None) -> None:
        """Sets the pool's peaks on a device to the current figures.

        Arguments:
            device: int, "cuda:1", ...; None is the pool's own.
        """
        self.read(device, True)

    def empty_cache(self, device: DeviceArgument | None = None) -> None:
        """Gives the pool's idle memory back to its device, or to its allocator, after waiting for what other streams use of
        it.  What is live stays, and where a graph uses the pool all of it does.

        Arguments:
            device: int, "cuda:1", ...; None is the pool's own.
        Raises:
            CudaError: the driver refused; the memory then stays the pool's.
            KeyboardInterrupt: Ctrl-C while it waits, on the main thread, or what another signal's handler raised.
        """
        cdef uint64_t[2] name = [0, self.number]
        if self.number == 0:
            refuse_unmade(self)
        empty_pool(self.device if device is None else ordinal_of(device), name, "MemPool.empty_cache")

    @property
    def peer_access(self) -> dict[int, Literal["r", "rw"]]:
        """The other devices that may use the pool's memory on its own device: "r" or "rw", by their ordinals.

        Those that enable_peer_access() opened the device's memory to are among them.
        """
        cdef uint64_t readers, writers
        cdef int peer
        if self.number == 0:
            refuse_unmade(self)
        with nogil:
            read_peers(self.device, 0, self.number, &readers, &writers)
        return {peer: "rw" if writers >> peer & 1 else "r" for peer in range(64) if readers >> peer & 1}

    def grant_access(self, peer: DeviceArgument, access: Literal["r", "rw"] = "rw") -> None:
        """Lets another device use the pool's memory on its own device, what there is and what is to come (cuMemSetAccess).

        Arguments:
            peer: int, "cuda:1", ...: the other device.
            access: "r" or "rw".
        Raises:
            ValueError: access is neither, or peer is the pool's own device.
            CudaError: the devices cannot reach each other (PEER_ACCESS_UNSUPPORTED), or the driver refused.
            NotSupportedError: the pool's memory is in plain segments.
        """
        if access not in ("r", "rw"):
            raise ValueError(f"access is {access!r}; it may be 'r' or 'rw'; revoke_access() takes it away")
        self.open_to(peer, MEMORY_WRITTEN if access == "rw" else MEMORY_READ, "grant_access")

    def revoke_access(self, peer: DeviceArgument) -> None:
        """Takes away what grant_access() gave.  Work of that device on the memory has to be over.

        What enable_peer_access() opened for the whole device stays open.

        Arguments:
            peer: int, "cuda:1", ...: the other device.
        Raises:
            CudaError: the driver refused.
            ValueError: peer names no other device.
        """
        self.open_to(peer, MEMORY_CLOSED, "revoke_access")

    cdef int open_to(self, object peer, int access, str call) except -1:
        cdef int other = ordinal_of(peer)
        cdef int code
        if self.number == 0:
            refuse_unmade(self)
        if other == self.device:
            raise ArgumentError(f"peer is device {other}, whose own pool this is, and which may use it in any case")
        with nogil:
            code = open_pool_to(self.device, 0, self.number, other, access)
        if code == NOT_SUPPORTED:
            raise NotSupportedError(
                f"{call}: the memory of pool {(0, self.number)} is in plain segments, which are opened to a device all "
                "together (enable_peer_access); it takes virtual memory, and a MemPool without allocator and no_split",
                NOT_SUPPORTED, "NOT_SUPPORTED", call)
        if code:
            raise_status(code, call, ("pool", (0, self.number), "device", self.device, "peer", other))
        return 0

    def sleep(self, keep: str = "host", device: DeviceArgument | None = None, *, exports: str = "refuse") -> SleepResult:
        """Gives the pool's memory back to its device, until wake(); addresses stay, so that pointers, Buffers, Arrays and
        captured graphs over it are valid again then.

        Arguments:
            keep: "host" copies what is live to page-locked memory; "discard" lets the contents go: after wake() they are
                undefined.  What is free in the pool is never kept.
            device: int, "cuda:1", ...; None is the pool's own.  Each device's part sleeps by itself.
            exports: "refuse" raises BufferError where other libraries have memory of the pool by DLPack; "ignore" sleeps
                all the same.  Until wake() nobody may then touch those arrays, with the CPU or a device.
        Returns:
            SleepResult: bytes and seconds.
        Raises:
            BufferError: tensors that DLPack made of the pool's memory are alive.
            OutOfMemoryError: no page-locked memory for the contents.
            NotSupportedError: the device's memory is in plain segments (expandable_segments:False, or a device without
                virtual memory), or the allocator's backend is not accelrt's own.
            RuntimeError: it sleeps already, or a capture is under way on the device, or the calling thread is in the midst
                of a use of memory.
            ValueError: keep or exports is neither, or the pool was never used on that device.
            CudaError: the driver refused, or work on the device failed.
            KeyboardInterrupt: Ctrl-C while it waits, on the main thread; the pool is then as it was.

        First it refuses later uses of the memory; then it waits for those that other threads have begun, until they are in
        their streams, and for the device's work.  The first sleep takes the page-locked memory, which is slower
        than the copies (host_seconds); the cache keeps it for the next one, until host_empty_cache().  A child of a fork
        has none of it.  After an error the pool is as it was; only where the driver refused to take memory back and then to
        give it again does it sleep (is_asleep), and wake() can be tried again.

        While it sleeps, memory of it may be freed; allocations from it, copies, fills, launches, collectives and exports of
        it, reads and writes of files and replays of graphs over it raise SleepingMemoryError, until wake() has brought the
        contents back.  What accelrt does not see must not touch it: a kernel of others, an address that was handed out
        before, torch's tensors where accelrt is torch's allocator, whose memory sleeps with the pool.  An export by DLPack
        is known from its making to its deleter's call.  The CUDA Array Interface and DLPack's tensors without an owner
        (the C exchange API's) have no end, and stop no sleep: whoever took an address from them lets go of it before.
        """
        if self.number == 0:
            refuse_unmade(self)
        return put_to_sleep("MemPool.sleep", self.device if device is None else ordinal_of(device), 0, self.number, keep,
                            exports)

    def wake(self, device: DeviceArgument | None = None) -> SleepResult:
        """Takes memory from the device for a pool that sleeps, at the same addresses, and copies the contents back.

        Arguments:
            device: as for sleep.
        Returns:
            SleepResult: bytes and seconds.  Once it returned, the contents are there for every stream.
        Raises:
            OutOfMemoryError: the device has no room, even after the idle memory went back to it.
            RuntimeError: it does not sleep.
            ValueError: nothing of it is in use on that device.
            CudaError: the driver refused.

        After an error it sleeps on, nothing is lost, and it can be tried again.
        """
        if self.number == 0:
            refuse_unmade(self)
        return wake_up("MemPool.wake", self.device if device is None else ordinal_of(device), 0, self.number)

    def is_asleep(self, device: DeviceArgument | None = None) -> bool:
        """Tells whether the pool's part on a device sleeps.

        Arguments:
            device: int, "cuda:1", ...; None is the pool's own.
        """
        if self.number == 0:
            refuse_unmade(self)
        return bool(is_pool_suspended(self.device if device is None else ordinal_of(device), 0, self.number))

    def snapshot(self, include_traces: bool = True, *, device: DeviceArgument | None = None) -> list[dict[str, Any]]:
        """Returns the pool's segments on a device, as memory_snapshot gives them.

        Arguments:
            include_traces: for torch's sake; there are none in segments.
            device: int, "cuda:1", ...; None is the pool's own.
        """
        ordinal = self.device if device is None else ordinal_of(device)
        return [segment for segment in name_all(segments(ordinal)[0]) if segment["segment_pool_id"] == self.id]

    def __reduce__(self):
        refuse_copy(self, "it holds the pool; share the object, or its id among threads")

    def __repr__(self):
        limit = "" if self.most == SIZE_MAX else f", limit {self.most}"
        if self.plugged is not None:
            limit += f", memory of {self.plugged!r}"
        if self.managed:
            limit += ", managed"
        if is_pool_suspended(self.device, 0, self.number):
            limit += ", asleep"
        return f"<accelrt.MemPool {(0, self.number)} of device {self.device}{limit}>"


cdef class PinnedMemPool:
    """PinnedMemPool(*, limit=None, numa_node=None)\n--\n\n\
    A pool of page-locked host memory apart from the rest.

        pool = accelrt.PinnedMemPool(limit=1 << 30)
        pinned = accelrt.PinnedBuffer(4096, pool=pool)
        with accelrt.use_mem_pool(pool):
            array = accelrt.pinned_empty(1024)   # of the pool

    Arguments:
        limit: int, the most bytes to take from the driver; None is no limit of its own.
        numa_node: int, the node of the host's memory on which it is to lie; None is wherever the system puts it.  What the
            node has no room for lies elsewhere.
    Raises:
        ValueError, TypeError: limit is negative, no int, or less than the 2 MiB that are the least to take; or the
            system has no such node.
        RuntimeError: it is made already.
        MemoryError: there are 1024 such pools.

    What is idle in the pool is its own: its empty_cache() gives it back, and a request that the driver refuses.  When the
    object dies, and no context uses the pool, its idle memory goes back.  What is live stays valid until it is given back.
    Memory outside such pools lies on the node nearest to the device that is current, where the system has several.
    """

    cdef PinnedPool* pinned
    cdef object node
    cdef object most
    cdef object __weakref__

    def __init__(self, *, limit: int | None = None, numa_node: int | None = None) -> None:
        cdef size_t most = SIZE_MAX if limit is None else checked_limit(limit)
        cdef int node = ANY_NODE
        if self.pinned != NULL:
            raise RuntimeError("this PinnedMemPool is made already")
        if numa_node is not None:
            node = checked_node(numa_node)
        with nogil:
            self.pinned = make_pinned_pool(most, node)
        if self.pinned == NULL:
            raise MemoryError("there are 1024 pools of page-locked memory, or no host memory for another")
        self.most, self.node = None if limit is None else most, numa_node

    def __dealloc__(self):
        if self.pinned != NULL:
            with nogil:
                drop_pinned_pool(self.pinned)

    cdef PinnedPool* held(self) except NULL:
        if self.pinned == NULL:
            refuse_unmade(self)
        return self.pinned

    @property
    def limit(self) -> int | None:
        """The most bytes that it takes from the driver; None is no limit of its own."""
        self.held()
        return self.most

    @property
    def numa_node(self) -> int | None:
        """The node of the host's memory on which it is to lie; None is wherever the system puts it."""
        self.held()
        return self.node

    def stats(self) -> dict[str, int]:
        """Returns what the pool holds, with the keys of host_memory_stats, whose figures have these in them, and "limit"."""
        cdef PinnedPool* pinned = self.held()
        return {**pinned_figures(read_pinned_pool(pinned)), "limit": self.most}

    def reset_peak_stats(self) -> None:
        """Sets the pool's peaks to the current figures."""
        reset_pinned_pool(self.held())

    def empty_cache(self) -> None:
        """Gives the pool's idle memory back to the driver, after waiting for what streams use of it.  While a capture is
        under way nothing goes back.

        Raises:
            CudaError: the driver refused; the memory then stays the pool's.
        """
        cdef PinnedPool* pinned = self.held()
        cdef int code
        watch.before_wait("PinnedMemPool.empty_cache")
        drain()
        with nogil:
            code = empty_pinned_pool(pinned)
        if code:
            raise_status(code, "PinnedMemPool.empty_cache")

    def __reduce__(self):
        refuse_copy(self, "it holds memory of this process; share the object among threads")

    def __repr__(self):
        limit = "" if self.most is None else f", limit {self.most}"
        node = "" if self.node is None else f" on NUMA node {self.node}"
        return f"<accelrt.PinnedMemPool{node}: {self.stats()['allocated_bytes.current']} bytes{limit}>"


cdef int checked_node(object numa_node) except -1:
    node = exact_int(numa_node, "numa_node", "an int")
    if not 0 <= node < 1 << 16 or not registry.has_node(node):
        raise ValueError(f"numa_node is {node}, and the system has no such node of memory; see /sys/devices/system/node")
    return node


cdef uintptr_t allocate_pinned_for(object pool, object device, size_t size, bint shared) except? 0:
    cdef PinnedPool* before = NULL
    if pool is not None and not isinstance(pool, PinnedMemPool):
        raise TypeError(f"pool is {pool!r} of type {type(pool).__name__}; pass a PinnedMemPool")
    if pool is not None:
        before = enter_pinned_pool((<PinnedMemPool>pool).held())
    try:
        return share_host_bytes(device, size) if shared else allocate_host_bytes(device, size)
    finally:
        if pool is not None:
            enter_pinned_pool(before)


@cython.no_gc_clear  # the destructor leaves the pool that was entered
cdef class use_mem_pool:
    """use_mem_pool(pool, device=None)\n--\n\n\
    The context in which what the calling thread allocates on a device comes from a pool.

        with accelrt.use_mem_pool(pool):
            ...

    Arguments:
        pool: MemPool, or a pool's id, (int, int): MemPool.id, a graph's pool() or graph_pool_handle().  An id holds the
            pool while the context is entered, and no longer.  A PinnedMemPool, for page-locked memory of any device.
        device: int, "cuda:1", ...; None is the device that is current when the context is entered.
    Raises:
        TypeError: pool is none.
        ValueError: the id is of a Reservation's pool.
        RuntimeError: the same context is entered twice, left without being entered, or left by another thread than the
            one that entered it.
        NotSupportedError: the allocator's backend is not accelrt's own.

    Other threads allocate where they did.  Contexts nest, and the innermost counts; so does a capture that begins
    inside, for what is allocated on its streams.  Memory goes back where it came from, wherever it is given back.
    """

    cdef MemPool pool       # None where an id was given
    cdef PinnedMemPool pinned  # None where that is of a device
    cdef PinnedPool* before    # while entered: the PinnedMemPool's that the thread had entered, or NULL
    cdef uint64_t[2] number  # the pool's id
    cdef bint initialised
    cdef object device
    cdef int ordinal      # while entered
    cdef uint64_t thread  # that entered it; 0: none
    cdef object __weakref__

    def __init__(self, pool: MemPool | tuple[int, int], device: DeviceArgument | None = None) -> None:
        if not isinstance(pool, (MemPool, PinnedMemPool, tuple)):
            raise TypeError(f"pool is {pool!r} of type {type(pool).__name__}; pass a MemPool or its id")
        if self.thread:
            raise RuntimeError("this use_mem_pool is entered; make another one")
        if isinstance(pool, PinnedMemPool):
            (<PinnedMemPool>pool).held()
            self.pinned = pool
            self.initialised = True
            return
        read_pool_id(pool, self.number)
        self.pool = pool if isinstance(pool, MemPool) else None
        if self.pool is None and self.number[0] == 0 and self.number[1] == 0:
            raise ArgumentError("pool is (0, 0), the id of the common pool, which serves outside of every use_mem_pool")
        if self.pool is None:
            require_native("use_mem_pool")
        self.device = device
        self.initialised = True

    def __dealloc__(self):
        if self.thread and self.pinned is None:
            with nogil:
                end_pool(self.ordinal, self.number[0], self.number[1], self.thread)
        elif self.thread == thread_number():
            self.leave_pinned()

    cdef int leave_pinned(self) noexcept:
        cdef PinnedPool* pinned = enter_pinned_pool(self.before)
        self.before = NULL
        with nogil:
            drop_pinned_pool(pinned)
        return 0

    def __reduce__(self):
        refuse_copy(self, "it belongs to the thread that enters it; make another one of the same pool")

    @cython.critical_section
    def __enter__(self) -> None:
        cdef int code
        if not self.initialised:
            refuse_unmade(self)
        if self.thread:
            raise RuntimeError("this use_mem_pool is entered already; make one for each with statement")
        if self.pinned is not None:
            hold_pinned_pool(self.pinned.held())
            self.before = enter_pinned_pool(self.pinned.held())
            self.thread = thread_number()
            return
        self.ordinal = ordinal_of(self.device)
        if self.pool is not None:
            self.pool.hold_on(self.ordinal)
        with nogil:
            code = begin_pool(self.ordinal, self.number[0], self.number[1])
        refuse_reserved(code, "use_mem_pool", self.number[0], self.number[1])
        if code:
            raise_status(code, "use_mem_pool", ("pool", self.shown(), "device", self.ordinal))
        self.thread = thread_number()

    @cython.critical_section
    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        cdef uint64_t thread = self.thread
        cdef int code
        if thread == 0:
            raise RuntimeError("this use_mem_pool is not entered, or was left already; allocations go where they went")
        if self.pinned is not None:
            if thread != thread_number():
                raise RuntimeError("use_mem_pool of page-locked memory is left by the thread that entered it alone")
            self.thread = 0
            self.leave_pinned()
            return
        self.thread = 0
        with nogil:
            code = end_pool(self.ordinal, self.number[0], self.number[1], thread)
        if thread != thread_number():
            raise RuntimeError("use_mem_pool was left by another thread than the one that entered it, which is out of it")
        if code and code != FORKED:
            raise_status(code, "use_mem_pool", ("pool", self.shown(), "device", self.ordinal))

    cdef object shown(self):
        return (self.number[0], self.number[1]) if self.pool is None else self.pool


# sleep and wake

cdef dict tag_pools = {}
cdef dict reservations = {}  # (device, number of its pool) -> a weak reference to a Reservation


cdef int note_reservation(int ordinal, uint64_t number, object reference) except -1:
    reservations[ordinal, number] = reference
    return 0


cdef void forget_reservation(int ordinal, uint64_t number) noexcept:
    reservations.pop((ordinal, number), None)


cdef object reservation_of(int ordinal, const uint64_t* name):
    # None: the pool is no Reservation's.  What of the memory is protected, the Reservation alone knows.
    reference = reservations.get((ordinal, name[1])) if name[0] == 0 else None
    return None if reference is None else reference()


cdef int refuse_reserved(int code, str call, uint64_t first, uint64_t second) except -1:
    if code == INVALID_VALUE:
        raise ArgumentError(f"{call}: pool {(first, second)} is a Reservation's, which has no memory but what its commit() "
                            "takes; pass a MemPool or its id")
    return 0


def tag_pool(name: str) -> MemPool:
    """Returns the MemPool of a tag, made when it is first asked for: what is allocated inside use_mem_pool of it shares no
    page with other memory, so that sleep(name) can give all of it back.

    Arguments:
        name: str, as of accelrt.memory.tag.
    Returns:
        MemPool, which lives until the process ends; the same one for the same name.
    Raises:
        TypeError, ValueError: name is no str, or is empty.
        NotSupportedError: the allocator's backend is not accelrt's own.
    """
    if not isinstance(name, str):
        raise TypeError(f"name is {name!r} of type {type(name).__name__}; a tag is a str")
    if not name:
        raise ValueError("name is empty; pass the tag's name")
    if name not in tag_pools:
        tag_pools.setdefault(name, MemPool())
    return tag_pools[name]


cdef class sleepable(use_mem_pool):
    """sleepable(name)\n--\n\n\
    The context in which what the calling thread allocates has a tag and can be put to sleep by it.

        with accelrt.memory.sleepable("weights"):
            weights = load()
        accelrt.memory.sleep("weights")

    Arguments:
        name: str, the tag, as of accelrt.memory.tag.  What is allocated comes from the tag's own pool (tag_pool), on the
            device that is current when the context is entered.
    Raises:
        as use_mem_pool and tag_pool; of the name, as tag.
    """

    cdef object tag

    def __init__(self, name: str) -> None:
        super().__init__(tag_pool(name))
        self.tag = tag(name)

    def __enter__(self):
        if self.tag is None:
            refuse_unmade(self)
        use_mem_pool.__enter__(self)
        try:
            self.tag.__enter__()
        except BaseException:
            use_mem_pool.__exit__(self, None, None, None)
            raise

    def __exit__(self, kind, error, trace):
        try:
            self.tag.__exit__(kind, error, trace)
        finally:
            use_mem_pool.__exit__(self, kind, error, trace)
        return False


cdef int read_sleeper(object pool, int ordinal, uint64_t* out_id) except -1:
    # A pool's id, from what names one for sleep and wake.
    cdef bint is_own, is_torchs, of_torch = False
    if isinstance(pool, str):
        if pool not in tag_pools:
            raise ValueError(
                f"nothing was allocated in a pool of the tag {pool!r}: only memory that shares no page with other tags' can "
                f"sleep; allocate it inside accelrt.memory.sleepable({pool!r}), or use a MemPool of your own"
            )
        pool = tag_pools[pool]
    elif not isinstance(pool, (MemPool, tuple)) and isinstance(getattr(pool, "id", None), tuple):  # torch.cuda.MemPool
        pool, of_torch = pool.id, True
    read_pool_id(pool, out_id)
    if out_id[0] == 0 and out_id[1] >> TORCH_BIT & 1:
        out_id[1] ^= <uint64_t>1 << TORCH_BIT
    elif out_id[0] == 0 or out_id[1] == 0:  # torch names its pools so too: those of graphs, and its MemPools
        with nogil:
            is_own = read_private(ordinal, out_id[0], out_id[1], False).known
            is_torchs = read_private(ordinal, out_id[0] | <uint64_t>1 << TORCH_BIT, out_id[1], False).known
        if is_torchs and (of_torch or not is_own):
            out_id[0] |= <uint64_t>1 << TORCH_BIT
    return 0


def sleeper_id(pool: object, device: int) -> tuple[int, int]:
    """Answers the id of what names a pool for sleep and wake."""
    cdef uint64_t[2] name
    read_sleeper(pool, device, name)
    return name[0], name[1]


cdef int sleeper_device(object pool, object device) except -1:
    return (<MemPool>pool).device if device is None and isinstance(pool, MemPool) else ordinal_of(device)


def sleep(pool: object, keep: str = "host", device: DeviceArgument | None = None, *, exports: str = "refuse") -> SleepResult:
    """Gives a memory pool's memory back to its device, until wake(); see MemPool.sleep.

    Arguments:
        pool: MemPool; a pool's id, (int, int); torch.cuda.MemPool or its id, or the pool() of a graph that torch captured
            into a pool of its own, where accelrt is torch's allocator; or a tag, as str: then what was allocated in
            sleepable(tag) sleeps.  A Reservation sleeps by the id of its pool as by its own sleep().
        keep: "host" or "discard".
        device: int, "cuda:1", ...; None is a MemPool's own, else the current device.
        exports: "refuse" or "ignore".
    Returns:
        SleepResult.
    Raises:
        as MemPool.sleep; TypeError: pool is none; ValueError: no memory of the tag has a pool of its own.
    """
    cdef uint64_t[2] name
    cdef int ordinal = sleeper_device(pool, device)
    read_sleeper(pool, ordinal, name)
    reservation = reservation_of(ordinal, name)
    if reservation is not None:
        return reservation.sleep(keep, exports=exports)
    return put_to_sleep("memory.sleep", ordinal, name[0], name[1], keep, exports)


def wake(pool: object, device: DeviceArgument | None = None) -> SleepResult:
    """Wakes a memory pool that sleeps, also one whose MemPool is gone and in which memory is live; see MemPool.wake.

    Arguments:
        pool, device: as for sleep.
    Returns:
        SleepResult.
    Raises:
        as MemPool.wake; TypeError: pool is none; ValueError: no memory of the tag has a pool of its own.
    """
    cdef uint64_t[2] name
    cdef int ordinal = sleeper_device(pool, device)
    read_sleeper(pool, ordinal, name)
    reservation = reservation_of(ordinal, name)
    return reservation.wake() if reservation is not None else wake_up("memory.wake", ordinal, name[0], name[1])
