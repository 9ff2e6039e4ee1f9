"""Work of others on memory, as the race detector is told of it."""
import numbers

from cpython.buffer cimport PyBUF_ANY_CONTIGUOUS, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport uintptr_t

from accelrt.buffers import cuda_array
from accelrt.buffers.buffer cimport Buffer, PinnedBuffer, raise_freed
from accelrt.memory.caching cimport checked_size
from accelrt.devices.device cimport ordinal_of
from accelrt.core.integers cimport checked_address_int
from accelrt.streams.stream cimport Stream, stream_of
cimport accelrt.runtime.sanitizer_hooks as watch

MODES = ("r", "w", "rw")


cdef int find(object memory, uintptr_t* out_address, size_t* out_size) except -1:
    # Answers 1 where the size is known.
    cdef Py_buffer view
    if isinstance(memory, Buffer):
        if not (<Buffer>memory).live:
            raise_freed(memory, "memory")
        out_address[0], out_size[0] = (<Buffer>memory).ptr, (<Buffer>memory).nbytes
    elif isinstance(memory, PinnedBuffer):
        if not (<PinnedBuffer>memory).live:
            raise_freed(memory, "memory")
        out_address[0], out_size[0] = (<PinnedBuffer>memory).ptr, (<PinnedBuffer>memory).nbytes
    elif isinstance(memory, (int, numbers.Integral)) and not isinstance(memory, bool):
        out_address[0] = checked_address_int(memory, "memory")
        return 0
    elif hasattr(memory, "__cuda_array_interface__"):
        out_address[0], out_size[0], _ = cuda_array.read(memory.__cuda_array_interface__, "memory", False)
    else:
        try:
            PyObject_GetBuffer(memory, &view, PyBUF_ANY_CONTIGUOUS)
        except (BufferError, TypeError, ValueError) as error:
            raise TypeError(
                f"memory of type {type(memory).__name__} cannot be used: {error}; pass a Buffer, a contiguous array, or "
                "an address as int with nbytes"
            ) from None
        out_address[0], out_size[0] = <uintptr_t>view.buf, view.len
        PyBuffer_Release(&view)
    return 1


def use(memory, nbytes=None, stream=None, str mode="rw"):
    """Tells the race detector of work that accelrt does not see: a kernel, say, or the host's own hands.

        accelrt.use(pointer, 4096, stream, "r")      # before the kernel that reads it is launched
        accelrt.use(pinned_array, stream="host", mode="w")

    Arguments:
        memory: an address as int, a Buffer, PinnedBuffer, a contiguous array or other buffer, or an object with
            __cuda_array_interface__.
        nbytes: int, from the address or the memory's begin on; None is all of the memory.
        stream: Stream, handle as int, None for the current stream, or "host" for the calling Python code, which in a
            host function is in its stream's order.
        mode: "r", "w" or "rw", whether the work reads the bytes, writes them, or both.
    Raises:
        RaceError: nothing orders it with earlier work on the bytes; with ACCELRT_SANITIZE=warn a RaceWarning.
        ValueError, TypeError: an argument is out of range or of the wrong kind.

    While the race detector is off it does nothing and looks at no argument.
    """
    cdef uintptr_t address = 0
    cdef size_t size = 0
    cdef Stream worker
    if not watch.sanitizing:
        return
    if mode not in MODES:
        raise ValueError(f"mode is {mode!r}; it may be 'r', 'w' or 'rw'")
    known = find(memory, &address, &size)
    if nbytes is None and not known:
        raise TypeError("nbytes is None; an address alone does not say how many bytes are used")
    if nbytes is not None:
        wanted = checked_size(nbytes, "nbytes")
        if known and wanted > size:
            raise ValueError(f"nbytes is {nbytes}, the memory has {size}")
        size = wanted
    mode = "r" if mode == "r" else "w"  # a write is ordered with all that a read is ordered with
    if isinstance(stream, str):
        if stream != "host":
            raise ValueError(f"stream is {stream!r}; pass a Stream, a handle, None, or 'host'")
        watch.note_host_access(address, size, mode, "use")
        return
    worker = stream_of(stream, ordinal_of(None))
    watch.note_access(worker.device_index, worker.handle, address, size, mode, "use")
