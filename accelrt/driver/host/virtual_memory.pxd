# The host driver's rows for virtual memory.
from accelrt.driver.table cimport Table

cdef void fill_virtual_memory(Table* table) noexcept nogil
cdef size_t count_physicals() noexcept nogil  # handles that are alive
