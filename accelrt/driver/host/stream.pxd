# The host driver's rows for streams, copies, fills, host functions and events.
from libc.stdint cimport uintptr_t

from accelrt.driver.host.queue cimport HostEvent, HostStream, Plan, Ticket, Work
from accelrt.driver.host.shared_event cimport SharedEvent
from accelrt.driver.table cimport Table

cdef void fill_stream(Table* table) noexcept nogil
# Under the queue's lock: into the stream's queue, or into its capture.
cdef int put_in(HostStream* stream, const Work* work, Ticket* ticket, void* staged) noexcept nogil


# Whether a row of the host driver may do its work: asked first by every one.

cdef int gate(int device) noexcept nogil  # 0, or the refusal; devices from 0
cdef int gate_any() noexcept nogil        # the same for rows without a device
cdef bint gate_is_new() noexcept nogil    # never opened in this process or the one it was forked from
cdef void gate_open(int devices) noexcept nogil
cdef void gate_close() noexcept nogil     # the end of the process
cdef int gate_devices() noexcept nogil


# Events.

cdef size_t count_events() noexcept nogil
cdef HostEvent* find_event(uintptr_t event) noexcept nogil  # NULL: there is none; under the queue's lock
# An event, with state that processes share or NULL; takes the queue's lock.
cdef int add_event(int device, unsigned int flags, SharedEvent* shared, uintptr_t* out_event) noexcept nogil

# Under the queue's lock: what the nodes of a launch that record events, or wait for them, mark and wait for; an
# array as long as the plan's nodes, or NULL where there are none.
cdef int tickets_for(const Plan* plan, void** out_tickets) noexcept nogil
cdef void abandon_tickets(const Plan* plan, void* given) noexcept nogil  # of a launch that was not enqueued
