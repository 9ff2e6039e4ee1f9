# The rows of the cuda driver for modules, functions, launches and kernel nodes.
from accelrt.driver.table cimport Table

cdef int fill_kernel(Table* table, Table* blank) except -1  # a status code
