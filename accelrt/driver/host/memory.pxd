# The host driver's rows for memory.
from accelrt.driver.table cimport Table

cdef void fill_memory(Table* table) noexcept nogil
cdef size_t count_physicals() noexcept nogil  # handles that are alive
cdef size_t count_takings() noexcept nogil  # of memory that queued work named; under the queue's lock
