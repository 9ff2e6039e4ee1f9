"""NVIDIA's library, its devices, the primary contexts that all rows run in, and the waits that a signal may end.

**The library.**  The only calls of accelrt that go through cuda.bindings, which finds and loads libcuda.  Its functions
are taken by name from the module when a driver is opened, not cimported, so that a build fits every cuda-bindings of
CUDA 12.9 and 13 and needs none itself.  They raise Python exceptions where libcuda or one of its functions is missing,
and take the GIL to do so.  Here, at open, that is welcome; in a row it is not.  So the rows call the addresses that
libcuda itself gives out, and this module fetches them.

**Contexts.**  A primary context is retained when its device is first needed and never released: it is the one that the
CUDA runtime and every other library of the process use.

**Waits.**  The main thread has to look for signals while a row waits.  The driver has no wait with an end, so such a
wait asks for an event: the user's own, or one recorded for it behind the stream's or the device's work so far.  A
stream is not asked itself for long: while other threads put work in, it might never be found idle.  Without brackets
(waiting.pxd) a row waits as the driver does, for an event too: the end of a capture excludes every call about a stream
(capture_guard.pxd), and must not be kept waiting for its work.
"""
from cpython.pycapsule cimport PyCapsule_GetPointer
from libc.stdint cimport uintptr_t
from libc.stdlib cimport calloc, free

from accelrt.core.locks cimport pthread_mutex_init, pthread_mutex_lock, pthread_mutex_t, pthread_mutex_unlock
from accelrt.core.slots cimport Slot
from accelrt.driver.capture_guard cimport enter_asking, leave_asking
from accelrt.driver.cuda.types cimport (
    CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS, CU_GET_PROC_ADDRESS_LEGACY_STREAM, CUcontext, CUdevice,
    CUdevice_attribute, CUevent, CUlimit, CUuuid,
)
from accelrt.driver.table cimport EVENT_DISABLE_TIMING, TEXT_BYTES, Table
from accelrt.driver.waiting cimport INTERRUPTED, is_interruptible, pause_on, poll, poll_briefly, pthread_cond_t
from accelrt.status cimport (
    INVALID_CONTEXT, INVALID_DEVICE, INVALID_HANDLE, INVALID_VALUE, NOT_READY, NOT_SUPPORTED, NO_DEVICE,
    OUT_OF_MEMORY, PEER_ACCESS_ENABLED, SUCCESS,
)

cdef extern from "cudaTypedefs.h" nogil:
    ctypedef int (*PFN_cuDriverGetVersion_v2020)(int*) noexcept nogil  # driver_version
    ctypedef int (*PFN_cuDeviceGet_v2000)(CUdevice*, int) noexcept nogil  # needed
    ctypedef int (*PFN_cuDeviceGetCount_v2000)(int*) noexcept nogil  # needed
    ctypedef int (*PFN_cuDeviceGetName_v2000)(char*, int, CUdevice) noexcept nogil  # device_name
    ctypedef int (*PFN_cuDeviceGetUuid_v11040)(
        CUuuid*, CUdevice) noexcept nogil  # device_uuid; tells the instances of a MIG device apart
    ctypedef int (*PFN_cuDeviceGetPCIBusId_v4010)(char*, int, CUdevice) noexcept nogil  # device_pci_bus_id
    ctypedef int (*PFN_cuDeviceGetAttribute_v2000)(int*, CUdevice_attribute, CUdevice) noexcept nogil  # needed
    ctypedef int (*PFN_cuDeviceTotalMem_v3020)(size_t*, CUdevice) noexcept nogil  # device_memory
    ctypedef int (*PFN_cuMemGetInfo_v3020)(size_t*, size_t*) noexcept nogil  # memory_info
    ctypedef int (*PFN_cuCtxSetCurrent_v4000)(CUcontext) noexcept nogil  # needed
    ctypedef int (*PFN_cuCtxPushCurrent_v4000)(CUcontext) noexcept nogil  # needed
    ctypedef int (*PFN_cuCtxPopCurrent_v4000)(CUcontext*) noexcept nogil  # needed
    ctypedef int (*PFN_cuCtxGetDevice_v2000)(CUdevice*) noexcept nogil  # needed
    ctypedef int (*PFN_cuCtxSynchronize_v2000)() noexcept nogil  # device_synchronize
    ctypedef int (*PFN_cuDevicePrimaryCtxRetain_v7000)(CUcontext*, CUdevice) noexcept nogil  # needed
    ctypedef int (*PFN_cuDevicePrimaryCtxGetState_v7000)(CUdevice, unsigned int*, int*) noexcept nogil  # needed
    ctypedef int (*PFN_cuDeviceCanAccessPeer_v4000)(int*, CUdevice, CUdevice) noexcept nogil  # can_access_peer
    ctypedef int (*PFN_cuCtxEnablePeerAccess_v4000)(CUcontext, unsigned int) noexcept nogil  # enable_peer
    ctypedef int (*PFN_cuCtxGetLimit_v3010)(size_t*, CUlimit) noexcept nogil  # limit_get
    ctypedef int (*PFN_cuCtxSetLimit_v3010)(CUlimit, size_t) noexcept nogil  # limit_set
    ctypedef int (*PFN_cuCtxResetPersistingL2Cache_v11000)() noexcept nogil  # l2_reset

# Typed by hand: headers have had it since 12.5 only.
ctypedef int (*PFN_cuCtxRecordEvent_v12050)(CUcontext, CUevent) noexcept nogil  # not needed

cdef extern from *:
    """
    #include <pthread.h>
    #define accelrt_exchange(place, event) __atomic_exchange_n(place, event, __ATOMIC_ACQ_REL)
    static int accelrt_start_thread(void* (*run)(void*), void* data) {
        pthread_t thread;
        int code = pthread_create(&thread, NULL, run, data);
        if (code == 0) pthread_detach(thread);
        return code;
    }
    """
    uintptr_t exchange_event "accelrt_exchange" (uintptr_t* place, uintptr_t event) noexcept nogil
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

cdef Table rows
cdef uintptr_t[MOST_DEVICES] spares      # an event of each device, or 0; taken and put by exchange_event alone
# Which value means an exception differs between releases of cuda-bindings, so the exception itself is asked for.
ctypedef int (*init_fn)(unsigned int flags) except * nogil
ctypedef int (*error_name_fn)(int code, const char** out_name) except * nogil
ctypedef int (*proc_address_fn)(
    const char* name, void** out_address, int version, unsigned long long flags, int* out_status) except * nogil

cdef init_fn cuInit = NULL
cdef error_name_fn cuGetErrorName = NULL
cdef proc_address_fn cuGetProcAddress = NULL
cdef str reason = ""
cdef int device_total = 0

include "context_rows.pxi"


# the library

cdef void* exported(object module, str name, const char* signature) except NULL:
    # A function that a Cython module exports.  The capsule's name is its signature.
    try:
        return PyCapsule_GetPointer(module.__pyx_capi__[name], signature)
    except (KeyError, ValueError):
        raise RuntimeError(
            f"the installed cuda-bindings does not export {name} as {signature.decode()!r}; "
            "install a cuda-bindings from 12.9 on, below 14"
        ) from None


cdef int load() except -1:
    global cuInit, cuGetErrorName, cuGetProcAddress
    from cuda.bindings import cydriver

    cuInit = <init_fn>exported(cydriver, "cuInit", b"CUresult (unsigned int)")
    cuGetErrorName = <error_name_fn>exported(cydriver, "cuGetErrorName", b"CUresult (CUresult, char const **)")
    cuGetProcAddress = <proc_address_fn>exported(
        cydriver, "cuGetProcAddress",
        b"CUresult (char const *, void **, int, cuuint64_t, CUdriverProcAddressQueryResult *)")
    return 0


cdef int start() except -1:
    global reason
    cdef int answer
    cdef const char* name = NULL
    reason = ""
    load()
    with nogil:
        answer = cuInit(0)
    if answer != SUCCESS:
        cuGetErrorName(answer, &name)
        reason = f"cuInit answered {name.decode() if name else 'a code without a name'} ({answer})"
    return answer


cdef int resolve(Symbol* symbols, int total, Table* table, Table* blank) except -1:
    global reason
    cdef int index, code = SUCCESS
    cdef Symbol* symbol
    for index in range(total):
        symbol = &symbols[index]
        symbol.function[0] = find(symbol.name, symbol.version)
        if symbol.function[0] != NULL:
            continue
        if symbol.row != NULL:
            symbol.row[0] = (<void**>blank)[symbol.row - <void**>table]
        elif symbol.needed:
            reason = f"NVIDIA's driver has no {symbol.name.decode()} of version {symbol.version}"
            code = NOT_SUPPORTED
    return code


cdef void* find(const char* name, int version) except? NULL:
    # LEGACY_STREAM: stream 0 is the legacy default stream, whatever this process was compiled with.
    cdef void* address = NULL
    cdef int code = cuGetProcAddress(name, &address, version, CU_GET_PROC_ADDRESS_LEGACY_STREAM, NULL)
    return address if code == SUCCESS else NULL


# devices

cdef int count_devices() noexcept nogil:
    global device_total
    cdef int found = 0, index, code = cuDeviceGetCount(&found)
    if code != SUCCESS:
        return code
    if found == 0:
        return NO_DEVICE
    found = min(found, MOST_DEVICES)
    for index in range(found):
        code = cuDeviceGet(&devices[index].handle, index)
        if code == SUCCESS:
            code = cuDeviceGetAttribute(
                &devices[index].reads_pageable, CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS, devices[index].handle)
        if code != SUCCESS:
            return code
    device_total = found
    return SUCCESS


# contexts

cdef int primary_of(int device, CUcontext* out_primary) noexcept nogil:
    # Two threads that come first at once retain twice and store the same context: harmless.
    cdef int code
    out_primary[0] = NULL
    if not 0 <= device < device_total:
        return INVALID_DEVICE
    out_primary[0] = load_context(&devices[device].primary)
    if out_primary[0] != NULL:
        return SUCCESS
    code = cuDevicePrimaryCtxRetain(out_primary, devices[device].handle)
    if code == SUCCESS:
        store_context(&devices[device].primary, out_primary[0])
    return code


cdef int enter_slow(int device, CUcontext current, bint* out_pushed) noexcept nogil:
    cdef CUcontext primary = NULL
    cdef int code = primary_of(device, &primary)
    if code != SUCCESS or current == primary:
        return code
    code = cuCtxPushCurrent(primary)
    out_pushed[0] = code == SUCCESS
    return code


cdef int enter_any_slow(bint* out_pushed) noexcept nogil:
    # A context that accelrt has retained, else a primary one that another library has; where there is neither, the
    # process has nothing on a device, and no context is made for the sake of a question.
    cdef unsigned int flags = 0
    cdef int index, active = 0
    for index in range(device_total):
        if load_context(&devices[index].primary) != NULL:
            return enter_slow(index, NULL, out_pushed)
    for index in range(device_total):
        if <int>cuDevicePrimaryCtxGetState(devices[index].handle, &flags, &active) == SUCCESS and active:
            return enter_slow(index, NULL, out_pushed)
    return SUCCESS


cdef void pop() noexcept nogil:
    cdef CUcontext popped = NULL
    cuCtxPopCurrent(&popped)


cdef int current_device(int* out_device) noexcept nogil:
    cdef CUcontext current = NULL
    cdef int index, code = cuCtxGetCurrent(&current)
    out_device[0] = -1
    if code != SUCCESS or current == NULL:
        return code
    for index in range(device_total):
        if load_context(&devices[index].primary) == current:
            out_device[0] = index
            return SUCCESS
    return current_device_slow(out_device)


cdef int device_of_context(CUcontext context, int* out_device) noexcept nogil:
    cdef int index, code
    for index in range(device_total):
        if load_context(&devices[index].primary) == context:
            out_device[0] = index
            return SUCCESS
    code = cuCtxPushCurrent(context)
    if code == SUCCESS:
        code = current_device_slow(out_device)
        pop()
    return code


cdef int current_device_slow(int* out_device) noexcept nogil:
    # A context that another library made, or a primary one that accelrt has not needed so far.
    cdef CUdevice handle = 0
    cdef int index, code = cuCtxGetDevice(&handle)
    if code != SUCCESS:
        return code
    for index in range(device_total):
        if devices[index].handle == handle:
            out_device[0] = index
            return SUCCESS
    return INVALID_DEVICE


cdef int set_device(int device) noexcept nogil:
    cdef CUcontext primary = NULL
    cdef int code = SUCCESS if device == -1 else primary_of(device, &primary)
    if code != SUCCESS:
        return code
    return cuCtxSetCurrent(primary)  # NULL leaves the thread without


cdef int device_synchronize(int device) noexcept nogil:
    cdef bint pushed = False
    cdef int code = enter(device, &pushed)
    if code == SUCCESS:
        code = cuCtxSynchronize()
    return leave(pushed, code)


# what a device is

cdef int driver_version(int* out_version) noexcept nogil:
    return cuDriverGetVersion(out_version)


cdef int device_count(int* out_count) noexcept nogil:
    out_count[0] = device_total
    return SUCCESS


cdef int device_name(int device, char* out_text) noexcept nogil:
    if not 0 <= device < device_total:
        return INVALID_DEVICE
    return cuDeviceGetName(out_text, TEXT_BYTES, devices[device].handle)


cdef int device_uuid(int device, char* out_uuid) noexcept nogil:
    if not 0 <= device < device_total:
        return INVALID_DEVICE
    return cuDeviceGetUuid(<CUuuid*>out_uuid, devices[device].handle)


cdef int device_pci_bus_id(int device, char* out_text) noexcept nogil:
    if not 0 <= device < device_total:
        return INVALID_DEVICE
    return cuDeviceGetPCIBusId(out_text, TEXT_BYTES, devices[device].handle)


cdef int device_attribute(int device, int attribute, int* out_value) noexcept nogil:
    if not 0 <= device < device_total:
        return INVALID_DEVICE
    return cuDeviceGetAttribute(out_value, <CUdevice_attribute>attribute, devices[device].handle)


cdef int device_memory(int device, size_t* out_total) noexcept nogil:
    if not 0 <= device < device_total:
        return INVALID_DEVICE
    return cuDeviceTotalMem(out_total, devices[device].handle)


cdef int memory_info(int device, size_t* out_free, size_t* out_total) noexcept nogil:
    cdef bint pushed = False
    cdef int code = enter(device, &pushed)
    if code == SUCCESS:
        code = cuMemGetInfo(out_free, out_total)
    return leave(pushed, code)


# peers

cdef int can_access_peer(int device, int peer, int* out_can) noexcept nogil:
    if not (0 <= device < device_total and 0 <= peer < device_total):
        return INVALID_DEVICE
    return cuDeviceCanAccessPeer(out_can, devices[device].handle, devices[peer].handle)


cdef int enable_peer(int device, int peer) noexcept nogil:
    cdef CUcontext primary = NULL
    cdef bint pushed = False
    cdef int code = primary_of(peer, &primary)
    if code == SUCCESS:
        code = enter(device, &pushed)
    if code == SUCCESS:
        code = cuCtxEnablePeerAccess(primary, 0)
    if code == PEER_ACCESS_ENABLED:
        code = SUCCESS
    return leave(pushed, code)


# limits

cdef int limit_get(int device, int limit, size_t* out_value) noexcept nogil:
    cdef bint pushed = False
    cdef int code = enter(device, &pushed)
    if code == SUCCESS:
        code = cuCtxGetLimit(out_value, <CUlimit>limit)
    return leave(pushed, code)


cdef int limit_set(int device, int limit, size_t value) noexcept nogil:
    cdef bint pushed = False
    cdef int code = enter(device, &pushed)
    if code == SUCCESS:
        code = cuCtxSetLimit(<CUlimit>limit, value)
    return leave(pushed, code)


cdef int l2_reset(int device) noexcept nogil:
    cdef bint pushed = False
    cdef int code = enter(device, &pushed)
    if code == SUCCESS:
        code = cuCtxResetPersistingL2Cache()
    return leave(pushed, code)


# waits

# Called after all the other modules have filled the table: keeps their rows, and puts those that look for signals
# over them.
cdef int fill_waits(Table* table, Table* blank) except -1:
    global rows
    rows = table[0]
    if rows.device_synchronize != blank.device_synchronize:
        table.device_synchronize = synchronize_device
    if rows.event_query == blank.event_query:
        return SUCCESS
    if rows.event_synchronize != blank.event_synchronize:
        table.event_synchronize = synchronize_event
    if rows.stream_synchronize != blank.stream_synchronize and rows.stream_query != blank.stream_query:
        table.stream_synchronize = synchronize_stream
    return SUCCESS


# events of our own

cdef int take_event(int device, uintptr_t* out_event) noexcept nogil:
    out_event[0] = exchange_event(&spares[device], 0) if 0 <= device < MOST_DEVICES else 0
    return SUCCESS if out_event[0] else rows.event_create(device, EVENT_DISABLE_TIMING, out_event)


cdef void put_event(int device, uintptr_t event) noexcept nogil:
    # It may be pending yet, after an interruption: a new record leaves the old one alone.
    cdef uintptr_t before = exchange_event(&spares[device], event)
    if before:
        rows.event_destroy(device, before)


# rows, held back while a capture ends

cdef int query_event(int device, uintptr_t event) noexcept nogil:
    cdef Slot* asker = enter_asking(False)
    cdef int code = rows.event_query(device, event)
    leave_asking(asker)
    return code


cdef int query_stream(int device, uintptr_t stream) noexcept nogil:
    cdef Slot* asker = enter_asking(False)
    cdef int code = rows.stream_query(device, stream)
    leave_asking(asker)
    return code


cdef int record_stream(int device, uintptr_t event, uintptr_t stream) noexcept nogil:
    cdef Slot* asker = enter_asking(False)
    cdef int code = rows.event_record(device, event, stream)
    leave_asking(asker)
    return code


# waits

cdef int synchronize_event(int device, uintptr_t event) noexcept nogil:
    # The first question is refused where the event was captured; the driver's own wait names one that was not.
    cdef int code = poll(query_event, device, event) if is_interruptible() else query_event(device, event)
    return rows.event_synchronize(device, event) if code == NOT_READY else code


cdef int await_record(int device, uintptr_t stream) noexcept nogil:
    # Behind the stream's work so far.
    cdef uintptr_t event = 0
    cdef int code = take_event(device, &event)
    if code != SUCCESS:
        return code
    code = record_stream(device, event, stream)
    if code == SUCCESS:
        code = synchronize_event(device, event)
    put_event(device, event)
    return code


cdef int synchronize_stream(int device, uintptr_t stream) noexcept nogil:
    cdef int code = poll_briefly(query_stream, device, stream) if is_interruptible() else query_stream(device, stream)
    if code != NOT_READY:
        return code
    code = await_record(device, stream)
    if code in (INVALID_CONTEXT, INVALID_HANDLE, OUT_OF_MEMORY):  # a stream of another context takes no event of this one
        return rows.stream_synchronize(device, stream)
    return code


cdef int record_device(int device, uintptr_t event) noexcept nogil:
    # Names all streams of the device.
    cdef Slot* asker = enter_asking(False)
    cdef CUcontext primary = NULL
    cdef bint pushed = False
    cdef int code = primary_of(device, &primary)
    if code == SUCCESS:
        code = enter(device, &pushed)
    if code == SUCCESS:
        code = cuCtxRecordEvent(primary, <CUevent>event)
    code = leave(pushed, code)
    leave_asking(asker)
    return code


cdef int synchronize_device(int device) noexcept nogil:
    # The driver's own wait looks at all streams, for as long as it lasts: it dies beside the end of a capture too.
    cdef uintptr_t event = 0
    cdef int code = NOT_SUPPORTED
    if cuCtxRecordEvent != NULL and take_event(device, &event) == SUCCESS:
        code = record_device(device, event)
        if code == SUCCESS:
            code = synchronize_event(device, event)
        put_event(device, event)
    if code in (INVALID_VALUE, INVALID_CONTEXT, INVALID_HANDLE, NOT_SUPPORTED):
        return await_elsewhere(device) if is_interruptible() else rows.device_synchronize(device)
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
