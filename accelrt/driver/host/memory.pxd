# The host driver's rows for memory.
from libc.stdint cimport uint64_t, uintptr_t

from accelrt.driver.table cimport Table

cdef void fill_memory(Table* table) noexcept nogil
cdef size_t count_physicals() noexcept nogil  # handles that are alive
cdef uint64_t devices_with_access(uintptr_t address) noexcept nogil  # to a mapped page, a bit each; 0: it is none
cdef size_t takings  # of memory that queued work named; under the queue's lock
