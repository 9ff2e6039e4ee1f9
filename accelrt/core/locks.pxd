# Locks: the system's mutexes, and spin locks.  Atomic counters, pointers that one thread publishes to others, and hints to
# the compiler.
from libc.stdint cimport int64_t, uint64_t

cdef extern from "<pthread.h>" nogil:
    ctypedef struct pthread_mutex_t:
        pass
    int pthread_mutex_init(pthread_mutex_t* mutex, void* attributes)
    int pthread_mutex_lock(pthread_mutex_t* mutex)
    int pthread_mutex_trylock(pthread_mutex_t* mutex)
    int pthread_mutex_unlock(pthread_mutex_t* mutex)


# A lock of one word for sections of some tens of nanoseconds: one atomic exchange to take it, a plain store
# to release it.  A thread that finds it held spins shortly, then yields; none waits for anything while it holds
# one, but for the holder of a pool's mutex, who takes all of its heaps'.

cdef extern from *:
    """
    #include <sched.h>
    static inline int spin_try(int *lock) { return !__atomic_exchange_n(lock, 1, __ATOMIC_ACQUIRE); }
    static inline void spin_unlock(int *lock) { __atomic_store_n(lock, 0, __ATOMIC_RELEASE); }
    static void spin_lock_slow(int *lock) {
        for (int round = 0; ; round++) {
            if (!__atomic_load_n(lock, __ATOMIC_RELAXED) && spin_try(lock)) return;
            if (round > 100) sched_yield();
            else __asm__ volatile("" ::: "memory");
        }
    }
    static inline void spin_lock(int *lock) { if (!spin_try(lock)) spin_lock_slow(lock); }
    static inline int spin_briefly(int *lock) {
        for (int round = 0; round < 200; round++)
            if (!__atomic_load_n(lock, __ATOMIC_RELAXED) && spin_try(lock)) return 1;
        return 0;
    }
    """
    bint spin_try(int* lock) noexcept nogil
    void spin_lock(int* lock) noexcept nogil
    bint spin_briefly(int* lock) noexcept nogil  # some hundreds of nanoseconds at most; whether it has the lock
    void spin_unlock(int* lock) noexcept nogil


# What the GIL guards where there is one.  In an interpreter without it these are spin locks, as above: a holder touches no
# Python object's count that may fall to 0, and gives up nothing.  Elsewhere they are nothing at all.

cdef extern from *:
    """
    #ifdef Py_GIL_DISABLED
    #define accelrt_without_gil 1
    #define accelrt_begin_turn(lock) spin_lock(lock)
    #define accelrt_end_turn(lock) spin_unlock(lock)
    #define accelrt_add_in_turn(count, amount) __atomic_add_fetch(count, amount, __ATOMIC_RELAXED)
    #define accelrt_fence_turns() __atomic_thread_fence(__ATOMIC_SEQ_CST)
    #else
    #define accelrt_without_gil 0
    #define accelrt_begin_turn(lock) ((void)(lock))
    #define accelrt_end_turn(lock) ((void)(lock))
    #define accelrt_add_in_turn(count, amount) (*(count) += (amount))
    #define accelrt_fence_turns() ((void)0)
    #endif
    """
    const bint WITHOUT_GIL "accelrt_without_gil"  # a constant: the interpreter may run threads of Python side by side
    void begin_turn "accelrt_begin_turn" (int* lock) noexcept nogil
    void end_turn "accelrt_end_turn" (int* lock) noexcept nogil
    # Of two threads that each write, pass this and then read the other's, at least one sees what the other wrote.
    void fence_turns "accelrt_fence_turns" () noexcept nogil
    long add_in_turn "accelrt_add_in_turn" (long* count, long amount) noexcept nogil  # the sum; no lock needed
    uint64_t number_in_turn "accelrt_add_in_turn" (uint64_t* count, uint64_t amount) noexcept nogil
    int64_t raise_in_turn "accelrt_add_in_turn" (int64_t* count, int64_t amount) noexcept nogil


# Counters are sequentially consistent: of two threads that each write one and then read the other's, at least one sees
# what the other wrote.

cdef extern from *:
    """
    static inline long accelrt_add_count(long *count, long amount) {
        return __atomic_add_fetch(count, amount, __ATOMIC_SEQ_CST);
    }
    static inline long accelrt_load_count(const long *count) { return __atomic_load_n(count, __ATOMIC_SEQ_CST); }
    static inline void accelrt_store_count(long *count, long value) {
        __atomic_store_n(count, value, __ATOMIC_SEQ_CST);
    }
    /* What was written before a pointer was stored is seen by those who load it. */
    #define accelrt_load_pointer(place) __atomic_load_n(place, __ATOMIC_ACQUIRE)
    #define accelrt_store_pointer(place, pointer) __atomic_store_n(place, pointer, __ATOMIC_RELEASE)
    """
    long add_count "accelrt_add_count" (long* count, long amount) noexcept nogil  # the sum
    long load_count "accelrt_load_count" (const long* count) noexcept nogil
    void store_count "accelrt_store_count" (long* count, long value) noexcept nogil


# For the compiler: which way a branch goes nearly always.

cdef extern from * nogil:
    """
    #define likely_true(condition) __builtin_expect(!!(condition), 1)
    #define unlikely_true(condition) __builtin_expect(!!(condition), 0)
    """
    bint likely_true(bint condition) noexcept
    bint unlikely_true(bint condition) noexcept
