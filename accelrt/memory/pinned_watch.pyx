"""The thread that polls page-locked blocks in use, so that no allocation has to.

It starts with the first block that is pending, sleeps while none is, and never takes the GIL.
"""
from libc.stdlib cimport calloc

from accelrt.driver.captures cimport enter_wait, leave_wait
from accelrt.memory.lock cimport spin_lock, spin_unlock
from accelrt.memory.pinned_block cimport PinnedSegment
from accelrt.memory.pinned_heap cimport detach_doomed
from accelrt.memory.pinned_memory cimport give_memory
from accelrt.memory.pinned_uses cimport poll
from accelrt.mutex cimport pthread_mutex_lock, pthread_mutex_t, pthread_mutex_unlock

cdef extern from "<time.h>" nogil:
    struct timespec:
        long tv_sec
        long tv_nsec
    enum: CLOCK_REALTIME
    int clock_gettime(int clock, timespec* out_now)

cdef extern from "<pthread.h>" nogil:
    ctypedef unsigned long pthread_t
    ctypedef struct pthread_cond_t:
        pass
    int pthread_create(pthread_t* thread, void* attributes, void* (*run)(void*) noexcept, void* argument)
    int pthread_join(pthread_t thread, void** result)
    int pthread_cond_init(pthread_cond_t* condition, void* attributes)
    int pthread_cond_signal(pthread_cond_t* condition)
    int pthread_cond_wait(pthread_cond_t* condition, pthread_mutex_t* mutex)
    int pthread_cond_timedwait(pthread_cond_t* condition, pthread_mutex_t* mutex, const timespec* until)

cdef enum:
    PERIOD = 100000  # nanoseconds between two polls

# Guarded by the pool's order.  In memory of its own: a child starts with a new one, for a condition that some
# thread waited on at the fork cannot be initialised anew.
cdef struct Watch:
    pthread_t thread
    pthread_cond_t changed
    bint running
    bint stopping
    bint closed    # the process ends: no thread is started any more

cdef Watch* it = NULL


cdef void sleep_a_period(PinnedPool* pool) noexcept nogil:
    cdef timespec until
    clock_gettime(CLOCK_REALTIME, &until)
    until.tv_nsec += PERIOD
    if until.tv_nsec >= 1000000000:
        until.tv_sec += 1
        until.tv_nsec -= 1000000000
    pthread_cond_timedwait(&it.changed, &pool.order, &until)


cdef void give_doomed_back(PinnedPool* pool) noexcept nogil:
    # Order is open, for the driver waits for the device's work.
    cdef PinnedSegment* segments
    if not enter_wait():
        return
    spin_lock(&pool.lock)
    segments = detach_doomed(pool)
    spin_unlock(&pool.lock)
    if segments != NULL:
        pthread_mutex_unlock(&pool.order)
        give_memory(pool, segments)
        pthread_mutex_lock(&pool.order)
    leave_wait()


cdef void* run(void* data) noexcept nogil:
    # What a poll is refused stays pending, and the next wait_all tells its caller of it.
    cdef PinnedPool* pool = <PinnedPool*>data
    pthread_mutex_lock(&pool.order)
    while not it.stopping:
        if pool.pending == 0 and pool.deferred == NULL:
            pthread_cond_wait(&it.changed, &pool.order)
            continue
        poll(pool)
        give_doomed_back(pool)
        if not it.stopping:
            sleep_a_period(pool)
    pthread_mutex_unlock(&pool.order)
    return NULL


cdef void watch(PinnedPool* pool) noexcept nogil:
    # Without a thread, misses poll as they do without the setting.
    global it
    if it == NULL:
        it = <Watch*>calloc(1, sizeof(Watch))
        if it == NULL:
            return
        pthread_cond_init(&it.changed, NULL)
    if it.running:
        pthread_cond_signal(&it.changed)
    elif not it.closed:
        it.running = pthread_create(&it.thread, NULL, run, pool) == 0


cdef void stop_watch(PinnedPool* pool, bint for_good) noexcept nogil:
    cdef bint join = False
    pthread_mutex_lock(&pool.order)
    if it != NULL:
        it.closed = it.closed or for_good
        join = it.running and not it.stopping
        it.stopping = it.running
        pthread_cond_signal(&it.changed)
    pthread_mutex_unlock(&pool.order)
    if join:
        pthread_join(it.thread, NULL)
        pthread_mutex_lock(&pool.order)
        it.running = it.stopping = False
        pthread_mutex_unlock(&pool.order)


cdef bint watching() noexcept nogil:
    return it != NULL and it.running and not it.stopping


cdef void forget_watch() noexcept nogil:
    global it
    it = NULL
