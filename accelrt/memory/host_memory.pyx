"""Page-locked host memory as Python sees it: the cache, with torch.cuda's names for its figures, and memory of the user's
own."""
cimport cython
from cpython.buffer cimport (
    PyBUF_ANY_CONTIGUOUS, PyBUF_SIMPLE, PyBuffer_Release, PyObject_CheckBuffer, PyObject_GetBuffer,
)
from cpython.long cimport PyLong_AsLongLongAndOverflow, PyLong_CheckExact

from accelrt.allocator.pinned.block cimport HOST_ROUND_LIMIT, PinnedStats, Tally, Timing
from accelrt.allocator.pinned.cache cimport (
    allocate_pinned_on, empty_pinned, is_cached_pinned, pinned_limit_here, read_pinned_node, read_pinned_stats,
    release_pinned, share_pinned, try_allocate_pinned, try_release_pinned,
)
from accelrt.allocator.pool cimport MAX_DEVICES, pool_if_made
from accelrt.allocator.private.sleep cimport sweep_suspended
from accelrt.allocator.readers cimport pinned_audit_failure, reset_pinned_peaks, reset_pinned_sums
from accelrt.allocator.readers import pinned_segments
from accelrt.core.integers cimport checked_address_int
from accelrt.devices.device cimport await_device, ordinal_of
from accelrt.driver.guard cimport begin_wait, end_wait, enter_wait, go_relaxed, INTERRUPTED, leave_wait, restore_mode
from accelrt.driver.registry import cause_of_refusal, opened_name
cimport accelrt.driver.registry as registry
from accelrt.errors import ArgumentError, OutOfMemoryError
from accelrt.memory.caching cimport checked_size, tell_log
from accelrt.runtime.init import later
from accelrt.runtime.lifetimes cimport dispose, drain, HOST_BYTES, HOST_REGISTRATION
from accelrt.status cimport NOT_ALLOCATED, NOT_READY, OUT_OF_MEMORY, POOL_CAP_REACHED, raise_status, refuse_copy
cimport accelrt.runtime.access as watch

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
    cdef int code = try_allocate_pinned(size, &address)
    if code == NOT_READY:
        if device is not None:  # checked even where the cache has memory, by the caller
            ordinal = ordinal_of(device)
        with nogil:
            code = allocate_pinned_on(ordinal, size, &address)
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
        int, the address, a multiple of 64, and of 4096 for sizes from 32 KiB on; 0 for 0 bytes.
    Raises:
        OutOfMemoryError: the driver has no such memory, even after the cache's idle memory went back.
        ValueError, TypeError: size is negative or no int.
    """
    return allocate_host_bytes(None, checked_host_size(size, "size"))


cdef uintptr_t checked_host_address(object mem_ptr) except? 0:
    return checked_address_int(mem_ptr, "mem_ptr")


def caching_host_allocator_delete(mem_ptr: int) -> None:
    """Gives page-locked memory back to the cache.  Work on a stream that was recorded for it may still be under
    way: the memory is handed out again when that is done.

    Arguments:
        mem_ptr: int, an address that caching_host_allocator_alloc returned; 0 does nothing.
    Raises:
        ValueError: the address is not allocated, or was given back before.
        TypeError: mem_ptr is no int.
    """
    cdef uintptr_t address = checked_host_address(mem_ptr)
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
    cdef dict answer = pinned_figures(read_pinned_stats())
    cdef PinnedStats stats
    cdef int node
    for node in range(registry.MOST_NODES if registry.tells_nodes_apart() else 0):
        stats = read_pinned_node(node)
        if stats.segments.peak:
            answer[f"numa_node.{node}.allocated_bytes.current"] = stats.segment_bytes.current
            answer[f"numa_node.{node}.active_bytes.current"] = stats.block_bytes.current
    return answer


cdef dict pinned_figures(PinnedStats stats):
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
    """Walks every identity of the page-locked memory (accelrt/memory/DESIGN.md).

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
    cdef int code = 0
    if enter_wait():  # beside a capture the device cannot be waited for
        code = registry.active().device_synchronize(device)
        leave_wait()
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
                self.ptr = address
                raise
        elif self.nbytes:
            return  # another thread does it
        watch.note_forgotten(address, self.nbytes)
        self.nbytes = 0
        if self.viewed:
            self.viewed = False
            PyBuffer_Release(&self.view)

    def __reduce__(self):
        refuse_copy(self, "it unlocks the pages when it dies; register_host() each memory once")

    def __len__(self) -> int:
        return self.nbytes

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.unregister()
        return False

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
