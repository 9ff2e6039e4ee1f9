# cython: language_level=3
"""Sections of accelrt/core/slots.pxd: threads that pass them, and one that changes what they look at."""
from libc.stdint cimport uint64_t
from libc.stdlib cimport calloc, free, malloc
from posix.unistd cimport _exit, fork
from posix.wait cimport waitpid

from accelrt.core.slots cimport (
    Slot, enter_inner, enter_outermost, fence_slots, first_slot, has_left, leave_slot, my_slot, open_slots, section_of,
    slots_fenced, take_slot,
)

cdef extern from *:
    """
    #include <pthread.h>
    #include <sched.h>
    #define set_fenced(value) (accelrt_slots_registered = 1, accelrt_slots_fenced = (value))
    #define is_registered() (accelrt_slots_registered)
    #define pass_barrier() __atomic_thread_fence(__ATOMIC_SEQ_CST)
    #define load(place) __atomic_load_n(place, __ATOMIC_ACQUIRE)
    #define store(place, value) __atomic_store_n(place, value, __ATOMIC_SEQ_CST)
    #define add(place, value) __atomic_add_fetch(place, value, __ATOMIC_RELAXED)
    """
    ctypedef struct pthread_t:
        pass
    int pthread_create(pthread_t* thread, const void* attributes, void* (*start)(void*) noexcept nogil, void* job) nogil
    int pthread_join(pthread_t thread, void** result) nogil
    int sched_yield() nogil
    void set_fenced(bint value) nogil
    bint is_registered() nogil
    void pass_barrier() nogil
    long load(long* place) nogil
    void store(long* place, long value) nogil
    long add(long* place, long value) nogil

cdef enum:
    FAR = 16 << 20  # bytes: more than a processor's own caches

cdef long forbidden = 0  # what sections look at
cdef long thing = 0      # is 0 for all that were permitted to read it; not atomic
cdef long rounds = 0     # of a thread, until it ends and another takes its place
cdef long over = 0
cdef long wrong = 0
cdef long passed = 0
cdef long ended = 0


cdef Slot* enter() noexcept nogil:
    cdef Slot* mine = my_slot if my_slot != NULL else take_slot()
    if not enter_outermost(mine, 0):
        enter_inner(mine)
    if slots_fenced:
        pass_barrier()
    return mine


cdef void* live(void* far_) noexcept nogil:
    # Stores to memory far away come before the slot's, which so reaches the others late.
    cdef volatile char* far = <volatile char*>far_
    cdef Slot* mine
    cdef unsigned long place = <unsigned long>&mine
    cdef long _round, found = 0, seen = 0
    cdef int _step
    for _round in range(rounds):
        for _step in range(8):
            place = place * 6364136223846793005UL + 1442695040888963407UL
            far[(place >> 33) % FAR] = 1
        mine = enter()
        if not load(&forbidden):
            for _step in range(20):
                found += (<volatile long*>&thing)[0] != 0
            seen += 1
        leave_slot(mine)
    add(&wrong, found)
    add(&passed, seen)
    return NULL


cdef void* live_on(void* nothing) noexcept nogil:
    cdef void* far = malloc(FAR)
    cdef pthread_t one
    while not load(&over):
        if pthread_create(&one, NULL, live, far) == 0:
            pthread_join(one, NULL)
            add(&ended, 1)
    free(far)
    return NULL


cdef void change() noexcept nogil:
    cdef Slot* slot
    cdef int _step
    cdef uint64_t section
    store(&forbidden, 1)
    if fence_slots():
        slot = first_slot()
        while slot != NULL:
            section = section_of(slot)
            while section and not has_left(slot, section):
                sched_yield()
            slot = slot.next
    (<volatile long*>&thing)[0] = 1
    for _step in range(50):
        (<volatile long*>&thing)[0] = 1
    (<volatile long*>&thing)[0] = 0
    store(&forbidden, 0)
    for _step in range(2000):
        load(&forbidden)


def storm(int count, long ends, long each, bint fenced):
    """This thread changes what sections look at until so many threads, `count` at a time, ended after `each` sections.

    fenced: as where the kernel has no barrier for all processors, so that each thread passes one.
    Returns: (reads of what was being changed, sections that were permitted, changes, slots that were made).
    """
    global rounds, wrong, passed, ended, over
    cdef pthread_t* threads = <pthread_t*>calloc(count, sizeof(pthread_t))
    cdef Slot* slot
    cdef long made = 0, changes = 0
    cdef int index
    rounds = each
    wrong = passed = ended = over = 0
    if fenced:
        set_fenced(True)
    with nogil:
        for index in range(count):
            pthread_create(&threads[index], NULL, live_on, NULL)
        while load(&ended) < ends:
            change()
            changes += 1
        store(&over, 1)
        for index in range(count):
            pthread_join(threads[index], NULL)
    free(threads)
    open_slots()
    slot = first_slot()
    while slot != NULL:
        made += 1
        slot = slot.next
    return wrong, passed, changes, made


def nest():
    """What others see of a thread in sections, one within the other: whether it is inside, and has left the first."""
    cdef Slot* mine = enter()
    cdef uint64_t first = section_of(mine)
    seen = [(section_of(mine) != 0, has_left(mine, first) != 0)]
    enter()
    leave_slot(mine)
    seen.append((section_of(mine) != 0, has_left(mine, first) != 0))
    leave_slot(mine)
    seen.append((section_of(mine) != 0, has_left(mine, first) != 0))
    enter()
    seen.append((section_of(mine) != 0, has_left(mine, first) != 0))
    leave_slot(mine)
    return seen


def registered(bint anew=False):
    """Whether the kernel was told of the barriers for all processors; anew: as in a process that opens slots now."""
    if anew:
        open_slots()
    return is_registered() != 0


def fork_inside():
    """Whether a child that was forked in a section is in it, and leaves it."""
    cdef Slot* mine = enter()
    cdef int status = 0, child = fork()
    cdef bint inside, left
    if child == 0:
        open_slots()
        inside = section_of(mine) != 0
        leave_slot(mine)
        left = section_of(mine) == 0
        _exit(0 if inside and left else 1)
    leave_slot(mine)
    waitpid(child, &status, 0)
    return status == 0


open_slots()
