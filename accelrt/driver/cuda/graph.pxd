# The capture, graph, kernel and interprocess rows of the cuda driver.
from accelrt.driver.table cimport Table

cdef int fill_graphs(Table* table, Table* blank) except -1  # a status code


# What a graph is made of, as the cuda driver lists it.

cdef int fill_nodes(Table* table, Table* blank) except -1
