# Waits that a signal may end, and thread states for threads that come to run Python.
#
# Python's handlers run on the main thread alone, and only when it asks for them.
#
# A caller that holds no lock and can leave what it waits for brackets the call of a row; on the main thread the rows
# stream_synchronize, event_synchronize and device_synchronize then look for signals now and then, and answer
# INTERRUPTED where a handler raised.  On every other thread, and without the brackets, they wait as ever.
from libc.stdint cimport uintptr_t

from accelrt.core.locks cimport load_count, pthread_mutex_t
from accelrt.core.slots cimport Slot
from accelrt.core.threads cimport pthread_cond_t
from accelrt.driver.table cimport Table

ctypedef int (*question)(int device, uintptr_t handle) noexcept nogil  # NOT_READY while work is left

cdef enum:
    INTERRUPTED = -50  # what the row would have waited for goes on; end_wait raises what the handler raised
    LOOK_NS = 40 * 1000 * 1000  # between two looks for signals

# --- for callers, with the GIL ---
cdef void begin_wait(bint sleeps) noexcept  # sleeps: spend no processor on it, at some microseconds of delay
cdef int end_wait(int code) except -1       # raises where the code is INTERRUPTED
cdef bint is_main_thread() noexcept nogil   # whether begin_wait does anything
cdef void abandon_waits() noexcept nogil    # the interpreter's exit was interrupted: no bracketed wait waits any more
cdef bint are_abandoned() noexcept nogil

# --- for callers under a lock, where no handler may run, on the main thread ---
# Until end_slice the rows answer INTERRUPTED after so long at the latest.  The caller then leaves its locks, looks for
# signals, and waits on, for longer than before: work that others put in meanwhile must not keep it waiting for ever.
cdef void begin_slice(long long ns) noexcept nogil
cdef void end_slice() noexcept nogil
cdef bint is_to_end() noexcept nogil           # whether a handler raised, which raise_interruption raises; takes the GIL
cdef int raise_interruption() except -1

# --- for rows that wait ---
cdef bint is_interruptible() noexcept nogil
# Waits for the condition once, as pthread_cond_wait; True where the wait is to end.  The mutex is open meanwhile.
cdef bint pause_on(pthread_cond_t* wake, pthread_mutex_t* mutex) noexcept nogil
# Asks until the answer is another than NOT_READY, or the wait is to end; late by at most 2 % of what it waited.  For
# callers too, within the brackets, that wait for something of their own.
cdef int poll(question ask, int device, uintptr_t handle) noexcept nogil
cdef int poll_briefly(question ask, int device, uintptr_t handle) noexcept nogil  # the same, but NOT_READY after 20 us

# --- for threads of a driver's, or of a user's C code, that come to run Python; they have a thread state meanwhile ---
#     cdef bint made = make_thread_state()
#     with gil:
#         drop_with_gil(made)
#         ...
cdef bint make_thread_state() noexcept nogil  # without the GIL or a lock; whether the thread had none
cdef void drop_with_gil(bint made) noexcept   # what was made goes at the end of the block, with the GIL still held


# Captures of accelrt's, and what would break them or be broken by them: each keeps out of the other's way.
#
# A driver refuses to wait for a device that has a capture, in whatever mode, and breaks the capture for it; asking
# whether a capturing stream is idle breaks the capture too.  So a thread that does either on accelrt's own account
# enters first; and a capture is counted before it begins, which it does once they have left.
cdef enum Meaning:  # of a driver's answer about a stream, to memory that the stream used
    DONE    # it uses the memory no more, or has an event behind its work
    LATER   # it works, or it captures, or some stream does: to be tried again
    GONE    # there is no such stream on that device, or no more: it uses nothing
    FAILED  # none of these: an error to be reported to the caller

cdef long captures  # written by guard.pyx alone; others call captures_open()
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
