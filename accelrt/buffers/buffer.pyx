"""Owners of memory: they free it when they die, or when told to."""
from cpython.buffer cimport PyBuffer_FillInfo

from accelrt.runtime import init
from accelrt.memory.caching cimport allocate_bytes, checked_request, release_bytes
from accelrt.devices.device cimport device_at, ordinal_of
from accelrt.memory.allocator.cross_stream cimport use_across
from accelrt.memory.host_cache cimport allocate_host_bytes, checked_host_size, release_host_bytes
from accelrt.status cimport raise_status, refuse_copy, refuse_unmade
from accelrt.streams.stream cimport stream_for, stream_of
cimport accelrt.runtime.sanitizer_hooks as watch


cdef class Buffer:
    """Bytes on a device, from the caching allocator; freed with the object.

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
        if isinstance(stream, Stream) and device is None:
            device = (<Stream>stream).device_index
        size = checked_request(nbytes, "nbytes", device)
        if self.ptr:
            raise RuntimeError("a Buffer is initialised once")
        self.device_index = ordinal_of(device)
        self.stream = stream_for(stream, self.device_index, "the buffer")
        self.ptr = allocate_bytes(self.device_index, size, self.stream.handle)
        self.nbytes = size
        self.live = True

    def __dealloc__(self):
        release_bytes(self.device_index, self.ptr)

    def free(self):
        """Gives the bytes back now; ptr and nbytes become 0.  Doing it again does nothing."""
        cdef uintptr_t address = self.ptr
        self.ptr = 0
        self.nbytes = 0
        self.live = False
        release_bytes(self.device_index, address)

    def record_stream(self, stream):
        """Says that another stream uses the bytes: once freed, they are not reused before that work is done.

        Arguments:
            stream: Stream, of another device too, or a handle as int.
        Raises:
            ValueError: the driver knows no such stream, or the Buffer was freed.
        """
        cdef Stream chosen = stream_of(stream, self.device_index)
        cdef int code
        if not self.live:
            raise_freed(self, "this")
        with nogil:
            code = use_across(self.device_index, self.ptr, chosen.device_index, chosen.handle)
        if code:
            raise_status(code, "record_stream", ("ptr", self.ptr, "stream", chosen.handle))
        if watch.sanitizing:
            watch.note_use_on(self.ptr, chosen.device_index, chosen.handle)

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

    def __reduce__(self):
        refuse_copy(self, "it owns its memory; copy the bytes with accelrt.copy(other, this), or send those of copy_to()")

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        self.free()
        return False

    def __repr__(self):
        return f"<accelrt.Buffer {self.nbytes} bytes at {self.ptr:#x} on {self.device.type}:{self.device_index}>"


cdef class PinnedBuffer:
    """Page-locked host memory from the cache, which copies read and write without a stage and asynchronously.
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
        cdef uintptr_t address = self.ptr
        if self.exports:
            raise BufferError(f"{self.exports} views of this PinnedBuffer are alive; drop them before free()")
        self.ptr = 0
        self.nbytes = 0
        self.live = False
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
    """Copies stand on buffers; this is the one word that a buffer's methods need of them."""
    global copy, fill
    copy, fill = copy_function, fill_function
