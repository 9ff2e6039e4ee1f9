"""The rows that wait, for the main thread, which has to look for signals meanwhile.

The driver has no wait with an end, so such a wait asks for an event: the user's own, or one recorded for it behind the
stream's or the device's work so far.  A stream is not asked itself for long: while other threads put work in, it might
never be found idle.  Without brackets (waiting.pxd) a row waits as the driver does.
"""
from libc.stdint cimport uintptr_t
from libc.stdlib cimport calloc, free

from accelrt.core.locks cimport pthread_mutex_init, pthread_mutex_lock, pthread_mutex_t, pthread_mutex_unlock
from accelrt.driver.cuda.context cimport MOST_DEVICES, enter, leave, primary_of
from accelrt.driver.cuda.library cimport Symbol, resolve
from accelrt.driver.cuda.types cimport CUcontext, CUevent
from accelrt.driver.table cimport EVENT_DISABLE_TIMING, Table
from accelrt.driver.waiting cimport INTERRUPTED, is_interruptible, pause_on, poll, poll_briefly, pthread_cond_t
from accelrt.status cimport INVALID_CONTEXT, INVALID_HANDLE, INVALID_VALUE, NOT_READY, NOT_SUPPORTED, SUCCESS

# Typed by hand: headers have had it since 12.5 only.
ctypedef int (*PFN_cuCtxRecordEvent_v12050)(CUcontext, CUevent) noexcept nogil

cdef extern from *:
    """
    #include <pthread.h>
    static int accelrt_start_thread(void* (*run)(void*), void* data) {
        pthread_t thread;
        int code = pthread_create(&thread, NULL, run, data);
        if (code == 0) pthread_detach(thread);
        return code;
    }
    """
    int start_thread "accelrt_start_thread" (void* (*run)(void*) noexcept nogil, void* data) noexcept nogil
    int pthread_cond_init(pthread_cond_t* condition, void* attributes) noexcept nogil
    int pthread_cond_signal(pthread_cond_t* condition) noexcept nogil

cdef struct Errand:  # a wait for a device on a thread of its own
    pthread_mutex_t lock
    pthread_cond_t over
    int device
    int code
    int holders      # that thread, and the one that waits for it
    bint done

cdef PFN_cuCtxRecordEvent_v12050 cuCtxRecordEvent
cdef Table rows                          # as the other modules filled them
cdef uintptr_t[MOST_DEVICES] spares      # an event of each device; the main thread's alone


cdef int fill_waits(Table* table, Table* blank) except -1:
    # A driver older than 12.5 lacks the function: resolve then blanks the row that is replaced here.
    global rows
    cdef Symbol[1] symbols = [
        Symbol(b"cuCtxRecordEvent", 12050, <void**>&cuCtxRecordEvent, <void**>&table.device_synchronize),
    ]
    rows = table[0]
    resolve(symbols, 1, table, blank)
    table.device_synchronize = rows.device_synchronize
    if rows.device_synchronize != blank.device_synchronize:
        table.device_synchronize = device_synchronize
    if rows.event_query == blank.event_query:
        return SUCCESS
    if rows.event_synchronize != blank.event_synchronize:
        table.event_synchronize = event_synchronize
    if rows.stream_synchronize != blank.stream_synchronize and rows.stream_query != blank.stream_query:
        table.stream_synchronize = stream_synchronize
    return SUCCESS


# events of our own

cdef int take_event(int device, uintptr_t* out_event) noexcept nogil:
    out_event[0] = spares[device] if 0 <= device < MOST_DEVICES else 0
    if out_event[0]:
        spares[device] = 0
        return SUCCESS
    return rows.event_create(device, EVENT_DISABLE_TIMING, out_event)


cdef void put_event(int device, uintptr_t event) noexcept nogil:
    # It may be pending yet, after an interruption: a new record leaves the old one alone.
    if spares[device]:
        rows.event_destroy(device, event)
    else:
        spares[device] = event


cdef int await_event(int device, uintptr_t event) noexcept nogil:
    # The last word is that of the driver's own wait, which returns at once.
    cdef int code = poll(rows.event_query, device, event)
    return rows.event_synchronize(device, event) if code == SUCCESS else code


# rows

cdef int event_synchronize(int device, uintptr_t event) noexcept nogil:
    return await_event(device, event) if is_interruptible() else rows.event_synchronize(device, event)


cdef int stream_synchronize(int device, uintptr_t stream) noexcept nogil:
    cdef uintptr_t event = 0
    cdef int code
    if not is_interruptible():
        return rows.stream_synchronize(device, stream)
    code = poll_briefly(rows.stream_query, device, stream)
    if code == SUCCESS:
        return rows.stream_synchronize(device, stream)
    if code != NOT_READY:
        return code
    code = take_event(device, &event)
    if code != SUCCESS:
        return rows.stream_synchronize(device, stream)
    code = rows.event_record(device, event, stream)
    if code == SUCCESS:
        code = await_event(device, event)
    put_event(device, event)
    return code


cdef int record_device(int device, uintptr_t event) noexcept nogil:
    cdef CUcontext primary = NULL
    cdef bint pushed = False
    cdef int code = primary_of(device, &primary)
    if code == SUCCESS:
        code = enter(device, &pushed)
    if code == SUCCESS:
        code = cuCtxRecordEvent(primary, <CUevent>event)
    return leave(pushed, code)


cdef int device_synchronize(int device) noexcept nogil:
    cdef uintptr_t event = 0
    cdef int code = NOT_SUPPORTED
    if not is_interruptible():
        return rows.device_synchronize(device)
    if cuCtxRecordEvent != NULL and take_event(device, &event) == SUCCESS:
        code = record_device(device, event)
        if code == SUCCESS:
            code = await_event(device, event)
        put_event(device, event)
    if code in (INVALID_VALUE, INVALID_CONTEXT, INVALID_HANDLE, NOT_SUPPORTED):
        return await_elsewhere(device)
    return code


# where the driver has no event of a device's work: another thread waits, and goes on when it is left alone

cdef void drop_errand(Errand* errand) noexcept nogil:
    # Under its lock, which this opens.
    cdef bint last
    errand.holders -= 1
    last = errand.holders == 0
    pthread_mutex_unlock(&errand.lock)
    if last:
        free(errand)


cdef void* run_errand(void* data) noexcept nogil:
    cdef Errand* errand = <Errand*>data
    cdef int code = rows.device_synchronize(errand.device)
    pthread_mutex_lock(&errand.lock)
    errand.code = code
    errand.done = True
    pthread_cond_signal(&errand.over)
    drop_errand(errand)
    return NULL


cdef int await_elsewhere(int device) noexcept nogil:
    cdef Errand* errand = <Errand*>calloc(1, sizeof(Errand))
    cdef int code
    if errand == NULL:
        return rows.device_synchronize(device)
    pthread_mutex_init(&errand.lock, NULL)
    pthread_cond_init(&errand.over, NULL)
    errand.device = device
    errand.holders = 2
    if start_thread(run_errand, errand):
        free(errand)
        return rows.device_synchronize(device)
    pthread_mutex_lock(&errand.lock)
    while not errand.done and not pause_on(&errand.over, &errand.lock):
        pass
    code = errand.code if errand.done else INTERRUPTED
    drop_errand(errand)
    return code
