# The host driver's rows for memory.
from libc.stdint cimport uint64_t, uintptr_t

from accelrt.driver.host.work cimport Allocation, Plan
from accelrt.driver.table cimport Table

cdef void fill_memory(Table* table) noexcept nogil
cdef size_t count_physicals() noexcept nogil  # handles that are alive
cdef uint64_t devices_with_access(uintptr_t address) noexcept nogil  # to a mapped page, a bit each; 0: it is none
# Memory of graphs; all under the queue's lock.
cdef int make_allocation(int device, size_t size, uint64_t peers, Allocation** out_allocation) noexcept nogil
cdef Allocation* find_allocation(uintptr_t address) noexcept nogil  # NULL: none begins there
cdef int claim_memory(const Plan* plan, bint frees) noexcept nogil  # before a launch is put in
cdef bint note_instance(const Plan* plan, bint instantiates) noexcept nogil  # False where it may not be made
cdef size_t takings  # of memory that queued work named; under the queue's lock
