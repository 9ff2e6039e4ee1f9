# The pool of driver streams, for Python's Streams and for nogil code; and the events that either has.
from libc.stdint cimport uintptr_t

from accelrt.uses.events cimport PooledEvent

cdef struct PooledStream:  # of one driver stream; both live as long as the process
    uintptr_t handle
    int device
    int priority
    bint by_handle         # nogil code has it, and returns it by its handle; under the pool's lock
    bint idle              # in the pool; under its lock
    bint used              # others than its Streams may have put work in since it was found idle; under the pool's lock
    int sharers            # Streams made by its id, beside the first holder; under the pool's lock
    PooledStream* next     # in the pool: the one that was returned next

# For Stream, with the GIL: an idle stream, or a new one.  Raises what the driver answers.
cdef PooledStream* take_stream(int device, int priority) except NULL
# Its work may still run, where it was used: where anything but the Stream itself had its handle.
cdef void return_stream(PooledStream* stream, bint used) noexcept nogil
# For a Stream made by an id, which returns it as others do.  NULL where it is not of this pool, with INVALID_HANDLE in
# out_code where it is but has no holder.
cdef PooledStream* share_stream(int device, uintptr_t stream, int* out_code) noexcept nogil
cdef size_t streams_in_use() noexcept nogil  # taken and not returned, on all devices

# For Event, with the GIL; raises what the driver answers.  fresh: none that was used before.
cdef PooledEvent* take_for_event(int device, unsigned int flags, bint fresh) except NULL
cdef void return_from_event(PooledEvent* event) noexcept
cdef long events_in_use() noexcept nogil  # by Events and by nogil code, on all devices

# For nogil code, by handles.  A priority is clamped to what the device has.
cdef int take_handle(int device, int priority, uintptr_t* out_stream) noexcept nogil
cdef int return_handle(int device, uintptr_t stream) noexcept nogil  # INVALID_HANDLE unless take_handle answered it
cdef int take_event_handle(int device, unsigned int flags, uintptr_t* out_event) noexcept nogil
cdef int return_event_handle(int device, uintptr_t event) noexcept nogil  # INVALID_HANDLE unless it was taken so
# To be called after a record by nogil code while captures are open: an event that was captured is not handed out again.
cdef void note_record(int device, uintptr_t event, uintptr_t stream) noexcept nogil
