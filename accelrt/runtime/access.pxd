# Who watches, and what it is told: sync debug mode and the race detector; and the door for uses of memory.
# A function that waits for the device calls before_wait first.  The note_ functions tell the race detector what happens,
# with the GIL; on hot paths one branch is all that they cost while it is off.
from cpython.object cimport PyObject
from cpython.ref cimport Py_XDECREF, Py_XINCREF
from libc.stdint cimport uint32_t, uint64_t, uintptr_t

from accelrt.allocator.private.sleep cimport has_suspended_pools, is_pool_suspended, is_suspended, refuse_suspended
from accelrt.core.interpreter cimport PyThread_get_thread_ident
from accelrt.core.locks cimport WITHOUT_GIL, begin_turn, end_turn, fence_turns, likely_true, unlikely_true
from accelrt.core.slots cimport leave_slot, Slot

cdef int sanitizing  # 1 while the race detector is on; written by access.pyx alone
cdef int sync_mode   # 0 default, 1 warn, 2 error; written by access.pyx alone

cdef inline int before_wait(str call) except -1:
    # Where it raises, nothing was waited for and nothing was put into a stream.
    return before_wait_slow(call) if sync_mode else 0
cdef int before_wait_slow(str call) except -1


cdef inline bint detects_races() noexcept nogil:
    # For callers that have to find out first what they tell.
    return unlikely_true(sanitizing)


# What is rare is told by functions that ask themselves.
# --- work; raises RaceError before it is put into its stream ---
cdef int note_replay(int ordinal, uintptr_t stream, uint64_t capture) except -1
# --- order ---
cdef int note_stream(int ordinal, uintptr_t stream) except -1  # it has a new holder
cdef int note_device_reached(int ordinal) except -1  # RaceError
cdef object note_host_function(int ordinal, uintptr_t stream)  # what note_run takes
cdef void note_run(object mark, bint begins) noexcept  # on the thread that runs it, before and after
# --- graphs ---
cdef int note_captured(uint64_t capture) except -1
cdef void note_dropped(uint64_t capture) noexcept
cdef int note_moved(uint64_t capture, uintptr_t address, size_t size, uintptr_t to) except -1  # of a range it used
# --- memory ---
cdef int note_freed_after(uintptr_t address, uintptr_t event) except -1
cdef int note_emptied() except -1
cdef int note_forgotten(uintptr_t address, size_t size) except -1

# What hot paths tell stays out of them.
cdef int note_access_slow(int ordinal, uintptr_t stream, uintptr_t address, size_t size, str mode, str call) except -1
cdef int note_record_slow(int ordinal, uintptr_t stream, uintptr_t event, bint is_node) except -1
cdef int note_wait_slow(int ordinal, uintptr_t stream, uintptr_t event, bint is_node) except -1
cdef int note_reached_slow(int ordinal, uintptr_t stream) except -1
cdef int note_event_reached_slow(uintptr_t event) except -1
cdef void note_allocated_slow(int ordinal, uintptr_t stream, uintptr_t address, size_t size) noexcept
cdef void note_freed_slow(uintptr_t address) noexcept
cdef int note_use_on_slow(uintptr_t address, int ordinal, uintptr_t stream) except -1

# For callers that asked detects_races.  Uses are (address, bytes, "r" or "w").
cdef int note_work(int ordinal, uintptr_t stream, str call, list uses) except -1
cdef int note_host_work(str call, list uses) except -1
# A kernel node: what it launched, (name, addresses that its arguments held), and what it launches now, with uses behind.
cdef int note_changed(uint64_t capture, tuple old, tuple new) except -1


cdef inline int note_access(int ordinal, uintptr_t stream, uintptr_t address, size_t size, str mode, str call) except -1:
    return note_access_slow(ordinal, stream, address, size, mode, call) if detects_races() else 0


cdef inline int note_record(int ordinal, uintptr_t stream, uintptr_t event, bint is_node) except -1:
    # is_node, here and below: it is a node of a capture's.
    return note_record_slow(ordinal, stream, event, is_node) if detects_races() else 0


cdef inline int note_wait(int ordinal, uintptr_t stream, uintptr_t event, bint is_node) except -1:
    return note_wait_slow(ordinal, stream, event, is_node) if detects_races() else 0


cdef inline int note_reached(int ordinal, uintptr_t stream) except -1:
    # The host knows that it is past all work; RaceError, as the next one.
    return note_reached_slow(ordinal, stream) if detects_races() else 0


cdef inline int note_event_reached(uintptr_t event) except -1:
    return note_event_reached_slow(event) if detects_races() else 0


cdef inline void note_allocated(int ordinal, uintptr_t stream, uintptr_t address, size_t size) noexcept:
    # An ordinal of -1 is page-locked memory.
    if detects_races():
        note_allocated_slow(ordinal, stream, address, size)


cdef inline void note_freed(uintptr_t address) noexcept:
    if detects_races():
        note_freed_slow(address)


cdef inline int note_use_on(uintptr_t address, int ordinal, uintptr_t stream) except -1:
    return note_use_on_slow(address, ordinal, stream) if detects_races() else 0


# The door for uses of memory.  A use goes from the looks that permit it (live? awake?) to the driver's answer:
#     ...                                  # all of the caller's code: conversions, __index__, __cuda_stream__, ...
#     begin_use_of(&access, owner, other)  # from here on free() and sleep() know of it
#     ...                                  # the looks: the owners live, their memory is awake; then the driver's calls
#     end_use_of(&access)
# Between the last line of the caller's code and begin_use the GIL is not given up, or the looks come after it; without a GIL
# they all do.  Nobody waits in the door.  Who takes memory away closes it first, so that later looks refuse, and then
# - free() has the last of the uses that name the owner give the memory back (deferral_for),
# - sleep() waits until all uses begun before have ended (await_uses), but of those that wait for others, its memory's alone.
#
# Uses by Python code are records on their thread's stack, in a list that the GIL guards: two links, and no atomic
# operation.  Without a GIL the door's lock guards it.  Uses by nogil code are sections of their thread's slot
# (core/slots.pxd).
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
    const uintptr_t* addresses  # of all its memory, where it waits for other threads, who may sleep() first; or NULL
    size_t count

cdef struct Door:       # under the GIL, or the lock
    int lock              # guards the Deferrals that wait too
    Access* oldest        # uses under way
    Access* newest        # read without the lock too
    uint64_t serial       # of the newest use ever
    bint deferred         # whether Deferrals wait

cdef Door door

cdef extern from * nogil:
    Access* load_use "accelrt_load_pointer" (Access** place) noexcept
    void store_use "accelrt_store_pointer" (Access** place, Access* access) noexcept

# What is given back once uses under way have ended.
cdef class Deferral:
    cdef uint64_t last          # the newest use that names the owner
    cdef releasing release      # or NULL
    cdef int device
    cdef uintptr_t address
    cdef object keeper          # dropped then
    cdef Deferral after         # in the list of those that wait

# None where no use under way names the owner: then its memory may be given back at once.  Else the caller has its object
# look freed, and calls defer_release; in between nothing may raise.  Without a GIL a use may begin before the object looks
# freed, so that deferral_closed is asked then; it answers what deferral_for does.
cdef Deferral deferral_slow(PyObject* owner)
cdef Deferral look_closed(Deferral deferral, PyObject* owner)  # raises nothing
cdef void defer_release(Deferral deferral, releasing release, int device, uintptr_t address, object keeper) noexcept
cdef void give_deferred() noexcept

# Memory of a driver's pool, which uses name as its owner.
cdef class PoolBlock:
    cdef readonly int device_index
    cdef readonly object stream  # Stream, in whose order it goes back
    cdef readonly size_t nbytes
    cdef readonly bint pinned, managed  # the host reads and writes page-locked memory too
    cdef readonly bint is_mapped  # another process's, which this one has no record of
    cdef readonly object _pool   # what destroys the memory's pool, or None
    cdef uintptr_t handle, address  # the stream's; the memory's, 0: it has none, or gave it back
    cdef Py_ssize_t exports      # buffers on it
    cdef int tries               # how often the driver refused to take it back, as its owner died
    cdef uint64_t thread         # whose default stream it is, where the handle names that
    cdef object __weakref__
    cdef PoolBlock move_out(self)  # another one with its memory
    cdef int give(self, bint is_kept) noexcept  # is_kept: what the driver refuses, but for a capture, stays the owner's
    cdef int give_back(self) except? -1

# What an Array on it keeps; while there is one, free() refuses.
cdef class PoolView:
    cdef readonly PoolBlock block

cdef int await_uses(str call, int device, uint64_t first, uint64_t second) except -1
cdef void await_others(Access* access, const uintptr_t* addresses, size_t count) noexcept

# Exports: memory that another library has by DLPack, from the moment on at which the tensor is made until its deleter is
# called.  A list of the Arrays that were exported; each is in it once, however many tensors it has.
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
    access.addresses = NULL
    begin_turn(&door.lock)
    door.serial += 1
    access.serial = door.serial
    append_use(access)
    end_turn(&door.lock)
    fence_turns()  # before the looks; see deferral_closed


cdef inline void append_use(Access* access) noexcept nogil:
    access.next = NULL
    access.before = door.newest
    if door.newest != NULL:
        door.newest.next = access
    else:
        door.oldest = access
    store_use(&door.newest, access)


cdef inline void end_use(Access* access) noexcept:
    cdef bint deferred
    begin_turn(&door.lock)
    if access.next != NULL:
        access.next.before = access.before
    else:
        store_use(&door.newest, access.before)
    if access.before != NULL:
        access.before.next = access.next
    else:
        door.oldest = access.next
    deferred = door.deferred
    end_turn(&door.lock)
    if deferred:
        give_deferred()


cdef inline void begin_use_of(Access* access, PyObject* first, PyObject* second) noexcept:
    # Of one or two owners, or NULL.
    access.names = NULL
    access.first = first
    access.second = second
    Py_XINCREF(first)
    Py_XINCREF(second)
    access.thread = PyThread_get_thread_ident()
    link_use(access)


cdef inline void end_use_of(Access* access) noexcept:
    end_use(access)
    Py_XDECREF(access.first)
    Py_XDECREF(access.second)


cdef inline bint any_sleeps() noexcept nogil:
    # Whether a pool of any device sleeps, or a communicator: for callers whose looks go through lists.
    return unlikely_true(has_suspended_pools())


cdef inline int refuse_sleeping(uintptr_t address, str name) except -1:
    # Inside a use: SleepingMemoryError where the memory's pool sleeps, or is about to.
    return refuse_suspended(address, name) if any_sleeps() else 0


cdef inline bint is_pool_awake(int device, uint64_t first, uint64_t second) noexcept nogil:
    return not any_sleeps() or not is_pool_suspended(device, first, second)


cdef inline Deferral deferral_for(PyObject* owner):
    return deferral_slow(owner) if load_use(&door.newest) != NULL else None


cdef inline Deferral deferral_closed(Deferral deferral, PyObject* owner):
    # A use enters the list, passes a barrier and looks; the caller had its object look freed, passes one and reads the list.
    # Where the caller's is the earlier one, the use sees a freed object; else the list has the use, or says that it ended.
    if WITHOUT_GIL:
        fence_turns()
        deferral = look_closed(deferral, owner) if load_use(&door.newest) != NULL else None
    return deferral


# --- nogil code: between the two stand the look, is_awake, and the driver's call ---

# The answer is for end_nogil_use, on the same thread; NULL where there is no memory to begin one.  May nest.
cdef Slot* begin_nogil_use() noexcept nogil


cdef inline void end_nogil_use(Slot* section) noexcept nogil:
    leave_slot(section)


cdef inline bint is_awake(uintptr_t address) noexcept nogil:
    return not any_sleeps() or not is_suspended(address)
