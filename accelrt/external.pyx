"""Streams that others made: another library's, kept alive by its owner, under our names."""
from accelrt.device cimport ordinal_of
from accelrt.stream cimport Stream


class ExternalStream(Stream):
    """A stream that another library made and owns.

    Arguments:
        stream_ptr: int, the driver's handle (CUstream); 0 and 1 name the legacy default stream, 2 the calling
            thread's own default stream.
        device: the device that it belongs to; None is the current one.
        owner: any object, kept alive as long as this one.
    Raises:
        TypeError, ValueError: stream_ptr is not an int, or is negative.
    """

    def __init__(self, stream_ptr, device=None, owner=None):
        cdef Stream self_ = self
        if self_.made:
            raise RuntimeError(f"{self!r} is made already; make another ExternalStream")
        if isinstance(stream_ptr, bool) or not isinstance(stream_ptr, int):
            raise TypeError(f"stream_ptr is {stream_ptr!r}; pass the stream's handle as an int")
        if not 0 <= stream_ptr < 1 << 64:
            raise ValueError(f"stream_ptr is {stream_ptr}; a handle is an int from 0 to 2**64 - 1")
        self_.device_index = ordinal_of(device)
        self_.handle = stream_ptr
        self_.owner = owner
        self_.made = True
