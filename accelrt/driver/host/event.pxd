# The host driver's rows for events.
from accelrt.driver.host.queue cimport Plan
from accelrt.driver.table cimport Table

cdef void fill_event(Table* table) noexcept nogil
cdef size_t count_events() noexcept nogil

# Under the queue's lock: what the nodes of a launch that record events, or wait for them, mark and wait for; an
# array as long as the plan's nodes, or NULL where there are none.
cdef int tickets_for(const Plan* plan, void** out_tickets) noexcept nogil
cdef void abandon_tickets(const Plan* plan, void* given) noexcept nogil  # of a launch that was not enqueued
