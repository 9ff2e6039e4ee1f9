"""Events: points in a stream's work that others can wait for, ask about and time.

The driver's event is taken from the pool (uses/events.pxd) at the first record.  Events without the interprocess flag go
back to it once their holder returns them.
"""
from libc.stdlib cimport free
from libc.string cimport memset

from accelrt.core.handle_map cimport AddressMap, map_find, map_insert, map_remove, map_reserve
from accelrt.core.locks cimport spin_lock, spin_unlock
from accelrt.core.process cimport FORK_STREAMS, at_fork
from accelrt.devices.device cimport device_at, ordinal_of
from accelrt.driver.guard cimport begin_wait, captures_open, end_wait, is_capturing
cimport accelrt.driver.registry as registry
from accelrt.driver.table cimport EVENT_BLOCKING_SYNC, EVENT_DISABLE_TIMING, EVENT_INTERPROCESS
from accelrt.errors import ArgumentError, ArgumentTypeError
from accelrt.allocator.pool cimport stream_waits
from accelrt.runtime.lifetimes cimport EVENT, UNCAPTURED, dispose, drain, keep_where_captured, raise_callback_errors
cimport accelrt.runtime.access as watch
from accelrt.uses.events cimport make_event, release_event, return_event, take_event, take_spare
from accelrt.status cimport INVALID_HANDLE, NOT_READY, raise_status, refuse_copy, refuse_unmade
from accelrt.streams.stream cimport stream_of
from accelrt.streams.stream import provide_event_type

cdef enum:
    IPC_BYTES = 64

cdef AddressMap by_handle                       # handle -> PooledEvent, of those that nogil code has; under the lock
cdef int lock = 0                               # held for no call of the driver's
cdef long in_use = 0                            # pooled events that Events have; guarded by the GIL
cdef uint64_t records = <uint64_t>1 << 63       # numbers that are no driver's handles; guarded by the GIL


# --- what is taken -------------------------------------------------------------------------------------------

cdef void forget_events() noexcept nogil:
    # In a forked child: the parent's events, and a lock that another of its threads may have held.
    global lock, in_use
    lock = 0
    in_use = 0
    memset(&by_handle, 0, sizeof(by_handle))


cdef long events_in_use() noexcept nogil:
    return in_use + <long>by_handle.count


# --- by handles, for nogil code -----------------------------------------------------------------------------------

cdef int lend(PooledEvent* event) noexcept nogil:
    # Takes the lock.
    cdef int code
    spin_lock(&lock)
    code = map_reserve(&by_handle)
    if code == 0:
        map_insert(&by_handle, event.handle, event)
    spin_unlock(&lock)
    return code


cdef int take_event_handle(int device, unsigned int flags, uintptr_t* out_event) noexcept nogil:
    # Takes the lock, but not for the driver's call.
    cdef PooledEvent* event
    cdef int code = take_event(registry.active(), device, flags, &event)
    out_event[0] = 0
    if code:
        return code
    code = lend(event)
    if code:
        return_event(event)
        return code
    out_event[0] = event.handle
    return 0


cdef int return_event_handle(int device, uintptr_t event) noexcept nogil:
    # Takes the lock, but not for the driver's call.
    cdef PooledEvent* found
    spin_lock(&lock)
    found = <PooledEvent*>map_find(&by_handle, event)
    if found != NULL and found.device == device:
        map_remove(&by_handle, event)
    else:
        found = NULL
    spin_unlock(&lock)
    if found == NULL:
        return INVALID_HANDLE
    release_event(registry.active(), found)
    return 0


cdef void note_record(int device, uintptr_t event, uintptr_t stream) noexcept nogil:
    # Takes the lock, but not for the driver's call.
    cdef PooledEvent* found
    cdef int code
    if not is_capturing(registry.active(), device, stream, &code):
        return
    spin_lock(&lock)
    found = <PooledEvent*>map_find(&by_handle, event)
    if found != NULL:
        found.captured = True
    spin_unlock(&lock)


# --- Python's events -----------------------------------------------------------------------------------------

cdef PooledEvent* make(int ordinal, unsigned int flags) except NULL:
    cdef PooledEvent* made = NULL
    cdef int code
    with nogil:
        code = make_event(registry.active(), ordinal, flags, &made)
    if code:
        raise_status(code, "event_create", ("device", ordinal, "flags", flags))
    return made


cdef void leave(PooledEvent* event) noexcept:
    # An interprocess event is destroyed: what another process did with it is unknown.
    global in_use
    in_use -= 1
    if event.flags & EVENT_INTERPROCESS:
        dispose(EVENT, event.device, event.handle)
        free(event)
    else:
        return_event(event)


# stub: class Event:
cdef class Event(Waitable):
    """Event(enable_timing=False, blocking=False, interprocess=False, external=False)\n--\n\n\
    A point in a stream's work.

    Arguments:
        enable_timing: bool, keep the time at which the point was passed, for elapsed_time.
        blocking: bool, synchronize() sleeps instead of spinning (CU_EVENT_BLOCKING_SYNC).
        interprocess: bool, the event can be opened by other processes, see ipc_handle(); excludes timing.
        external: bool, in a capture record() and wait() become nodes of the graph: every launch records the event,
            or waits for what was recorded last before it, so that a graph and work outside it wait for each other
            (CU_EVENT_RECORD_EXTERNAL, CU_EVENT_WAIT_EXTERNAL).  Such an event carries no stream into a capture.
    Raises:
        ValueError: interprocess with enable_timing or external.

    Making one makes no driver call: the driver's event is taken at the first record.
    """

    def __init__(self, bint enable_timing=False, bint blocking=False, bint interprocess=False, bint external=False) -> None:
        if interprocess and enable_timing:
            raise ArgumentError("an interprocess event cannot keep time; pass enable_timing=False")
        if interprocess and external:
            raise ArgumentError("an event is interprocess or external, not both; make one for each purpose")
        if self.handle:  # a second call would lose the driver's event that it has
            raise RuntimeError(f"{self!r} is made and recorded already; make another Event")
        self.device_index = -1
        self.external = external
        self.flags = EVENT_BLOCKING_SYNC * blocking + EVENT_INTERPROCESS * interprocess
        if not enable_timing:
            self.flags |= EVENT_DISABLE_TIMING

    @staticmethod
    def from_ipc_handle(device: DeviceArgument | None, handle: bytes) -> Event:
        """An event of another process (cuIpcOpenEventHandle): both record it, wait for it and ask about it.

        Arguments:
            device: the device that it belongs to there; None is the current one.
            handle: bytes, what ipc_handle() answered in the other process, which keeps its event meanwhile.
        Raises:
            TypeError, ValueError: handle is no 64 bytes.
            NotSupportedError: the driver cannot do it.
            CudaError: the handle is of this process, or its event is gone.
        """
        cdef Event event = Event(interprocess=True)
        cdef int ordinal = ordinal_of(device)
        cdef int code
        cdef const char* given
        if not isinstance(handle, bytes):
            raise ArgumentTypeError(f"handle is {handle!r} of type {type(handle).__name__}; pass the bytes of ipc_handle()")
        if len(handle) != IPC_BYTES:
            raise ArgumentError(f"handle has {len(handle)} bytes; ipc_handle() answers {IPC_BYTES}")
        given = handle
        with nogil:
            code = registry.active().ipc_event_open(ordinal, given, &event.handle)
        if code:
            raise_status(code, "ipc_event_open", ("device", ordinal))
        event.device_index = ordinal
        return event

    def ipc_handle(self) -> bytes:
        """The bytes by which another process opens this event (cuIpcGetEventHandle), see from_ipc_handle().

        An event that was not recorded yet gets its driver's event now, on the current device.

        Returns:
            bytes, 64 of them, to be sent to the other process in any way.
        Raises:
            ValueError: the event was not made with interprocess=True.
            NotSupportedError: the driver cannot do it.
        """
        cdef char[64] handle
        cdef int code
        if not self.flags & EVENT_INTERPROCESS:
            raise ArgumentError("the event is this process's own; make it with Event(interprocess=True)")
        if self.handle == 0:
            self.ensure_handle(ordinal_of(None))
        with nogil:
            code = registry.active().ipc_event_export(self.device_index, self.handle, handle)
        if code:
            raise_status(code, "ipc_event_export", ("device", self.device_index, "event", self.handle))
        return handle[:IPC_BYTES]

    def __dealloc__(self):
        if self.pooled != NULL:
            leave(self.pooled)
        elif self.handle:
            dispose(EVENT, self.device_index, self.handle)

    cdef int ensure_handle(self, int ordinal, bint fresh=False) except -1:
        # fresh: a capture refuses to wait for an event of the pool that was captured last.
        global in_use
        cdef PooledEvent* taken = NULL
        if self.handle == 0:
            if not fresh:
                taken = take_spare(ordinal, self.flags)
            if taken == NULL:
                taken = make(ordinal, self.flags)
            in_use += 1
            if self.handle:  # another thread was faster, while the GIL was released
                leave(taken)
                return self.ensure_handle(ordinal)
            self.pooled = taken
            self.handle = taken.handle
            self.device_index = ordinal
        elif self.device_index != ordinal:
            raise ArgumentError(
                f"the event belongs to device {self.device_index}, where it was first recorded, "
                f"and the stream to device {ordinal}; use an event of its own for each device"
            )
        return 0

    cdef int record_on(self, int ordinal, uintptr_t stream) except -1:
        # The GIL is released although it costs some 20 ns: where the stream's queue is full the driver waits for
        # the stream, which may wait for a function of Python's.
        global records
        cdef bint captured = False
        cdef bint is_node
        cdef int code
        if self.external or captures_open():
            # A driver crashed in recording an event anew while the graph that had captured it went.
            captured = keep_where_captured(ordinal, stream, self) != UNCAPTURED
        if self.handle == 0 or self.device_index != ordinal:
            self.ensure_handle(ordinal)
        is_node = captured and self.external
        if is_node:
            with nogil:
                code = registry.active().event_record_external(ordinal, self.handle, stream)
        else:
            with nogil:
                code = registry.active().event_record(ordinal, self.handle, stream)
        if code:
            self.raise_unrecorded(code, stream)
        watch.note_record(ordinal, stream, self.handle, is_node)
        records += 1
        self.record_number = records
        self.captured = captured and not is_node
        return 0

    cdef int raise_unrecorded(self, int code, uintptr_t stream) except -1:
        # An Event that was never recorded does not keep an event of the pool, whose last record may be in a capture that
        # goes on: to ask for it would break that.
        cdef uintptr_t handle = self.handle
        cdef PooledEvent* taken = self.pooled
        if self.record_number == 0 and taken != NULL and not self.flags & EVENT_INTERPROCESS:
            self.pooled = NULL
            self.handle = 0
            self.device_index = -1
            leave(taken)
        return raise_status(code, "event_record", ("event", handle, "stream", stream))

    cdef int record_in(self, Stream stream) except -1:
        if not stream.made:
            refuse_unmade(stream)
        return self.record_on(stream.device_index, stream.handle)

    cdef int wait_in(self, Stream stream) except -1:
        cdef int ordinal = stream.device_index
        cdef uintptr_t waiter = stream.handle
        cdef bint is_node
        cdef int code
        if not stream.made:
            refuse_unmade(stream)
        if self.handle == 0 and not self.external:
            return 0
        is_node = self.external and keep_where_captured(ordinal, waiter, self) != UNCAPTURED
        if self.handle == 0:
            if not is_node:
                return 0
            self.ensure_handle(ordinal, True)  # launches wait for what is recorded later
        if is_node:
            with nogil:
                code = registry.active().stream_wait_external(ordinal, waiter, self.handle)
        else:
            with nogil:
                code = registry.active().stream_wait_event(ordinal, waiter, self.handle)
                if code == 0 and ordinal == self.device_index:
                    code = stream_waits(ordinal, waiter, self.record_number)
        if code:
            raise_status(code, "stream_wait_event", ("stream", waiter, "event", self.handle))
        watch.note_wait(ordinal, waiter, self.handle, is_node)
        return 0

    def record(self, stream: Stream | int | None = None) -> None:
        """Marks the end of the work put into a stream so far (cuEventRecord); replaces the last record.

        Arguments:
            stream: Stream; None is the current one.
        Raises:
            ValueError: the event was recorded before on a stream of another device.
            CudaError: the driver refused.
        """
        self.record_in(stream if isinstance(stream, Stream) else stream_of(stream, ordinal_of(None)))

    def wait(self, stream: Stream | int | None = None) -> None:
        """Makes later work of a stream wait for this event (cuStreamWaitEvent); the caller does not wait.

        Arguments:
            stream: Stream, of any device; None is the current one.
        """
        self.wait_in(stream if isinstance(stream, Stream) else stream_of(stream, ordinal_of(None)))

    def query(self) -> bool:
        """Whether the work before the last record is complete (cuEventQuery); True if never recorded.

        Raises:
            CaptureError: the event was last recorded in a capture.
            CudaError: work failed.
            Exception: where the work is complete, whatever a host function raised since the last synchronize or query.
        """
        cdef int code
        if self.handle == 0:
            return True
        with nogil:
            code = registry.active().event_query(self.device_index, self.handle)
        if code and code != NOT_READY:
            raise_status(code, "event_query", ("event", self.handle))
        if code == 0:
            watch.note_event_reached(self.handle)
            raise_callback_errors()
        return code == 0

    def synchronize(self) -> None:
        """Waits until the work before the last record is complete (cuEventSynchronize).

        Raises:
            CaptureError: the event was last recorded in a capture.
            CudaError: work failed.
            Exception: whatever a host function raised since the last synchronize or query.
            KeyboardInterrupt: Ctrl-C, on the main thread, or what another signal's handler raised; the work goes on.
        """
        cdef int code
        if self.handle == 0:
            return
        watch.before_wait("Event.synchronize")
        drain()
        begin_wait(self.flags & EVENT_BLOCKING_SYNC != 0)
        with nogil:
            code = registry.active().event_synchronize(self.device_index, self.handle)
        end_wait(code)
        if code:
            raise_status(code, "event_synchronize", ("event", self.handle))
        watch.note_event_reached(self.handle)
        raise_callback_errors()

    def elapsed_time(self, end_event: Event) -> float:
        """Milliseconds from this event to a later one (cuEventElapsedTime), as float; about 0.5 us exact.

        Arguments:
            end_event: Event.
        Raises:
            TypeError: end_event is no Event.
            ValueError: one of them keeps no time, or was not recorded yet, or they belong to two devices.
            CudaError: one of them is not complete (NOT_READY); the text says which.
        """
        cdef Event end
        cdef float milliseconds = 0
        cdef int code
        if not isinstance(end_event, Event):
            raise ArgumentTypeError(f"end_event is {end_event!r} of type {type(end_event).__name__}; pass an Event")
        end = end_event
        self.check_timed("first")
        end.check_timed("second")
        if self.device_index != end.device_index:
            raise ArgumentError(
                f"the first event is of device {self.device_index} and the second of device {end.device_index}; "
                "times of two devices cannot be compared: record both on streams of one"
            )
        code = registry.active().event_elapsed(self.handle, end.handle, &milliseconds)
        if code:
            late = "start" if code == NOT_READY and is_pending(self) else "end"
            waits_for = ("not_complete", late) if code == NOT_READY else ()
            raise_status(code, "event_elapsed", ("start", self.handle, "end", end.handle, *waits_for))
        return milliseconds

    cdef int check_timed(self, str place) except -1:
        if self.flags & EVENT_DISABLE_TIMING:
            raise ValueError(f"the {place} event keeps no time; make it with Event(enable_timing=True)")
        if self.record_number == 0:
            raise ValueError(f"the {place} event was never recorded; record it on a stream first")
        return 0

    def __reduce__(self):
        refuse_copy(self, "the driver's event belongs to one object; between processes, send the bytes of "
                    "Event(interprocess=True).ipc_handle() to Event.from_ipc_handle()")

    @property
    def cuda_event(self) -> int:
        """The driver's handle, by torch's name for it: an int that fits a CUevent; 0 before the first record."""
        return self.handle

    @property
    def event_id(self) -> int:
        """The driver's handle, by torch.Event's name for it; 0 before the first record."""
        return self.handle

    @property
    def _as_parameter_(self) -> c_void_p:
        """What ctypes passes to a C function: the handle as a pointer."""
        import ctypes

        return ctypes.c_void_p(self.handle)

    @property
    def device(self) -> Device | None:
        """The device object of the stream that it was first recorded on; None before."""
        return device_at(self.device_index) if self.device_index >= 0 else None

    def __repr__(self):
        return f"<accelrt.Event device={self.device_index} cuda_event={self.handle:#x}>"


cdef bint is_pending(Event event) noexcept:
    cdef int code
    with nogil:
        code = registry.active().event_query(event.device_index, event.handle)
    return code == NOT_READY


at_fork("streams.event", FORK_STREAMS, NULL, NULL, &forget_events)
provide_event_type(Event)
