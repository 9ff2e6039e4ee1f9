# The host driver's rows between processes.
from accelrt.driver.table cimport Table

cdef void fill_ipc(Table* table) noexcept nogil
