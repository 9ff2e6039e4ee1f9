# The memory rows of the cuda driver.
from libc.stdint cimport uintptr_t

from accelrt.driver.table cimport Table

cdef int fill_memory(Table* table, Table* blank) except -1  # a status code
cdef bint is_pageable(uintptr_t address) noexcept nogil  # host memory that is not page-locked
