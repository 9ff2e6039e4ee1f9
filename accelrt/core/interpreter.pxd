# Python's thread, the GIL and the interpreter's end, as its C API tells them.
cdef extern from "Python.h":
    unsigned long PyThread_get_thread_ident() noexcept nogil
    cdef enum:
        NOWAIT_LOCK
        PY_LOCK_ACQUIRED
        PY_LOCK_INTR
    void* PyThread_allocate_lock() noexcept nogil
    void PyThread_free_lock(void* lock) noexcept nogil
    int PyThread_acquire_lock(void* lock, int waits) noexcept nogil
    # For so many microseconds, or for ever where that is -1; may_signal: PY_LOCK_INTR where a signal came.
    int PyThread_acquire_lock_timed(void* lock, long long microseconds, int may_signal) noexcept nogil
    void PyThread_release_lock(void* lock) noexcept nogil
    int PyThreadState_SetAsyncExc(unsigned long thread, object error) except -1

cdef extern from *:
    """
    #if PY_VERSION_HEX >= 0x030D0000
    #define accelrt_interpreter_is_gone() (!Py_IsInitialized() || Py_IsFinalizing())
    #else
    #define accelrt_interpreter_is_gone() (!Py_IsInitialized() || _Py_IsFinalizing())
    #endif

    /* PyGILState_Check() is true for every thread once there was a second interpreter, and again once there is none. */
    static inline int accelrt_holds_gil(void) {
    #if PY_VERSION_HEX >= 0x030D0000
        return PyThreadState_GetUnchecked() != NULL;
    #elif PY_VERSION_HEX >= 0x030C0000
        return _PyThreadState_UncheckedGet() != NULL;
    #else
        PyThreadState *holder = _PyThreadState_UncheckedGet();
        return holder != NULL && holder == PyGILState_GetThisThreadState();
    #endif
    }
    """
    bint interpreter_is_gone "accelrt_interpreter_is_gone" () noexcept nogil
    bint holds_gil "accelrt_holds_gil" () noexcept nogil  # the calling thread
