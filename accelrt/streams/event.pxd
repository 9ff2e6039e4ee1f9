# Events: points in a stream's work; and driver events of the pool (uses/events.pxd) by their handles, for nogil code.
from libc.stdint cimport uint64_t, uintptr_t

from accelrt.streams.stream cimport Stream, Waitable
from accelrt.uses.events cimport PooledEvent

cdef long events_in_use() noexcept nogil  # by Events and by nogil code, on all devices

# For nogil code, by handles.
cdef int take_event_handle(int device, unsigned int flags, uintptr_t* out_event) noexcept nogil
cdef int return_event_handle(int device, uintptr_t event) noexcept nogil  # INVALID_HANDLE unless it was taken so
# To be called after a record by nogil code while captures are open: an event that was captured is not handed out again.
cdef void note_record(int device, uintptr_t event, uintptr_t stream) noexcept nogil

cdef class Event(Waitable):
    cdef readonly uintptr_t handle  # the driver's; 0 before the first record
    cdef PooledEvent* pooled        # the same; NULL where it is another process's
    cdef readonly int device_index  # of the stream that it was first recorded on; -1 before
    cdef unsigned int flags
    cdef bint external              # in a capture it becomes a node
    cdef bint captured              # the last record was in a capture of accelrt's
    cdef uint64_t record_number     # of the last record, among all records of all events; 0 before
    cdef object __weakref__

    cdef int ensure_handle(self, int ordinal, bint fresh=*) except -1
    cdef int check_timed(self, str place) except -1
    cdef int record_on(self, int ordinal, uintptr_t stream) except -1
    cdef int raise_unrecorded(self, int code, uintptr_t stream) except -1
