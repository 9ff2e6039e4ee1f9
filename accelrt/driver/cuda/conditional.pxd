# Conditional nodes of the cuda driver.
from accelrt.driver.table cimport Table

cdef int fill_conditionals(Table* table, Table* blank) except -1
