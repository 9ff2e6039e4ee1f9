# Waits that a signal may end, and thread states for threads that come to run Python.
#
# Python's handlers run on the main thread alone, and only when it asks for them.
#
# A caller that holds no lock and can leave what it waits for brackets the call of a row; on the main thread the rows
# stream_synchronize, event_synchronize and device_synchronize then look for signals now and then, and answer
# INTERRUPTED where a handler raised.  On every other thread, and without the brackets, they wait as ever.
from libc.stdint cimport uintptr_t

from accelrt.core.locks cimport pthread_mutex_t

cdef extern from "<pthread.h>" nogil:
    ctypedef struct pthread_cond_t:
        pass

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
