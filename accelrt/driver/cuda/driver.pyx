"""NVIDIA's driver behind the driver table.

Importing this module loads no library and makes no call; open does.  Until then the table has no row but open and close.

**The library.**  The only calls of accelrt that go through cuda.bindings, which finds and loads libcuda.  Its functions
are taken by name from the module when a driver is opened, not cimported, so that a build fits every cuda-bindings of
CUDA 12.9 and 13 and needs none itself.  They raise Python exceptions where libcuda or one of its functions is missing,
and take the GIL to do so.  Here, at open, that is welcome; in a row it is not.  So the rows call the addresses that
libcuda itself gives out, and this module fetches them.

**Contexts.**  A primary context is retained when its device is first needed and never released: it is the one that the
CUDA runtime and every other library of the process use.  A stream or an event that was created knows its context, yet
the driver looks for some things in the current one (memory that is mapped from several handles, say), so that every row
but event_query has its device's current.

**Conditions.**  Only a kernel can set a condition (cudaGraphSetConditional).  Ours is the few lines of PTX below, compiled
by the driver itself when a device first needs it: the driver resolves the name while it does, so no toolkit and no
library of CUDA's is linked.  Conditional nodes are of CUDA 12.3 on.

**Waits.**  The main thread has to look for signals while a row waits.  The driver has no wait with an end, so such a
wait asks for an event: the user's own, or one recorded for it behind the stream's or the device's work so far.  A
stream is not asked itself for long: while other threads put work in, it might never be found idle.  Without brackets
(guard.pxd) a row waits as the driver does, for an event too: the end of a capture excludes every call about a stream
(guard.pxd), and must not be kept waiting for its work.
"""
from cpython.pycapsule cimport PyCapsule_GetPointer
from libc.stdint cimport uint64_t, uintptr_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset
from posix.fcntl cimport F_SETFD, FD_CLOEXEC, fcntl
from posix.types cimport pid_t
from posix.unistd cimport getpid

from accelrt.core.locks cimport pthread_mutex_init, pthread_mutex_lock, pthread_mutex_unlock
from accelrt.core.slots cimport Slot
from accelrt.driver.guard cimport (
    INTERRUPTED, enter_asking, go_relaxed, is_interruptible, leave_asking, pause_on, poll, poll_briefly, restore_mode,
)
from accelrt.driver.cuda.types cimport (
    CUDA_KERNEL_NODE_PARAMS, CUDA_MEMCPY3D_v2, CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS, CU_EVENT_RECORD_EXTERNAL,
    CU_EVENT_WAIT_EXTERNAL, CU_GET_PROC_ADDRESS_LEGACY_STREAM, CU_GRAPH_COND_ASSIGN_DEFAULT,
    CU_GRAPH_NODE_TYPE_CONDITIONAL, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS, CU_JIT_ERROR_LOG_BUFFER,
    CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES, CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW, CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION,
    CU_LAUNCH_ATTRIBUTE_COOPERATIVE, CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION, CU_MEMHOSTALLOC_PORTABLE,
    CU_MEMHOSTREGISTER_PORTABLE, CU_MEMORYTYPE_HOST, CU_MEMORYTYPE_UNIFIED, CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    CU_MEM_ALLOCATION_TYPE_PINNED, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
    CU_MEM_LOCATION_TYPE_DEVICE, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
    CU_STREAM_CAPTURE_STATUS_ACTIVE, CU_STREAM_CAPTURE_STATUS_NONE, CU_STREAM_SET_CAPTURE_DEPENDENCIES,
    CUaccessProperty, CUcontext, CUdevice, CUdevice_attribute, CUdeviceptr, CUevent, CUfunction, CUfunction_attribute,
    CUgraph, CUgraphConditionalHandle, CUgraphEdgeData, CUgraphExec, CUgraphExecUpdateResultInfo, CUgraphNode,
    CUgraphNodeParams, CUgraphNodeType, CUhostFn, CUipcEventHandle, CUipcMemHandle, CUjit_option, CUlaunchAttribute,
    CUlaunchAttributeValue, CUlaunchConfig, CUlimit, CUmemAccessDesc, CUmemAllocationProp, CUmemGenericAllocationHandle,
    CUmemPool_attribute, CUmemoryPool, CUmodule, CUmoduleLoadingMode, CUpointer_attribute, CUstream,
    CUstreamCaptureMode, CUstreamCaptureStatus, CUuuid, cuuint64_t,
)
from accelrt.driver.registry cimport begin_table, finish_table, offer
from accelrt.driver.table cimport (
    EVENT_DISABLE_TIMING, LAUNCH_COOPERATIVE, LAUNCH_PROGRAMMATIC, LOG_BYTES, TEXT_BYTES, Table, host_fn,
)
from accelrt.status cimport (
    ILLEGAL_STATE, INIT_FAILED, INVALID_CONTEXT, INVALID_DEVICE, INVALID_HANDLE, INVALID_VALUE, NOT_READY,
    NOT_SUPPORTED, NO_DEVICE, NO_HOST_MEMORY, OUT_OF_MEMORY, PEER_ACCESS_ENABLED, SUCCESS, keep_init_error,
)

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

# Functions of cuda.bindings.cydriver.  Which value means an exception differs between releases of cuda-bindings, so the
# exception itself is asked for.
ctypedef int (*init_fn)(unsigned int flags) except * nogil
ctypedef int (*error_name_fn)(int code, const char** out_name) except * nogil
ctypedef int (*proc_address_fn)(
    const char* name, void** out_address, int version, unsigned long long flags, int* out_status) except * nogil

cdef init_fn cuInit = NULL
cdef error_name_fn cuGetErrorName = NULL
cdef proc_address_fn cuGetProcAddress = NULL
cdef str reason = ""       # why open failed; "" while it did not
cdef int device_total = 0  # written at open
cdef uintptr_t[MOST_DEVICES] spares  # an event of each device, or 0; taken and put by exchange_event alone
cdef Table table
cdef Table blank           # all rows unfilled: what a row goes back to where its function is missing
cdef Table rows            # table without the waits that a signal may end
cdef pid_t opened_by = 0   # the process that the driver was opened in

cdef uintptr_t[MOST_DEVICES] setters  # the kernel, by device; 0 until a device needs it
cdef const char* PTX = b"""
.version 6.4
.target sm_70
.address_size 64

.extern .func cudaGraphSetConditional (.param .b64 condition, .param .b32 value);

.visible .entry accelrt_set_condition (.param .u64 given_condition, .param .u64 given_address)
{
    .reg .b32 %value;
    .reg .b64 %condition, %address;
    .param .b64 first;
    .param .b32 second;
    ld.param.u64 %condition, [given_condition];
    ld.param.u64 %address, [given_address];
    cvta.to.global.u64 %address, %address;
    ld.global.u32 %value, [%address];
    st.param.b64 [first], %condition;
    st.param.b32 [second], %value;
    call.uni cudaGraphSetConditional, (first, second);
    ret;
}
"""

include "driver_rows.pxi"


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


cdef int load_cydriver() except -1:
    global cuInit, cuGetErrorName, cuGetProcAddress
    from cuda.bindings import cydriver

    cuInit = <init_fn>exported(cydriver, "cuInit", b"CUresult (unsigned int)")
    cuGetErrorName = <error_name_fn>exported(cydriver, "cuGetErrorName", b"CUresult (CUresult, char const **)")
    cuGetProcAddress = <proc_address_fn>exported(
        cydriver, "cuGetProcAddress",
        b"CUresult (char const *, void **, int, cuuint64_t, CUdriverProcAddressQueryResult *)")
    return 0


cdef int start_library() except -1:
    global reason
    cdef int answer
    cdef const char* name = NULL
    reason = ""
    load_cydriver()
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
        symbol.function[0] = find_function(symbol.name, symbol.version)
        if symbol.function[0] != NULL:
            continue
        if symbol.row != NULL:
            symbol.row[0] = (<void**>blank)[symbol.row - <void**>table]
        elif symbol.needed:
            reason = f"NVIDIA's driver has no {symbol.name.decode()} of version {symbol.version}"
            code = NOT_SUPPORTED
    return code


cdef void* find_function(const char* name, int version) except? NULL:
    # LEGACY_STREAM: stream 0 is the legacy default stream, whatever this process was compiled with.
    cdef void* address = NULL
    cdef int code = cuGetProcAddress(name, &address, version, CU_GET_PROC_ADDRESS_LEGACY_STREAM, NULL)
    return address if code == SUCCESS else NULL


# the table

cdef int open_driver() noexcept nogil:
    with gil:
        return open_with_gil()


cdef int open_with_gil() noexcept:
    # A second call in the same process answers as the first did, or tries again where that failed.
    global opened_by, reason
    cdef int code
    if opened_by == getpid():
        return SUCCESS
    try:
        code = bring_up()
    except Exception as error:
        reason = f"NVIDIA's driver library cannot be used: {error}"
        return NO_DEVICE
    except BaseException as error:  # an interruption: the caller is told, and the next call tries again
        keep_init_error(error)
        return INIT_FAILED
    if code == SUCCESS:
        opened_by = getpid()
    return code


cdef int bring_up() except -1:
    global reason
    cdef int code = start_library()
    if code == SUCCESS:
        code = fill_all()
    if code == SUCCESS:
        code = count_devices()
        if code != SUCCESS:
            reason = f"the driver started, but asking for its devices answered code {code}"
    return code


cdef int fill_all() except -1:
    cdef int code = fill_driver(&table, &blank)
    fill_waits(&table, &blank)
    finish_table(&table)
    return code


cdef int close_driver() noexcept nogil:
    # The driver tears itself down after the process's last atexit function, and the callbacks that are
    # still queued go with it: the code that gave them data has waited for them.
    return SUCCESS


def open_error():
    """Why open did not answer SUCCESS, as text; "" where it did or was not called yet."""
    return reason


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


cdef void pop_context() noexcept nogil:
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
        pop_context()
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


# memory: plain

cdef int memory_alloc(int device, size_t size, uintptr_t* out_address) noexcept nogil:
    cdef bint pushed = False
    cdef CUdeviceptr address = 0
    cdef int code = enter(device, &pushed)
    if code == SUCCESS:
        code = cuMemAlloc(&address, size)
    out_address[0] = address if code == SUCCESS else 0
    return leave(pushed, code)


cdef int memory_free(int device, uintptr_t address) noexcept nogil:
    cdef bint pushed = False
    cdef int code = enter(device, &pushed)
    if code == SUCCESS:
        code = cuMemFree(address)
    return leave(pushed, code)


cdef int pointer_device(uintptr_t address, int* out_device) noexcept nogil:
    cdef unsigned int kind = 0
    cdef int ordinal = -1
    cdef bint pushed = False
    cdef int code = enter_any(&pushed)
    if code == SUCCESS:
        code = describe_pointer(address, &kind, &ordinal)
    if code == SUCCESS and kind == 0:
        code = INVALID_VALUE
    out_device[0] = ordinal if code == SUCCESS and kind != CU_MEMORYTYPE_HOST else -1
    return leave(pushed, code)


cdef int describe_pointer(uintptr_t address, unsigned int* out_kind, int* out_ordinal) noexcept nogil:
    # Of memory that the driver neither allocated nor was told of it has no kind, 0, and no error: to ask for a single
    # attribute of such memory is one, which tools report.
    cdef CUpointer_attribute[2] wanted
    cdef void* answers[2]
    wanted[0] = CU_POINTER_ATTRIBUTE_MEMORY_TYPE
    wanted[1] = CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
    answers[0] = out_kind
    answers[1] = out_ordinal
    return cuPointerGetAttributes(2, wanted, answers, address)


cdef int memory_kind(uintptr_t address) noexcept nogil:
    # The caller has entered a device.
    cdef unsigned int kind = 0
    cdef int ordinal = -1
    if cuPointerGetAttributes == NULL or describe_pointer(address, &kind, &ordinal) != SUCCESS or kind == 0:
        return PAGEABLE
    return PAGE_LOCKED if kind == CU_MEMORYTYPE_HOST else ON_DEVICE


# memory: virtual

cdef CUmemAllocationProp pinned_on(int device) noexcept nogil:
    cdef CUmemAllocationProp wanted
    memset(&wanted, 0, sizeof(wanted))
    wanted.type = CU_MEM_ALLOCATION_TYPE_PINNED
    wanted.location.type = CU_MEM_LOCATION_TYPE_DEVICE
    wanted.location.id = devices[device].handle
    return wanted


cdef int granularity(int device, size_t* out_size) noexcept nogil:
    cdef CUmemAllocationProp wanted
    if not 0 <= device < device_total:
        return INVALID_DEVICE
    wanted = pinned_on(device)
    return cuMemGetAllocationGranularity(out_size, &wanted, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED)


cdef int address_reserve(size_t size, size_t alignment, uintptr_t* out_address) noexcept nogil:
    cdef CUdeviceptr address = 0
    cdef int code = cuMemAddressReserve(&address, size, alignment, 0, 0)
    out_address[0] = address if code == SUCCESS else 0
    return code


cdef int address_free(uintptr_t address, size_t size) noexcept nogil:
    return cuMemAddressFree(address, size)


cdef int create_physical(int device, size_t size, bint shared, uintptr_t* out_handle) noexcept nogil:
    cdef CUmemGenericAllocationHandle handle = 0
    cdef CUmemAllocationProp wanted
    cdef bint pushed = False
    cdef int code = enter(device, &pushed)
    if code == SUCCESS:
        wanted = pinned_on(device)
        if shared:
            wanted.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
        code = cuMemCreate(&handle, size, &wanted, 0)
    out_handle[0] = handle if code == SUCCESS else 0
    return leave(pushed, code)


cdef int physical_create(int device, size_t size, uintptr_t* out_handle) noexcept nogil:
    return create_physical(device, size, False, out_handle)


cdef int physical_create_shared(int device, size_t size, uintptr_t* out_handle) noexcept nogil:
    return create_physical(device, size, True, out_handle)


cdef int physical_export(uintptr_t handle, int* out_file) noexcept nogil:
    cdef int file = -1
    cdef bint pushed = False
    cdef int code = enter_any(&pushed)
    if code == SUCCESS:
        code = cuMemExportToShareableHandle(&file, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0)
    if code == SUCCESS:
        fcntl(file, F_SETFD, FD_CLOEXEC)
    out_file[0] = file if code == SUCCESS else -1
    return leave(pushed, code)


cdef int physical_import(int device, int file, uintptr_t* out_handle) noexcept nogil:
    cdef CUmemGenericAllocationHandle handle = 0
    cdef bint pushed = False
    cdef int code = enter(device, &pushed)
    if code == SUCCESS:
        code = cuMemImportFromShareableHandle(
            &handle, <void*><uintptr_t>file, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
    out_handle[0] = handle if code == SUCCESS else 0
    return leave(pushed, code)


cdef int physical_release(uintptr_t handle) noexcept nogil:
    cdef bint pushed = False
    cdef int code = enter_any(&pushed)
    if code == SUCCESS:
        code = cuMemRelease(handle)
    return leave(pushed, code)


cdef int memory_map(uintptr_t address, size_t size, uintptr_t handle) noexcept nogil:
    cdef bint pushed = False
    cdef int code = enter_any(&pushed)
    if code == SUCCESS:
        code = cuMemMap(address, size, 0, handle, 0)
    return leave(pushed, code)


cdef int memory_access(uintptr_t address, size_t size, int device) noexcept nogil:
    cdef CUmemAccessDesc access
    cdef bint pushed = False
    cdef int code = enter(device, &pushed)
    if code == SUCCESS:
        memset(&access, 0, sizeof(access))
        access.location.type = CU_MEM_LOCATION_TYPE_DEVICE
        access.location.id = devices[device].handle
        access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        code = cuMemSetAccess(address, size, &access, 1)
    return leave(pushed, code)


cdef int memory_unmap(uintptr_t address, size_t size) noexcept nogil:
    cdef bint pushed = False
    cdef int code = enter_any(&pushed)
    if code == SUCCESS:
        code = cuMemUnmap(address, size)
    return leave(pushed, code)


# memory: stream-ordered, always the device's default pool, so that it is shared with other users of that

cdef int default_pool(int device, CUmemoryPool* out_pool) noexcept nogil:
    if not 0 <= device < device_total:
        return INVALID_DEVICE
    if cuDeviceGetDefaultMemPool == NULL:
        return NOT_SUPPORTED
    return cuDeviceGetDefaultMemPool(out_pool, devices[device].handle)


cdef int async_alloc(int device, uintptr_t stream, size_t size, uintptr_t* out_address) noexcept nogil:
    cdef CUmemoryPool pool = NULL
    cdef CUdeviceptr address = 0
    cdef bint pushed = False
    cdef int code = enter(device, &pushed)
    if code == SUCCESS:
        code = default_pool(device, &pool)
    if code == SUCCESS:
        code = cuMemAllocFromPoolAsync(&address, size, pool, <CUstream>stream)
    out_address[0] = address if code == SUCCESS else 0
    return leave(pushed, code)


cdef int async_free(int device, uintptr_t stream, uintptr_t address) noexcept nogil:
    cdef bint pushed = False
    cdef int code = enter(device, &pushed)
    if code == SUCCESS:
        code = cuMemFreeAsync(address, <CUstream>stream)
    return leave(pushed, code)


cdef int async_trim(int device, uintptr_t event, size_t keep) noexcept nogil:
    cdef CUmemoryPool pool = NULL
    cdef int code = default_pool(device, &pool)
    if code == SUCCESS and event:
        code = event_synchronize(device, event)  # the driver's own
    if code == SUCCESS:
        code = cuMemPoolTrimTo(pool, keep)
    return code


cdef int async_get(int device, int attribute, uint64_t* out_value) noexcept nogil:
    # Some attributes are an int: written to the low half of a zero, they read right (little endian).
    cdef CUmemoryPool pool = NULL
    cdef int code = default_pool(device, &pool)
    out_value[0] = 0
    if code == SUCCESS:
        code = cuMemPoolGetAttribute(pool, <CUmemPool_attribute>attribute, out_value)
    return code


cdef int async_set(int device, int attribute, uint64_t value) noexcept nogil:
    cdef CUmemoryPool pool = NULL
    cdef int code = default_pool(device, &pool)
    if code == SUCCESS:
        code = cuMemPoolSetAttribute(pool, <CUmemPool_attribute>attribute, &value)
    return code


# memory: host

cdef int host_alloc(int device, size_t size, uintptr_t* out_address) noexcept nogil:
    cdef void* address = NULL
    cdef bint pushed = False
    cdef int code = enter(device, &pushed)
    if code == SUCCESS:
        code = cuMemHostAlloc(&address, size, CU_MEMHOSTALLOC_PORTABLE)
    out_address[0] = <uintptr_t>address if code == SUCCESS else 0
    return leave(pushed, code)


cdef int host_free(int device, uintptr_t address) noexcept nogil:
    cdef bint pushed = False
    cdef int code = enter(device, &pushed)
    if code == SUCCESS:
        code = cuMemFreeHost(<void*>address)
    return leave(pushed, code)


cdef int host_register(int device, uintptr_t address, size_t size) noexcept nogil:
    cdef bint pushed = False
    cdef int code = enter(device, &pushed)
    if code == SUCCESS:
        code = cuMemHostRegister(<void*>address, size, CU_MEMHOSTREGISTER_PORTABLE)
    return leave(pushed, code)


cdef int host_unregister(int device, uintptr_t address) noexcept nogil:
    cdef bint pushed = False
    cdef int code = enter(device, &pushed)
    if code == SUCCESS:
        code = cuMemHostUnregister(<void*>address)
    return leave(pushed, code)


# streams

cdef int stream_priority_range(int device, int* out_least, int* out_greatest) noexcept nogil:
    cdef bint pushed = False
    cdef int code = enter(device, &pushed)
    if code == SUCCESS:
        code = cuCtxGetStreamPriorityRange(out_least, out_greatest)
    return leave(pushed, code)


cdef int stream_create(int device, unsigned int flags, int priority, uintptr_t* out_stream) noexcept nogil:
    cdef CUstream stream = NULL
    cdef bint pushed = False
    cdef int code = enter(device, &pushed)
    if code == SUCCESS:
        code = cuStreamCreateWithPriority(&stream, flags, priority)
    out_stream[0] = <uintptr_t>stream if code == SUCCESS else 0
    return leave(pushed, code)


cdef int stream_destroy(int device, uintptr_t stream) noexcept nogil:
    cdef bint pushed = False
    cdef int code = enter(device, &pushed)
    if code == SUCCESS:
        code = cuStreamDestroy(<CUstream>stream)
    return leave(pushed, code)


cdef int stream_priority(int device, uintptr_t stream, int* out_priority) noexcept nogil:
    cdef bint pushed = False
    cdef int code = enter(device, &pushed)
    if code == SUCCESS:
        code = cuStreamGetPriority(<CUstream>stream, out_priority)
    return leave(pushed, code)


cdef int stream_flags(int device, uintptr_t stream, unsigned int* out_flags) noexcept nogil:
    cdef bint pushed = False
    cdef int code = enter(device, &pushed)
    if code == SUCCESS:
        code = cuStreamGetFlags(<CUstream>stream, out_flags)
    return leave(pushed, code)


cdef int stream_device(int device, uintptr_t stream, int* out_device) noexcept nogil:
    # Of a context that is no primary one, the driver says whose it is.  What a thread has current stays.
    cdef CUcontext context = NULL
    cdef bint pushed = False
    cdef int code = SUCCESS
    out_device[0] = device
    if stream <= LAST_DEFAULT_STREAM:
        return SUCCESS
    code = enter(device, &pushed)
    if code == SUCCESS:
        code = cuStreamGetCtx(<CUstream>stream, &context)
    if code == SUCCESS:
        code = device_of_context(context, out_device)
    return leave(pushed, code)


cdef int stream_query(int device, uintptr_t stream) noexcept nogil:
    cdef bint pushed = False
    cdef int code = enter(device, &pushed)
    if code == SUCCESS:
        code = cuStreamQuery(<CUstream>stream)
    return leave(pushed, code)


cdef int stream_synchronize(int device, uintptr_t stream) noexcept nogil:
    cdef bint pushed = False
    cdef int code = enter(device, &pushed)
    if code == SUCCESS:
        code = cuStreamSynchronize(<CUstream>stream)
    return leave(pushed, code)


cdef int stream_wait_event(int device, uintptr_t stream, uintptr_t event) noexcept nogil:
    cdef bint pushed = False
    cdef int code = enter(device, &pushed)
    if code == SUCCESS:
        code = cuStreamWaitEvent(<CUstream>stream, <CUevent>event, 0)
    return leave(pushed, code)


cdef int stream_wait_external(int device, uintptr_t stream, uintptr_t event) noexcept nogil:
    cdef bint pushed = False
    cdef int code = enter(device, &pushed)
    if code == SUCCESS:
        code = cuStreamWaitEvent(<CUstream>stream, <CUevent>event, CU_EVENT_WAIT_EXTERNAL)
    return leave(pushed, code)


cdef int stream_host_func(int device, uintptr_t stream, host_fn fn, void* data) noexcept nogil:
    cdef bint pushed = False
    cdef int code = enter(device, &pushed)
    if code == SUCCESS:
        code = cuLaunchHostFunc(<CUstream>stream, <CUhostFn>fn, data)
    return leave(pushed, code)


cdef int stream_window_set(int device, uintptr_t stream, uintptr_t address, size_t size, float hit_ratio, int hit,
                           int miss) noexcept nogil:
    cdef CUlaunchAttributeValue value
    cdef bint pushed = False
    cdef int code = enter(device, &pushed)
    memset(&value, 0, sizeof(value))
    value.accessPolicyWindow.base_ptr = <void*>address
    value.accessPolicyWindow.num_bytes = size
    value.accessPolicyWindow.hitRatio = hit_ratio
    value.accessPolicyWindow.hitProp = <CUaccessProperty>hit
    value.accessPolicyWindow.missProp = <CUaccessProperty>miss
    if code == SUCCESS:
        code = cuStreamSetAttribute(<CUstream>stream, CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW, &value)
    return leave(pushed, code)


cdef int stream_window_get(int device, uintptr_t stream, uintptr_t* out_address, size_t* out_size, float* out_hit_ratio,
                           int* out_hit, int* out_miss) noexcept nogil:
    cdef CUlaunchAttributeValue value
    cdef bint pushed = False
    cdef int code = enter(device, &pushed)
    memset(&value, 0, sizeof(value))
    if code == SUCCESS:
        code = cuStreamGetAttribute(<CUstream>stream, CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW, &value)
    out_address[0] = <uintptr_t>value.accessPolicyWindow.base_ptr
    out_size[0] = value.accessPolicyWindow.num_bytes
    out_hit_ratio[0] = value.accessPolicyWindow.hitRatio
    out_hit[0] = value.accessPolicyWindow.hitProp
    out_miss[0] = value.accessPolicyWindow.missProp
    return leave(pushed, code)


# events

cdef int event_create(int device, unsigned int flags, uintptr_t* out_event) noexcept nogil:
    cdef CUevent event = NULL
    cdef bint pushed = False
    cdef int code = enter(device, &pushed)
    if code == SUCCESS:
        code = cuEventCreate(&event, flags)
    out_event[0] = <uintptr_t>event if code == SUCCESS else 0
    return leave(pushed, code)


cdef int event_destroy(int device, uintptr_t event) noexcept nogil:
    cdef bint pushed = False
    cdef int code = enter(device, &pushed)
    if code == SUCCESS:
        code = cuEventDestroy(<CUevent>event)
    return leave(pushed, code)


cdef int event_record(int device, uintptr_t event, uintptr_t stream) noexcept nogil:
    cdef bint pushed = False
    cdef int code = enter(device, &pushed)
    if code == SUCCESS:
        code = cuEventRecord(<CUevent>event, <CUstream>stream)
    return leave(pushed, code)


cdef int event_record_external(int device, uintptr_t event, uintptr_t stream) noexcept nogil:
    cdef bint pushed = False
    cdef int code = enter(device, &pushed)
    if code == SUCCESS:
        code = cuEventRecordWithFlags(<CUevent>event, <CUstream>stream, CU_EVENT_RECORD_EXTERNAL)
    return leave(pushed, code)


cdef int event_query(int device, uintptr_t event) noexcept nogil:
    # No context: see driver/cuda/DESIGN.md.
    return cuEventQuery(<CUevent>event)


cdef int event_synchronize(int device, uintptr_t event) noexcept nogil:
    cdef bint pushed = False
    cdef int code = enter(device, &pushed)
    if code == SUCCESS:
        code = cuEventSynchronize(<CUevent>event)
    return leave(pushed, code)


cdef int event_elapsed(uintptr_t start, uintptr_t end, float* out_ms) noexcept nogil:
    cdef bint pushed = False
    cdef int code = enter_any(&pushed)
    if code == SUCCESS:
        code = cuEventElapsedTime(out_ms, <CUevent>start, <CUevent>end)
    return leave(pushed, code)


# copies and fills

cdef int copy(int device, uintptr_t stream, uintptr_t dst, uintptr_t src, size_t size) noexcept nogil:
    # A device that cannot reach pageable memory has it staged by the calling thread, which is what the
    # row promises.  One that can may leave the copy to its engines and return (CUDA driver API, "API
    # synchronization behavior": such a copy "might be synchronous"), so there the row waits.
    cdef bint pushed = False
    cdef int code = enter(device, &pushed)
    if code == SUCCESS:
        code = cuMemcpyAsync(dst, src, size, <CUstream>stream)
    if code == SUCCESS and devices[device].reads_pageable and needs_wait(dst, src):
        code = wait_slow(<CUstream>stream)
    return leave(pushed, code)


cdef int copy_async(int device, uintptr_t stream, uintptr_t dst, uintptr_t src, size_t size) noexcept nogil:
    cdef bint pushed = False
    cdef int code = enter(device, &pushed)
    if code == SUCCESS:
        code = cuMemcpyAsync(dst, src, size, <CUstream>stream)
    return leave(pushed, code)


cdef bint needs_wait(uintptr_t dst, uintptr_t src) noexcept nogil:
    # A copy between two places of host memory is synchronous by itself, so that a page-locked source settles
    # it, as in most copies to a device, with one question of some 100 ns.
    cdef int kind = memory_kind(src)
    return kind == PAGEABLE or (kind == ON_DEVICE and memory_kind(dst) == PAGEABLE)


cdef int wait_slow(CUstream stream) noexcept nogil:
    # In a capture nothing was copied, and to wait would break it.
    cdef CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE
    cdef int code = cuStreamIsCapturing(stream, &status)
    if code != SUCCESS or status != CU_STREAM_CAPTURE_STATUS_NONE:
        return code
    return cuStreamSynchronize(stream)


cdef int copy_peer(int dst_on, uintptr_t dst, int src_on, uintptr_t src, size_t size, uintptr_t stream) noexcept nogil:
    return copy_across(src_on, stream, dst_on, dst, src_on, src, size)


cdef int copy_across(int on_device, uintptr_t stream, int dst_on, uintptr_t dst, int src_on, uintptr_t src,
                     size_t size) noexcept nogil:
    cdef CUcontext dst_primary = NULL, src_primary = NULL
    cdef bint pushed = False
    cdef int code = primary_of(dst_on, &dst_primary)
    if code == SUCCESS:
        code = primary_of(src_on, &src_primary)
    if code == SUCCESS:
        code = enter(on_device, &pushed)
    if code == SUCCESS:
        code = cuMemcpyPeerAsync(dst, dst_primary, src, src_primary, size, <CUstream>stream)
    return leave(pushed, code)


cdef int copy_3d(int device, uintptr_t stream, uintptr_t dst, size_t dst_pitch, size_t dst_lines, uintptr_t src,
                 size_t src_pitch, size_t src_lines, size_t width, size_t height, size_t depth) noexcept nogil:
    # The driver sees from the addresses which side is where (cuMemcpy3DAsync, CU_MEMORYTYPE_UNIFIED).  It wants slices as
    # high as the copy, of one slice too, where they say nothing.
    cdef CUDA_MEMCPY3D_v2 params
    cdef bint pushed = False
    cdef int code = enter(device, &pushed)
    if code == SUCCESS and width and height and depth:
        memset(&params, 0, sizeof(params))
        params.srcMemoryType = CU_MEMORYTYPE_UNIFIED
        params.srcDevice = src
        params.srcPitch = src_pitch
        params.srcHeight = src_lines if depth > 1 else height
        params.dstMemoryType = CU_MEMORYTYPE_UNIFIED
        params.dstDevice = dst
        params.dstPitch = dst_pitch
        params.dstHeight = dst_lines if depth > 1 else height
        params.WidthInBytes = width
        params.Height = height
        params.Depth = depth
        code = cuMemcpy3DAsync(&params, <CUstream>stream)
    return leave(pushed, code)


cdef int fill(int device, uintptr_t stream, uintptr_t dst, unsigned int value, int width, size_t count) noexcept nogil:
    cdef bint pushed = False
    cdef int code = enter(device, &pushed)
    if code == SUCCESS:
        code = fill_here(<CUstream>stream, dst, value, width, count)
    return leave(pushed, code)


cdef int fill_here(CUstream stream, CUdeviceptr dst, unsigned int value, int width, size_t count) noexcept nogil:
    if width == 1:
        return cuMemsetD8Async(dst, <unsigned char>value, count, stream)
    if width == 2:
        return cuMemsetD16Async(dst, <unsigned short>value, count, stream)
    if width == 4:
        return cuMemsetD32Async(dst, value, count, stream)
    return INVALID_VALUE


# capture

cdef int capture_begin(int device, uintptr_t stream, int mode) noexcept nogil:
    cdef bint pushed = False
    cdef int code = enter(device, &pushed)
    if code == SUCCESS:
        code = cuStreamBeginCapture(<CUstream>stream, <CUstreamCaptureMode>mode)
    return leave(pushed, code)


cdef int capture_end(int device, uintptr_t stream, uintptr_t* out_graph) noexcept nogil:
    cdef CUgraph graph = NULL
    cdef bint pushed = False
    cdef int code = enter(device, &pushed)
    if code == SUCCESS:
        code = cuStreamEndCapture(<CUstream>stream, &graph)
    out_graph[0] = <uintptr_t>graph if code == SUCCESS else 0
    return leave(pushed, code)


cdef int capture_status(int device, uintptr_t stream, int* out_status, uint64_t* out_id) noexcept nogil:
    # Only an active capture is asked for its id: a stream that another library's thread takes out of its capture just now
    # must not be named to cuStreamGetCaptureInfo.
    cdef CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE
    cdef cuuint64_t identity = 0
    cdef bint pushed = False
    cdef int code = enter_for(device, stream, &pushed)
    if code == SUCCESS:
        code = cuStreamIsCapturing(<CUstream>stream, &status)
    if code == SUCCESS and status == CU_STREAM_CAPTURE_STATUS_ACTIVE:
        code = cuStreamGetCaptureInfo(<CUstream>stream, &status, &identity)
    out_status[0] = status
    out_id[0] = identity if status == CU_STREAM_CAPTURE_STATUS_ACTIVE else 0
    return leave(pushed, code)


cdef int stream_is_capturing(int device, uintptr_t stream, int* out_status) noexcept nogil:
    cdef CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE
    cdef bint pushed = False
    cdef int code = enter_for(device, stream, &pushed)
    if code == SUCCESS:
        code = cuStreamIsCapturing(<CUstream>stream, &status)
    out_status[0] = status
    return leave(pushed, code)


cdef int capture_mode_exchange(int mode, int* out_before) noexcept nogil:
    cdef CUstreamCaptureMode exchanged = <CUstreamCaptureMode>mode
    cdef int code = cuThreadExchangeStreamCaptureMode(&exchanged)
    out_before[0] = exchanged
    return code


# graphs

cdef int graph_destroy(uintptr_t graph) noexcept nogil:
    cdef bint pushed = False
    cdef int code = enter_any(&pushed)
    if code == SUCCESS:
        code = cuGraphDestroy(<CUgraph>graph)
    return leave(pushed, code)


cdef int graph_node_count(uintptr_t graph, size_t* out_count) noexcept nogil:
    cdef bint pushed = False
    cdef int code = enter_any(&pushed)
    if code == SUCCESS:
        code = cuGraphGetNodes(<CUgraph>graph, NULL, out_count)
    return leave(pushed, code)


cdef int graph_dot(uintptr_t graph, const char* path, unsigned int flags) noexcept nogil:
    cdef bint pushed = False
    cdef int code = enter_any(&pushed)
    if code == SUCCESS:
        code = cuGraphDebugDotPrint(<CUgraph>graph, path, flags)
    return leave(pushed, code)


cdef int graph_instantiate(int device, uintptr_t graph, uint64_t flags, uintptr_t* out_exec) noexcept nogil:
    cdef CUgraphExec made = NULL
    cdef bint pushed = False
    cdef int code = enter(device, &pushed)
    if code == SUCCESS:
        code = cuGraphInstantiateWithFlags(&made, <CUgraph>graph, flags)
    out_exec[0] = <uintptr_t>made if code == SUCCESS else 0
    return leave(pushed, code)


cdef int graph_update(uintptr_t exec_, uintptr_t graph, int* out_result, uintptr_t* out_node) noexcept nogil:
    cdef CUgraphExecUpdateResultInfo told
    cdef bint pushed = False
    cdef int code = enter_any(&pushed)
    memset(&told, 0, sizeof(told))
    if code == SUCCESS:
        code = cuGraphExecUpdate(<CUgraphExec>exec_, <CUgraph>graph, &told)
    out_result[0] = told.result
    out_node[0] = <uintptr_t>told.errorNode
    return leave(pushed, code)


cdef int graph_upload(int device, uintptr_t exec_, uintptr_t stream) noexcept nogil:
    cdef bint pushed = False
    cdef int code = enter(device, &pushed)
    if code == SUCCESS:
        code = cuGraphUpload(<CUgraphExec>exec_, <CUstream>stream)
    return leave(pushed, code)


cdef int graph_launch(int device, uintptr_t exec_, uintptr_t stream) noexcept nogil:
    cdef bint pushed = False
    cdef int code = enter(device, &pushed)
    if code == SUCCESS:
        code = cuGraphLaunch(<CUgraphExec>exec_, <CUstream>stream)
    return leave(pushed, code)


cdef int graph_exec_destroy(uintptr_t exec_) noexcept nogil:
    cdef bint pushed = False
    cdef int code = enter_any(&pushed)
    if code == SUCCESS:
        code = cuGraphExecDestroy(<CUgraphExec>exec_)
    return leave(pushed, code)


# between processes: the handles are 64 bytes that travel as they are

cdef int ipc_event_export(int device, uintptr_t event, char* out_ipc) noexcept nogil:
    cdef CUipcEventHandle handle
    cdef bint pushed = False
    cdef int code = enter(device, &pushed)
    if code == SUCCESS:
        code = cuIpcGetEventHandle(&handle, <CUevent>event)
    if code == SUCCESS:
        memcpy(out_ipc, &handle, sizeof(handle))
    return leave(pushed, code)


cdef int ipc_event_open(int device, const char* handle, uintptr_t* out_event) noexcept nogil:
    cdef CUipcEventHandle given
    cdef CUevent event = NULL
    cdef bint pushed = False
    cdef int code = enter(device, &pushed)
    memcpy(&given, handle, sizeof(given))
    if code == SUCCESS:
        code = cuIpcOpenEventHandle(&event, given)
    out_event[0] = <uintptr_t>event if code == SUCCESS else 0
    return leave(pushed, code)


cdef int ipc_memory_export(int device, uintptr_t address, char* out_ipc) noexcept nogil:
    cdef CUipcMemHandle handle
    cdef bint pushed = False
    cdef int code = enter(device, &pushed)
    if code == SUCCESS:
        code = cuIpcGetMemHandle(&handle, address)
    if code == SUCCESS:
        memcpy(out_ipc, &handle, sizeof(handle))
    return leave(pushed, code)


cdef int ipc_memory_open(int device, const char* handle, uintptr_t* out_address) noexcept nogil:
    cdef CUipcMemHandle given
    cdef CUdeviceptr address = 0
    cdef bint pushed = False
    cdef int code = enter(device, &pushed)
    memcpy(&given, handle, sizeof(given))
    if code == SUCCESS:
        code = cuIpcOpenMemHandle(&address, given, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)
    out_address[0] = address if code == SUCCESS else 0
    return leave(pushed, code)


cdef int ipc_memory_close(int device, uintptr_t address) noexcept nogil:
    cdef bint pushed = False
    cdef int code = enter(device, &pushed)
    if code == SUCCESS:
        code = cuIpcCloseMemHandle(address)
    return leave(pushed, code)


# what a graph is made of

cdef int graph_nodes(uintptr_t graph, size_t room, void* nodes, size_t* out_count) noexcept nogil:
    cdef bint pushed = False
    cdef int code = enter_any(&pushed)
    out_count[0] = room
    if code == SUCCESS:
        code = cuGraphGetNodes(<CUgraph>graph, <CUgraphNode*>nodes if room else NULL, out_count)
    return leave(pushed, code)


cdef int graph_edges(uintptr_t graph, size_t room, void* origins, void* targets, size_t* out_count) noexcept nogil:
    # Without room for the edges' data the driver refuses to list edges that carry any (LOSSY_QUERY).
    cdef CUgraphEdgeData* data = NULL
    cdef bint pushed = False
    cdef int code
    out_count[0] = room
    if room:
        data = <CUgraphEdgeData*>calloc(room, sizeof(CUgraphEdgeData))
        if data == NULL:
            return NO_HOST_MEMORY
    code = enter_any(&pushed)
    if code == SUCCESS:
        code = cuGraphGetEdges(<CUgraph>graph, <CUgraphNode*>origins if room else NULL,
                               <CUgraphNode*>targets if room else NULL, data, out_count)
    free(data)
    return leave(pushed, code)


cdef int graph_node_type(uintptr_t graph, uintptr_t node, int* out_type) noexcept nogil:
    cdef CUgraphNodeType found = <CUgraphNodeType>0
    cdef bint pushed = False
    cdef int code = enter_any(&pushed)
    if code == SUCCESS:
        code = cuGraphNodeGetType(<CUgraphNode>node, &found)
    out_type[0] = found
    return leave(pushed, code)


# conditional nodes

cdef int find_site(uintptr_t stream, Site* out_site) noexcept nogil:
    cdef CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE
    cdef int code
    memset(out_site, 0, sizeof(Site))
    code = cuStreamGetCaptureInfo_v12030(<CUstream>stream, &status, NULL, &out_site.graph, &out_site.after, &out_site.edges,
                                         &out_site.count)
    return ILLEGAL_STATE if code == SUCCESS and status != CU_STREAM_CAPTURE_STATUS_ACTIVE else code


cdef int conditional_create(int device, uintptr_t stream, uint64_t* out_condition) noexcept nogil:
    cdef CUgraphConditionalHandle made = 0
    cdef CUcontext context = NULL
    cdef Site site
    cdef bint pushed = False
    cdef int code = enter(device, &pushed)
    if code == SUCCESS:
        code = find_site(stream, &site)
    if code == SUCCESS:
        code = primary_of(device, &context)
    if code == SUCCESS:
        code = cuGraphConditionalHandleCreate(&made, site.graph, context, 0, CU_GRAPH_COND_ASSIGN_DEFAULT)
    out_condition[0] = made
    return leave(pushed, code)


cdef int setter_of(int device, uintptr_t* out_function) noexcept nogil:
    # Loading code is refused beside a capture, unless the caller is relaxed.  Two threads that load it at once
    # keep one module more than they need.
    cdef uintptr_t module = 0
    cdef int mode, code
    out_function[0] = load_function(&setters[device])
    if out_function[0]:
        return SUCCESS
    code = go_relaxed(&rows, &mode)
    if code:
        return code
    code = rows.module_load(device, PTX, &module)
    if code == SUCCESS:
        code = rows.module_function(module, b"accelrt_set_condition", out_function)
    if code == SUCCESS:
        store_function(&setters[device], out_function[0])
    elif module:
        rows.module_unload(device, module)
    restore_mode(&rows, mode)
    return code


cdef int conditional_set(int device, uintptr_t stream, uint64_t condition, uintptr_t address) noexcept nogil:
    cdef void* arguments[2]
    cdef uintptr_t function = 0
    cdef Site site
    cdef bint pushed = False
    cdef int code = enter(device, &pushed)
    arguments[0] = &condition
    arguments[1] = &address
    if code == SUCCESS:
        code = find_site(stream, &site)  # outside a graph the kernel would fault
    if code == SUCCESS:
        code = setter_of(device, &function)
    if code == SUCCESS:
        code = rows.kernel_launch(device, stream, function, 1, 1, 1, 1, 1, 1, 0, arguments)
    return leave(pushed, code)


cdef int conditional_add(int device, uintptr_t stream, uint64_t condition, int kind, uintptr_t* out_body) noexcept nogil:
    cdef CUcontext context = NULL
    cdef Site site
    cdef bint pushed = False
    cdef int code = enter(device, &pushed)
    out_body[0] = 0
    if code == SUCCESS:
        code = find_site(stream, &site)
    if code == SUCCESS:
        code = primary_of(device, &context)
    if code == SUCCESS:
        code = add_node(context, &site, stream, condition, kind, out_body)
    return leave(pushed, code)


cdef int add_node(
    CUcontext context, Site* site, uintptr_t stream, uint64_t condition, int kind, uintptr_t* out_body
) noexcept nogil:
    cdef CUgraphNodeParams given
    cdef CUgraphNode node = NULL
    cdef int code
    memset(&given, 0, sizeof(given))
    given.type = CU_GRAPH_NODE_TYPE_CONDITIONAL
    given.conditional.handle = condition
    given.conditional.type = kind
    given.conditional.size = 1
    given.conditional.ctx = context
    code = cuGraphAddNode(&node, site.graph, site.after, site.edges, site.count, &given)
    if code == SUCCESS:
        code = cuStreamUpdateCaptureDependencies(<CUstream>stream, &node, NULL, 1, CU_STREAM_SET_CAPTURE_DEPENDENCIES)
    if code == SUCCESS:
        out_body[0] = <uintptr_t>given.conditional.phGraph_out[0]
    return code


cdef int capture_begin_to(int device, uintptr_t stream, uintptr_t body, int mode) noexcept nogil:
    cdef bint pushed = False
    cdef int code = enter(device, &pushed)
    if code == SUCCESS:
        code = cuStreamBeginCaptureToGraph(<CUstream>stream, <CUgraph>body, NULL, NULL, 0, <CUstreamCaptureMode>mode)
    return leave(pushed, code)


# modules and their functions

cdef int module_loading(int* out_mode) noexcept nogil:
    return cuModuleGetLoadingMode(<CUmoduleLoadingMode*>out_mode)


cdef int module_load(int device, const char* image, uintptr_t* out_module) noexcept nogil:
    cdef CUmodule module = NULL
    cdef bint pushed = False
    cdef int code = enter(device, &pushed)
    if code == SUCCESS:
        code = cuModuleLoadData(&module, image)
    out_module[0] = <uintptr_t>module if code == SUCCESS else 0
    return leave(pushed, code)


cdef int module_log(int device, const char* image, char* out_log) noexcept nogil:
    # What NVIDIA's loader finds wrong is in the log of errors; a module that it loads is given back.
    cdef CUjit_option[2] options = [CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES]
    cdef void* values[2]
    cdef CUmodule module = NULL
    cdef bint pushed = False
    cdef int code = enter(device, &pushed)
    memset(out_log, 0, LOG_BYTES)
    values[0], values[1] = <void*>out_log, <void*><uintptr_t>(LOG_BYTES - 1)
    if code == SUCCESS and <int>cuModuleLoadDataEx(&module, image, 2, options, values) == SUCCESS:
        cuModuleUnload(module)
    return leave(pushed, code)


cdef int module_unload(int device, uintptr_t module) noexcept nogil:
    cdef bint pushed = False
    cdef int code = enter(device, &pushed)
    if code == SUCCESS:
        code = cuModuleUnload(<CUmodule>module)
    return leave(pushed, code)


cdef int module_function(uintptr_t module, const char* name, uintptr_t* out_function) noexcept nogil:
    cdef CUfunction function = NULL
    cdef bint pushed = False
    cdef int code = enter_any(&pushed)
    if code == SUCCESS:
        code = cuModuleGetFunction(&function, <CUmodule>module, name)
    out_function[0] = <uintptr_t>function if code == SUCCESS else 0
    return leave(pushed, code)


cdef int module_global(uintptr_t module, const char* name, uintptr_t* out_address, size_t* out_size) noexcept nogil:
    cdef CUdeviceptr address = 0
    cdef bint pushed = False
    cdef int code = enter_any(&pushed)
    out_size[0] = 0
    if code == SUCCESS:
        code = cuModuleGetGlobal(&address, out_size, <CUmodule>module, name)
    out_address[0] = address if code == SUCCESS else 0
    return leave(pushed, code)


cdef int function_attribute(uintptr_t function, int attribute, int* out_value) noexcept nogil:
    cdef bint pushed = False
    cdef int code = enter_any(&pushed)
    out_value[0] = 0
    if code == SUCCESS:
        code = cuFuncGetAttribute(out_value, <CUfunction_attribute>attribute, <CUfunction>function)
    return leave(pushed, code)


cdef int function_attribute_set(uintptr_t function, int attribute, int value) noexcept nogil:
    cdef bint pushed = False
    cdef int code = enter_any(&pushed)
    if code == SUCCESS:
        code = cuFuncSetAttribute(<CUfunction>function, <CUfunction_attribute>attribute, value)
    return leave(pushed, code)


cdef int function_parameter(uintptr_t function, size_t index, size_t* out_offset, size_t* out_size) noexcept nogil:
    cdef bint pushed = False
    cdef int code = enter_any(&pushed)
    out_offset[0] = out_size[0] = 0
    if code == SUCCESS:
        code = cuFuncGetParamInfo(<CUfunction>function, index, out_offset, out_size)
    return leave(pushed, code)


cdef int occupancy_blocks(uintptr_t function, int threads, size_t shared_bytes, int* out_blocks) noexcept nogil:
    cdef bint pushed = False
    cdef int code = enter_any(&pushed)
    out_blocks[0] = 0
    if code == SUCCESS:
        code = cuOccupancyMaxActiveBlocksPerMultiprocessor(out_blocks, <CUfunction>function, threads, shared_bytes)
    return leave(pushed, code)


cdef int occupancy_block_size(
    uintptr_t function, size_t shared_bytes, int limit, int* out_grid, int* out_threads
) noexcept nogil:
    cdef bint pushed = False
    cdef int code = enter_any(&pushed)
    out_grid[0] = out_threads[0] = 0
    if code == SUCCESS:
        code = cuOccupancyMaxPotentialBlockSize(out_grid, out_threads, <CUfunction>function, NULL, shared_bytes, limit)
    return leave(pushed, code)


# launches

cdef int kernel_launch(int device, uintptr_t stream, uintptr_t function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z, unsigned int block_x, unsigned int block_y, unsigned int block_z, unsigned int shared_bytes, void** arguments) noexcept nogil:  # no-cython-lint
    cdef bint pushed = False
    cdef int code = enter(device, &pushed)
    if code == SUCCESS:
        code = cuLaunchKernel(<CUfunction>function, grid_x, grid_y, grid_z, block_x, block_y, block_z,
                              shared_bytes, <CUstream>stream, arguments, NULL)
    return leave(pushed, code)


cdef void describe_launch(
    CUlaunchConfig* config, uintptr_t stream, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
    unsigned int block_x, unsigned int block_y, unsigned int block_z, unsigned int shared_bytes
) noexcept nogil:
    memset(config, 0, sizeof(CUlaunchConfig))
    config.hStream = <CUstream>stream
    config.gridDimX = grid_x
    config.gridDimY = grid_y
    config.gridDimZ = grid_z
    config.blockDimX = block_x
    config.blockDimY = block_y
    config.blockDimZ = block_z
    config.sharedMemBytes = shared_bytes


cdef CUlaunchAttribute* add_attribute(CUlaunchConfig* config, int kind) noexcept nogil:
    cdef CUlaunchAttribute* added = &config.attrs[config.numAttrs]
    memset(added, 0, sizeof(CUlaunchAttribute))
    added.id = kind
    config.numAttrs += 1
    return added


cdef void add_cluster(CUlaunchConfig* config, unsigned int x, unsigned int y, unsigned int z) noexcept nogil:
    cdef CUlaunchAttribute* added = add_attribute(config, CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION)
    added.value.clusterDim.x = x
    added.value.clusterDim.y = y
    added.value.clusterDim.z = z


cdef int kernel_launch_with(int device, uintptr_t stream, uintptr_t function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z, unsigned int block_x, unsigned int block_y, unsigned int block_z, unsigned int shared_bytes, void** arguments, unsigned int flags, unsigned int cluster_x, unsigned int cluster_y, unsigned int cluster_z) noexcept nogil:  # no-cython-lint
    cdef CUlaunchConfig config
    cdef CUlaunchAttribute[3] attributes
    cdef bint pushed = False
    cdef int code = enter(device, &pushed)
    describe_launch(&config, stream, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes)
    config.attrs = attributes
    if flags & LAUNCH_COOPERATIVE:
        add_attribute(&config, CU_LAUNCH_ATTRIBUTE_COOPERATIVE).value.cooperative = 1
    if flags & LAUNCH_PROGRAMMATIC:
        add_attribute(&config, CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION).value.programmaticStreamSerializationAllowed = 1  # no-cython-lint
    if cluster_x:
        add_cluster(&config, cluster_x, cluster_y, cluster_z)
    if code == SUCCESS:
        code = cuLaunchKernelEx(&config, <CUfunction>function, arguments, NULL)
    return leave(pushed, code)


cdef int occupancy_clusters(int device, uintptr_t function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z, unsigned int block_x, unsigned int block_y, unsigned int block_z, unsigned int shared_bytes, unsigned int cluster_x, unsigned int cluster_y, unsigned int cluster_z, int* out_clusters) noexcept nogil:  # no-cython-lint
    cdef CUlaunchConfig config
    cdef CUlaunchAttribute[1] attributes
    cdef bint pushed = False
    cdef int code = enter(device, &pushed)
    out_clusters[0] = 0
    describe_launch(&config, 0, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes)
    config.attrs = attributes
    add_cluster(&config, cluster_x, cluster_y, cluster_z)
    if code == SUCCESS:
        code = cuOccupancyMaxActiveClusters(out_clusters, <CUfunction>function, &config)
    return leave(pushed, code)


# kernel nodes

cdef int kernel_node(uintptr_t graph, uintptr_t node, uintptr_t* out_function, unsigned int* out_grid_x, unsigned int* out_grid_y, unsigned int* out_grid_z, unsigned int* out_block_x, unsigned int* out_block_y, unsigned int* out_block_z, unsigned int* out_shared_bytes, uintptr_t* out_arguments) noexcept nogil:  # no-cython-lint
    cdef CUDA_KERNEL_NODE_PARAMS found
    cdef bint pushed = False
    cdef int code = enter_any(&pushed)
    memset(&found, 0, sizeof(found))
    if code == SUCCESS:
        code = cuGraphKernelNodeGetParams(<CUgraphNode>node, &found)
    out_function[0] = <uintptr_t>found.func
    out_grid_x[0], out_grid_y[0], out_grid_z[0] = found.gridDimX, found.gridDimY, found.gridDimZ
    out_block_x[0], out_block_y[0], out_block_z[0] = found.blockDimX, found.blockDimY, found.blockDimZ
    out_shared_bytes[0] = found.sharedMemBytes
    out_arguments[0] = <uintptr_t>found.kernelParams
    return leave(pushed, code)


cdef int kernel_node_set(uintptr_t graph, uintptr_t exec_, uintptr_t node, uintptr_t function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z, unsigned int block_x, unsigned int block_y, unsigned int block_z, unsigned int shared_bytes, void** arguments) noexcept nogil:  # no-cython-lint
    cdef CUDA_KERNEL_NODE_PARAMS given
    cdef bint pushed = False
    cdef int code = enter_any(&pushed)
    memset(&given, 0, sizeof(given))
    given.func = <CUfunction>function
    given.gridDimX, given.gridDimY, given.gridDimZ = grid_x, grid_y, grid_z
    given.blockDimX, given.blockDimY, given.blockDimZ = block_x, block_y, block_z
    given.sharedMemBytes = shared_bytes
    given.kernelParams = arguments
    if code == SUCCESS and exec_:
        code = cuGraphExecKernelNodeSetParams(<CUgraphExec>exec_, <CUgraphNode>node, &given)
    elif code == SUCCESS:
        code = cuGraphKernelNodeSetParams(<CUgraphNode>node, &given)
    return leave(pushed, code)


# waits

# Called when all the other rows are filled: keeps them, and puts those that look for signals over them.
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


# questions, held back while a capture ends

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


# the rows that wait

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


begin_table(&blank, b"cuda")
begin_table(&table, b"cuda")
table.open = open_driver
table.close = close_driver
finish_table(&table)
offer("cuda", &table)
