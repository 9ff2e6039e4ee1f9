# The host driver's rows for capture and graphs.
from accelrt.driver.table cimport Table

cdef void fill_graph_rows(Table* table) noexcept nogil
cdef void graph_counts(size_t* counts) noexcept nogil  # graphs, execs
