# Locks: the system's mutexes, and spin locks.

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
