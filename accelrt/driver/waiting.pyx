"""Waits that a signal may end, and thread states for threads that come to run Python.

This is the one place that says how long to wait before looking again.
"""
import threading

from cpython.exc cimport PyErr_CheckSignals

from accelrt.core.locks cimport pthread_mutex_lock, pthread_mutex_unlock
from accelrt.core.process cimport FORK_THREAD_STATES, at_fork
from accelrt.core.process import call_at_fork
from accelrt.status cimport NOT_READY

cdef extern from *:
    """
    #include <pthread.h>
    #include <time.h>
    static __thread int accelrt_listening;         /* brackets open, on the main thread only */
    static __thread int accelrt_sleeps;
    static __thread int accelrt_slicing;           /* a wait under a lock, which is to end soon */
    static __thread long long accelrt_look_at;     /* when signals are looked for next; 0 where nothing was waited for */
    static int accelrt_abandoned;
    #define is_abandoned() __atomic_load_n(&accelrt_abandoned, __ATOMIC_ACQUIRE)
    #define set_abandoned() __atomic_store_n(&accelrt_abandoned, 1, __ATOMIC_RELEASE)

    static inline long long accelrt_now(void) {
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        return now.tv_sec * 1000000000LL + now.tv_nsec;
    }
    /* Nonzero where a signal came. */
    static inline int accelrt_sleep(long ns) {
        struct timespec rest = {0, ns};
        return nanosleep(&rest, NULL);
    }
    static inline void accelrt_spin(long long until) {
        while (accelrt_now() < until) {
    #if defined(__x86_64__)
            __builtin_ia32_pause();
    #elif defined(__aarch64__)
            __asm__ volatile("yield");
    #endif
        }
    }
    static int accelrt_wait(pthread_cond_t* wake, pthread_mutex_t* mutex, long ns) {
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += ns;
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        return pthread_cond_timedwait(wake, mutex, &until);
    }
    """
    int listening "accelrt_listening"
    int wants_sleep "accelrt_sleeps"
    int slicing "accelrt_slicing"
    long long look_at "accelrt_look_at"
    bint is_abandoned() noexcept nogil
    void set_abandoned() noexcept nogil
    long long now_ns "accelrt_now" () noexcept nogil
    bint sleep_ns "accelrt_sleep" (long ns) noexcept nogil
    void spin "accelrt_spin" (long long until) noexcept nogil
    int wait_ns "accelrt_wait" (pthread_cond_t* wake, pthread_mutex_t* mutex, long ns) noexcept nogil
    unsigned long PyThread_get_thread_ident() noexcept nogil

cdef enum:
    SHARE = 64                   # the gap between two questions is this part of the time waited
    SPIN_NS = 20 * 1000          # how long a wait that sleeps spins first
    OVERSLEEP_NS = 50 * 1000     # by which the kernel lets a thread sleep longer than it asked
    SLEEP_NS = 100 * 1000        # the shortest gap that is slept, and the longest of all
    LONG_SLEEP_NS = 1000 * 1000  # the longest of a wait that sleeps

cdef unsigned long main_thread = 0
cdef object raised = None  # what a handler raised, on its way to end_wait


cdef bint is_main_thread() noexcept nogil:
    return PyThread_get_thread_ident() == main_thread


cdef void begin_wait(bint sleeps) noexcept:
    global listening, wants_sleep, look_at
    if not is_main_thread():
        return
    listening += 1
    wants_sleep = sleeps
    look_at = 0  # most waits find nothing to wait for, and read no clock


cdef int end_wait(int code) except -1:
    global listening
    if listening:
        listening -= 1
    if code == INTERRUPTED:
        raise_interruption()
    return 0


cdef int raise_interruption() except -1:
    global raised
    error = raised
    raised = None
    raise KeyboardInterrupt if error is None else error  # none where the exit was interrupted before


cdef bint handle_signals() noexcept:
    # A handler may wait itself, with brackets of its own.
    global listening, wants_sleep, raised
    cdef int before = listening, slept = wants_sleep
    cdef bint found = False
    listening = 0
    try:
        PyErr_CheckSignals()
    except BaseException as error:
        raised = error
        found = True
    listening = before
    wants_sleep = slept
    return found


cdef bint is_to_end() noexcept nogil:
    global look_at
    cdef bint found
    if slicing or is_abandoned():
        return True
    with gil:
        found = handle_signals()
    look_at = now_ns() + LOOK_NS
    return found


cdef void abandon_waits() noexcept nogil:
    set_abandoned()


cdef bint are_abandoned() noexcept nogil:
    return is_abandoned()


cdef bint is_interruptible() noexcept nogil:
    return listening > 0 or slicing


cdef void begin_slice(long long ns) noexcept nogil:
    global slicing, wants_sleep, look_at
    slicing = True
    wants_sleep = False
    look_at = now_ns() + ns


cdef void end_slice() noexcept nogil:
    global slicing
    slicing = False


cdef bint pause_on(pthread_cond_t* wake, pthread_mutex_t* mutex) noexcept nogil:
    global look_at
    cdef bint found
    if not is_abandoned():
        if look_at == 0:
            look_at = now_ns() + LOOK_NS
        wait_ns(wake, mutex, LOOK_NS)
        if now_ns() < look_at:
            return False
    pthread_mutex_unlock(mutex)
    found = is_to_end()
    pthread_mutex_lock(mutex)
    return found


cdef long long gap_after(long long waited) noexcept nogil:
    # What comes between two questions.  Sleeping is left to gaps that the kernel can keep.
    if wants_sleep and waited > SPIN_NS:
        return min(max(waited // SHARE, SLEEP_NS), LONG_SLEEP_NS)
    return min(waited // SHARE, SLEEP_NS)


cdef int poll(question ask, int device, uintptr_t handle) noexcept nogil:
    global look_at
    cdef long long begun, now, gap
    cdef int code = ask(device, handle)
    if code != NOT_READY:
        return code
    begun = now_ns()
    if look_at == 0:
        look_at = begun + LOOK_NS
    while code == NOT_READY:
        now = now_ns()
        if (now >= look_at or is_abandoned()) and is_to_end():
            return INTERRUPTED
        gap = gap_after(now - begun)
        if gap < SLEEP_NS:
            spin(now + gap)
        elif sleep_ns(gap - OVERSLEEP_NS) and is_to_end():
            return INTERRUPTED
        code = ask(device, handle)
    return code


cdef int poll_briefly(question ask, int device, uintptr_t handle) noexcept nogil:
    cdef long long end
    cdef int code = ask(device, handle)
    if code == NOT_READY:
        end = now_ns() + SPIN_NS
        while code == NOT_READY and now_ns() < end:
            code = ask(device, handle)
    return code


# --- threads that come to run Python -------------------------------------------------------------------------

# CPython makes a thread state under a lock of the runtime's and without the GIL, and before 3.12 a child that was forked
# meanwhile waits for that lock for ever.  So accelrt makes them under a lock of its own too, which a fork takes.  (Later
# ones have the child renew the lock, or hold it in a fork themselves: then whoever makes a state waits for the fork, which
# may not wait for him.)  They are deleted with the GIL, which a thread that forks holds anyway.
cdef extern from *:
    """
    #include <pthread.h>
    #include <sched.h>
    #define accelrt_guards_states (PY_VERSION_HEX < 0x030C0000)
    static pthread_mutex_t accelrt_making = PTHREAD_MUTEX_INITIALIZER;

    static int accelrt_make(void) {
        PyThreadState* made;
        if (PyGILState_GetThisThreadState() != NULL) return 0;
        if (accelrt_guards_states) pthread_mutex_lock(&accelrt_making);
        made = PyThreadState_New(PyInterpreterState_Main());
        if (accelrt_guards_states) pthread_mutex_unlock(&accelrt_making);
        if (made == NULL) Py_FatalError("accelrt: the host has no memory for a thread state");
        return 1;
    }
    /* It counts as one PyGILState_Ensure that was not released yet. */
    static void accelrt_drop(void) { PyGILState_Release(PyGILState_LOCKED); }

    static void accelrt_before_fork(void) {
        PyThreadState* held = NULL;
        if (!accelrt_guards_states) return;
        for (int attempt = 0; attempt < 1000; attempt++) {
            if (pthread_mutex_trylock(&accelrt_making) == 0) return;
            sched_yield();
        }
        /* Its holder waits for the GIL, as tracemalloc has every allocation do. */
        if (PyGILState_Check()) held = PyEval_SaveThread();
        pthread_mutex_lock(&accelrt_making);
        if (held != NULL) PyEval_RestoreThread(held);
    }
    static void accelrt_after_fork(void) {
        if (accelrt_guards_states) pthread_mutex_unlock(&accelrt_making);
    }
    """
    bint make "accelrt_make" () noexcept nogil
    void drop "accelrt_drop" () noexcept
    void before_fork "accelrt_before_fork" () noexcept nogil
    void after_fork "accelrt_after_fork" () noexcept nogil


cdef bint make_thread_state() noexcept nogil:
    return make()


cdef void drop_with_gil(bint made) noexcept:
    if made:
        drop()


def note_main_thread():
    """The thread that Python's signal handlers run on: the main one, and in a child the one that forked."""
    global main_thread
    main_thread = threading.main_thread().ident


note_main_thread()
call_at_fork("driver.waiting", "main thread", child=note_main_thread)
at_fork("driver.waiting", FORK_THREAD_STATES, &before_fork, &after_fork, &after_fork)
