# A thread's capture mode around calls that a driver refuses beside a capture, and that would break it: in
# relaxed mode they are permitted.  Every go_relaxed that succeeds has its restore_mode, on the same thread.
from accelrt.driver.table cimport CAPTURE_RELAXED, Table


cdef inline int go_relaxed(Table* table, int* out_before) noexcept nogil:
    return table.capture_mode_exchange(CAPTURE_RELAXED, out_before)


cdef inline void restore_mode(Table* table, int before) noexcept nogil:
    cdef int relaxed
    table.capture_mode_exchange(before, &relaxed)
