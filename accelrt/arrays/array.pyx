"""Buffer, PinnedBuffer and Array: owners of memory, and what has a shape, a type and strides in it."""
cimport cython
import sys
from cpython.buffer cimport PyBUF_STRIDED_RO, PyBuffer_FillInfo, PyBuffer_Release, PyObject_CheckBuffer, PyObject_GetBuffer
from cpython.long cimport PyLong_CheckExact
from cpython.number cimport PyIndex_Check, PyNumber_Index
from cpython.object cimport PyObject
from cpython.pycapsule cimport PyCapsule_New
from libc.stdint cimport uintptr_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from accelrt.allocator.pinned.cache cimport is_cached_pinned, use_pinned_on
from accelrt.allocator.pool cimport use_across
from accelrt.core.integers cimport checked_address_int, is_integer
from accelrt.core.locks cimport WITHOUT_GIL
from accelrt.devices.device cimport device_at, ordinal_of
from accelrt.driver.registry import driver_name
cimport accelrt.driver.registry as registry
from accelrt.memory.caching cimport allocate_bytes, checked_request, release_bytes
from accelrt.memory.mempool cimport (
    allocate_host_bytes, allocate_managed, allocate_pinned_for, checked_host_size, release_host_bytes,
)
from accelrt.runtime import init
from accelrt.runtime.lifetimes cimport any_capture
from accelrt.status cimport NOT_ALLOCATED, raise_status, refuse_copy, refuse_unmade
from accelrt.streams.stream cimport ordinal_beside, Stream, stream_for, stream_of
from accelrt.runtime.access cimport (
    Access, begin_use_of, defer_release, Deferral, deferral_closed, deferral_for, end_use_of, refuse_sleeping,
)
cimport accelrt.runtime.access as watch


# --- layout -----------------------------------------------------------------------------------------------------------
# Shapes and strides as numbers: what callers give, read and checked; reshaping without a copy; bounds.

cdef extern from *:
    """
    #define accelrt_mul(a, b, out) __builtin_mul_overflow(a, b, out)
    #define accelrt_add(a, b, out) __builtin_add_overflow(a, b, out)
    """
    bint multiply "accelrt_mul"(Py_ssize_t a, Py_ssize_t b, Py_ssize_t* out) nogil
    bint add "accelrt_add"(Py_ssize_t a, Py_ssize_t b, Py_ssize_t* out) nogil


cdef object exact_length(object length, object shape):
    if isinstance(length, bool):
        raise TypeError(f"shape is {shape!r}; a length is an int, not a bool")
    try:
        return PyNumber_Index(length)
    except TypeError:
        raise TypeError(f"shape is {shape!r}; pass an int or a tuple of ints") from None


cdef tuple lengths_of(object shape):
    # An int stands for one axis; an array of ints has __index__ too, which refuses.
    if isinstance(shape, (tuple, list)):
        return tuple([exact_length(length, shape) for length in shape])
    if isinstance(shape, bool) or hasattr(shape, "__index__") and not getattr(shape, "shape", ()):
        return (exact_length(shape, shape),)
    try:
        return tuple([exact_length(length, shape) for length in shape])
    except TypeError:
        raise TypeError(f"shape is {shape!r}; pass an int or a tuple of ints") from None


cdef Py_ssize_t checked_ndim(tuple lengths, object what) except -1:
    if len(lengths) > MAX_NDIM:
        raise ValueError(f"{what} has {len(lengths)} axes; an array has at most {MAX_NDIM}")
    return len(lengths)


cdef Py_ssize_t read_shape(object shape, Py_ssize_t* lengths) except -1:
    cdef tuple sizes = lengths_of(shape)
    cdef Py_ssize_t axis, ndim = checked_ndim(sizes, "shape")
    for axis in range(ndim):
        if not 0 <= sizes[axis] < 1 << 63:
            raise ValueError(f"shape is {shape}; a length goes from 0 to 2**63 - 1")
        lengths[axis] = sizes[axis]
    return ndim


cdef Py_ssize_t read_new_shape(object shape, Py_ssize_t size, Py_ssize_t* lengths) except -1:
    # Reads a shape of which one length may be -1, for `size` elements.
    cdef tuple sizes = lengths_of(shape)
    cdef Py_ssize_t ndim = checked_ndim(sizes, "shape")
    cdef object total = 1
    open_axes = [axis for axis in range(ndim) if sizes[axis] == -1]
    for length in sizes:
        total *= 1 if length == -1 else length
    if len(open_axes) > 1 or any([length < -1 for length in sizes]):
        raise ValueError(f"shape is {shape}; one length may be -1, and stands for what is left")
    if open_axes and (total == 0 or size % total):
        raise ValueError(f"cannot reshape {size} elements to {sizes}: they are no multiple of the other lengths")
    if not open_axes and total != size:
        raise ValueError(f"cannot reshape {size} elements to {sizes}, which has {total}")
    for axis in range(ndim):
        lengths[axis] = size // total if sizes[axis] == -1 else sizes[axis]
    return ndim


cdef int read_strides(object strides, Py_ssize_t ndim, Py_ssize_t* out_strides) except -1:
    cdef Py_ssize_t axis
    try:
        steps = tuple([PyNumber_Index(stride) for stride in strides])
    except TypeError:
        raise TypeError(f"strides is {strides!r}; pass a tuple of ints, in bytes") from None
    if len(steps) != ndim:
        raise ValueError(f"strides is {strides}, of {len(steps)} axes; the shape has {ndim}")
    for axis in range(ndim):
        if not -(1 << 63) <= steps[axis] < 1 << 63:
            raise ValueError(f"strides is {strides}; no memory reaches so far")
        out_strides[axis] = steps[axis]
    return 0


cdef Py_ssize_t count_elements(Py_ssize_t ndim, const Py_ssize_t* lengths, Py_ssize_t itemsize) except -1:
    # As NumPy counts: where one length is 0 the others may be any whose product fits.
    cdef Py_ssize_t axis, size = 1, nbytes = itemsize
    cdef bint empty = False, over = False
    for axis in range(ndim):
        if lengths[axis] == 0:
            empty = True
        else:
            over = over or multiply(nbytes, lengths[axis], &nbytes)
            size *= lengths[axis] if not over else 1
    if over:
        raise ValueError(f"an array of shape {tuple([lengths[axis] for axis in range(ndim)])} with {itemsize} bytes "
                         "an element is larger than any memory")
    return 0 if empty else size


cdef int find_bounds(Py_ssize_t ndim, const Py_ssize_t* extents, Py_ssize_t itemsize, Py_ssize_t* out_low,
                     Py_ssize_t* out_high) except -1:
    cdef Py_ssize_t axis, reach
    cdef bint over = False
    out_low[0] = 0
    out_high[0] = itemsize
    for axis in range(ndim):
        if extents[axis] == 0:
            out_low[0] = out_high[0] = 0
            return 0
        over = over or multiply(extents[axis] - 1, extents[ndim + axis], &reach)
        if not over and reach < 0:
            over = add(out_low[0], reach, out_low)
        elif not over:
            over = add(out_high[0], reach, out_high)
    if over:
        raise ValueError(f"strides {tuple([extents[ndim + axis] for axis in range(ndim)])} reach beyond all memory")
    return 0


cdef bint reshaped(Py_ssize_t ndim, const Py_ssize_t* extents, Py_ssize_t new_ndim, Py_ssize_t* new_extents) noexcept nogil:
    # Lengths and strides of the result in the order of NumPy's reshape without a copy; False where only a copy can do
    # it.
    # Groups of old axes and of new ones that hold as many elements are matched from the front; a group of old axes
    # has to be one run of even steps.
    cdef Extents old
    cdef Py_ssize_t axis, used = 0, first = 0, last, new_first = 0, new_last, held, wanted, step
    for axis in range(ndim):  # axes of one element have no say
        if extents[axis] != 1:
            old[used] = extents[axis]
            old[MAX_NDIM + used] = extents[ndim + axis]
            used += 1
    while new_first < new_ndim and first < used:
        last, new_last = first + 1, new_first + 1
        held, wanted = old[first], new_extents[new_first]
        while held != wanted:
            if wanted < held:
                wanted *= new_extents[new_last]
                new_last += 1
            else:
                held *= old[last]
                last += 1
        for axis in range(first, last - 1):
            if old[MAX_NDIM + axis] != old[axis + 1] * old[MAX_NDIM + axis + 1]:
                return False
        step = old[MAX_NDIM + last - 1]
        for axis in range(new_last - 1, new_first - 1, -1):
            new_extents[new_ndim + axis] = step
            step *= new_extents[axis]
        first, new_first = last, new_last
    step = old[MAX_NDIM + used - 1] if used else 1
    for axis in range(new_first, new_ndim):  # what is left holds one element
        new_extents[new_ndim + axis] = step
    return True


# --- buffer -----------------------------------------------------------------------------------------------------------
# Owners of memory, which free it when they die, or when told to; and memory of the user's, page-locked for a while.

cdef enum:
    HOST = -1  # pointer_device's answer for memory that the driver knows and no device holds


cdef class Buffer:
    """Buffer(nbytes, device=None, stream=None, *, managed=False)\n--\n\n\
    Bytes on a device, from the caching allocator; freed with the object.

        with accelrt.Buffer(1 << 20) as buffer:
            buffer.copy_from(array)

    Arguments:
        nbytes: int.
        device: int, "cuda:1", "host:0", an object with an index; None is the current device, or the stream's.
        stream: Stream, handle as int, or None for the current stream: the one whose order the memory follows.
            Copies and fills on other streams are noted, so that the memory is not reused under them.
        managed: bool, whether the host and every device use the bytes at one address, and a device moves them to where they
            are used (accelrt.memory.prefetch, advise): there may be more of them than it has.  They come from the pool that
            the thread is in (use_mem_pool), where that is a MemPool(managed=True), else from one of the process.
    Raises:
        OutOfMemoryError: the device has no room; of managed memory, the host.
        NotSupportedError: the device has no managed memory.
        ValueError, TypeError: an argument is out of range, or of the wrong kind.
    Attributes:
        ptr: int, the address; 0 once freed, and for 0 bytes.
        device_index: int, the device's ordinal.
    """

    def __init__(
        self, nbytes: int, device: DeviceArgument | None = None, stream: Stream | int | None = None, *,
        bint managed=False,
    ) -> None:
        cdef size_t size
        cdef int ordinal
        cdef Stream order
        size = checked_request(nbytes, "nbytes", device, stream)
        ordinal = ordinal_of(device) if device is not None else ordinal_beside(stream)
        order = stream_for(stream, ordinal, "the buffer")
        if self.stream is not None:  # Arrays may name the memory that it had
            raise RuntimeError("a Buffer is initialised once")
        self.device_index = ordinal
        self.stream = order
        self.ptr = (allocate_managed if managed else allocate_bytes)(ordinal, size, order.handle)
        self.nbytes = size
        self.live = True

    def __dealloc__(self):
        if not self.kept:
            release_bytes(self.device_index, self.ptr)

    @cython.critical_section
    def free(self) -> None:
        """Gives the bytes back now; ptr and nbytes become 0.  Doing it again does nothing.  Bytes that other processes
        have (share()) go back once those have let go of them; those that another thread is just putting work on into a
        stream, once the work is there.  A graph that captured work on the bytes must not be replayed any more; to drop the
        Buffer instead leaves them to the graph.

        Raises:
            BufferError: another library has the bytes through DLPack.
        """
        cdef Deferral deferral = deferral_for(<PyObject*>self)
        cdef uintptr_t address = self.ptr
        if self.exports:
            raise BufferError(f"{self.exports} DLPack tensors on this Buffer are alive; drop them before free()")
        forget_memory(&self.live, &self.ptr, &self.nbytes)
        deferral = deferral_closed(deferral, <PyObject*>self)
        if deferral is not None:
            keeper, self.keeper = self.keeper, None
            defer_release(deferral, release_bytes, self.device_index, 0 if self.kept else address, keeper)
        elif self.kept:
            self.keeper = None
        else:
            release_bytes(self.device_index, address)

    def share(self, stream: Stream | int | None = None) -> MemoryHandle:
        """Returns a handle by which other processes open the same bytes, see accelrt.sharing: queue.put(buffer.share()).

        Arguments:
            stream: Stream, or handle as int, after whose work so far the others use the bytes; None is the Buffer's own.
        Returns:
            accelrt.sharing.MemoryHandle, which pickles.  Keep it until the others have opened it.
        Raises:
            ValueError: the Buffer was freed, or is another process's memory itself, in a plain segment.
            NotSupportedError: the memory cannot be exported: the text says why, and what to do.
            SleepingMemoryError: the memory sleeps.
            RuntimeError: the stream is capturing; or it is another process's memory, and that process has ended.
            PeerTimeoutError: it is another process's memory, and that process did not answer in time.
        """
        return sharing().share(self, stream)

    def record_stream(self, stream: Stream | int) -> None:
        """Says that another stream uses the bytes: once freed, they are not reused before that work is done.

        Arguments:
            stream: Stream, of another device too, or a handle as int.
        Raises:
            ValueError: the driver knows no such stream, or the Buffer was freed.
        """
        cdef Stream chosen = stream_of(stream, self.device_index)
        cdef uintptr_t address
        cdef Access access
        cdef bint live
        cdef int code = 0
        begin_use_of(&access, <PyObject*>self, NULL)
        address, live = self.ptr, self.live
        if live:
            with nogil:
                code = use_across(self.device_index, address, chosen.device_index, chosen.handle)
        end_use_of(&access)
        if not live:
            raise_freed(self, "this")
        if code:
            raise_status(code, "record_stream", ("ptr", address, "stream", chosen.handle))
        watch.note_use_on(address, chosen.device_index, chosen.handle)

    def copy_from(
        self, src: Memory, nbytes: int | None = None, *, offset: int = 0, src_offset: int = 0,
        stream: Stream | int | None = None, blocking: bool = True,
    ) -> None:
        """Copies into the buffer; see accelrt.copy.

        Arguments:
            src: Buffer, anything with the buffer protocol, or with __cuda_array_interface__.
            nbytes: int; None is all of src from src_offset on.
            offset, src_offset: int, bytes to skip at either side.
            stream, blocking: as of accelrt.copy.
        Raises: as accelrt.copy.
        """
        copy(self, src, nbytes, dst_offset=offset, src_offset=src_offset, stream=stream, blocking=blocking)

    def copy_to(
        self, dst: Memory, nbytes: int | None = None, *, offset: int = 0, dst_offset: int = 0,
        stream: Stream | int | None = None, blocking: bool = True,
    ) -> None:
        """Copies out of the buffer; see accelrt.copy.

        Arguments:
            dst: Buffer, anything with the writable buffer protocol, or with __cuda_array_interface__.
            nbytes: int; None is all of the buffer from offset on.
            offset, dst_offset: int, bytes to skip at either side.
            stream, blocking: as of accelrt.copy.
        Raises: as accelrt.copy.
        """
        copy(dst, self, nbytes, dst_offset=dst_offset, src_offset=offset, stream=stream, blocking=blocking)

    def fill(
        self, value: int = 0, count: int | None = None, *, width: int = 1, offset: int = 0,
        stream: Stream | int | None = None, blocking: bool = False,
    ) -> None:
        """Sets every element to one value.  Arguments, Raises: as accelrt.fill."""
        fill(self, value, count, width=width, offset=offset, stream=stream, blocking=blocking)

    @property
    def device(self) -> Device:
        """The device object of the device that holds the bytes."""
        return device_at(self.device_index)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """The bytes as a one-dimensional array of uint8 (CUDA Array Interface, version 3), on a GPU only."""
        if init.chosen_driver() == "host":
            raise AttributeError("a buffer of the host device is no CUDA array; numpy reads it through copy_to")
        if not self.live:
            raise_freed(self, "this")
        refuse_sleeping(self.ptr, "this Buffer")
        return {
            "shape": (self.nbytes,), "typestr": "|u1", "data": (self.ptr, False), "version": 3,
            "strides": None, "stream": self.stream.handle or 1,
        }

    def __array__(self, dtype: object = None, copy: bool | None = None) -> NoReturn:
        """Raises TypeError: NumPy would make an array of one object of it."""
        raise TypeError(
            "a Buffer is device memory, which NumPy cannot read; copy it: array = numpy.empty(n, dtype); "
            "buffer.copy_to(array)"
        )

    def __dlpack__(
        self, *, stream: int | None = None, max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None, copy: bool | None = None,
    ) -> object:
        """The bytes as a DLPack capsule; arguments, and what is raised, are those of Array.__dlpack__."""
        return export_dlpack(Array(self), stream, max_version, dl_device, copy)

    def __dlpack_device__(self) -> tuple[int, int]:
        """(type, id) of the device, as of Array.__dlpack_device__."""
        return Array(self).__dlpack_device__()

    def __len__(self) -> int:
        return self.nbytes

    def __getitem__(self, key: Index) -> Array:
        """Some of the bytes as an Array of uint8, which keeps the Buffer alive: buffer[16:32].

        Raises:
            IndexError, TypeError: as of an Array.
            ValueError: the Buffer was freed.
        """
        return Array(self)[key]

    def __iter__(self) -> NoReturn:
        raise TypeError("a Buffer is device memory, whose bytes are not read one by one; copy it out with copy_to()")

    def __reduce__(self):
        if feeds_queue():
            return sharing().reduce_memory(self)
        refuse_copy(self, "it owns its memory; copy the bytes with accelrt.copy(other, this), or send those of copy_to(); "
                    "another process can open the same memory by share(), or where accelrt.sharing was imported")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.free()

    def __repr__(self):
        return f"<accelrt.Buffer {self.nbytes} bytes at {self.ptr:#x} on {self.device.type}:{self.device_index}>"


cdef Buffer new_buffer(size_t nbytes, Stream stream):
    cdef Buffer buffer = Buffer.__new__(Buffer)
    buffer.device_index = stream.device_index
    buffer.stream = stream
    buffer.ptr = allocate_bytes(stream.device_index, nbytes, stream.handle)
    buffer.nbytes = nbytes
    buffer.live = True
    return buffer


cdef class PinnedBuffer:
    """PinnedBuffer(nbytes, device=None, *, pool=None, shared=False)\n--\n\n\
    Page-locked host memory from the cache, which copies read and write without a stage and asynchronously.
    It has the buffer protocol: numpy.frombuffer(pinned, dtype) is an array on it.

    Arguments:
        nbytes: int.
        device: the device whose driver locks it, where the cache has none; every device can use it.  None is the
            current one.  Where the system has several NUMA nodes, the memory lies on the one nearest to it.
        pool: PinnedMemPool that it comes from; None is the one that the thread is in (use_mem_pool), else the common cache.
        shared: bool, whether other processes can open the memory, by share().  It goes back to the system when it is freed.
    Raises:
        OutOfMemoryError: the driver has no such memory, even after the cache's idle memory went back, or the pool's
            limit leaves no room.
        ValueError, TypeError: nbytes is negative or no int, or pool is none.
    Attributes:
        ptr: int, the address; 0 once freed, and for 0 bytes.

    The memory goes back to the cache with the object.  A copy of accelrt's in flight still finds it, for it is not
    handed out before that is done; work of others has to be recorded (record_host_stream).
    """
    # stub: def __buffer__(self, flags: int, /) -> memoryview: ...

    def __init__(
        self, nbytes: int, device: DeviceArgument | None = None, *, pool: PinnedMemPool | None = None,
        bint shared=False,
    ) -> None:
        cdef size_t size = checked_host_size(nbytes, "nbytes")
        if self.ptr:
            raise RuntimeError("a PinnedBuffer is initialised once")
        if device is not None:
            ordinal_of(device)
        if pool is None and not shared:
            self.ptr = allocate_host_bytes(device, size)
        else:
            self.ptr = allocate_pinned_for(pool, device, size, shared)
        self.nbytes = size
        self.live = True

    def __dealloc__(self):
        release_host_bytes(self.ptr)

    @cython.critical_section
    def free(self) -> None:
        """Gives the memory back to the cache now; doing it again does nothing.

        Raises:
            BufferError: an array or memoryview on it is alive.
        """
        cdef Deferral deferral = deferral_for(<PyObject*>self)
        cdef uintptr_t address = self.ptr
        if self.exports:
            raise BufferError(f"{self.exports} views of this PinnedBuffer are alive; drop them before free()")
        forget_memory(&self.live, &self.ptr, &self.nbytes)
        deferral = deferral_closed(deferral, <PyObject*>self)
        if deferral is not None:
            defer_release(deferral, release_locked, 0, address, None)
        else:
            release_host_bytes(address)

    def share(self) -> PinnedHandle:
        """Makes a handle by which other processes open the same bytes, page-locked there too; of PinnedBuffer(shared=True).

        Returns:
            accelrt.sharing.PinnedHandle, which pickles.  Keep it until the others have opened it.
        Raises:
            ValueError: the PinnedBuffer was freed.
            NotSupportedError: it was not made with shared=True, or is another process's itself.

        Nothing orders the processes' work on it: wait for the streams that use it before another process does.
        """
        return sharing().share_pinned(self)

    def __getbuffer__(self, Py_buffer* view, int flags):
        with cython.critical_section(self):
            if not self.live:
                raise BufferError("the PinnedBuffer was freed; its memory is not its own any more")
            PyBuffer_FillInfo(view, self, <void*>self.ptr, self.nbytes, 0, flags)
            self.exports += 1

    def __releasebuffer__(self, Py_buffer* view):
        with cython.critical_section(self):
            self.exports -= 1

    def __dlpack__(
        self, *, stream: int | None = None, max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None, copy: bool | None = None,
    ) -> object:
        """The bytes as a DLPack capsule; arguments, and what is raised, are those of Array.__dlpack__."""
        return export_dlpack(Array(self), stream, max_version, dl_device, copy)

    def __dlpack_device__(self) -> tuple[int, int]:
        """(type, id) of the device, as of Array.__dlpack_device__."""
        return Array(self).__dlpack_device__()

    def __len__(self) -> int:
        return self.nbytes

    def __reduce__(self):
        refuse_copy(self, "it owns its memory; copy the bytes into another one, or send bytes(memoryview(this))")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.free()

    def __repr__(self):
        return f"<accelrt.PinnedBuffer {self.nbytes} bytes at {self.ptr:#x}>"


cdef void release_locked(int device, uintptr_t address) noexcept:
    release_host_bytes(address)


cdef int raise_lost(object memory, str name) except -1:
    if isinstance(memory, Array):
        check_live(<Array>memory, name)
    return raise_freed(memory, name)


cdef uintptr_t address_in(object memory) noexcept:
    if isinstance(memory, Array):
        return (<Array>memory).ptr
    if isinstance(memory, PinnedBuffer):
        return (<PinnedBuffer>memory).ptr
    return (<Buffer>memory).ptr if isinstance(memory, Buffer) else 0


cdef int raise_freed(object owner, str name) except -1:
    if isinstance(owner, Buffer) and (<Buffer>owner).stream is None:
        refuse_unmade(owner)
    raise ValueError(
        f"{name} is a {type(owner).__name__} that was freed: its memory is not its own any more; make another, or "
        "free it later"
    )


# What provide_later set: functions that import what stands above Arrays when it is first asked for.
cdef object sharing = None     # () -> accelrt.sharing.handles
cdef object conversion = None  # () -> accelrt.kernels.conversion


def provide_later(sharing_function: Callable[[], ModuleType], conversion_function: Callable[[], ModuleType]) -> None:
    """Sets what gives accelrt.sharing.handles and accelrt.kernels.conversion, which import arrays themselves."""
    global sharing, conversion
    sharing, conversion = sharing_function, conversion_function


def feeds_queue() -> bool:
    """Tells whether the calling thread feeds a multiprocessing.Queue: it has no caller to raise to, and who gets from the
    Queue would wait for ever, so that what cannot be shared is pickled as an error (accelrt.sharing.handles)."""
    if "multiprocessing.queues" not in sys.modules:
        return False
    return sys.modules["threading"].current_thread().name == "QueueFeederThread"


# --- page-locked memory that is not handed out as a PinnedBuffer: arrays, and the user's own memory ------------

cdef uintptr_t address_of(object memory, str name) except? 0:
    cdef Py_buffer view
    cdef uintptr_t address
    if isinstance(memory, PinnedBuffer):
        return (<PinnedBuffer>memory).ptr
    if is_integer(memory):
        return checked_address_int(memory, name)
    if not PyObject_CheckBuffer(memory):
        raise TypeError(f"{name} is of type {type(memory).__name__}; pass a PinnedBuffer, an array on one, or an address")
    PyObject_GetBuffer(memory, &view, PyBUF_STRIDED_RO)
    address = <uintptr_t>view.buf if view.len else 0
    PyBuffer_Release(&view)
    return address


def record_host_stream(memory: Memory, stream: Stream | int) -> None:
    """Says that work on a stream uses page-locked memory: once given back, it is not handed out before that work is
    done.  accelrt's own copies say so themselves.

    Arguments:
        memory: PinnedBuffer, array or other buffer on such memory, or an address in it as int.
        stream: Stream of any device, or a handle as int, 0 to 2 for the current device's.  One that others made, an
            ExternalStream say, has to live until the memory is given back.
    Raises:
        ValueError: the memory is not the cache's, or was given back, or the stream is none.
        TypeError: memory is none.
    """
    cdef Stream worker = stream_of(stream, ordinal_beside(stream))
    cdef uintptr_t address = address_of(memory, "memory")
    cdef int code
    if isinstance(memory, PinnedBuffer) and not (<PinnedBuffer>memory).live:
        raise_freed(memory, "memory")
    if address == 0:
        return
    with nogil:
        code = use_pinned_on(address, worker.device_index, worker.handle)
    if code == NOT_ALLOCATED:
        raise ValueError(
            f"record_host_stream: {address:#x} is in no live memory of the page-locked cache; pass a PinnedBuffer, an "
            "array of pinned_empty, or what caching_host_allocator_alloc returned.  Memory of your own, registered or "
            "not, has to stay as it is until the stream is past the work"
        )
    if code:
        raise_status(code, "record_host_stream", ("memory", address, "stream", worker.handle))
    watch.note_use_on(address, worker.device_index, worker.handle)


def is_pinned(memory: Memory) -> bool:
    """Tells whether host memory is page-locked, by accelrt or by others who use the same driver.

    Arguments:
        memory: PinnedBuffer, array or other buffer, or an address as int.
    Returns:
        bool; False for no bytes, and before the driver is initialised, which this does not do.
    Raises:
        TypeError: memory is none.
    """
    cdef uintptr_t address = address_of(memory, "memory")
    cdef int device = 0
    cdef int code
    if address == 0 or driver_name() in ("sentinel", "forked"):
        return False
    if is_cached_pinned(address):
        return True
    with nogil:
        code = registry.active().pointer_device(address, &device)
    return code == 0 and device == HOST


# --- array ------------------------------------------------------------------------------------------------------------
# Array: memory with a shape, a type and strides.  Views share the memory; nothing here reads it.

cdef enum:
    ROOM = 4  # axes that need no memory of their own

cdef object numpy = None
cdef object numpy_dtype = None  # numpy.dtype
# What provide_methods set:
cdef object copy = None
cdef object fill = None
cdef object copies = None


def provide_methods(copy_function: Callable[..., None], fill_function: Callable[..., None], module: ModuleType) -> None:
    """Sets what a Buffer's methods copy and fill with, and the module whose functions an Array's do: they import arrays."""
    global copy, fill, copies
    copy, fill, copies = copy_function, fill_function, module


cdef list COMPARISONS = ["<", "<=", "==", "!=", ">", ">="]  # by their numbers in C


cdef object elements():
    return init.later("accelrt.arrays.elements")


cdef object unanswered(str symbol, object left, object right):
    # For numbers and for memory like ours nothing else will answer; others may.
    kinds = Array, int, float, complex, numpy_module().ndarray, numpy_module().generic, type(None)
    if not (isinstance(left, kinds) and isinstance(right, kinds)) or right is None and symbol in ("==", "!="):
        return NotImplemented
    elements().refuse_operator(symbol, left, right)


cdef class HostMemory:
    """HostMemory()\n--\n\n\
    The owner, for NumPy, of an array on host memory: a view that nothing but that array has, so that free() of another one
    does not free the memory."""

    cdef Array array

    def __init__(self) -> None:
        raise TypeError("a HostMemory belongs to the NumPy array that Array.numpy() makes")

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return {
            "shape": self.array.shape, "typestr": f"|V{self.array.itemsize}", "strides": self.array.strides, "version": 3,
            "data": (self.array.ptr, bool(self.array.readonly)),
        }

    def __reduce__(self):
        refuse_copy(self, "it belongs to one NumPy array")


cdef object numpy_module():
    global numpy, numpy_dtype
    if numpy is None:
        import numpy as imported

        numpy, numpy_dtype = imported, imported.dtype
    return numpy


cdef object named_dtype(str name):
    # NumPy knows the names of ml_dtypes, such as bfloat16, once that was imported.
    try:
        return numpy_dtype(name)
    except TypeError:
        try:
            import ml_dtypes
        except ImportError:
            ml_dtypes = None
        if not hasattr(ml_dtypes, name):
            missing = "" if ml_dtypes is not None else "; for types such as bfloat16 and float8_e4m3fn, install ml_dtypes"
            raise TypeError(f"dtype is {name!r}, which names no type of NumPy's or ml_dtypes'{missing}") from None
        return numpy_dtype(getattr(ml_dtypes, name))


cdef object dtype_of(object dtype):
    if numpy is None:
        numpy_module()
    resolved = dtype if type(dtype) is numpy_dtype else named_dtype(dtype) if type(dtype) is str else numpy_dtype(dtype)
    if resolved.hasobject:
        raise TypeError(f"dtype {resolved} holds Python objects, which no device can read; pass a dtype of plain values")
    if resolved.subdtype is not None or resolved.itemsize == 0:
        raise TypeError(f"dtype {resolved} is no type of single elements with bytes; pass its base, and a longer shape")
    return resolved


cdef Array wrap_numpy(object array):
    cdef Array wrapper
    cdef Py_ssize_t axis, ndim = array.ndim
    address, fixed = array.__array_interface__["data"]
    wrapper = new_array(array, address, -1, None, dtype_of(array.dtype), ndim, fixed)
    for axis in range(ndim):
        wrapper.extents[axis] = array.shape[axis]
        wrapper.extents[ndim + axis] = array.strides[axis]
    return finish_array(wrapper)


@cython.critical_section
cdef object base_of(Array array):
    return array.base


cdef int raise_dead(Array array, str name) except -1:
    if array.dtype is None:
        refuse_unmade(array)
    if array.base is not None:
        raise_freed(base_of(array), f"the memory of {name}")
    raise ValueError(f"{name} is an Array that was freed: its memory is not its own any more; make another")


cdef Array new_array(object base, uintptr_t ptr, int device_index, Stream stream, object dtype, Py_ssize_t ndim,
                     bint readonly):
    cdef Array array = Array.__new__(Array)
    start(array, base, ptr, device_index, stream, dtype, ndim, readonly)
    return array


@cython.critical_section
cdef int count_view(PinnedBuffer locked, int change) noexcept:
    locked.exports += change
    return 0


cdef int start(Array array, object base, uintptr_t ptr, int device_index, Stream stream, object dtype, Py_ssize_t ndim,
               bint readonly) except -1:
    if ndim > ROOM:
        array.extents = <Py_ssize_t*>malloc(2 * ndim * sizeof(Py_ssize_t))
        if array.extents == NULL:
            raise MemoryError(f"no host memory for the shape of an array of {ndim} axes")
    else:
        array.extents = array.room
    array.base = base
    array.owner = OTHERS
    if isinstance(base, Buffer):
        array.owner = DEVICE_BUFFER
    elif isinstance(base, PinnedBuffer):
        array.owner = PINNED_BUFFER
        count_view(<PinnedBuffer>base, 1)
        if WITHOUT_GIL and not (<PinnedBuffer>base).live:  # freed since its address was read
            raise_freed(base, "memory")
    array.ptr = ptr
    array.device_index = device_index
    array.stream = stream
    array.dtype = dtype
    array.itemsize = dtype.itemsize
    array.ndim = ndim
    array.readonly = readonly
    return 0


cdef Array finish_array(Array array):
    array.size = count_elements(array.ndim, array.extents, array.itemsize)
    if array.size == 0:
        array.ptr = 0
    array.live = True
    return array


cdef Array allocate_array(Py_ssize_t ndim, const Py_ssize_t* extents, object dtype, object device, object stream,
                          bint pinned):
    cdef Py_ssize_t nbytes = dtype.itemsize * count_elements(ndim, extents, dtype.itemsize)
    cdef Buffer buffer
    cdef PinnedBuffer locked
    cdef Array array
    if pinned:
        if stream is not None:
            raise ValueError("pin_memory=True makes host memory, which follows no stream's order; pass no stream")
        locked = PinnedBuffer(nbytes, device)
        array = new_array(locked, locked.ptr, -1, None, dtype, ndim, False)
    else:
        buffer = Buffer(nbytes, device, stream)
        array = new_array(buffer, buffer.ptr, buffer.device_index, buffer.stream, dtype, ndim, False)
    memcpy(array.extents, extents, 2 * ndim * sizeof(Py_ssize_t))
    return finish_array(array)


cdef Array new_view(Array source, uintptr_t ptr, Py_ssize_t ndim):
    # The same, of the same memory.
    # The caller's code may have freed the memory since it gave the first argument.
    check_live(source, "this")
    return new_array(base_of(source), ptr, source.device_index, source.stream, source.dtype, ndim, source.readonly)


@cython.c_api_binop_methods(True)  # an operator's method also answers where the Array is on the right
@cython.no_gc_clear  # __dealloc__ needs the base
cdef class Array:
    """Array(memory, shape=None, dtype="uint8", *, strides=None, offset=0, readonly=False)\n--\n\n\
    Memory with a shape, a type and strides: a view of a Buffer, of page-locked memory, or of another library's
    array.  accelrt.empty(), zeros(), full(), asarray() and from_dlpack() make one with its memory.

        numbers = accelrt.Array(buffer, (3, 4), "float32", offset=64)

    Arguments:
        memory: Buffer, PinnedBuffer, or a contiguous Array; it is kept alive.
        shape: int or tuple of int; None is one axis of all elements from offset on, which has to be a whole number.
        dtype: anything that numpy.dtype takes, ml_dtypes' types too, but without Python objects.
        strides: tuple of int, bytes from an element to the next along each axis; None is C order.
        offset: int, bytes from the memory's begin to the first element.
        readonly: bool, whether copies and fills into it are refused.
    Raises:
        ValueError: elements lie outside the memory, or the memory was freed.
        TypeError: an argument is of the wrong kind.
    Attributes:
        ptr: int, the address of the first element; 0 where there are no elements.
        device_index: int, the device's ordinal; -1 is host memory.
        base: the object that owns the memory, kept alive by this one; None once freed.
        dtype: numpy.dtype.
        stream: Stream, whose order the memory follows; None for host memory.
        ndim, size: int, how many axes and elements there are.
        itemsize: int, bytes of an element.

    Indexing with ints, slices, Ellipsis and None makes views, as do reshape, permute, T and view.  There is no
    arithmetic; elements on a device are read by numpy(), tolist() and item(), and shown by repr() where they are few.
    The memory is freed with the last object that uses it.
    """
    # stub: dtype: np.dtype[np.generic]
    # stub: stream: Stream | None
    # stub: def __delitem__(self, key: Index, /) -> None: ...
    # stub: __dlpack_c_exchange_api__: ClassVar[object]

    def __init__(
        self, memory: Buffer | PinnedBuffer | Array, shape: Shape | None = None, dtype: DTypeLike = "uint8", *,
        strides: tuple[int, ...] | None = None, offset: int = 0, bint readonly=False,
    ) -> None:
        cdef Extents extents
        cdef Py_ssize_t ndim, low, high
        cdef size_t nbytes
        if self.live or self.dtype is not None:
            raise RuntimeError("an Array is initialised once")
        kind = dtype_of(dtype)
        skip = PyNumber_Index(offset)
        ndim = read_shape(0 if shape is None else shape, extents)
        if strides is not None and shape is not None:
            read_strides(strides, ndim, extents + ndim)
        base, ptr, nbytes, device_index, stream, fixed = memory_of(memory)  # behind all of the caller's code
        if not 0 <= skip <= nbytes:
            raise ValueError(f"offset is {skip}; it goes from 0 to the {nbytes} bytes of the memory")
        if shape is None:
            if strides is not None or (nbytes - skip) % kind.itemsize:
                raise ValueError(f"shape is None: the {nbytes - skip} bytes from offset {skip} on have to be a multiple of "
                                 f"the {kind.itemsize} of {kind}, and strides None")
            extents[0] = (nbytes - skip) // kind.itemsize
        count_elements(ndim, extents, kind.itemsize)
        if strides is None:
            set_contiguous(ndim, extents, kind.itemsize)
        find_bounds(ndim, extents, kind.itemsize, &low, &high)
        if skip + low < 0 or skip + high > nbytes:
            shape = tuple([extents[axis] for axis in range(ndim)])
            raise ValueError(f"an array of shape {shape} and {kind} at offset {skip} takes bytes {skip + low} to "
                             f"{skip + high} of the memory, which has {nbytes}")
        start(self, base, ptr + skip, device_index, stream, kind, ndim, readonly or fixed)
        memcpy(self.extents, extents, 2 * ndim * sizeof(Py_ssize_t))
        finish_array(self)

    def __dealloc__(self):
        if self.owner == PINNED_BUFFER:
            count_view(<PinnedBuffer>self.base, -1)
        if self.extents != self.room:
            free(self.extents)
        free(self.steps)

    cdef bint dense(self) noexcept:
        return is_c_contiguous(self.ndim, self.extents, self.itemsize)

    # --- what it looks like ---

    @property
    def shape(self) -> tuple[int, ...]:
        """tuple of int: the elements along each axis."""
        return tuple([self.extents[axis] for axis in range(self.ndim)])

    @property
    def strides(self) -> tuple[int, ...]:
        """tuple of int: bytes from an element to the next along each axis, as NumPy's."""
        return tuple([self.extents[self.ndim + axis] for axis in range(self.ndim)])

    @property
    def nbytes(self) -> int:
        """int: the elements' bytes, whatever lies between them."""
        return self.size * self.itemsize

    @property
    def device(self) -> Device | Literal["cpu"]:
        """The device object of the device that holds the memory, or "cpu" for host memory."""
        return device_at(self.device_index) if self.device_index >= 0 else "cpu"

    @property
    def is_contiguous(self) -> bool:
        """bool: whether the elements lie one behind the other in C order."""
        return bool(self.dense())

    def __len__(self) -> int:
        if self.ndim == 0:
            raise TypeError("an Array of no axes has no length")
        return self.extents[0]

    def __repr__(self):
        if self.dtype is None:
            return "<accelrt.Array, never initialised>"
        if not self.live:
            return f"<accelrt.Array {self.dtype}, freed>"
        where = f"on {self.device.type}:{self.device_index}" if self.device_index >= 0 else "in host memory"
        layout = "" if self.dense() else f" strides={self.strides}"
        return elements().text_of(self, f"{self.dtype} shape={self.shape}{layout} at {self.ptr:#x} {where}")

    # --- views ---

    def __getitem__(self, key: Index) -> Array:
        """A view of some of the elements: ints, slices, Ellipsis and None, as NumPy's basic indexing.

        Raises:
            IndexError: an int is outside its axis, or there are more of them than axes.
            TypeError: the key holds anything else, such as an array.
        """
        check_live(self, "this")
        return index(self, key)

    def __setitem__(self, key: Index, value: object) -> None:
        """Copies into those elements, as copy_() does, or fills them with a number.

        Elements that do not lie together take several steps in the stream, each of which reads what the last one wrote; what
        another thread writes there meanwhile is copied on.
        """
        check_live(self, "this")
        copies.assign(index(self, key), value)

    def reshape(self, *shape: Shape) -> Array:
        """Returns a view of the same elements in C order with another shape; never a copy.

        Arguments:
            shape: ints, or one tuple of them; one may be -1, and stands for what is left.
        Raises:
            ValueError, TypeError: the number of elements is another, or shape is no ints; or only a copy could have that
                shape: ask for one, array.copy().reshape(shape).
        """
        cdef Extents extents
        cdef Py_ssize_t ndim
        cdef Array view
        check_live(self, "this")
        requested = shape[0] if len(shape) == 1 else shape
        ndim = read_new_shape(requested, self.size, extents)
        if self.size < 2:
            set_contiguous(ndim, extents, self.itemsize)
        elif not reshaped(self.ndim, self.extents, ndim, extents):
            raise ValueError(f"an Array of shape {self.shape} and strides {self.strides} has no view of shape {requested}; "
                             "copy it first: array.copy().reshape(...)")
        view = new_view(self, self.ptr, ndim)
        memcpy(view.extents, extents, 2 * ndim * sizeof(Py_ssize_t))
        return finish_array(view)

    def permute(self, *axes: Shape) -> Array:
        """Returns a view with the axes in another order.

        Arguments:
            axes: ints, or one tuple of them: each axis once; a negative one counts from the end.
        Raises:
            ValueError: axes are not each axis once, or the memory was freed.
        """
        cdef Py_ssize_t position, axis
        cdef Array view
        check_live(self, "this")
        requested = axes[0] if len(axes) == 1 and not PyIndex_Check(axes[0]) else axes
        order = [PyNumber_Index(axis_) for axis_ in requested]
        order = [axis_ + self.ndim if axis_ < 0 else axis_ for axis_ in order]
        if sorted(order) != list(range(self.ndim)):
            raise ValueError(f"axes is {requested}; an Array of {self.ndim} axes takes each from 0 to {self.ndim - 1} once")
        view = new_view(self, self.ptr, self.ndim)
        for position in range(self.ndim):
            axis = order[position]
            view.extents[position] = self.extents[axis]
            view.extents[self.ndim + position] = self.extents[self.ndim + axis]
        return finish_array(view)

    def transpose(self, *axes: Shape | None) -> Array:
        """Returns permute(axes), and without axes a view with them in reverse.  Arguments, Raises: as permute."""
        if not axes or (len(axes) == 1 and axes[0] is None):
            return self.permute(tuple(range(self.ndim - 1, -1, -1)))
        return self.permute(*axes)

    @property
    def T(self) -> Array:
        """A view with the axes in reverse."""
        cdef Py_ssize_t axis
        cdef Array view
        check_live(self, "this")
        view = new_view(self, self.ptr, self.ndim)
        for axis in range(self.ndim):
            view.extents[axis] = self.extents[self.ndim - 1 - axis]
            view.extents[self.ndim + axis] = self.extents[2 * self.ndim - 1 - axis]
        return finish_array(view)

    def view(self, dtype: DTypeLike) -> Array:
        """Returns a view of the same bytes as elements of another type; nothing is converted.

        Arguments:
            dtype: anything that numpy.dtype takes.  Where its elements have another size, the last axis has to be
                contiguous, and its bytes a multiple of that; smaller elements have to divide the larger ones.
        Raises:
            ValueError, TypeError: the last axis does not allow it, the memory was freed, or dtype is none.
        """
        cdef Py_ssize_t itemsize, nbytes = 0
        cdef Array view
        check_live(self, "this")
        kind = dtype_of(dtype)
        itemsize = kind.itemsize
        if itemsize != self.itemsize:
            if self.ndim == 0 or (self.extents[self.ndim - 1] > 1 and self.extents[2 * self.ndim - 1] != self.itemsize):
                raise ValueError(f"a view of {self.dtype} as {kind} needs a contiguous last axis, for their elements have "
                                 f"{self.itemsize} and {itemsize} bytes; shape {self.shape}, strides {self.strides}")
            nbytes = self.extents[self.ndim - 1] * self.itemsize
            if nbytes % itemsize or (itemsize < self.itemsize and self.itemsize % itemsize):
                raise ValueError(f"the last axis has {nbytes} bytes, in elements of {self.itemsize}; {kind} has {itemsize}, "
                                 "of which that has to be a multiple, and where they are fewer, each element too")
        check_live(self, "this")  # dtype may be any object
        view = new_array(base_of(self), self.ptr, self.device_index, self.stream, kind, self.ndim, self.readonly)
        memcpy(view.extents, self.extents, 2 * self.ndim * sizeof(Py_ssize_t))
        if itemsize != self.itemsize:
            view.extents[self.ndim - 1] = nbytes // itemsize
            view.extents[2 * self.ndim - 1] = itemsize
        return finish_array(view)

    # --- elements ---

    def copy_(self, src: object, non_blocking: bool = False, *, stream: Stream | int | None = None) -> Array:
        """Copies elements into this Array.

        Arguments:
            src: Array, NumPy array, another library's array (__cuda_array_interface__, __dlpack__), or what NumPy makes an
                array of.  Of the same dtype, for nothing is converted, and of a shape that can be broadcast to this one.
            non_blocking: bool.  If False, a copy to or from host memory is complete when this returns; if True, page-locked
                memory has to stay as it is until the stream is past the copy.  A copy within or between devices never waits.
            stream: Stream, handle as int, or None: the current stream of the device.  Between two devices as of
                accelrt.copy.
        Returns:
            Array, this one.
        Raises:
            ValueError: the shape does not fit, this Array is read-only or has elements that lie on each other, or memory
                was freed.
            TypeError: the dtypes differ, or src is no array.
            CudaError: the driver refused.

        Strides that lie alike on both sides are one copy; rows and slices are one each two axes (cuMemcpy3DAsync); further
        axes, and those that only one side has reversed, are a call for each step.  Where both sides share memory, and for
        scattered elements of ordinary host memory, the elements go by memory of their own.
        """
        return copies.copy_into(self, src, non_blocking, stream)

    def fill_(self, value: object, *, stream: Stream | int | None = None) -> Array:
        """Sets all elements to one number, in the stream's order.

        Arguments:
            value: anything that NumPy makes a number of; it is converted to the dtype.
            stream: Stream, handle as int, or None: the current stream of the device.
        Returns:
            Array, this one.
        Raises:
            ValueError: this Array is read-only, or the memory was freed.
        """
        copies.fill_into(self, value, stream)
        return self

    def copy(self, *, stream: Stream | int | None = None) -> Array:
        """Returns a C-contiguous Array with the same elements, on the same device or in page-locked memory.

        Arguments:
            stream: Stream, handle as int, or None: the current stream of the device.
        Raises:
            ValueError: the memory was freed.
            OutOfMemoryError: the device, or the host, has no room.
        """
        check_live(self, "this")
        return copies.copied(self, stream)

    def clone(self, *, stream: Stream | int | None = None) -> Array:
        """Returns copy(), by torch's name.  Arguments, Raises: as copy."""
        return self.copy(stream=stream)

    def contiguous(self, *, stream: Stream | int | None = None) -> Array:
        """Returns this Array where its elements lie without gaps in C order, else copy().  Arguments, Raises: as copy."""
        check_live(self, "this")
        return self if self.dense() else self.copy(stream=stream)

    def astype(self, dtype: DTypeLike, *, copy: bool = True, stream: Stream | int | None = None) -> Array:
        """Returns a C-contiguous Array of the same elements, converted to another dtype as C converts them.

        Arguments:
            dtype: anything that numpy.dtype takes, but without Python objects.
            copy: bool; with False an Array that has the dtype already is returned itself.
            stream: Stream, handle as int, or None: the current stream of the device.
        Raises:
            ValueError, TypeError: the memory was freed; dtype is none, or holds Python objects.
            OutOfMemoryError: the device, or the host, has no room.

        On a device a kernel converts, in the stream's order.  Types that elementwise kernels do not take, complex ones,
        and all where nothing is installed that compiles kernels, are converted by NumPy on the host, which waits for the
        elements.  To or from 16-bit floats a kernel goes by float32.
        """
        check_live(self, "this")
        return conversion().converted(self, dtype_of(dtype), bool(copy), stream)

    def item(self) -> Any:
        """Returns the only element as a number of Python's, when the device's current stream has come to it.

        Raises:
            ValueError: there are more elements, or none.
        """
        check_live(self, "this")
        return elements().only(self)

    def tolist(self) -> Any:
        """Returns the elements as nested lists of Python's numbers, or one number where there are no axes; numpy() says
        when."""
        return self.numpy().tolist()

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __complex__(self) -> complex:
        return complex(self.item())

    def __bool__(self) -> bool:
        check_live(self, "this")
        return elements().is_true(self)

    def numpy(self) -> np.ndarray[tuple[int, ...], np.dtype[np.generic]]:
        """Returns the elements as a NumPy array: a view of host memory, or a copy of those of a device, which is made in the
        order of its current stream and waited for."""
        check_live(self, "this")
        if self.device_index >= 0:
            return copies.to_numpy(self)
        if self.size == 0:
            return numpy_module().empty(self.shape, self.dtype)
        return numpy_module().asarray(expose(self)).view(self.dtype)  # the interface has no ml_dtypes

    def __array__(
        self, dtype: DTypeLike | None = None, copy: bool | None = None,
    ) -> np.ndarray[tuple[int, ...], np.dtype[np.generic]]:
        """Raises TypeError for device memory, of which NumPy would make an array of objects."""
        if self.device_index >= 0:
            raise TypeError("an Array on a device is read by NumPy only through a copy: array.numpy()")
        return numpy_module().array(self.numpy(), dtype=dtype, copy=copy)

    # --- what Arrays do not have ---
    # Whoever writes an operator is told what computes.  Other libraries' arrays may answer by operators of their own.

    def __richcmp__(self, other, int op):
        return unanswered(COMPARISONS[op], self, other)

    def __hash__(self) -> int:
        return object.__hash__(self)

    def __add__(left, right):
        return unanswered("+", left, right)

    def __sub__(left, right):
        return unanswered("-", left, right)

    def __mul__(left, right):
        return unanswered("*", left, right)

    def __truediv__(left, right):
        return unanswered("/", left, right)

    def __floordiv__(left, right):
        return unanswered("//", left, right)

    def __mod__(left, right):
        return unanswered("%", left, right)

    def __matmul__(left, right):
        return unanswered("@", left, right)

    def __and__(left, right):
        return unanswered("&", left, right)

    def __or__(left, right):
        return unanswered("|", left, right)

    def __xor__(left, right):
        return unanswered("^", left, right)

    def __lshift__(left, right):
        return unanswered("<<", left, right)

    def __rshift__(left, right):
        return unanswered(">>", left, right)

    def __pow__(left, right, modulo):
        return unanswered("**", left, right)

    def __neg__(self):
        return unanswered("-", self, None)

    def __pos__(self):
        return unanswered("+", self, None)

    def __invert__(self):
        return unanswered("~", self, None)

    def __abs__(self):
        return unanswered("abs()", self, None)

    def __getattr__(self, str name):
        if name == "__cuda_array_interface__":  # which raised for memory of no GPU
            raise AttributeError("this Array is no memory of a GPU; numpy() and __dlpack__ give it to others")
        raise AttributeError(elements().text_of_missing(name), name=name, obj=self)

    # --- other libraries ---

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """The CUDA Array Interface, version 3, of memory of a GPU only.  It names the Array's stream, after whose work the
        reader orders its own."""
        if self.device_index < 0 or init.chosen_driver() == "host":
            raise AttributeError("this Array is no memory of a GPU; numpy() and __dlpack__ give it to others")
        check_live(self, "this")
        refuse_sleeping(self.ptr, "this Array")
        return {
            "shape": self.shape, "typestr": self.dtype.str, "data": (self.ptr, bool(self.readonly)), "version": 3,
            "strides": None if self.dense() else self.strides, "stream": self.stream.handle or 1,
        }

    def __dlpack__(
        self, *, stream: int | None = None, max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None, copy: bool | None = None,
    ) -> object:
        """The Array as a DLPack capsule, which keeps the memory alive (DLPack 1.3; Python array API standard, 2024.12).

        Arguments:
            stream: of memory of a GPU: 1 or None, the legacy default stream, 2, the per-thread one, a handle, or -1.  That
                stream waits for the Array's, and the memory is not reused before its work is done; -1 orders nothing.
                Of host memory, and on the host device, whose memory the CPU reads: None, which waits for the Array's
                stream, or -1.
            max_version: tuple (major, minor) of the consumer's DLPack; None asks for an unversioned capsule.
            dl_device: tuple (type, id); None is the Array's own.  (1, 0) copies memory of a GPU to the host; (2, id) calls
                managed memory of that GPU a GPU's, for consumers that do not know it.
            copy: bool; True always copies, False never does.
        Raises:
            BufferError: DLPack has no such dtype or strides, the Array is read-only and the capsule unversioned, the
                device is another, or copy is False and one is needed.
            ValueError: the stream is none, or the memory was freed.
        """
        check_live(self, "this")
        return export_dlpack(self, stream, max_version, dl_device, copy)

    def __dlpack_device__(self) -> tuple[int, int]:
        """(type, id) of the device, by DLPack's numbers: 2 is a GPU, 13 managed memory and 3 page-locked memory there, 1 any
        other host memory.
        The host device's memory is that of the CPU."""
        check_live(self, "this")
        return find_dlpack_device(self)

    __dlpack_c_exchange_api__ = PyCapsule_New(&exchange_api, "dlpack_exchange_api", NULL)

    # --- its memory ---

    @cython.critical_section
    def free(self) -> None:
        """Frees the memory now, for every view of it, or lets go of another library's; doing it again does nothing.

        Raises:
            BufferError: other libraries' arrays on the memory are alive.
        """
        cdef Deferral deferral
        base = self.base
        deferral = None if base is None or self.owner != OTHERS else deferral_for(<PyObject*>base)
        if not self.live:
            return
        if self.exports:
            raise BufferError(f"{self.exports} DLPack tensors of this Array are alive; drop them before free()")
        if self.owner == PINNED_BUFFER:
            count_view(<PinnedBuffer>base, -1)
            try:
                base.free()
            except BufferError:
                count_view(<PinnedBuffer>base, 1)
                raise
        elif self.owner == DEVICE_BUFFER:
            base.free()
        self.live = False
        if WITHOUT_GIL and (self.owner != OTHERS or any_capture()):  # a Buffer that is freed holds no memory
            self.parked = base
        elif self.owner == OTHERS:
            deferral = deferral_closed(deferral, <PyObject*>base)
        self.owner = OTHERS
        self.base = None
        self.ptr = 0
        if deferral is not None:
            defer_release(deferral, NULL, 0, 0, base)

    def record_stream(self, stream: Stream | int) -> None:
        """Says that another stream uses the memory: once freed, it is not reused before that work is done.

        Arguments:
            stream: Stream, of another device too, or a handle as int.
        Raises:
            ValueError: the driver knows no such stream, or the memory was freed or is another library's.
        """
        check_live(self, "this")
        if self.owner == DEVICE_BUFFER:
            self.base.record_stream(stream)
        elif self.owner == PINNED_BUFFER:
            record_host_stream(self.base, stream)
        else:
            raise ValueError(f"the memory is of a {type(self.base).__name__} of another library, which frees it; tell that "
                             "library which stream uses it, or keep this Array until the work is done")

    def share(self, stream: Stream | int | None = None) -> MemoryHandle:
        """Returns a handle by which other processes open an Array on the same memory; see Buffer.share() and
        accelrt.sharing.

        Arguments: as Buffer.share.
        Raises:
            ValueError: the memory was freed, or is no Buffer's: page-locked, or another library's.
            NotSupportedError, SleepingMemoryError, RuntimeError: as of Buffer.share().
        """
        check_live(self, "this")
        return sharing().share(self, stream)

    def __reduce__(self):
        if feeds_queue():
            return sharing().reduce_memory(self)
        refuse_copy(self, "it stands for memory; copy the elements with copy(), or send those of numpy(); another process "
                          "can open the same memory by share(), or where accelrt.sharing was imported")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.free()


cdef HostMemory expose(Array array):
    cdef HostMemory memory = HostMemory.__new__(HostMemory)
    memory.array = new_view(array, array.ptr, array.ndim)
    memcpy(memory.array.extents, array.extents, 2 * array.ndim * sizeof(Py_ssize_t))
    finish_array(memory.array)
    return memory


cdef tuple memory_of(object memory):
    # (what to keep alive, address, bytes, device, stream, whether it is read-only)
    cdef Array array
    if isinstance(memory, (Buffer, PinnedBuffer, Array)) and not still_has(memory, address_in(memory)):
        raise_lost(memory, "memory")
    if isinstance(memory, Buffer):
        return (memory, (<Buffer>memory).ptr, (<Buffer>memory).nbytes, (<Buffer>memory).device_index,
                (<Buffer>memory).stream, False)
    if isinstance(memory, PinnedBuffer):
        return memory, (<PinnedBuffer>memory).ptr, (<PinnedBuffer>memory).nbytes, -1, None, False
    if isinstance(memory, Array):
        array = memory
        if not array.dense():
            raise ValueError(f"memory is an Array of shape {array.shape} and strides {array.strides}; pass a contiguous one")
        return base_of(array), array.ptr, array.size * array.itemsize, array.device_index, array.stream, array.readonly
    raise TypeError(f"memory is of type {type(memory).__name__}; pass a Buffer, a PinnedBuffer or an Array, or make an "
                    "Array of another library's array with accelrt.asarray() or accelrt.from_dlpack()")


# --- indexing ----------------------------------------------------------------------------------------------------

cdef int raise_key(object part) except -1:
    raise TypeError(f"an index is {part!r} of type {type(part).__name__}; an Array takes ints, slices, Ellipsis and None")


cdef Py_ssize_t count_used(tuple key) except -1:
    # The axes that the key names; everything in it is of a kind that there is.
    cdef Py_ssize_t used = 0, ellipses = 0
    for part in key:
        if part is Ellipsis:
            ellipses += 1
        elif isinstance(part, slice) or PyLong_CheckExact(part) or (PyIndex_Check(part) and not is_refused(part)):
            used += 1
        elif part is not None:
            raise_key(part)
    if ellipses > 1:
        raise IndexError("an index has at most one Ellipsis")
    return used


cdef bint is_refused(object part) except -1:
    # A bool, and an array of one element, have __index__ too, and mean something else in NumPy's indexing.
    return isinstance(part, bool) or getattr(part, "ndim", 0) != 0


cdef Array index(Array self, object key):
    cdef tuple parts = key if isinstance(key, tuple) else (key,)
    cdef Py_ssize_t used = count_used(parts), left = self.ndim - used, axis = 0, count = 0, offset = 0, position
    cdef Py_ssize_t[2 * MAX_NDIM] lengths, strides
    cdef Array view
    if left < 0:
        raise IndexError(f"an Array of {self.ndim} axes has no {used} indices")
    if self.ndim + len(parts) > 2 * MAX_NDIM:
        raise IndexError(f"an Array has at most {MAX_NDIM} axes")
    if Ellipsis not in parts:
        parts += (Ellipsis,)
    for part in parts:
        if part is Ellipsis:
            for _ in range(left):
                lengths[count], strides[count] = self.extents[axis], self.extents[self.ndim + axis]
                count += 1
                axis += 1
        elif part is None:
            lengths[count], strides[count] = 1, 0
            count += 1
        elif isinstance(part, slice):
            offset += cut(self, axis, part, &lengths[count], &strides[count])
            count += 1
            axis += 1
        else:
            offset += place_of(self, axis, part) * self.extents[self.ndim + axis]
            axis += 1
    if count > MAX_NDIM:
        raise IndexError(f"an Array has at most {MAX_NDIM} axes")
    view = new_view(self, self.ptr + offset, count)
    for position in range(count):
        view.extents[position] = lengths[position]
        view.extents[count + position] = strides[position]
    return finish_array(view)


cdef Py_ssize_t cut(Array self, Py_ssize_t axis, object part, Py_ssize_t* out_length, Py_ssize_t* out_stride) except? -1:
    # Bytes to skip.
    cdef Py_ssize_t first, last, step, stride = self.extents[self.ndim + axis]
    first, last, step = part.indices(self.extents[axis])
    out_length[0] = len(range(first, last, step))
    out_stride[0] = stride * step if out_length[0] > 1 else stride
    return first * stride if out_length[0] else 0


cdef Py_ssize_t place_of(Array self, Py_ssize_t axis, object part) except? -1:
    cdef object index = PyNumber_Index(part)
    cdef Py_ssize_t length = self.extents[axis]
    if not -length <= index < length:
        raise IndexError(f"index {index} is outside axis {axis}, of {length} elements")
    return index + length if index < 0 else index
