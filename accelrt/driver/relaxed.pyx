"""A thread's capture mode around calls that a driver refuses beside a capture.

A mode that the driver does not take back is owed: the call that it was changed for is over, and has an answer of
its own to give.  It is tried once more at once, and else restored by the thread's next relaxed call, which takes
what is owed, and not what it finds, for the mode to go back to.
"""
from accelrt.driver.table cimport CAPTURE_RELAXED

cdef extern from *:
    """
    static __thread int accelrt_owed;  /* 1 + the mode that this thread ought to be in; 0 where it is */
    """
    int owed "accelrt_owed"


cdef int go_relaxed(Table* table, int* out_before) noexcept nogil:
    global owed
    cdef int code = table.capture_mode_exchange(CAPTURE_RELAXED, out_before)
    if code == 0 and owed:
        out_before[0] = owed - 1
        owed = 0
    return code


cdef void restore_mode(Table* table, int before) noexcept nogil:
    global owed
    cdef int relaxed
    if table.capture_mode_exchange(before, &relaxed) and table.capture_mode_exchange(before, &relaxed):
        owed = before + 1
