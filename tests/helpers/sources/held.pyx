"""A device's pool that is locked for as long as a test wants, as a thread inside a call of the driver leaves it."""
from libc.stdint cimport int64_t

from accelrt.core.locks cimport pthread_mutex_lock, pthread_mutex_unlock
from accelrt.allocator.pool cimport pool_if_made
from accelrt.allocator.heaps cimport lock_all, unlock_all
from accelrt.allocator.types cimport Pool

cdef extern from *:
    """
    #include <time.h>
    static int held_state;  /* 0: nobody has the lock; 1: a thread has it; 2: it is to let go */
    #define load_state() __atomic_load_n(&held_state, __ATOMIC_ACQUIRE)
    #define store_state(state) __atomic_store_n(&held_state, state, __ATOMIC_RELEASE)
    static void held_nap(void) {
        struct timespec rest = {0, 1000000};
        nanosleep(&rest, NULL);
    }
    """
    int load_state() noexcept nogil
    void store_state(int state) noexcept nogil
    void nap "held_nap" () noexcept nogil


def hold(int ordinal, int64_t milliseconds, bint heaps):
    """Locks the pool of a device without the GIL, and all of its heaps or none, until let_go(); False where that does
    not come in time."""
    cdef Pool* pool = pool_if_made(ordinal)
    cdef bint in_time
    with nogil:
        if heaps:
            lock_all(pool)
        else:
            pthread_mutex_lock(&pool.lock)
        store_state(1)
        while load_state() == 1 and milliseconds > 0:
            nap()
            milliseconds -= 1
        in_time = load_state() == 2
        if heaps:
            unlock_all(pool, NULL)
        else:
            pthread_mutex_unlock(&pool.lock)
        store_state(0)
    return in_time


def is_held():
    return load_state() == 1


def let_go():
    store_state(2)
