"""Threads of a driver's, or of a user's C code, that come to run Python.

Such a thread has a thread state for as long as it runs Python.  CPython makes one under a lock of the runtime's and
without the GIL, and before 3.12 a child that was forked meanwhile waits for that lock for ever.  So accelrt makes them
under a lock of its own too, which a fork takes.  They are deleted with the GIL, which a thread that forks holds anyway.
"""
cdef extern from *:
    """
    #include <pthread.h>
    #include <sched.h>
    static pthread_mutex_t accelrt_making = PTHREAD_MUTEX_INITIALIZER;

    static int accelrt_make(void) {
        PyThreadState* made;
        if (PyGILState_GetThisThreadState() != NULL) return 0;
        pthread_mutex_lock(&accelrt_making);
        made = PyThreadState_New(PyInterpreterState_Main());
        pthread_mutex_unlock(&accelrt_making);
        if (made == NULL) Py_FatalError("accelrt: the host has no memory for a thread state");
        return 1;
    }
    /* It counts as one PyGILState_Ensure that was not released yet. */
    static void accelrt_drop(void) { PyGILState_Release(PyGILState_LOCKED); }

    static void accelrt_before_fork(void) {
        PyThreadState* held = NULL;
        for (int attempt = 0; attempt < 1000; attempt++) {
            if (pthread_mutex_trylock(&accelrt_making) == 0) return;
            sched_yield();
        }
        /* Its holder waits for the GIL, as tracemalloc has every allocation do. */
        if (PyGILState_Check()) held = PyEval_SaveThread();
        pthread_mutex_lock(&accelrt_making);
        if (held != NULL) PyEval_RestoreThread(held);
    }
    static void accelrt_after_fork(void) { pthread_mutex_unlock(&accelrt_making); }
    """
    bint make "accelrt_make" () noexcept nogil
    void drop "accelrt_drop" () noexcept
    void before_fork "accelrt_before_fork" () noexcept nogil
    void after_fork "accelrt_after_fork" () noexcept nogil
    int pthread_atfork(void (*prepare)() noexcept nogil, void (*parent)() noexcept nogil, void (*child)() noexcept nogil)


cdef bint make_thread_state() noexcept nogil:
    return make()


cdef void drop_with_gil(bint made) noexcept:
    if made:
        drop()


pthread_atfork(&before_fork, &after_fork, &after_fork)
