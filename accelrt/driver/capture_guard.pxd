# Captures of accelrt's, and what would break them or be broken by them: each keeps out of the other's way.
#
# A driver refuses to wait for a device that has a capture, in whatever mode, and breaks the capture for it; asking
# whether a capturing stream is idle breaks the capture too.  So a thread that does either on accelrt's own account
# enters first; and a capture is counted before it begins, which it does once they have left.
from libc.stdint cimport uintptr_t

from accelrt.core.locks cimport load_count
from accelrt.core.slots cimport Slot
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

# While one thread ends a capture, a driver crashes where another asks it anything about the capture's streams but
# stream_is_capturing.  So the active table is a driver's with rows of the guard over those that name a stream or an event:
# each says that it asks, and the row capture_end waits until nobody does.  Who comes meanwhile waits for the end.
cdef Table* guard_table(Table* table, Table* blank) noexcept nogil  # blank: a table with no row filled

# For rows: waits while a capture ends, unless the thread is inside already.  may_wait: the call may wait within the driver.
# The answer is for leave_asking, on the same thread, and may be NULL.
cdef Slot* enter_asking(bint may_wait) noexcept nogil
cdef void leave_asking(Slot* asker) noexcept nogil
# For what is asked on accelrt's own account: False where a capture ends just now, so that it is to be asked later.
# Never waits; may nest, and rows may be called inside.
cdef bint try_asking() noexcept nogil
cdef void stop_asking() noexcept nogil  # after a try_asking that answered True, on the same thread
cdef bint is_ending() noexcept nogil    # whether a capture ends just now

# Captures that others end, who say so afterwards or never.  From before one begins until it is said to be over no stream
# is recorded on accelrt's own account.
cdef void expect_told_capture() noexcept nogil  # as expect_capture
cdef void count_out_told_capture() noexcept nogil

cdef int meaning_of(int code) noexcept nogil  # of record_behind's answer; of other rows' after as_refusal
# Whether an answer says that the device runs nothing more, so that nothing is in use.
cdef bint is_device_lost(int code) noexcept nogil
# The answer of a row that names no stream, or an event of accelrt's: a refusal says nothing of a stream, so what would
# read as GONE becomes NOT_READY, unless the device is lost.
cdef int as_refusal(int code) noexcept nogil
# Whether the stream is captured, by accelrt or another library; for the legacy default stream, whether one is that it
# would wait for.
cdef bint is_capturing(Table* table, int device, uintptr_t stream, int* out_code) noexcept nogil
# Whether a stream is idle: NOT_READY where it is not, or may not be asked now.  Breaks no capture.
cdef int ask_stream(Table* table, int device, uintptr_t stream) noexcept nogil
# The same for a stream on which no capture can begin meanwhile; row is the driver's call that answered.
cdef int query_uncaptured(Table* table, int device, uintptr_t stream, const char** out_row) noexcept nogil
# After a refusal that reads as GONE: whether the stream, asked once more, has no work.
cdef bint is_idle_or_gone(Table* table, int device, uintptr_t stream) noexcept nogil
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
