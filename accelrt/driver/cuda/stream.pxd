# The stream, event and copy rows of the cuda driver.
from accelrt.driver.table cimport Table

cdef int fill_stream(Table* table, Table* blank) except -1  # a status code
