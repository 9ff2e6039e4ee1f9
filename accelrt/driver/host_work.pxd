# The host driver's rows for streams, copies, fills and host functions.
from accelrt.driver.table cimport Table

cdef void fill_work_rows(Table* table) noexcept nogil
