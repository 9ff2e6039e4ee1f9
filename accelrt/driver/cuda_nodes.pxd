# What a graph is made of, as the cuda driver lists it.
from accelrt.driver.table cimport Table

cdef int fill_nodes(Table* table, Table* blank) except -1
