# The cuda driver's captures and graphs.
from accelrt.driver.cuda.context cimport resolve_fn
from accelrt.driver.table cimport Table

cdef void fill_graphs(Table* table) noexcept nogil
cdef int resolve_graphs(resolve_fn resolve, Table* table, Table* blank) except -1
