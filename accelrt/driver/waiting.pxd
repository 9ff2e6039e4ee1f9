# Waits that a signal may end: Python's handlers run on the main thread alone, and only when it asks for them.
#
# A caller that holds no lock and can leave what it waits for brackets the call of a row; on the main thread the rows
# stream_synchronize, event_synchronize and device_synchronize then look for signals now and then, and answer
# INTERRUPTED where a handler raised.  On every other thread, and without the brackets, they wait as ever.
from libc.stdint cimport uintptr_t

from accelrt.mutex cimport pthread_mutex_t

cdef extern from "<pthread.h>" nogil:
    ctypedef struct pthread_cond_t:
        pass

ctypedef int (*question)(int device, uintptr_t handle) noexcept nogil  # NOT_READY while work is left

cdef enum:
    INTERRUPTED = -50  # what the row would have waited for goes on; end_wait raises what the handler raised

# --- for callers, with the GIL ---
cdef void begin_wait(bint sleeps) noexcept  # sleeps: spend no processor on it, at some microseconds of delay
cdef int end_wait(int code) except -1       # raises where the code is INTERRUPTED
cdef bint is_main_thread() noexcept         # whether begin_wait does anything
cdef void abandon_waits() noexcept nogil    # the interpreter's exit was interrupted: no bracketed wait waits any more
cdef bint are_abandoned() noexcept nogil

# --- for rows that wait ---
cdef bint is_interruptible() noexcept nogil
# Waits for the condition once, as pthread_cond_wait; True where the wait is to end.  The mutex is open meanwhile.
cdef bint pause_on(pthread_cond_t* wake, pthread_mutex_t* mutex) noexcept nogil
# Asks until the answer is another than NOT_READY, or the wait is to end; late by at most 2 % of what it waited.
cdef int poll(question ask, int device, uintptr_t handle) noexcept nogil
cdef int poll_briefly(question ask, int device, uintptr_t handle) noexcept nogil  # the same, but NOT_READY after 20 us
