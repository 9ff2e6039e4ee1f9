# The host driver's rows for what a graph is made of.
from accelrt.driver.table cimport Table

cdef void fill_node_rows(Table* table) noexcept nogil
