# The host driver's rows for events.
from libc.stdint cimport uintptr_t

from accelrt.driver.host.queue cimport HostEvent, Plan
from accelrt.driver.host.shared_event cimport SharedEvent
from accelrt.driver.table cimport Table

cdef void fill_event(Table* table) noexcept nogil
cdef size_t count_events() noexcept nogil
cdef HostEvent* find_event(uintptr_t event) noexcept nogil  # NULL: there is none; under the queue's lock
# An event, with state that processes share or NULL; takes the queue's lock.
cdef int add_event(int device, unsigned int flags, SharedEvent* shared, uintptr_t* out_event) noexcept nogil

# Under the queue's lock: what the nodes of a launch that record events, or wait for them, mark and wait for; an
# array as long as the plan's nodes, or NULL where there are none.
cdef int tickets_for(const Plan* plan, void** out_tickets) noexcept nogil
cdef void abandon_tickets(const Plan* plan, void* given) noexcept nogil  # of a launch that was not enqueued
