# Captures of accelrt's, and what would break them or be broken by them: each keeps out of the other's way.
#
# A driver refuses to wait for a device that has a capture, in whatever mode, and breaks the capture for it; asking
# whether a capturing stream is idle breaks the capture too.  So a thread that does either on accelrt's own account
# enters first; and a capture is counted before it begins, which it does once they have left.
from libc.stdint cimport uintptr_t

from accelrt.core.locks cimport load_count
from accelrt.driver.table cimport Table

cdef enum Meaning:  # of a driver's answer about a stream, to memory that the stream used
    DONE    # it uses the memory no more, or has an event behind its work
    LATER   # it works, or it captures, or some stream does: to be tried again
    GONE    # there is no such stream on that device, or no more: it uses nothing
    FAILED  # none of these: an error to be reported to the caller

cdef long captures  # written by capture_guard.pyx alone; others call captures_open()
cdef void expect_capture() noexcept nogil  # before one begins; may wait, so without the GIL and any lock of ours
cdef void count_out_capture() noexcept nogil  # after it ended, or did not begin
# False: a capture is open or about to begin, so do not query or wait.  Never waits, may nest, and may be called under
# any lock: a thread inside waits for no lock that a beginning capture could hold, which is none of ours.
cdef bint enter_wait() noexcept nogil
cdef void leave_wait() noexcept nogil  # after an enter_wait that answered True

cdef int meaning_of(int code) noexcept nogil
# Whether the stream is captured, by accelrt or another library; for the legacy default stream, whether one is that it
# would wait for.
cdef bint is_capturing(Table* table, int device, uintptr_t stream, int* out_code) noexcept nogil
# Whether a stream is idle: NOT_READY where it is not, or may not be asked now.  Breaks no capture.
cdef int ask_stream(Table* table, int device, uintptr_t stream) noexcept nogil
# The same for a stream on which no capture can begin meanwhile; row is the driver's call that answered.
cdef int query_uncaptured(Table* table, int device, uintptr_t stream, const char** out_row) noexcept nogil
# Records an event of accelrt's behind the stream's work.  NOT_READY where that would be, or may have become, part of
# a capture; the event must be recorded anew before it is asked then.
cdef int record_behind(Table* table, int device, uintptr_t event, uintptr_t stream) noexcept nogil
cdef bint is_captured_event(int code) noexcept nogil  # an event's answer that says only that it was captured


cdef inline bint captures_open() noexcept nogil:  # or about to begin
    return load_count(&captures) > 0


# A thread's capture mode around calls that a driver refuses beside a capture, and that would break it: in
# relaxed mode they are permitted.  Every go_relaxed that succeeds has its restore_mode, on the same thread.

cdef int go_relaxed(Table* table, int* out_before) noexcept nogil
cdef void restore_mode(Table* table, int before) noexcept nogil
