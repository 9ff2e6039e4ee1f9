# Locks: the system's mutexes, and spin locks.  Atomic counters, and pointers that one thread publishes to others.

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
    """
    bint spin_try(int* lock) noexcept nogil
    void spin_lock(int* lock) noexcept nogil
    void spin_unlock(int* lock) noexcept nogil


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
