# The host driver's rows for capture and graphs.
from libc.stdint cimport uintptr_t

from accelrt.driver.host.queue cimport Graph
from accelrt.driver.table cimport Table

cdef Graph* find_graph(uintptr_t graph) noexcept nogil  # or a body; under the queue's lock
cdef void fill_graph(Table* table) noexcept nogil
cdef void graph_counts(size_t* counts) noexcept nogil  # graphs, execs
