# Sections that many threads are in for some nanoseconds, and that one now and then has to know empty: a driver's call
# between the look that permits it and its end.
#
# Who is inside waits for nobody.  Who wants to change what they look at changes it first, so that later looks refuse,
# and then calls await_readers: it returns when all who were inside at the call have left, however many came since.  So
# after it everybody has either left, or looked at what was changed.
#
# Counts are spread over cache lines by thread.  Each is double: a thread counts itself in the current half, await_readers
# makes the other half current and waits for the former to fall to 0, twice, for a thread may have read which half is
# current and count itself only after the change.
cdef extern from *:
    """
    #include <sched.h>
    #include <string.h>
    #include <unistd.h>
    #define accelrt_shard_count 16
    typedef struct { long counts[2]; char apart[48]; } accelrt_shard;
    typedef struct {
        accelrt_shard shards[accelrt_shard_count] __attribute__((aligned(64)));
        long half __attribute__((aligned(64)));  /* 0 or 1, where threads count themselves */
        int turn;                                /* one at a time waits */
    } accelrt_readers;
    static inline int accelrt_my_shard(void) {  /* threads' own storage lies apart by more than a page */
        static __thread char here;
        return (int)(((unsigned long)&here >> 12) * 0x9E3779B97F4A7C15UL >> 60);
    }
    static inline long *accelrt_enter_readers(accelrt_readers *all) {
        long half = __atomic_load_n(&all->half, __ATOMIC_RELAXED);
        long *count = &all->shards[accelrt_my_shard()].counts[half];
        __atomic_add_fetch(count, 1, __ATOMIC_SEQ_CST);
        return count;
    }
    static inline void accelrt_leave_readers(long *count) { __atomic_sub_fetch(count, 1, __ATOMIC_RELEASE); }
    static inline void accelrt_await_half(accelrt_readers *all, long half) {
        for (int shard = 0; shard < accelrt_shard_count; shard++)
            for (int round = 0; __atomic_load_n(&all->shards[shard].counts[half], __ATOMIC_SEQ_CST); round++)
                if (round > 10000) usleep(50);  /* a driver's call that waits for a stream, say */
                else if (round > 100) sched_yield();
    }
    static inline void accelrt_await_readers(accelrt_readers *all) {
        __atomic_thread_fence(__ATOMIC_SEQ_CST);
        while (__atomic_exchange_n(&all->turn, 1, __ATOMIC_ACQUIRE)) sched_yield();
        for (int round = 0; round < 2; round++) {
            long before = __atomic_load_n(&all->half, __ATOMIC_RELAXED);
            __atomic_store_n(&all->half, 1 - before, __ATOMIC_SEQ_CST);
            accelrt_await_half(all, before);
        }
        __atomic_store_n(&all->turn, 0, __ATOMIC_RELEASE);
    }
    static inline void accelrt_forget_readers(accelrt_readers *all) { memset(all, 0, sizeof *all); }
    """
    ctypedef struct Readers "accelrt_readers":
        pass
    # Into a section; the answer is for leave_readers, which any thread may call.  May nest.
    long* enter_readers "accelrt_enter_readers" (Readers* readers) noexcept nogil
    void leave_readers "accelrt_leave_readers" (long* count) noexcept nogil
    # Waits, without the GIL and without a lock that somebody inside may want, and never from inside.
    void await_readers "accelrt_await_readers" (Readers* readers) noexcept nogil
    void forget_readers "accelrt_forget_readers" (Readers* readers) noexcept nogil  # at import, and in a forked child
