# Captures of accelrt's and waits for whole devices: each keeps out of the other's way.
#
# A driver refuses to wait for a device that has a capture, in whatever mode, and breaks the capture for it.  So
# whoever waits for a device, or calls what does, enters first; and a capture begins once they have left.

cdef extern from *:
    """
    #define accelrt_load_count(place) __atomic_load_n(place, __ATOMIC_ACQUIRE)
    """
    long load_count "accelrt_load_count" (long* place) noexcept nogil

cdef long captures  # written by captures.pyx alone; others call captures_open()
cdef void expect_capture() noexcept nogil  # before one begins; may wait, so without the GIL
cdef void count_out_capture() noexcept nogil  # after it ended, or did not begin
cdef bint enter_wait() noexcept nogil  # False: there are captures, so don't.  Does not nest
cdef void leave_wait() noexcept nogil  # after an enter_wait that answered True


cdef inline bint captures_open() noexcept nogil:  # or about to begin
    return load_count(&captures) > 0
