"""Uses of memory that are under way: what frees and sleeps wait for, see access.pxd and DESIGN.md."""
from cpython.object cimport PyObject
from libc.stdint cimport uint64_t, uintptr_t

from accelrt.core.process cimport FORK_USES, at_fork
from accelrt.core.slots cimport (
    Slot, enter_inner, enter_outermost, fence_slots, first_slot, has_left, my_slot, open_slots, section_of, slots_fenced,
    take_slot,
)
from accelrt.allocator.private.suspended cimport is_of_suspended, refuse_suspended

cdef extern from "Python.h":
    int PyErr_CheckSignals() except -1

cdef extern from "<unistd.h>" nogil:
    int usleep(unsigned int us)

cdef extern from "<sched.h>" nogil:
    int sched_yield()

cdef extern from *:
    """
    #define pass_barrier() __atomic_thread_fence(__ATOMIC_SEQ_CST)
    #define likely_true(condition) __builtin_expect(!!(condition), 1)
    """
    void pass_barrier() noexcept nogil
    bint likely_true(bint condition) noexcept nogil

cdef enum:
    PAUSE_US = 50  # most uses end within microseconds; what waits for a stream takes as long as that
    SHORT = 100    # looks at a section before the thread yields
    LONG = 10000   # looks before it sleeps between them

cdef Deferral waiting = None  # the first of those that wait
cdef Export* first_export = NULL


# --- uses by nogil code --------------------------------------------------------------------------------------------

cdef Slot* begin_nogil_use_slow() noexcept nogil:
    # The thread's first use, or one within another.
    cdef Slot* mine = my_slot
    if mine == NULL:
        mine = take_slot()
    if mine != NULL and not enter_outermost(mine, 0):
        enter_inner(mine)
    pass_barrier()
    return mine


cdef Slot* begin_nogil_use() noexcept nogil:
    cdef Slot* mine = my_slot
    if likely_true(mine != NULL) and likely_true(enter_outermost(mine, 0)):
        if slots_fenced:
            pass_barrier()
        return mine
    return begin_nogil_use_slow()


# --- frees ---------------------------------------------------------------------------------------------------------

cdef inline bint is_named(const Access* access, PyObject* owner) noexcept:
    if access.names != NULL:
        return access.names(access, owner)
    return access.first == owner or access.second == owner


cdef class Deferral:
    """What is given back once the uses that were under way have ended."""

    def __init__(self):
        raise TypeError("a Deferral is made by a free() beside a use")


cdef Deferral deferral_slow(PyObject* owner):
    cdef const Access* access = door.newest
    cdef Deferral made
    while access != NULL and not is_named(access, owner):
        access = access.before
    if access == NULL:
        return None
    made = Deferral.__new__(Deferral)
    made.last = access.serial
    return made


cdef void defer_release(Deferral deferral, releasing release, int device, uintptr_t address, object thing) noexcept:
    global waiting
    deferral.release = release
    deferral.device = device
    deferral.address = address
    deferral.thing = thing
    deferral.after = waiting
    waiting = deferral
    door.deferred = True
    give_deferred()  # the use may have ended meanwhile


cdef Deferral take_due():
    # One whose uses have ended; None: there is none.
    global waiting
    cdef Deferral before = None, deferral = waiting
    while deferral is not None and door.oldest != NULL and door.oldest.serial <= deferral.last:
        before, deferral = deferral, deferral.after
    if deferral is None:
        return None
    if before is None:
        waiting = deferral.after
    else:
        before.after = deferral.after
    deferral.after = None
    door.deferred = waiting is not None
    return deferral


cdef void give_deferred() noexcept:
    # What is dropped may run Python code, which may free and use other memory.
    cdef Deferral deferral = take_due()
    while deferral is not None:
        if deferral.release != NULL:
            deferral.release(deferral.device, deferral.address)
        deferral.thing = None
        deferral = take_due()


# --- sleeps ----------------------------------------------------------------------------------------------------------

cdef bint is_under_way(uint64_t last) noexcept:
    # Whether a use that began no later than `last` has not reached the driver yet.
    cdef const Access* access = door.oldest
    while access != NULL and access.serial <= last:
        if not access.enqueued:
            return True
        access = access.next
    return False


cdef int refuse_inside(str call) except -1:
    cdef unsigned long thread = PyThread_get_thread_ident()
    cdef const Access* access = door.oldest
    while access != NULL:
        if access.thread == thread and not access.enqueued:
            raise RuntimeError(f"{call}: the calling thread is in the midst of a use of memory, from which this was called "
                               "(by a finalizer or a signal's handler); call it after that")
        access = access.next
    return 0


cdef void await_sections() noexcept nogil:
    cdef Slot* slot
    cdef uint64_t section
    cdef int rounds
    if not fence_slots():
        return
    slot = first_slot()
    while slot != NULL:
        section = section_of(slot) if slot != my_slot else 0
        rounds = 0
        while section and not has_left(slot, section):
            rounds += 1
            if rounds > LONG:
                usleep(PAUSE_US)
            elif rounds > SHORT:
                sched_yield()
        slot = slot.next


cdef int await_uses(str call) except -1:
    cdef uint64_t last
    refuse_inside(call)
    last = door.serial
    with nogil:
        await_sections()
    while is_under_way(last):
        with nogil:
            usleep(PAUSE_US)
        PyErr_CheckSignals()
    return 0


cdef int raise_sleeping(uintptr_t address, str name) except -1:
    return refuse_suspended(address, name)


# --- exports --------------------------------------------------------------------------------------------------------

cdef void link_export(Export* export, uintptr_t address, PyObject* array) noexcept:
    global first_export
    export.address = address
    export.array = array
    export.before = NULL
    export.next = first_export
    if first_export != NULL:
        first_export.before = export
    first_export = export


cdef void unlink_export(Export* export) noexcept:
    global first_export
    if export.next != NULL:
        export.next.before = export.before
    if export.before != NULL:
        export.before.next = export.next
    else:
        first_export = export.next


cdef list exported_from(int device, unsigned long long first, unsigned long long second):
    cdef list arrays = []
    cdef const Export* export = first_export
    while export != NULL:
        if export.address and is_of_suspended(device, first, second, export.address):
            arrays.append(<object>export.array)
        export = export.next
    return arrays


# --- forks ----------------------------------------------------------------------------------------------------------

cdef void forget_uses() noexcept nogil:
    # In a forked child: other threads are gone, and their stacks with them.  The forking thread may be in a use, from which
    # a signal's handler forked, say.
    cdef unsigned long thread = PyThread_get_thread_ident()
    cdef Access* access = door.oldest
    cdef Access* after
    door.oldest = door.newest = NULL
    while access != NULL:
        after = access.next
        if access.thread == thread:
            access.next = NULL
            access.before = door.newest
            if door.newest != NULL:
                door.newest.next = access
            else:
                door.oldest = access
            door.newest = access
        access = after
    open_slots()


open_slots()
at_fork("uses.access", FORK_USES, NULL, NULL, &forget_uses)
