# Threads: the clock, pauses, conditions, and starting one.
from accelrt.core.locks cimport pthread_mutex_t

cdef extern from "<pthread.h>" nogil:
    ctypedef unsigned long pthread_t
    int pthread_create(pthread_t* thread, void* attributes, void* (*run)(void*) noexcept, void* argument)
    int pthread_join(pthread_t thread, void** result)
    ctypedef struct pthread_cond_t:
        pass
    int pthread_cond_init(pthread_cond_t* condition, void* attributes)
    int pthread_cond_wait(pthread_cond_t* condition, pthread_mutex_t* mutex)
    int pthread_cond_signal(pthread_cond_t* condition)
    int pthread_cond_broadcast(pthread_cond_t* condition)

cdef extern from *:
    """
    #include <errno.h>
    #include <pthread.h>
    #include <sched.h>
    #include <time.h>
    #include <unistd.h>
    static inline long long accelrt_now(void) {
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        return now.tv_sec * 1000000000LL + now.tv_nsec;
    }
    static inline int accelrt_pause(long long ns) {
        struct timespec rest = {ns / 1000000000, ns % 1000000000};
        return nanosleep(&rest, NULL);
    }
    static inline void accelrt_whole_pause(long long ns) {
        struct timespec rest = {ns / 1000000000, ns % 1000000000};
        while (nanosleep(&rest, &rest) == -1 && errno == EINTR) {}
    }
    static inline int accelrt_wait(pthread_cond_t *condition, pthread_mutex_t *mutex, long long ns) {
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        ns = (ns > 0 ? ns : 0) + until.tv_nsec;
        until.tv_sec += ns / 1000000000;
        until.tv_nsec = ns % 1000000000;
        return pthread_cond_timedwait(condition, mutex, &until);
    }
    #if defined(__x86_64__) || defined(__i386__)
    #define accelrt_spin() __builtin_ia32_pause()
    #elif defined(__aarch64__)
    #define accelrt_spin() __asm__ volatile("yield")
    #else
    #define accelrt_spin() __asm__ volatile("" ::: "memory")
    #endif
    static inline int accelrt_start(void *(*run)(void *), void *argument) {
        pthread_t thread;
        int code = pthread_create(&thread, NULL, run, argument);
        if (code == 0) pthread_detach(thread);
        return code;
    }
    """
    # Starts a thread that nobody joins; nonzero where there is none to be had.
    int start "accelrt_start" (void* (*run)(void*) noexcept nogil, void* argument) noexcept nogil
    long long now "accelrt_now" () noexcept nogil    # nanoseconds of the monotonic clock
    bint pause "accelrt_pause" (long long ns) noexcept nogil  # True where a signal ended it early
    void sleep_ns "accelrt_whole_pause" (long long ns) noexcept nogil  # whatever signals come
    # For at most so long; nonzero once the time is past.
    int wait_on "accelrt_wait" (pthread_cond_t* condition, pthread_mutex_t* mutex, long long ns) noexcept nogil
    void spin "accelrt_spin" () noexcept nogil       # in a loop that looks for what another thread is about to write
    int sched_yield() noexcept nogil
