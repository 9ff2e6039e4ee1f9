# The door for uses of memory.  A use goes from the looks that permit it (live? awake?) to the driver's answer:
#
#     ...                                  # all of the caller's code: conversions, __index__, __cuda_stream__, ...
#     begin_use_of(&access, owner, other)  # from here on free() and sleep() know of it
#     ...                                  # the looks: the owners live, their memory is awake; then the driver's calls
#     end_use_of(&access)
#
# Between the last line of the caller's code and begin_use the GIL is not given up, or the looks come after it.  Nobody
# waits in the door.  Who takes memory away closes it first, so that later looks refuse, and then
# - free() has the last of the uses that name the owner give the memory back (deferral_for),
# - sleep() waits until all uses begun before have ended (await_uses).
#
# Uses by Python code are records on their thread's stack, in a list that the GIL guards: two links, and no atomic
# operation.  Uses by nogil code are sections of their thread's slot (core/slots.pxd).
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF, Py_XDECREF
from libc.stdint cimport uint64_t, uintptr_t

from accelrt.core.slots cimport Slot, leave_slot
from accelrt.allocator.private.suspended cimport has_suspended_pools, is_suspended

cdef extern from "Python.h":
    unsigned long PyThread_get_thread_ident() noexcept nogil

cdef struct Access
ctypedef bint (*naming)(const Access* access, PyObject* owner) noexcept
ctypedef void (*releasing)(int device, uintptr_t address) noexcept

cdef struct Access:
    Access* before        # in the order in which they began
    Access* next
    uint64_t serial       # ascending
    unsigned long thread  # that is in the use, where Python may run inside; else 0
    bint enqueued         # the driver has the work, and only a wait for it is left: sleep() need not wait for this use
    naming names          # whether it uses an owner's memory; NULL: first and second say it
    PyObject* first       # owners of the memory: references of the use, unless `names` is set; or NULL
    PyObject* second

cdef struct Door:       # under the GIL
    Access* oldest        # uses under way
    Access* newest
    uint64_t serial       # of the newest use ever
    bint deferred         # whether Deferrals wait

cdef Door door

# What is given back once uses under way have ended.
cdef class Deferral:
    cdef uint64_t last          # the newest use that names the owner
    cdef releasing release      # or NULL
    cdef int device
    cdef uintptr_t address
    cdef object thing           # dropped then
    cdef Deferral after         # in the list of those that wait

# None where no use under way names the owner: then its memory may be given back at once.  Else the caller has its object
# look freed, so that nobody else begins to use it, and calls defer_release; in between nothing may raise.
cdef Deferral deferral_slow(PyObject* owner)
cdef void defer_release(Deferral deferral, releasing release, int device, uintptr_t address, object thing) noexcept
cdef void give_deferred() noexcept
# Waits for all uses begun before the call, of Python and of nogil code; on the main thread a signal's handler may end it.
# RuntimeError where the calling thread itself is in the midst of one.
cdef int await_uses(str call) except -1
cdef int raise_sleeping(uintptr_t address, str name) except -1

# Exports: memory that another library has by DLPack, from the moment on at which the tensor is made until its deleter is
# called.  A list that the GIL guards, of the Arrays that were exported; each is in it once, however many tensors it has.
cdef struct Export:
    Export* before
    Export* next
    uintptr_t address   # the first element's
    PyObject* array     # borrowed: the tensors hold it

cdef void link_export(Export* export, uintptr_t address, PyObject* array) noexcept
cdef void unlink_export(Export* export) noexcept
# The Arrays exported whose first elements lie in memory of the pool on the device, which may be asleep.
cdef list exported_from(int device, unsigned long long first, unsigned long long second)


cdef inline void begin_use(Access* access, naming names, PyObject* first) noexcept:
    # Of which no Python code runs before its end; first is borrowed, and names says what it uses.
    access.names = names
    access.first = first
    access.second = NULL
    access.thread = 0
    link_use(access)


cdef inline void link_use(Access* access) noexcept:
    access.enqueued = False
    access.next = NULL
    access.before = door.newest
    door.serial += 1
    access.serial = door.serial
    if door.newest != NULL:
        door.newest.next = access
    else:
        door.oldest = access
    door.newest = access


cdef inline void end_use(Access* access) noexcept:
    if access.next != NULL:
        access.next.before = access.before
    else:
        door.newest = access.before
    if access.before != NULL:
        access.before.next = access.next
    else:
        door.oldest = access.next
    if door.deferred:
        give_deferred()


cdef inline void begin_use_of(Access* access, PyObject* first, PyObject* second) noexcept:
    # Of one or two owners, or NULL.
    access.names = NULL
    access.first = first
    access.second = second
    if first != NULL:
        Py_INCREF(<object>first)
    if second != NULL:
        Py_INCREF(<object>second)
    access.thread = PyThread_get_thread_ident()
    link_use(access)


cdef inline void end_use_of(Access* access) noexcept:
    end_use(access)
    Py_XDECREF(access.first)
    Py_XDECREF(access.second)


cdef inline int refuse_sleeping(uintptr_t address, str name) except -1:
    # Inside a use: SleepingMemoryError where the memory's pool sleeps, or is about to.
    return raise_sleeping(address, name) if has_suspended_pools() else 0


cdef inline Deferral deferral_for(PyObject* owner):
    return deferral_slow(owner) if door.newest != NULL else None


# --- nogil code: between the two stand the look, is_awake, and the driver's call ---

# The answer is for end_nogil_use, on the same thread; NULL where there is no memory to begin one.  May nest.
cdef Slot* begin_nogil_use() noexcept nogil


cdef inline void end_nogil_use(Slot* section) noexcept nogil:
    leave_slot(section)


cdef inline bint is_awake(uintptr_t address) noexcept nogil:
    return not has_suspended_pools() or not is_suspended(address)
