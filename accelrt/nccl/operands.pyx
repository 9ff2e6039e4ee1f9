"""Arrays as collectives use them: read and checked, noted on the stream, kept alive by the graph of a capture."""
from cpython.object cimport PyObject
from libc.stdint cimport uintptr_t

from accelrt.arrays.array cimport Array, Buffer, check_live
from accelrt.arrays.exchange import asarray, from_dlpack
from accelrt.arrays.copy cimport Operand, keep, note_use, read_array, record_for
from accelrt.devices.device cimport switch_back, switch_to
from accelrt.runtime.lifetimes cimport OTHERS, Record, any_capture, keep_where_captured
cimport accelrt.uses.access as watch
from accelrt.streams.stream cimport exchange_current, put_back, Stream, stream_for


def stream_on(stream, int ordinal):
    """The Stream that an argument stands for; None is the device's current one.

    Raises:
        ValueError, TypeError: it is on another device, dead, or no stream.
    """
    return stream_for(stream, ordinal, "the communicator")


cdef Array import_array(object source, Stream stream, str name):
    # DLPack and the CUDA Array Interface order the memory for the current stream, whose work has to be done before the
    # memory is given back to its owner.
    cdef PyObject* before
    cdef int device
    if not (hasattr(source, "__dlpack__") or hasattr(source, "__cuda_array_interface__")):
        raise TypeError(f"{name} is of type {type(source).__name__}; pass an Array, a Buffer, or an array with "
                        "__dlpack__ or __cuda_array_interface__")
    device = switch_to(stream.device_index)  # libraries record their events on the current device
    try:
        before = exchange_current(stream)
        try:
            return from_dlpack(source) if hasattr(source, "__dlpack__") else asarray(source, copy=False)
        finally:
            put_back(before)
    finally:
        switch_back(device)


def read(source, Stream stream, str name, bint writable):
    """An Array of what a collective reads or writes, without a copy.

    Arguments:
        source: Array, Buffer, or an array of another library's (__dlpack__, __cuda_array_interface__), for whose work
            the stream then waits.
        stream: of the collective.
        name: of the argument, for errors.
        writable: whether the collective writes it.
    Raises:
        TypeError: it is no array.
        ValueError: it is not contiguous, in host memory, on another device, freed, or read-only and to be written.
    """
    cdef Array array
    cdef Operand side
    if isinstance(source, Array):
        array = source
    elif isinstance(source, Buffer):
        array = Array(source)
    else:
        array = import_array(source, stream, name)
    read_array(&side, array, name, writable)
    if array.device_index != stream.device_index:
        where = f"on device {array.device_index}" if array.device_index >= 0 else "in host memory"
        raise ValueError(f"{name} is {where}, the communicator on device {stream.device_index}; pass a copy on that device, "
                         f"accelrt.asarray({name}, device={stream.device_index})")
    if not array.dense():
        raise ValueError(f"{name} has shape {array.shape} and strides {array.strides}; collectives take contiguous arrays: "
                         "pass a copy()")
    return array


def announce(Stream stream not None, str call not None, tuple reads not None, tuple writes not None):
    """Tells the race detector of a collective, before its use of the memory begins.

    Raises:
        RaceError: nothing orders it with earlier work on the same bytes.
    """
    if watch.sanitizing:
        uses = [((<Array>each).ptr, (<Array>each).size * (<Array>each).itemsize, "r") for each in reads]
        uses += [((<Array>each).ptr, (<Array>each).size * (<Array>each).itemsize, "w") for each in writes]
        watch.note_launch(stream.device_index, stream.handle, call, [use for use in uses if use[1]])


def begin(Stream stream not None, str call not None, tuple reads not None, tuple writes not None, Array source, Array target,
          token not None):
    """What comes before a collective is put into its stream, within the use of its memory (MemoryUse).

    Where the stream captures for a graph of accelrt's, the graph keeps the arrays and the token alive.  The allocators learn
    of the stream now, so that memory which another thread frees meanwhile is not handed out before the collective is done.

    Returns:
        (bool, whether the stream is in a capture; int, int, the addresses of source and target, 0 for None).
    Raises:
        ValueError: an array was freed meanwhile.
    """
    cdef Operand side
    cdef Array array
    cdef Record record
    cdef uintptr_t origin = 0 if source is None else source.ptr, to = 0 if target is None else target.ptr
    for array in (*reads, *writes):
        check_live(array, call)
    record = record_for(stream)
    for array in (*reads, *writes):
        read_array(&side, array, call, False)
        if record is not None:
            keep(&side, None, record)
        note_use(&side, stream, False, False)
    if record is not None:
        record.kept.append(token)
        return True, origin, to
    return any_capture() and keep_where_captured(stream.device_index, stream.handle, token) == OTHERS, origin, to
