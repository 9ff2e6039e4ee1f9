# The memory rows of the cuda driver.
from libc.stdint cimport uintptr_t

from accelrt.driver.table cimport Table

cdef int fill_memory(Table* table, Table* blank) except -1  # a status code

cdef enum:
    PAGEABLE = 0     # host memory that is not page-locked
    PAGE_LOCKED = 1
    ON_DEVICE = 2

cdef int memory_kind(uintptr_t address) noexcept nogil
