"""Events: points in a stream's work that others can wait for, ask about and time.

The driver's event is taken at the first record, from those that dead Events left.
"""
from libc.stdlib cimport free, malloc

from accelrt.callback cimport raise_callback_errors
from accelrt.deferred cimport drain
from accelrt.device cimport device_at, ordinal_of
cimport accelrt.driver.registry as registry
from accelrt.driver.table cimport EVENT_BLOCKING_SYNC, EVENT_DISABLE_TIMING, EVENT_INTERPROCESS
from accelrt.memory.pool cimport MAX_DEVICES
from accelrt.memory.sharing cimport stream_waits
from accelrt.status cimport NOT_READY, raise_status
from accelrt.stream cimport Stream, stream_of
from accelrt.stream import provide_event_type
cimport accelrt.watch as watch

cdef extern from "<pthread.h>" nogil:
    int pthread_atfork(void (*prepare)() noexcept, void (*parent)() noexcept, void (*child)() noexcept)

cdef struct Spare:
    uintptr_t handle
    Spare* next

cdef enum:
    KINDS = 4  # BLOCKING_SYNC and DISABLE_TIMING, in every combination; interprocess events are not kept

cdef Spare* spares[MAX_DEVICES][KINDS]  # guarded by the GIL
cdef uint64_t records = <uint64_t>1 << 63  # numbers that are no driver's handles; guarded by the GIL


cdef void forget_spares() noexcept nogil:
    cdef int ordinal, kind
    for ordinal in range(MAX_DEVICES):
        for kind in range(KINDS):
            spares[ordinal][kind] = NULL


cdef uintptr_t take(int ordinal, unsigned int flags) except? 0:
    # A spare event may still be pending; recording it anew leaves those who wait for the old record alone.
    cdef uintptr_t handle = 0
    cdef Spare* spare
    cdef int code
    if flags < KINDS and spares[ordinal][flags] != NULL:
        spare = spares[ordinal][flags]
        spares[ordinal][flags] = spare.next
        handle = spare.handle
        free(spare)
        return handle
    with nogil:
        code = registry.active().event_create(ordinal, flags, &handle)
    if code:
        raise_status(code, "event_create", ("device", ordinal, "flags", flags))
    return handle


cdef void leave(int ordinal, unsigned int flags, uintptr_t handle) noexcept:
    cdef Spare* spare = NULL
    if flags < KINDS:
        spare = <Spare*>malloc(sizeof(Spare))
    if spare == NULL:
        registry.active().event_destroy(ordinal, handle)
        return
    spare.handle = handle
    spare.next = spares[ordinal][flags]
    spares[ordinal][flags] = spare


cdef class Event:
    """A point in a stream's work.

    Arguments:
        enable_timing: bool, keep the time at which the point was passed, for elapsed_time.
        blocking: bool, synchronize() sleeps instead of spinning (CU_EVENT_BLOCKING_SYNC).
        interprocess: bool, the event can be opened by other processes; excludes timing.
    Raises:
        ValueError: interprocess with enable_timing.

    Making one makes no driver call.
    """

    def __init__(self, bint enable_timing=False, bint blocking=False, bint interprocess=False):
        if interprocess and enable_timing:
            raise ValueError("an interprocess event cannot keep time; pass enable_timing=False")
        self.device_index = -1
        self.flags = EVENT_BLOCKING_SYNC * blocking + EVENT_INTERPROCESS * interprocess
        if not enable_timing:
            self.flags |= EVENT_DISABLE_TIMING

    def __dealloc__(self):
        if self.handle:
            leave(self.device_index, self.flags, self.handle)

    cdef int record_on(self, int ordinal, uintptr_t stream) except -1:
        global records
        cdef int code
        if self.handle == 0:
            self.handle = take(ordinal, self.flags)
            self.device_index = ordinal
        elif self.device_index != ordinal:
            raise ValueError(
                f"the event belongs to device {self.device_index}, where it was first recorded, "
                f"and the stream to device {ordinal}; use an event of its own for each device"
            )
        with nogil:
            code = registry.active().event_record(ordinal, self.handle, stream)
        if code:
            raise_status(code, "event_record", ("event", self.handle, "stream", stream))
        if watch.sanitizing:
            watch.note_record(ordinal, stream, self.handle)
        records += 1
        self.record_number = records
        return 0

    def record(self, stream=None):
        """Marks the end of the work put into a stream so far (cuEventRecord); replaces the last record.

        Arguments:
            stream: Stream; None is the current one.
        Raises:
            ValueError: the event was recorded before on a stream of another device.
            CudaError: the driver refused.
        """
        cdef Stream chosen = stream if isinstance(stream, Stream) else stream_of(stream, ordinal_of(None))
        self.record_on(chosen.device_index, chosen.handle)

    def wait(self, stream=None):
        """Makes later work of a stream wait for this event (cuStreamWaitEvent); the caller does not wait.

        Arguments:
            stream: Stream, of any device; None is the current one.
        """
        cdef Stream chosen = stream if isinstance(stream, Stream) else stream_of(stream, ordinal_of(None))
        cdef int code
        if self.handle == 0:
            return
        with nogil:
            code = registry.active().stream_wait_event(chosen.device_index, chosen.handle, self.handle)
            if code == 0 and chosen.device_index == self.device_index:
                code = stream_waits(chosen.device_index, chosen.handle, self.record_number)
        if code:
            raise_status(code, "stream_wait_event", ("stream", chosen.handle, "event", self.handle))
        if watch.sanitizing:
            watch.note_wait(chosen.device_index, chosen.handle, self.handle)

    def query(self):
        """Whether the work before the last record is complete (cuEventQuery); True if never recorded."""
        cdef int code
        if self.handle == 0:
            return True
        with nogil:
            code = registry.active().event_query(self.device_index, self.handle)
        if code and code != NOT_READY:
            raise_status(code, "event_query", ("event", self.handle))
        if watch.sanitizing and code == 0:
            watch.note_event_reached(self.handle)
        return code == 0

    def synchronize(self):
        """Waits until the work before the last record is complete (cuEventSynchronize).

        Raises:
            CaptureError: the event was last recorded in a capture.
            CudaError: work failed.
            Exception: whatever a host function raised since the last synchronize.
        """
        cdef int code
        if self.handle == 0:
            return
        watch.before_wait("Event.synchronize")
        drain()
        with nogil:
            code = registry.active().event_synchronize(self.device_index, self.handle)
        if code:
            raise_status(code, "event_synchronize", ("event", self.handle))
        if watch.sanitizing:
            watch.note_event_reached(self.handle)
        raise_callback_errors()

    def elapsed_time(self, end_event):
        """Milliseconds from this event to a later one (cuEventElapsedTime), as float; about 0.5 us exact.

        Arguments:
            end_event: Event.
        Raises:
            ValueError: one of them keeps no time, or was not recorded yet.
            CudaError: one of them is not complete (NOT_READY).
        """
        cdef Event end = end_event
        cdef float milliseconds = 0
        cdef int code
        for event, place in ((self, "first"), (end, "second")):
            if (<Event>event).flags & EVENT_DISABLE_TIMING:
                raise ValueError(f"the {place} event keeps no time; make it with Event(enable_timing=True)")
            if (<Event>event).handle == 0:
                raise ValueError(f"the {place} event was never recorded; record it on a stream first")
        code = registry.active().event_elapsed(self.handle, end.handle, &milliseconds)
        if code:
            raise_status(code, "event_elapsed", ("start", self.handle, "end", end.handle))
        return milliseconds

    @property
    def cuda_event(self):
        """The driver's handle, by torch's name for it: an int that fits a CUevent; 0 before the first record."""
        return self.handle

    @property
    def device(self):
        """The device object of the stream that it was first recorded on; None before."""
        return device_at(self.device_index) if self.device_index >= 0 else None

    def __repr__(self):
        return f"<accelrt.Event device={self.device_index} cuda_event={self.handle:#x}>"


provide_event_type(Event)
pthread_atfork(NULL, NULL, &forget_spares)
