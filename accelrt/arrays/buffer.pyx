# cython: embedsignature=False
"""Owners of memory, which free it when they die, or when told to; and memory of the user's, page-locked for a while."""
import numbers
import operator
import sys
import threading

from cpython.buffer cimport (
    PyBUF_ANY_CONTIGUOUS, PyBUF_SIMPLE, PyBUF_STRIDED_RO, PyBuffer_FillInfo, PyBuffer_Release, PyObject_CheckBuffer,
    PyObject_GetBuffer,
)

from cpython.object cimport PyObject

from accelrt.core.integers cimport checked_address_int
from accelrt.devices.device cimport device_at, ordinal_of
from accelrt.driver.capture_guard cimport enter_wait, go_relaxed, leave_wait, restore_mode
cimport accelrt.driver.registry as registry
from accelrt.driver.registry import driver_name
from accelrt.driver.waiting cimport INTERRUPTED, begin_wait, end_wait
from accelrt.allocator.pool cimport use_across
from accelrt.allocator.private.suspended cimport has_suspended_pools, refuse_suspended
from accelrt.memory.caching cimport allocate_bytes, checked_request, release_bytes
from accelrt.allocator.pinned.pool cimport is_cached_pinned, use_pinned_on
from accelrt.memory.host_cache cimport allocate_host_bytes, checked_host_size, release_host_bytes
from accelrt.runtime import init
from accelrt.runtime.release_queue cimport HOST_REGISTRATION, dispose, drain
cimport accelrt.runtime.sanitizer_hooks as watch
from accelrt.status cimport NOT_ALLOCATED, raise_status, refuse_copy, refuse_unmade
from accelrt.streams.current cimport stream_for, stream_of
from accelrt.streams.stream cimport Stream
from accelrt.uses.access cimport Access, Deferral, begin_use_of, defer_release, deferral_for, end_use_of

cdef enum:
    HOST = -1  # pointer_device's answer for memory that the driver knows and no device holds


cdef class Buffer:
    """Buffer(nbytes, device=None, stream=None)\n--\n\n\
    Bytes on a device, from the caching allocator; freed with the object.

        with accelrt.Buffer(1 << 20) as buffer:
            buffer.copy_from(array)

    Arguments:
        nbytes: int.
        device: int, "cuda:1", "host:0", an object with an index; None is the current device.
        stream: Stream, handle as int, or None for the current stream: the one whose order the memory follows.
            Copies and fills on other streams are noted, so that the memory is not reused under them.
    Raises:
        OutOfMemoryError: the device has no room.
        ValueError, TypeError: an argument is out of range, or of the wrong kind.
    """

    def __init__(self, nbytes, device=None, stream=None):
        cdef size_t size
        cdef int ordinal
        cdef Stream order
        if isinstance(stream, Stream) and device is None:
            device = (<Stream>stream).device_index
        size = checked_request(nbytes, "nbytes", device)
        ordinal = ordinal_of(device)
        order = stream_for(stream, ordinal, "the buffer")
        if self.stream is not None:  # Arrays may name the memory that it had
            raise RuntimeError("a Buffer is initialised once")
        self.device_index = ordinal
        self.stream = order
        self.ptr = allocate_bytes(ordinal, size, order.handle)
        self.nbytes = size
        self.live = True

    def __dealloc__(self):
        if not self.kept:
            release_bytes(self.device_index, self.ptr)

    def free(self):
        """Gives the bytes back now; ptr and nbytes become 0.  Doing it again does nothing.  Bytes that other processes
        have (share()) go back once those have let go of them; those that another thread is just putting work on into a
        stream, once the work is there.

        Raises:
            BufferError: another library has the bytes through DLPack.
        """
        cdef Deferral deferral = deferral_for(<PyObject*>self)
        cdef uintptr_t address = self.ptr
        if self.exports:
            raise BufferError(f"{self.exports} DLPack tensors on this Buffer are alive; drop them before free()")
        self.ptr = 0
        self.nbytes = 0
        self.live = False
        if deferral is not None:
            keeper, self.keeper = self.keeper, None
            defer_release(deferral, release_bytes, self.device_index, 0 if self.kept else address, keeper)
        elif self.kept:
            self.keeper = None
        else:
            release_bytes(self.device_index, address)

    def share(self, stream=None):
        """A handle by which other processes open the same bytes, see accelrt.sharing: queue.put(buffer.share()).

        Arguments:
            stream: Stream, or handle as int, after whose work so far the others use the bytes; None is the Buffer's own.
        Returns:
            accelrt.sharing.MemoryHandle, which pickles.  Keep it until the others have opened it.
        Raises:
            ValueError: the Buffer was freed, or is another process's memory itself.
            NotSupportedError: the memory cannot be exported: the text says why, and what to do.
            SleepingMemoryError: the memory sleeps.
            RuntimeError: the stream is capturing.
        """
        return share_memory(self, stream)

    def record_stream(self, stream):
        """Says that another stream uses the bytes: once freed, they are not reused before that work is done.

        Arguments:
            stream: Stream, of another device too, or a handle as int.
        Raises:
            ValueError: the driver knows no such stream, or the Buffer was freed.
        """
        cdef Stream chosen = stream_of(stream, self.device_index)
        cdef uintptr_t address = self.ptr
        cdef Access access
        cdef int code
        if not self.live:
            raise_freed(self, "this")
        begin_use_of(&access, <PyObject*>self, NULL)
        with nogil:
            code = use_across(self.device_index, address, chosen.device_index, chosen.handle)
        end_use_of(&access)
        if code:
            raise_status(code, "record_stream", ("ptr", address, "stream", chosen.handle))
        if watch.sanitizing:
            watch.note_use_on(address, chosen.device_index, chosen.handle)

    def copy_from(self, src, nbytes=None, *, offset=0, src_offset=0, stream=None, blocking=True):
        """Copies into the buffer; see accelrt.copy.

        Arguments:
            src: Buffer, anything with the buffer protocol, or with __cuda_array_interface__.
            nbytes: int; None is all of src from src_offset on.
            offset, src_offset: int, bytes to skip at either side.
        """
        copy(self, src, nbytes, dst_offset=offset, src_offset=src_offset, stream=stream, blocking=blocking)

    def copy_to(self, dst, nbytes=None, *, offset=0, dst_offset=0, stream=None, blocking=True):
        """Copies out of the buffer; see accelrt.copy.

        Arguments:
            dst: Buffer, anything with the writable buffer protocol, or with __cuda_array_interface__.
            nbytes: int; None is all of the buffer from offset on.
            offset, dst_offset: int, bytes to skip at either side.
        """
        copy(dst, self, nbytes, dst_offset=dst_offset, src_offset=offset, stream=stream, blocking=blocking)

    def fill(self, value=0, count=None, *, width=1, offset=0, stream=None, blocking=False):
        """Sets every element to one value; see accelrt.fill."""
        fill(self, value, count, width=width, offset=offset, stream=stream, blocking=blocking)

    @property
    def device(self):
        """The device object of the device that holds the bytes."""
        return device_at(self.device_index)

    @property
    def __cuda_array_interface__(self):
        """The bytes as a one-dimensional array of uint8 (CUDA Array Interface, version 3), on a GPU only."""
        if init.chosen_driver() == "host":
            raise AttributeError("a buffer of the host device is no CUDA array; numpy reads it through copy_to")
        if not self.live:
            raise_freed(self, "this")
        if has_suspended_pools():
            refuse_suspended(self.ptr, "this Buffer")
        return {
            "shape": (self.nbytes,), "typestr": "|u1", "data": (self.ptr, False), "version": 3,
            "strides": None, "stream": self.stream.handle or 1,
        }

    def __array__(self, dtype=None, copy=None):
        """Raises TypeError: NumPy would make an array of one object of it."""
        raise TypeError(
            "a Buffer is device memory, which NumPy cannot read; copy it: array = numpy.empty(n, dtype); "
            "buffer.copy_to(array)"
        )

    def __len__(self):
        return self.nbytes

    def __getitem__(self, key):
        """Some of the bytes as an Array of uint8, which keeps the Buffer alive: buffer[16:32].

        Raises:
            IndexError, TypeError: as of an Array.
            ValueError: the Buffer was freed.
        """
        return slice_of(self, key)

    def __iter__(self):
        raise TypeError("a Buffer is device memory, whose bytes are not read one by one; copy it out with copy_to()")

    def __reduce__(self):
        if feeds_queue():
            return reduce_memory(self)
        refuse_copy(self, "it owns its memory; copy the bytes with accelrt.copy(other, this), or send those of copy_to(); "
                    "another process can open the same memory by share(), or where accelrt.sharing was imported")

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        self.free()
        return False

    def __repr__(self):
        return f"<accelrt.Buffer {self.nbytes} bytes at {self.ptr:#x} on {self.device.type}:{self.device_index}>"


cdef Buffer new_buffer(size_t nbytes, Stream stream):
    cdef Buffer made = Buffer.__new__(Buffer)
    made.device_index = stream.device_index
    made.stream = stream
    made.ptr = allocate_bytes(stream.device_index, nbytes, stream.handle)
    made.nbytes = nbytes
    made.live = True
    return made


cdef class PinnedBuffer:
    """PinnedBuffer(nbytes, device=None)\n--\n\n\
    Page-locked host memory from the cache, which copies read and write without a stage and asynchronously.
    It has the buffer protocol: numpy.frombuffer(pinned, dtype) is an array on it.

    Arguments:
        nbytes: int.
        device: the device whose driver locks it, where the cache has none; every device can use it.  None is the
            current one.
    Raises:
        OutOfMemoryError: the driver has no such memory, even after the cache's idle memory went back.
        ValueError, TypeError: nbytes is negative or no int.

    The memory goes back to the cache with the object.  A copy of accelrt's in flight still finds it, for it is not
    handed out before that is done; work of others has to be recorded (record_host_stream).
    """

    def __init__(self, nbytes, device=None):
        cdef size_t size = checked_host_size(nbytes, "nbytes")
        if self.ptr:
            raise RuntimeError("a PinnedBuffer is initialised once")
        if device is not None:
            ordinal_of(device)
        self.ptr = allocate_host_bytes(device, size)
        self.nbytes = size
        self.live = True

    def __dealloc__(self):
        release_host_bytes(self.ptr)

    def free(self):
        """Gives the memory back to the cache now; doing it again does nothing.

        Raises:
            BufferError: an array or memoryview on it is alive.
        """
        cdef Deferral deferral = deferral_for(<PyObject*>self)
        cdef uintptr_t address = self.ptr
        if self.exports:
            raise BufferError(f"{self.exports} views of this PinnedBuffer are alive; drop them before free()")
        self.ptr = 0
        self.nbytes = 0
        self.live = False
        if deferral is not None:
            defer_release(deferral, release_locked, 0, address, None)
        else:
            release_host_bytes(address)

    def __getbuffer__(self, Py_buffer* view, int flags):
        if not self.live:
            raise BufferError("the PinnedBuffer was freed; its memory is not its own any more")
        PyBuffer_FillInfo(view, self, <void*>self.ptr, self.nbytes, 0, flags)
        self.exports += 1

    def __releasebuffer__(self, Py_buffer* view):
        self.exports -= 1

    def __len__(self):
        return self.nbytes

    def __reduce__(self):
        refuse_copy(self, "it owns its memory; copy the bytes into another one, or send bytes(memoryview(this))")

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        self.free()
        return False

    def __repr__(self):
        return f"<accelrt.PinnedBuffer {self.nbytes} bytes at {self.ptr:#x}>"


cdef void release_locked(int device, uintptr_t address) noexcept:
    release_host_bytes(address)


cdef int raise_freed(object owner, str name) except -1:
    if isinstance(owner, Buffer) and (<Buffer>owner).stream is None:
        refuse_unmade(owner)
    raise ValueError(
        f"{name} is a {type(owner).__name__} that was freed: its memory is not its own any more; make another, or "
        "free it later"
    )


cdef object copy = None
cdef object fill = None


def provide_copies(copy_function, fill_function):
    """Sets what a buffer's methods copy and fill with: copies import buffers, and buffers do not import copies."""
    global copy, fill
    copy, fill = copy_function, fill_function


cdef object sharing = None


def provide_sharing(function):
    """Sets what gives accelrt.sharing.handles, which is imported when memory is first shared: it imports buffers."""
    global sharing
    sharing = function


def feeds_queue():
    """Whether the calling thread feeds a multiprocessing.Queue: it has no caller to raise to, and who gets from the Queue
    would wait for ever, so that what cannot be shared is pickled as an error (accelrt.sharing.handles)."""
    return "multiprocessing.queues" in sys.modules and threading.current_thread().name == "QueueFeederThread"


def reduce_memory(memory):
    """What such a thread pickles a Buffer or Array by."""
    return sharing().reduce_memory(memory)


def share_memory(memory, stream):
    """A handle by which other processes open a Buffer, or an Array on one."""
    return sharing().share(memory, stream)


cdef object slice_of = None


def provide_slices(function):
    """Sets what a Buffer's slices are made with: arrays import buffers."""
    global slice_of
    slice_of = function


# --- page-locked memory that is not handed out as a PinnedBuffer: arrays, and the user's own memory ------------

def pinned_empty(shape, dtype=float):
    """A NumPy array on page-locked memory of the cache; its contents are not set.  The memory goes back when the
    last view of it dies.

    Arguments:
        shape: int or tuple of int.
        dtype: anything that numpy.dtype takes, but without Python objects.
    Returns:
        numpy.ndarray, C-contiguous.
    Raises:
        OutOfMemoryError: the driver has no such memory.
        ValueError, TypeError: a length is negative or no int, or dtype is none or holds Python objects.
    """
    import math

    import numpy

    kind = numpy.dtype(dtype)
    if kind.hasobject:
        raise TypeError(f"dtype {kind} holds Python objects, which no device can read; pass a dtype of plain values")
    try:
        lengths = (operator.index(shape),)
    except TypeError:
        lengths = tuple(operator.index(length) for length in shape)
    if min(lengths, default=0) < 0:
        raise ValueError(f"shape is {shape}; a length is 0 or more")
    memory = PinnedBuffer(math.prod(lengths) * kind.itemsize)
    return numpy.ndarray(lengths, kind, memory if memory.nbytes else None)


cdef bint is_address(object memory) except -1:
    # An int, NumPy's too.
    return isinstance(memory, (int, numbers.Integral)) and not isinstance(memory, bool)


cdef uintptr_t address_of(object memory, str name) except? 0:
    cdef Py_buffer view
    cdef uintptr_t address
    if isinstance(memory, PinnedBuffer):
        return (<PinnedBuffer>memory).ptr
    if is_address(memory):
        return checked_address_int(memory, name)
    if not PyObject_CheckBuffer(memory):
        raise TypeError(f"{name} is of type {type(memory).__name__}; pass a PinnedBuffer, an array on one, or an address")
    PyObject_GetBuffer(memory, &view, PyBUF_STRIDED_RO)
    address = <uintptr_t>view.buf if view.len else 0
    PyBuffer_Release(&view)
    return address


def record_host_stream(memory, stream):
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
    cdef Stream worker = stream_of(stream, ordinal_of(None))
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
    if watch.sanitizing:
        watch.note_use_on(address, worker.device_index, worker.handle)


def is_pinned(memory):
    """Whether host memory is page-locked, by accelrt or by others who use the same driver.

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

    Before the pages are unlocked its device's work is waited for, but for a capture under way; work of other devices
    is the caller's to wait for.
    """

    def __init__(self, memory, device=None):
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
        if watch.sanitizing:
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

    def unregister(self):
        """Unlocks the pages, after the device's work; doing it again does nothing.

        Raises:
            CudaError: the driver refused; the memory then stays registered.
            KeyboardInterrupt: Ctrl-C while it waits, on the main thread, or what another signal's handler raised;
                the memory then stays registered.
        """
        cdef int code = 0
        if self.ptr:
            watch.before_wait("RegisteredMemory.unregister")
            begin_wait(False)
            with nogil:
                code = unlock_pages(self.device_index, self.ptr)
            end_wait(code)
        if code:
            raise_status(code, "host_unregister", ("address", self.ptr))
        if watch.sanitizing:
            watch.note_forgotten(self.ptr, self.nbytes)
        self.ptr = 0
        self.nbytes = 0
        if self.viewed:
            self.viewed = False
            PyBuffer_Release(&self.view)

    def __reduce__(self):
        refuse_copy(self, "it unlocks the pages when it dies; register_host() each memory once")

    def __len__(self):
        return self.nbytes

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        self.unregister()
        return False

    def __repr__(self):
        return f"<accelrt.RegisteredMemory {self.nbytes} bytes at {self.ptr:#x}>"


def register_host(memory, device=None):
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
