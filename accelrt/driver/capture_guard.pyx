"""Captures of accelrt's, and what would break them or be broken by them: each keeps out of the other's way.

Two counts, each written before the other is read, so that of a capture that begins and a thread that enters one
always sees the other.  The mutex is only for sleeping, and the last in the lock order.
"""
from libc.stdint cimport uint64_t

from accelrt.core.locks cimport (
    add_count, pthread_mutex_init, pthread_mutex_lock, pthread_mutex_t, pthread_mutex_unlock, store_count,
)
from accelrt.driver.table cimport CAPTURE_NONE, CAPTURE_RELAXED
from accelrt.status cimport (
    CAPTURED_EVENT, CAPTURE_IMPLICIT, CAPTURE_UNSUPPORTED, CAPTURE_WRONG_THREAD, DEINITIALIZED, INVALID_CONTEXT,
    INVALID_DEVICE, INVALID_HANDLE, INVALID_VALUE, NOT_READY,
)

cdef extern from "<pthread.h>" nogil:
    ctypedef struct pthread_cond_t:
        pass
    int pthread_cond_init(pthread_cond_t* condition, void* attributes)
    int pthread_cond_wait(pthread_cond_t* condition, pthread_mutex_t* mutex)
    int pthread_cond_broadcast(pthread_cond_t* condition)
    int pthread_atfork(void (*prepare)() noexcept, void (*parent)() noexcept, void (*child)() noexcept)

cdef extern from *:
    """
    #if defined(__x86_64__) || defined(__i386__)
    #define accelrt_pause() __builtin_ia32_pause()
    #else
    #define accelrt_pause() __asm__ volatile("" ::: "memory")
    #endif
    """
    void pause "accelrt_pause" () noexcept nogil

cdef enum:
    CONTEXT_IS_DESTROYED = 709
    LEGACY_LAST = 1  # 0 and 1 are the legacy default stream
    SPINS = 1000     # looks before a capture that begins sleeps: some ten microseconds

cdef pthread_mutex_t gate        # for the condition variable alone
cdef pthread_cond_t none_inside
captures = 0
cdef long waits = 0              # threads inside


cdef void expect_capture() noexcept nogil:
    # Counted at once, so that no thread enters in between.  Most threads inside make one query, which ends sooner
    # than a sleeping thread wakes.
    cdef int _round
    add_count(&captures, 1)
    for _round in range(SPINS):
        if load_count(&waits) == 0:
            return
        pause()
    pthread_mutex_lock(&gate)
    while load_count(&waits) > 0:
        pthread_cond_wait(&none_inside, &gate)
    pthread_mutex_unlock(&gate)


cdef void count_out_capture() noexcept nogil:
    add_count(&captures, -1)


cdef bint enter_wait() noexcept nogil:
    if load_count(&captures):
        return False
    add_count(&waits, 1)
    if load_count(&captures) == 0:
        return True
    leave_wait()
    return False


cdef void leave_wait() noexcept nogil:
    if add_count(&waits, -1) == 0 and load_count(&captures):
        pthread_mutex_lock(&gate)
        pthread_cond_broadcast(&none_inside)
        pthread_mutex_unlock(&gate)


# --- what may be asked, and what is answered ------------------------------------------------------------------

cdef int meaning_of(int code) noexcept nogil:
    if code == 0:
        return DONE
    if code == NOT_READY or CAPTURE_UNSUPPORTED <= code <= CAPTURE_WRONG_THREAD:
        return LATER
    if code == INVALID_HANDLE or code == INVALID_CONTEXT or code == CONTEXT_IS_DESTROYED:
        return GONE
    if code == INVALID_DEVICE or code == DEINITIALIZED:
        return GONE
    return FAILED


cdef bint is_captured_event(int code) noexcept nogil:
    # The second is what it answers once the capture is over.
    return code == CAPTURED_EVENT or code == INVALID_VALUE


cdef bint is_capturing(Table* table, int device, uintptr_t stream, int* out_code) noexcept nogil:
    # The legacy default stream may not even be asked beside a capture of a stream that waits for it.
    cdef uint64_t capture = 0
    cdef int status = CAPTURE_NONE
    cdef int code = table.capture_status(device, stream, &status, &capture)
    out_code[0] = 0 if code == CAPTURE_IMPLICIT else code
    return code == CAPTURE_IMPLICIT or (code == 0 and status != CAPTURE_NONE)


cdef int query_uncaptured(Table* table, int device, uintptr_t stream, const char** out_row) noexcept nogil:
    # To query a capturing stream would break its capture, and to query any stream in another mode than relaxed would
    # break one that another thread has open in global mode.
    cdef int mode, code
    out_row[0] = b"capture_status"
    if is_capturing(table, device, stream, &code):
        return NOT_READY
    if code == 0:
        out_row[0] = b"capture_mode_exchange"
        code = go_relaxed(table, &mode)
    if code == 0:
        out_row[0] = b"stream_query"
        code = table.stream_query(device, stream)
        restore_mode(table, mode)
    return code


cdef int ask_stream(Table* table, int device, uintptr_t stream) noexcept nogil:
    cdef const char* row
    cdef int code
    if not enter_wait():
        return NOT_READY
    code = query_uncaptured(table, device, stream, &row)
    leave_wait()
    return code


cdef int record_and_look(Table* table, int device, uintptr_t event, uintptr_t stream) noexcept nogil:
    # A capture that the stream took part in in between is either seen afterwards, or over: then the event answers
    # INVALID_VALUE, and asking for it breaks nothing.  To record it did not break the capture either.
    cdef int code
    if is_capturing(table, device, stream, &code):
        return NOT_READY
    if code == 0:
        code = table.event_record(device, event, stream)
        if meaning_of(code) == GONE and ask_stream(table, device, stream) == NOT_READY:
            return NOT_READY  # a stream of another context, say, that lives but takes no event of this one
    if code == 0 and is_capturing(table, device, stream, &code):
        return NOT_READY
    return NOT_READY if meaning_of(code) == LATER else code


cdef int record_behind(Table* table, int device, uintptr_t event, uintptr_t stream) noexcept nogil:
    # On the legacy default stream an event breaks a capture of a stream that waits for it; which streams do, and
    # which of them capture, may change between the look and the record.
    cdef int code
    if stream > LEGACY_LAST:
        return record_and_look(table, device, event, stream)
    if not enter_wait():
        return NOT_READY
    code = record_and_look(table, device, event, stream)
    leave_wait()
    return code


cdef void begin_anew() noexcept nogil:
    # Now, and in a forked child, where the parent's captures and waits do not exist.
    store_count(&waits, 0)
    store_count(&captures, 0)
    pthread_mutex_init(&gate, NULL)
    pthread_cond_init(&none_inside, NULL)


begin_anew()
pthread_atfork(NULL, NULL, &begin_anew)


# --- a thread's capture mode around calls that a driver refuses beside a capture --------------------------

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


def has_open_captures():
    """Whether a capture of this process's is open or about to begin, on any thread."""
    return captures_open()
