# The capture, graph and interprocess rows of the cuda driver.
from accelrt.driver.table cimport Table

cdef int fill_graph(Table* table, Table* blank) except -1  # a status code
