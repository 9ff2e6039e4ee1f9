# Atomic counters, and pointers that one thread publishes to others.  Counters are sequentially consistent: of two
# threads that each write one and then read the other's, at least one sees what the other wrote.

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
