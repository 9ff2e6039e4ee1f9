"""Streams that others made: another library's, kept alive by its owner, under our names."""
from libc.stdint cimport uintptr_t

from accelrt.device cimport ordinal_of
from accelrt.stream cimport Stream, handle_of, judge_handle


class ExternalStream(Stream):
    """A stream that another library made and owns.

    Arguments:
        stream_ptr: int, the driver's handle (CUstream); 0 and 1 name the legacy default stream, 2 the calling
            thread's own default stream.
        device: the device that it belongs to; None is the one that the driver names, and for a default stream the
            current one.
        owner: any object, kept alive as long as this one.
    Raises:
        TypeError: stream_ptr is not an int.
        ValueError: it is negative or too large, no stream that the driver knows, or one of another device.

    A handle is judged here, once.  That the stream lives on until its work is done is up to its owner.
    """

    def __init__(self, stream_ptr, device=None, owner=None):
        cdef Stream self_ = self
        cdef uintptr_t handle
        cdef int ordinal, found
        if self_.made:
            raise RuntimeError(f"{self!r} is made already; make another ExternalStream")
        handle = handle_of(stream_ptr, "stream_ptr")
        ordinal = ordinal_of(device)
        found = judge_handle(handle, ordinal, "stream_ptr")
        if device is not None and found != ordinal:
            raise ValueError(
                f"stream_ptr {handle:#x} is a stream of device {found}, but device is {device!r}; pass its own, or None"
            )
        self_.device_index = found
        self_.handle = handle
        self_.owner = owner
        self_.made = True
