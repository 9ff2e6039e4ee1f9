# A lock of one word for sections of some tens of nanoseconds: one atomic exchange to take it, a plain store
# to let go.  Whoever finds it held spins shortly, then yields; nobody waits for anything while holding one,
# but for the holder of a pool's mutex, who takes all of its heaps'.
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
