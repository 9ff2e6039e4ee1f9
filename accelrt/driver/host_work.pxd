# The host driver's rows for streams, events, copies and fills.
from accelrt.driver.table cimport Table

cdef void fill_work_rows(Table* table) noexcept nogil
cdef size_t count_events() noexcept nogil
