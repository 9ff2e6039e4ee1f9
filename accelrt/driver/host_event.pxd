# The host driver's rows for events.
from accelrt.driver.table cimport Table

cdef void fill_event_rows(Table* table) noexcept nogil
cdef size_t count_events() noexcept nogil
