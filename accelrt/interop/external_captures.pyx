"""Captures that another library begins and ends: what accelrt has to know of them while they are under way.

Allocations on the captured streams come from a private pool of the capture's own, and nothing of accelrt's breaks it.
"""
cimport cython
from libc.stdint cimport uint64_t, uintptr_t

from accelrt.devices.device cimport ordinal_of
from accelrt.driver.capture_guard cimport count_out_capture, expect_capture
from accelrt.graphs.graph import graph_pool_handle
from accelrt.memory.allocator.private.routes cimport (
    begin_capture_on, end_capture, expect_idle, hide_replays, release_pool, retain_pool,
)
from accelrt.runtime.capture_record cimport Record, close_capture, open_capture
from accelrt.status cimport raise_status, refuse_copy, refuse_unmade


@cython.no_gc_clear  # a destructor that finds no record would leave the stream in its capture
cdef class ExternalCapture:
    """One capture: make it, have the library begin the capture, call begun(); have the library end it, call over().

    Arguments:
        device: int, an ordinal.
        stream: int, the handle of the stream that is going to capture.
    Raises:
        CudaError: the device has no pool, or no host memory for one.

    The graph's memory serves others once the object is dropped, which has to live as long as the graph does, and once
    the device is known to be past its replays.  Dropping it ends what begun() began.
    """

    cdef int ordinal
    cdef uintptr_t stream
    cdef uint64_t[2] pool_id
    cdef uint64_t capture      # the driver's id of it, from begun() to over()
    cdef bint retains_pool     # the pool counts it
    cdef bint counted          # as a capture under way
    cdef readonly list kept    # what captured copies of accelrt's read and write
    cdef Record record         # from begun() to over()
    cdef object __weakref__

    def __init__(self, device, uintptr_t stream):
        cdef int code
        cdef int ordinal = ordinal_of(device)
        if self.retains_pool:
            raise RuntimeError("an ExternalCapture is of one capture; make another")
        first, second = graph_pool_handle()
        self.ordinal, self.stream, self.kept = ordinal, stream, []
        self.pool_id[0], self.pool_id[1] = first, second
        with nogil:
            code = retain_pool(self.ordinal, self.pool_id[0], self.pool_id[1], False, 0)
        if code:
            raise_status(code, "capture_begin", ("device", device))
        self.retains_pool = True
        with nogil:
            expect_idle(self.ordinal)
            expect_capture()
        self.counted = True

    def __dealloc__(self):
        self.leave()
        if self.retains_pool:
            with nogil:
                hide_replays(self.ordinal, self.pool_id[0], self.pool_id[1])
                release_pool(self.ordinal, self.pool_id[0], self.pool_id[1], False)

    cdef int leave(self) noexcept:
        cdef Record record = self.record
        cdef uint64_t capture = self.capture
        self.record = None
        self.capture = 0
        if self.counted:
            self.counted = False
            count_out_capture()
        if capture:
            with nogil:
                end_capture(self.ordinal, capture)
        if record is not None:
            close_capture(record)
        return 0

    def begun(self):
        """Sends what is allocated on the capturing streams to the private pool.

        Raises:
            CudaError: the stream does not capture.
        """
        cdef int code
        if not self.counted or self.capture:
            refuse_unmade(self)
        with nogil:
            code = begin_capture_on(self.ordinal, self.stream, self.pool_id[0], self.pool_id[1], &self.capture)
        if code:
            self.capture = 0
            raise_status(code, "capture_begin", ("device", self.ordinal, "stream", self.stream))
        self.record = open_capture(self.ordinal, self.stream, self.capture, self.kept, None)

    def over(self):
        """The library has ended the capture, or given it up.  Doing it again does nothing."""
        self.leave()

    def __reduce__(self):
        refuse_copy(self, "it is of one capture; capture anew")

    def __repr__(self):
        state = "under way" if self.capture else "over"
        return f"<accelrt.interop ExternalCapture of stream {self.stream:#x} on device {self.ordinal}, {state}>"
