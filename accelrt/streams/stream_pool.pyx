"""The pool of driver streams.

A Stream that dies returns its driver stream, which is handed out again only when its work is complete.
So no two live Streams share a handle, and none is destroyed while the allocator still has memory filed under
it.  That memory serves the next Stream with the handle.
"""
from libc.stdint cimport uint64_t
from libc.stdlib cimport calloc, free

from accelrt.driver.capture_guard cimport go_relaxed, restore_mode
cimport accelrt.driver.registry as registry
from accelrt.driver.table cimport CAPTURE_NONE, STREAM_NON_BLOCKING
from accelrt.memory.allocator.pool cimport MAX_DEVICES
from accelrt.memory.allocator.stream_registry cimport trust_stream
from accelrt.runtime.host_func cimport functions_wait
cimport accelrt.runtime.sanitizer_hooks as watch
from accelrt.status cimport NOT_READY, raise_status

cdef extern from "<pthread.h>" nogil:
    int pthread_atfork(void (*prepare)() noexcept, void (*parent)() noexcept, void (*child)() noexcept)

cdef struct Returned:  # driver streams of one device and priority, oldest first
    Lease* oldest
    Lease* newest

cdef enum:
    LEVELS = 8  # priorities kept apart
    ASKED = 4   # returned streams that a lease looks at: one that is busy for long must not hide the others

cdef Returned returned[MAX_DEVICES][LEVELS]  # guarded by the GIL


cdef void forget_leases() noexcept nogil:
    cdef int ordinal, level
    for ordinal in range(MAX_DEVICES):
        for level in range(LEVELS):
            returned[ordinal][level].oldest = NULL
            returned[ordinal][level].newest = NULL


cdef int ask(int ordinal, uintptr_t handle, const char** out_row) noexcept nogil:
    # Asking a capturing stream, or asking at all while another thread captures in global mode, would break
    # the capture; so a capturing stream counts as busy, and the question is put in relaxed mode.
    cdef int status = 0, mode
    cdef uint64_t capture = 0
    cdef int code = registry.active().capture_status(ordinal, handle, &status, &capture)
    out_row[0] = b"capture_status"
    if code == 0 and status != CAPTURE_NONE:
        return NOT_READY
    if code == 0:
        out_row[0] = b"capture_mode_exchange"
        code = go_relaxed(registry.active(), &mode)
    if code == 0:
        out_row[0] = b"stream_query"
        code = registry.active().stream_query(ordinal, handle)
        restore_mode(registry.active(), mode)
    return code


cdef bint idle(int ordinal, uintptr_t handle) except -1:
    # The answer may be that the device's work failed, which nobody else may be told again.  The GIL is released where
    # a copy of another thread's may hold a lock of the driver's until a function of Python's has run.
    cdef const char* row = NULL
    cdef int code
    if functions_wait():
        with nogil:
            code = ask(ordinal, handle, &row)
    else:
        code = ask(ordinal, handle, &row)
    if code and code != NOT_READY:
        raise_status(code, row.decode(), ("stream", handle))
    return code == 0


cdef Returned* shelf_of(int ordinal, int priority) noexcept:
    return &returned[ordinal][-priority & (LEVELS - 1)]


cdef void put_last(Returned* shelf, Lease* entry) noexcept:
    entry.next = NULL
    if shelf.oldest == NULL:
        shelf.oldest = entry
    else:
        shelf.newest.next = entry
    shelf.newest = entry


cdef Lease* take_idle(Returned* shelf) except? NULL:
    # NULL where those that were asked are busy; they go to the end.  One is on no shelf while it is asked, so that
    # another thread does not take it too.
    cdef Lease* entry
    cdef bint found, is_last
    cdef int _asked
    for _asked in range(ASKED):
        entry = shelf.oldest
        if entry == NULL:
            return NULL
        is_last = entry.next == NULL
        shelf.oldest = entry.next
        try:
            found = idle(entry.device, entry.handle)
        except BaseException:
            put_last(shelf, entry)
            raise
        if found:
            return entry
        put_last(shelf, entry)
        if is_last:
            return NULL
    return NULL


cdef Lease* make(int ordinal, int priority) except NULL:
    cdef Lease* made = <Lease*>calloc(1, sizeof(Lease))
    cdef int code
    if made == NULL:
        raise MemoryError("no host memory for a stream's record")
    with nogil:
        code = registry.active().stream_create(ordinal, STREAM_NON_BLOCKING, priority, &made.handle)
    if code:
        free(made)
        raise_status(code, "stream_create", ("device", ordinal, "priority", priority))
    made.device = ordinal
    made.level = priority
    trust_stream(made.handle)  # where that fails, its memory serves no other stream
    return made


cdef Lease* lease(int ordinal, int priority) except NULL:
    cdef Lease* found = take_idle(shelf_of(ordinal, priority))
    if found == NULL:
        found = make(ordinal, priority)
    if watch.sanitizing:
        watch.note_stream(ordinal, found.handle)
    return found


cdef void give_back(Lease* leased) noexcept:
    put_last(shelf_of(leased.device, leased.level), leased)


pthread_atfork(NULL, NULL, &forget_leases)
