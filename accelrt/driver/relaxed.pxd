# A thread's capture mode around calls that a driver refuses beside a capture, and that would break it: in
# relaxed mode they are permitted.  Every go_relaxed that succeeds has its restore_mode, on the same thread.
from accelrt.driver.table cimport Table

cdef int go_relaxed(Table* table, int* out_before) noexcept nogil
cdef void restore_mode(Table* table, int before) noexcept nogil
