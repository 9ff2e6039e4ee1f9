"""Descriptors of pages, at most a quarter of what the process may have open.  A forked child closes its copies: they would
keep the memory of its parent's pages."""
from posix.unistd cimport close

from accelrt.core.locks cimport load_count, spin_lock, spin_unlock, store_count

cdef extern from "<pthread.h>" nogil:
    int pthread_atfork(void (*prepare)() noexcept, void (*parent)() noexcept, void (*child)() noexcept)

cdef extern from "<sys/resource.h>" nogil:
    cdef enum:
        RLIMIT_NOFILE
    ctypedef unsigned long rlim_t
    struct rlimit:
        rlim_t rlim_cur
    int getrlimit(int resource, rlimit* limits)

cdef enum:
    MOST = 512

cdef uintptr_t[MOST] handles  # under the lock
cdef int[MOST] files
cdef long count = 0           # written under the lock
cdef int lock = 0


cdef int place_of(uintptr_t handle) noexcept nogil:
    # Under the lock; -1: none.
    cdef int place = count - 1
    while place >= 0 and handles[place] != handle:
        place -= 1
    return place


cdef int kept_file(uintptr_t handle) noexcept nogil:
    cdef int place, file
    spin_lock(&lock)
    place = place_of(handle)
    file = files[place] if place >= 0 else -1
    spin_unlock(&lock)
    return file


cdef bint has_room() noexcept nogil:
    cdef rlimit limits
    return count < MOST and getrlimit(RLIMIT_NOFILE, &limits) == 0 and <rlim_t>count < limits.rlim_cur // 4


cdef bint keep_file(uintptr_t handle, int file) noexcept nogil:
    cdef bint kept
    spin_lock(&lock)
    kept = place_of(handle) < 0 and has_room()
    if kept:
        handles[count] = handle
        files[count] = file
        store_count(&count, count + 1)
    spin_unlock(&lock)
    return kept


cdef void close_file(uintptr_t handle) noexcept nogil:
    cdef int place, file = -1
    if load_count(&count) == 0:
        return
    spin_lock(&lock)
    place = place_of(handle)
    if place >= 0:
        file = files[place]
        handles[place] = handles[count - 1]
        files[place] = files[count - 1]
        store_count(&count, count - 1)
    spin_unlock(&lock)
    if file >= 0:
        close(file)


cdef void close_in_child() noexcept nogil:
    global lock
    lock = 0  # a thread of the parent's may have held it
    for place in range(count):
        close(files[place])
    store_count(&count, 0)


pthread_atfork(NULL, NULL, &close_in_child)
