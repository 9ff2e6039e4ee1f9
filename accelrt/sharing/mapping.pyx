"""Memory that several processes have: in its owner's process the pages that are exported, in another one the addresses at
which they are mapped.  handles.py, producer.py and consumer.py say who tells whom what."""
from libc.stdint cimport uintptr_t
from libc.stdlib cimport free

from accelrt.arrays.array cimport DEVICE_BUFFER, Array, check_live
from accelrt.arrays.buffer cimport Buffer, raise_freed
from accelrt.core.owners cimport own
from accelrt.driver.capture_guard cimport enter_wait, go_relaxed, is_capturing, leave_wait, restore_mode
cimport accelrt.driver.registry as registry
from accelrt.errors import NotSupportedError
from accelrt.allocator.interprocess cimport (
    Exported, begin_export, end_export, export_page, share_new_pages, add_imported, drop_imported,
)
from accelrt.allocator.private.suspended cimport has_suspended_pools, refuse_suspended
from accelrt.memory.caching cimport release_bytes
from accelrt.runtime.release_queue cimport drain
cimport accelrt.runtime.sanitizer_hooks as watch
from accelrt.status cimport (
    ASSERT, DEINITIALIZED, HARDWARE_STACK_ERROR, ILLEGAL_ADDRESS, LAUNCH_FAILED, LAUNCH_OUT_OF_RESOURCES, LAUNCH_TIMEOUT,
    NOT_ALLOCATED, NOT_READY, NOT_SUPPORTED, SLEEPING, raise_status, refuse_copy,
)
from accelrt.streams.current cimport stream_for
from accelrt.streams.stream cimport Stream

cdef enum:
    UUID_BYTES = 16
    IPC_BYTES = 64
    CONTEXT_IS_DESTROYED = 709
    CONFIRMED = 2  # answers in a row that the device is lost


def share_pages():
    """Pages that any pool makes from now on can be mapped by other processes."""
    share_new_pages()


def relax():
    """Has the calling thread break no capture of another thread by what it asks of the driver; what restore() takes."""
    cdef int mode
    cdef int code = go_relaxed(registry.active(), &mode)
    if code:
        raise_status(code, "capture_mode_exchange", ())
    return mode


def restore(int mode):
    """Puts back the mode that the thread had before relax()."""
    restore_mode(registry.active(), mode)


# --- devices -----------------------------------------------------------------------------------------------------

def uuid_of(int ordinal):
    """The device's 16 bytes, which name it in every process."""
    cdef char[UUID_BYTES] uuid
    cdef int code
    with nogil:
        code = registry.active().device_uuid(ordinal, uuid)
    if code:
        raise_status(code, "device_uuid", ("device", ordinal))
    return uuid[:UUID_BYTES]


def find_device(bytes uuid):
    """The ordinal that a device has in this process; -1 where this process does not see it."""
    cdef int count = 0, ordinal, code
    with nogil:
        code = registry.active().device_count(&count)
    if code:
        raise_status(code, "device_count", ())
    for ordinal in range(count):
        if uuid_of(ordinal) == uuid:
            return ordinal
    return -1


def refuse_capture(Stream stream, str call):
    """RuntimeError where the stream is capturing: events of other processes are no part of a graph."""
    cdef int code
    cdef bint capturing
    with nogil:
        capturing = is_capturing(registry.active(), stream.device_index, stream.handle, &code)
    if code:
        raise_status(code, "capture_status", ("stream", stream.handle))
    if capturing:
        raise RuntimeError(
            f"{call}: the stream {stream!r} is capturing, and what orders two processes cannot be part of a graph; {call} "
            "before the capture begins, or after its end"
        )


# --- the owner's side ----------------------------------------------------------------------------------------------

cdef class SharedBytes:
    """A Buffer's bytes as other processes may have them; released when neither the Buffer nor anything else keeps this."""

    cdef readonly int device_index
    cdef readonly uintptr_t ptr
    cdef readonly size_t nbytes
    cdef readonly size_t base      # address of the first page, or of the plain segment
    cdef readonly size_t size      # bytes from there on
    cdef readonly object serial    # of a plain segment; None for pages
    cdef readonly tuple pages      # (serial, size) of each
    cdef list handles
    cdef bint exported             # the allocator counts it as such
    cdef object __weakref__

    def __init__(self):
        raise TypeError("a SharedBytes belongs to the Buffer whose memory is shared")

    def __dealloc__(self):
        cdef int device = self.device_index
        cdef uintptr_t address = self.ptr
        if address:
            if self.exported:
                with nogil:
                    end_export(device, address)
            release_bytes(device, address)

    def __reduce__(self):
        refuse_copy(self, "it owns memory of this process")

    def export_page(self, index):
        """A file descriptor of one page, and the Descriptor that owns it, with which it is closed; None where the page keeps
        it while it lives, for others that open it.

        Raises:
            CudaError: the driver refused.
        """
        cdef uintptr_t handle = self.handles[index]
        cdef int file = -1, code
        cdef bint kept = False
        with nogil:
            code = export_page(handle, &file, &kept)
        if code:
            raise_status(code, "physical_export", ("handle", handle, "device", self.device_index))
        return file, None if kept else own(file)

    def export_segment(self):
        """The 64 bytes by which another process opens a plain segment (cuIpcGetMemHandle)."""
        cdef char[IPC_BYTES] handle
        cdef uintptr_t base = self.base
        cdef int device = self.device_index
        cdef int code
        with nogil:
            code = registry.active().ipc_memory_export(device, base, handle)
        if code:
            raise_status(code, "ipc_memory_export", ("device", device, "address", base))
        return handle[:IPC_BYTES]


cdef int refuse_export(int code, Buffer buffer, const Exported* found) except -1:
    if code == NOT_ALLOCATED:
        raise ValueError(f"{buffer!r} is no memory of accelrt's allocator, so it cannot be shared with other processes")
    if code == NOT_SUPPORTED:
        raise NotSupportedError(
            "memory of another allocator (cudaMallocAsync, or one of your own) cannot be shared with other processes; use "
            "the native backend, or copy it into memory of that", NOT_SUPPORTED, "NOT_SUPPORTED", "share",
        )
    if code == SLEEPING:
        raise_status(SLEEPING, "share", ("address", buffer.ptr))
    if code:
        raise_status(code, "share", ("address", buffer.ptr, "size", buffer.nbytes))
    if found.refused:
        raise NotSupportedError(
            f"{found.refused} of the {found.count} pages below {buffer!r} were made for this process alone, since "
            "accelrt.sharing was not imported yet, or because the device cannot make others; import accelrt.sharing "
            "before the first allocation, or call accelrt.empty_cache() after it and allocate this memory anew",
            NOT_SUPPORTED, "NOT_SUPPORTED", "share",
        )
    return 0


def share_bytes(Buffer buffer):
    """The SharedBytes of a Buffer, made at the first call: from then on they own the memory, and the Buffer keeps them.
    Callers take turns.

    Raises:
        ValueError, NotSupportedError, SleepingMemoryError: as of Buffer.share().
    """
    cdef Exported found
    cdef SharedBytes made
    cdef uintptr_t address = buffer.ptr
    cdef int device = buffer.device_index
    cdef int code = 0
    if not buffer.live:
        raise_freed(buffer, "this")
    if buffer.kept:
        if not isinstance(buffer.keeper, SharedBytes):
            raise ValueError(
                f"{buffer!r} is memory of another process already, which alone can share it; copy it into a Buffer of "
                "this process, and share that"
            )
        return buffer.keeper
    made = SharedBytes.__new__(SharedBytes)
    made.device_index = device
    made.nbytes = buffer.nbytes
    made.pages, made.handles = (), []
    if address == 0:
        return made
    made.ptr = address  # the Buffer may be freed by another thread from here on
    buffer.keeper = made
    buffer.kept = True
    with nogil:
        code = begin_export(device, address, &found)
    made.exported = code == 0 and found.refused == 0
    try:
        refuse_export(code, buffer, &found)
        made.base, made.size = found.base, found.size
        made.serial = None if found.count else found.serial
        made.pages = tuple([(found.pages[index].serial, found.pages[index].size) for index in range(found.count)])
        made.handles = [found.pages[index].handle for index in range(found.count)]
    except BaseException:
        give_up(buffer, made)
        raise
    finally:
        free(found.pages)
    return made


cdef int give_up(Buffer buffer, SharedBytes made) except -1:
    # The memory is the Buffer's alone again, unless that was freed meanwhile.
    cdef int device = made.device_index
    cdef uintptr_t address = made.ptr
    if made.exported:
        made.exported = False
        with nogil:
            end_export(device, address)
    if buffer.keeper is made:
        made.ptr = 0
        buffer.kept = False
        buffer.keeper = None
    return 0


def check_shareable(Buffer buffer):
    """The errors of share_bytes that need no export: memory that was freed, or that sleeps."""
    if not buffer.live:
        raise_freed(buffer, "this")
    if has_suspended_pools():
        refuse_suspended(buffer.ptr, "this Buffer")


def buffer_of(memory):
    """The Buffer that holds a Buffer's or Array's memory.

    Raises:
        ValueError: the Array is on other memory, or was freed.
        TypeError: memory is neither.
    """
    if isinstance(memory, Buffer):
        return memory
    if not isinstance(memory, Array):
        raise TypeError(f"memory is of type {type(memory).__name__}; pass a Buffer, or an Array on one")
    check_live(memory, "this")
    if (<Array>memory).owner != DEVICE_BUFFER:
        raise ValueError(
            f"{memory!r} is on no Buffer, and only accelrt's own device memory can be shared with other processes; pass "
            "a copy: accelrt.empty(...).copy_(array)"
        )
    return (<Array>memory).base


def pick_stream(Buffer buffer, stream):
    """The stream after whose work the others use the bytes: one that was given, or the Buffer's own."""
    return buffer.stream if stream is None else stream_for(stream, buffer.device_index, "the memory")


# --- the other processes' side ---------------------------------------------------------------------------------------

cdef list _left = []  # Mappings that nothing refers to any more, and that the driver refused to close
cdef list _unreleased = []  # handles of pages that it refused to release


cdef class Relaxed:
    """The context in which the calling thread breaks no capture of another thread by what it asks of the driver."""

    cdef int mode

    def __enter__(self):
        self.mode = relax()
        return self

    def __exit__(self, kind, error, trace):
        restore_mode(registry.active(), self.mode)


cdef class Mapping:
    """Memory of another process at addresses of this one; unmapped by close(), which waits for nothing."""

    def __init__(self):
        raise TypeError("a Mapping is made by reserve() or open_segment()")

    def __dealloc__(self):
        cdef Mapping other
        if self.base and self.unmap():
            other = Mapping.__new__(Mapping)  # what the driver refuses is tried again, by close_left
            other.device_index, other.base, other.size, other.mapped = self.device_index, self.base, self.size, self.mapped
            other.plain, other.noted, other.half_closed, other.lost = self.plain, self.noted, self.half_closed, self.lost
            self.base = 0
            _left.append(other)

    def __reduce__(self):
        refuse_copy(self, "it owns addresses of this process")

    def add_page(self, int file, size_t size):
        """Maps the next page, of a descriptor that stays the caller's."""
        cdef uintptr_t handle = 0, address = self.base + self.mapped
        cdef int device = self.device_index
        cdef int code, kept
        if size > self.size - self.mapped:
            raise ValueError(f"a page of {size} bytes does not fit behind {self.mapped} of {self.size}")
        with nogil:
            code = registry.active().physical_import(device, file, &handle)
        if code:
            raise_status(code, "physical_import", ("device", device, "file", file))
        with nogil:
            code = registry.active().memory_map(address, size, handle)
            if code == 0:
                self.mapped += size
            kept = registry.active().physical_release(handle)  # the mapping alone keeps the memory
        if kept:
            _unreleased.append(handle)
        if code:
            raise_status(code, "memory_map", ("address", address, "size", size, "handle", handle))

    def finish(self):
        """Opens the pages for the device, and begins to note which streams use them."""
        cdef uintptr_t base = self.base
        cdef size_t size = self.size
        cdef int device = self.device_index
        cdef int code = 0
        if not self.plain:
            if self.mapped != size:
                raise ValueError(f"{self.mapped} of {size} bytes are mapped")
            with nogil:
                code = registry.active().memory_access(base, size, device)
            if code:
                raise_status(code, "memory_access", ("address", base, "size", size, "device", device))
        code = add_imported(base, size)
        if code:
            raise_status(code, "import", ("address", base))
        self.noted = True

    cdef int unmap(self) noexcept:
        # 0, or NOT_READY where the driver refused: beside a capture, say.  Then it is to be tried again.
        cdef int code
        if self.base == 0:
            return 0
        with nogil:
            code = close_segment(self.device_index, self.base) if self.plain else self.close_pages()
        self.lost = self.lost + 1 if is_lost(code) else 0
        if code and self.lost < CONFIRMED:
            return NOT_READY
        if self.noted:
            drop_imported(self.base)
            self.noted = False
        if watch.sanitizing:
            watch.note_forgotten(self.base, self.size)  # other memory may come to be there
        self.base = 0
        return 0

    cdef int close_pages(self) noexcept nogil:
        cdef int code = 0
        if self.mapped:
            code = registry.active().memory_unmap(self.base, self.mapped)
        if code == 0:
            self.mapped = 0
            self.half_closed = True
            code = registry.active().address_free(self.base, self.size)
        return code

    def close(self):
        """Unmaps it; whether that was done: whatever a driver answers but that the device is lost, it is to be tried
        again."""
        return self.unmap() == 0

    def buffer(self, size_t offset, size_t nbytes, Stream stream not None, keeper):
        """A Buffer of some of the bytes, which keeps keeper alive."""
        cdef Buffer made = Buffer.__new__(Buffer)
        made.device_index = self.device_index
        made.stream = stream
        made.ptr = self.base + offset
        made.nbytes = nbytes
        made.kept = True
        made.keeper = keeper
        made.live = True
        return made


def close_left():
    """Tries again to close what nothing refers to any more and the driver refused to close; how many are left."""
    cdef Mapping one
    cdef uintptr_t handle
    cdef int code
    for _ in range(len(_unreleased)):
        try:
            handle = _unreleased.pop(0)
        except IndexError:  # another thread was faster
            break
        with nogil:
            code = registry.active().physical_release(handle)
        if code and not is_lost(code):
            _unreleased.append(handle)
    for _ in range(len(_left)):
        try:
            one = _left.pop(0)
        except IndexError:  # another thread was faster
            break
        del one  # comes back to the list where it is refused again
    return len(_left) + len(_unreleased)


cdef bint is_lost(int code) noexcept nogil:
    # Whether the device runs nothing any more, and never will: it was lost to a fault, or its context or driver is gone.
    return (code == DEINITIALIZED or code == CONTEXT_IS_DESTROYED or ILLEGAL_ADDRESS <= code <= LAUNCH_TIMEOUT
            and code != LAUNCH_OUT_OF_RESOURCES or code == ASSERT or HARDWARE_STACK_ERROR <= code <= LAUNCH_FAILED)


cdef int close_segment(int device, uintptr_t base) noexcept nogil:
    # The driver may wait for the device's work in it.
    cdef int mode
    cdef int code = NOT_READY
    if enter_wait():
        code = go_relaxed(registry.active(), &mode)
        if code == 0:
            code = registry.active().ipc_memory_close(device, base)
            restore_mode(registry.active(), mode)
        leave_wait()
    return code


def reserve(int device, size_t size):
    """A Mapping with addresses for pages of so many bytes."""
    cdef Mapping made = Mapping.__new__(Mapping)
    cdef uintptr_t address = 0
    cdef size_t granule = 0
    cdef int code
    with nogil:
        code = registry.active().granularity(device, &granule)
    if code:
        raise_status(code, "granularity", ("device", device))
    with nogil:
        code = registry.active().address_reserve(size, granule, &address)
    if code:
        raise_status(code, "address_reserve", ("size", size, "device", device))
    made.device_index = device
    made.base = address
    made.size = size
    return made


def open_segment(int device, bytes handle, size_t size):
    """A Mapping of a plain segment of another process (cuIpcOpenMemHandle)."""
    cdef Mapping made = Mapping.__new__(Mapping)
    cdef uintptr_t address = 0
    cdef const char* given = handle
    cdef int mode, code
    drain()
    with nogil:
        code = go_relaxed(registry.active(), &mode)
        if code == 0:
            code = registry.active().ipc_memory_open(device, given, &address)
            restore_mode(registry.active(), mode)
    if code:
        raise_status(code, "ipc_memory_open", ("device", device))
    made.device_index = device
    made.base = address
    made.size = size
    made.plain = True
    return made


def local_buffer(SharedBytes memory not None, Stream stream not None):
    """A second Buffer on bytes that this process shares."""
    cdef Buffer made = Buffer.__new__(Buffer)
    made.device_index = memory.device_index
    made.stream = stream
    made.ptr = memory.ptr
    made.nbytes = memory.nbytes
    made.kept = True
    made.keeper = memory
    made.live = True
    return made
