"""Captures of accelrt's and waits for whole devices: each keeps out of the other's way."""
from accelrt.mutex cimport pthread_mutex_init, pthread_mutex_lock, pthread_mutex_t, pthread_mutex_unlock

cdef extern from "<pthread.h>" nogil:
    ctypedef struct pthread_cond_t:
        pass
    int pthread_cond_init(pthread_cond_t* condition, void* attributes)
    int pthread_cond_wait(pthread_cond_t* condition, pthread_mutex_t* mutex)
    int pthread_cond_broadcast(pthread_cond_t* condition)
    int pthread_atfork(void (*prepare)() noexcept, void (*parent)() noexcept, void (*child)() noexcept)

cdef extern from *:
    """
    #define accelrt_store_count(place, value) __atomic_store_n(place, value, __ATOMIC_RELEASE)
    """
    void store_count "accelrt_store_count" (long* place, long value) noexcept nogil

cdef pthread_mutex_t gate        # the last lock that anybody takes
cdef pthread_cond_t nobody_waits
captures = 0                     # written under the gate, read anywhere
cdef long waits = 0              # under the gate


cdef void expect_capture() noexcept nogil:
    # Counted at once, so that no new wait comes in between.
    pthread_mutex_lock(&gate)
    store_count(&captures, captures + 1)
    while waits > 0:
        pthread_cond_wait(&nobody_waits, &gate)
    pthread_mutex_unlock(&gate)


cdef void count_out_capture() noexcept nogil:
    pthread_mutex_lock(&gate)
    store_count(&captures, captures - 1)
    pthread_mutex_unlock(&gate)


cdef bint enter_wait() noexcept nogil:
    global waits
    cdef bint may
    pthread_mutex_lock(&gate)
    may = captures == 0
    waits += may
    pthread_mutex_unlock(&gate)
    return may


cdef void leave_wait() noexcept nogil:
    global waits
    pthread_mutex_lock(&gate)
    waits -= 1
    if waits == 0:
        pthread_cond_broadcast(&nobody_waits)
    pthread_mutex_unlock(&gate)


cdef void begin_anew() noexcept nogil:
    # Now, and in a forked child, where the parent's captures and waits are nobody's.
    global waits
    waits = 0
    store_count(&captures, 0)
    pthread_mutex_init(&gate, NULL)
    pthread_cond_init(&nobody_waits, NULL)


begin_anew()
pthread_atfork(NULL, NULL, &begin_anew)
