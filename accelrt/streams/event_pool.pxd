# The pool of driver events, for Python's Events and for nogil code.  Any thread.
from libc.stdint cimport uintptr_t

cdef struct PooledEvent:   # of one driver event
    uintptr_t handle
    int device
    unsigned int flags
    bint captured          # by nogil code, which has it; under the pool's lock
    PooledEvent* next      # in the pool

# An event that was returned, or NULL where there is none with these flags.  It may still be pending: recording it anew
# leaves those who wait for its last record alone.
cdef PooledEvent* take_event(int device, unsigned int flags) noexcept nogil
cdef int make_event(int device, unsigned int flags, PooledEvent** out_event) noexcept nogil  # a new one
cdef void return_event(PooledEvent* event) noexcept nogil  # no graph has it any more

# For nogil code, by handles.
cdef int take_event_handle(int device, unsigned int flags, uintptr_t* out_event) noexcept nogil
cdef int return_event_handle(int device, uintptr_t event) noexcept nogil  # INVALID_HANDLE unless it was taken so
# To be called after a record by nogil code while captures are open: an event that was captured is not handed out again.
cdef void note_record(int device, uintptr_t event, uintptr_t stream) noexcept nogil
