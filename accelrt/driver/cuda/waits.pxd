# The waits that a signal may end, over the rows that wait as the driver does.
from accelrt.driver.table cimport Table

cdef int fill_waits(Table* table, Table* blank) except -1  # after all the others
