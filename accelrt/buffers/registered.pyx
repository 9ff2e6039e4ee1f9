"""Page-locked memory that is not handed out as a PinnedBuffer: arrays, and the user's own memory."""
import math
import numbers
import operator

from cpython.buffer cimport (
    PyBUF_ANY_CONTIGUOUS, PyBUF_SIMPLE, PyBUF_STRIDED_RO, PyBuffer_Release, PyObject_CheckBuffer, PyObject_GetBuffer,
)

from accelrt.buffers.buffer cimport PinnedBuffer, raise_freed
from accelrt.core.integers cimport checked_address_int
from accelrt.devices.device cimport ordinal_of
from accelrt.driver.capture_guard cimport enter_wait, go_relaxed, leave_wait, restore_mode
cimport accelrt.driver.registry as registry
from accelrt.driver.registry import driver_name
from accelrt.driver.waiting cimport INTERRUPTED, begin_wait, end_wait
from accelrt.memory.host.pool cimport is_cached_pinned, use_pinned_on
from accelrt.runtime.release_queue cimport HOST_REGISTRATION, dispose, drain
cimport accelrt.runtime.sanitizer_hooks as watch
from accelrt.status cimport NOT_ALLOCATED, raise_status, refuse_copy
from accelrt.streams.stream cimport Stream, stream_of

cdef enum:
    HOST = -1  # pointer_device's answer for memory that the driver knows and no device holds


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
    """Memory of the user's own, page-locked until unregister() or the object's end (cuMemHostRegister).

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
