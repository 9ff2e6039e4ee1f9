"""NVIDIA's driver behind the driver table.

Importing this module loads no library and makes no call; open does.  Until then the table has no row but open and close.

Here are the rows that are more than one call of the library's, but for those of captures and graphs (graphs.pyx); rowgen.py
derives the others from functions.pxd, and puts around a function ROW_entered what makes the row's context current.
`driver/cuda/DESIGN.md` says how the library is called, which context each row runs in, and how waits look for signals.

The only calls that go through cuda.bindings, which finds and loads libcuda, are made at open, where its exceptions are
welcome; in a row they are not.  Its functions are taken by name from the module, not cimported, so that a build fits every
cuda-bindings of CUDA 12.9 and 13 and needs none itself.
"""
from cpython.pycapsule cimport PyCapsule_GetPointer
from libc.stdint cimport uint64_t, uintptr_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset
from posix.dlfcn cimport RTLD_LOCAL, RTLD_NOW, dlopen, dlsym
from posix.fcntl cimport F_SETFD, FD_CLOEXEC, fcntl
from posix.types cimport pid_t
from posix.unistd cimport getpid

from accelrt.core.locks cimport pthread_mutex_init, pthread_mutex_lock, pthread_mutex_unlock, pthread_mutex_t
from accelrt.core.slots cimport Slot
from accelrt.core.threads cimport pthread_cond_init, pthread_cond_signal, start, pthread_cond_t
from accelrt.driver.guard cimport (
    INTERRUPTED, enter_asking, is_interruptible, leave_asking, pause_on, poll, poll_briefly,
)
from accelrt.driver.cuda.context cimport (
    LAST_DEFAULT_STREAM, MOST_DEVICES, ON_DEVICE, PAGEABLE, Symbol, all_concurrent, count_devices, describe_pointer,
    device_total, devices, enter, enter_any, leave, library_version, load_context, memory_kind, pop_context, primary_of,
    resolve_fn, rows,
)
from accelrt.driver.cuda.graphs cimport fill_graphs, resolve_graphs
from accelrt.driver.cuda.types cimport (
    CUDA_MEMCPY3D_v2, CU_GET_PROC_ADDRESS_LEGACY_STREAM, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS, CU_JIT_ERROR_LOG_BUFFER,
    CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES, CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW, CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION,
    CU_LAUNCH_ATTRIBUTE_COOPERATIVE, CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION, CU_MEMORYTYPE_HOST,
    CU_MEMORYTYPE_UNIFIED, CU_MEM_ACCESS_FLAGS_PROT_READWRITE, CU_MEM_ALLOCATION_TYPE_PINNED,
    CU_MEM_ALLOC_GRANULARITY_RECOMMENDED, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, CU_MEM_LOCATION_TYPE_DEVICE,
    CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, CU_POINTER_ATTRIBUTE_IS_MANAGED, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
    CU_POINTER_ATTRIBUTE_RANGE_SIZE, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, CU_STREAM_CAPTURE_STATUS_NONE,
    CUaccessProperty, CUcontext, CUdevice, CUdevice_attribute, CUdeviceptr, CUevent, CUfunction, CUipcEventHandle,
    CUipcMemHandle, CUjit_option, CUlaunchAttribute, CUlaunchAttributeID, CUlaunchAttributeValue, CUlaunchConfig,
    CUlaunchMemSyncDomain, CUmemAccessDesc, CUmemAccess_flags, CUmemAllocationProp, CUmemGenericAllocationHandle,
    CUmemLocation, CUmemLocationType, CUmemPool_attribute, CUmem_advise, CUmem_range_attribute, CUmemoryPool, CUmodule,
    CUpointer_attribute, CUstream, CUstreamCaptureStatus, CUsynchronizationPolicy,
)
from accelrt.driver.managed cimport (
    ACCESSED_BY, LOCATION_DEVICE, ManagedRange, PREFERRED_DEVICE, PREFERRED_PLACE, PREFETCHED_DEVICE, PREFETCHED_PLACE,
    THE_HOST,
)
from accelrt.driver.registry cimport begin_table, finish_table, offer
from accelrt.driver.memory cimport KIND_DEVICE, KIND_HOST, KIND_MANAGED, KIND_NONE, PitchedCopy
from accelrt.driver.table cimport (
    ATTRIBUTE_DOMAIN, ATTRIBUTE_DOMAIN_MAP, ATTRIBUTE_PRIORITY, ATTRIBUTE_SYNC_POLICY, EVENT_DISABLE_TIMING,
    LAUNCH_COOPERATIVE, LAUNCH_PROGRAMMATIC, LOG_BYTES, Table,
)
from accelrt.status cimport (
    CAPTURE_UNSUPPORTED, INIT_FAILED, INVALID_CONTEXT, INVALID_DEVICE, INVALID_HANDLE, INVALID_VALUE, NOT_READY,
    NOT_SUPPORTED, NO_DEVICE, NO_HOST_MEMORY, OUT_OF_MEMORY, PEER_ACCESS_ENABLED, SUCCESS, keep_init_error,
)

cdef extern from *:
    """
    #define accelrt_exchange(place, event) __atomic_exchange_n(place, event, __ATOMIC_ACQ_REL)
    """
    uintptr_t exchange_event "accelrt_exchange" (uintptr_t* place, uintptr_t event) noexcept nogil

# Functions of cuda.bindings.cydriver.  Which value means an exception differs between releases of cuda-bindings, so the
# exception itself is asked for.
ctypedef int (*init_fn)(unsigned int flags) except * nogil
ctypedef int (*plain_init_fn)(unsigned int flags) noexcept nogil  # the library's own
ctypedef int (*error_name_fn)(int code, const char** out_name) except * nogil
ctypedef int (*proc_address_fn)(
    const char* name, void** out_address, int version, unsigned long long flags, int* out_status) except * nogil

cdef init_fn cuInit = NULL
cdef error_name_fn cuGetErrorName = NULL
cdef proc_address_fn cuGetProcAddress = NULL
cdef str reason = ""       # why open failed; "" while it did not
cdef uintptr_t[MOST_DEVICES] spares  # an event of each device, or 0; taken and put by exchange_event alone
cdef Table table
cdef Table blank           # all rows unfilled: what a row goes back to where its function is missing
cdef pid_t opened_by = 0   # the process that the driver was opened in

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


cdef void init_before_bindings() noexcept nogil:
    # In the child of a fork whose parent has NVML open, cuGetProcAddress dies of signal 11 (driver 580.159.04) unless cuInit
    # came before cuda.bindings was loaded.  Where the library is elsewhere, cuda.bindings finds it.
    cdef void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL)
    cdef void* init = dlsym(library, "cuInit") if library != NULL else NULL
    if init != NULL:
        (<plain_init_fn>init)(0)


cdef int start_library() except -1:
    global reason
    cdef int answer
    cdef const char* name = NULL
    reason = ""
    with nogil:
        init_before_bindings()
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
        fill_driver(&table)
        fill_graphs(&table)
        resolve_graphs(resolve, &table, &blank)
        code = resolve_driver(resolve, &table, &blank)
        fill_waits(&table, &blank)
        finish_table(&table)
    if code == SUCCESS:
        code = count_devices()
        if code != SUCCESS:
            reason = f"the driver started, but asking for its devices answered code {code}"
    return code


cdef int close_driver() noexcept nogil:
    # The driver tears itself down after the process's last atexit function, and the callbacks that are
    # still queued go with it: the code that gave them data has waited for them.
    return SUCCESS


def open_error() -> str:
    """Tells why open did not answer SUCCESS, as text; "" where it did or was not called yet."""
    return reason


# contexts

cdef int context_active(int device, int* out_active) noexcept nogil:
    cdef unsigned int flags = 0
    out_active[0] = 0
    if not 0 <= device < device_total:
        return INVALID_DEVICE
    return cuDevicePrimaryCtxGetState(devices[device].handle, &flags, out_active)


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


# what a device is

cdef int device_count(int* out_count) noexcept nogil:
    out_count[0] = device_total
    return SUCCESS


cdef int device_attribute(int device, int attribute, int* out_value) noexcept nogil:
    if not 0 <= device < device_total:
        return INVALID_DEVICE
    return cuDeviceGetAttribute(out_value, <CUdevice_attribute>attribute, devices[device].handle)


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


# memory: plain

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


cdef int pointer_range(
    uintptr_t address, int* out_kind, int* out_device, uintptr_t* out_start, size_t* out_size
) noexcept nogil:
    # What an attribute does not apply to is left 0.
    cdef CUpointer_attribute[5] wanted
    cdef void* answers[5]
    cdef unsigned int kind = 0
    cdef uint64_t managed = 0
    cdef CUdeviceptr begin = 0
    cdef size_t size = 0
    cdef int ordinal = -1
    cdef bint pushed = False
    cdef int code
    if cuPointerGetAttributes == NULL:
        return NOT_SUPPORTED
    wanted[0], answers[0] = CU_POINTER_ATTRIBUTE_MEMORY_TYPE, &kind
    wanted[1], answers[1] = CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, &ordinal
    wanted[2], answers[2] = CU_POINTER_ATTRIBUTE_IS_MANAGED, &managed
    wanted[3], answers[3] = CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, &begin
    wanted[4], answers[4] = CU_POINTER_ATTRIBUTE_RANGE_SIZE, &size
    code = enter_any(&pushed)
    if code == SUCCESS:
        code = cuPointerGetAttributes(5, wanted, answers, address)
    out_kind[0], out_device[0], out_start[0], out_size[0] = KIND_NONE, -1, 0, 0
    if code == SUCCESS and kind:
        out_kind[0] = KIND_MANAGED if managed & 0xFF else KIND_HOST if kind == CU_MEMORYTYPE_HOST else KIND_DEVICE
        out_device[0] = -1 if out_kind[0] == KIND_HOST else ordinal
        out_start[0], out_size[0] = begin, size
    return leave(pushed, code)


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


cdef int create_physical(int device, size_t size, bint shared, uintptr_t* out_handle) noexcept nogil:
    cdef CUmemGenericAllocationHandle handle = 0
    cdef CUmemAllocationProp wanted = pinned_on(device)
    cdef int code
    if shared:
        wanted.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
    code = cuMemCreate(&handle, size, &wanted, 0)
    out_handle[0] = handle if code == SUCCESS else 0
    return code


cdef int physical_create_entered(int device, size_t size, uintptr_t* out_handle) noexcept nogil:
    return create_physical(device, size, False, out_handle)


cdef int physical_create_shared_entered(int device, size_t size, uintptr_t* out_handle) noexcept nogil:
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


cdef CUmemAccessDesc access_of(int device, int access) noexcept nogil:
    cdef CUmemAccessDesc wanted
    memset(&wanted, 0, sizeof(wanted))
    wanted.location.type = CU_MEM_LOCATION_TYPE_DEVICE
    wanted.location.id = devices[device].handle
    wanted.flags = <CUmemAccess_flags>access
    return wanted


cdef int memory_access_entered(uintptr_t address, size_t size, int device) noexcept nogil:
    return memory_protect_entered(address, size, device, CU_MEM_ACCESS_FLAGS_PROT_READWRITE)


cdef int memory_protect_entered(uintptr_t address, size_t size, int device, int access) noexcept nogil:
    cdef CUmemAccessDesc wanted = access_of(device, access)
    return cuMemSetAccess(address, size, &wanted, 1)


# memory: stream-ordered, always the device's default pool, so that it is shared with other users of that

cdef int default_pool(int device, CUmemoryPool* out_pool) noexcept nogil:
    if not 0 <= device < device_total:
        return INVALID_DEVICE
    if cuDeviceGetDefaultMemPool == NULL:
        return NOT_SUPPORTED
    return cuDeviceGetDefaultMemPool(out_pool, devices[device].handle)


cdef int async_alloc_entered(int device, uintptr_t stream, size_t size, uintptr_t* out_address) noexcept nogil:
    cdef CUmemoryPool pool = NULL
    cdef int code = default_pool(device, &pool)
    return code if code else alloc_from(pool, stream, size, out_address)


cdef int alloc_from(CUmemoryPool pool, uintptr_t stream, size_t size, uintptr_t* out_address) noexcept nogil:
    cdef CUdeviceptr address = 0
    cdef int code = cuMemAllocFromPoolAsync(&address, size, pool, <CUstream>stream)
    out_address[0] = address if code == SUCCESS else 0
    return code


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
    return code if code else cuMemPoolGetAttribute(pool, <CUmemPool_attribute>attribute, out_value)


cdef int async_set(int device, int attribute, uint64_t value) noexcept nogil:
    cdef CUmemoryPool pool = NULL
    cdef int code = default_pool(device, &pool)
    if code == SUCCESS:
        code = cuMemPoolSetAttribute(pool, <CUmemPool_attribute>attribute, &value)
    return code


cdef int async_access_set(int device, int peer, int access) noexcept nogil:
    cdef CUmemAccessDesc wanted
    cdef CUmemoryPool pool = NULL
    cdef int code = default_pool(device, &pool)
    if code == SUCCESS and not 0 <= peer < device_total:
        code = INVALID_DEVICE
    if code == SUCCESS:
        wanted = access_of(peer, access)
        code = cuMemPoolSetAccess(pool, &wanted, 1)
    return code


cdef int async_access_get(int device, int peer, int* out_access) noexcept nogil:
    cdef CUmemLocation location
    cdef CUmemAccess_flags flags = <CUmemAccess_flags>0
    cdef CUmemoryPool pool = NULL
    cdef int code = default_pool(device, &pool)
    if code == SUCCESS and not 0 <= peer < device_total:
        code = INVALID_DEVICE
    if code == SUCCESS:
        location = access_of(peer, 0).location
        code = cuMemPoolGetAccess(&flags, pool, &location)
    out_access[0] = <int>flags if code == SUCCESS else 0
    return code


# memory: stream-ordered and managed, always the device's default pool of it.  Graphs take no such memory: a capture would
# have an allocation of the device's own instead.

cdef enum:
    MANAGED_TYPE = 2  # CU_MEM_ALLOCATION_TYPE_MANAGED, which headers have since 13.0

cdef int managed_pool(int device, CUmemoryPool* out_pool) noexcept nogil:
    cdef CUmemLocation location
    if not 0 <= device < device_total:
        return INVALID_DEVICE
    if cuMemGetDefaultMemPool == NULL or library_version < FROM_13_0:
        return NOT_SUPPORTED
    location = access_of(device, 0).location
    return cuMemGetDefaultMemPool(out_pool, &location, MANAGED_TYPE)


cdef int refuse_capturing(uintptr_t stream) noexcept nogil:
    cdef CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE
    cdef int code = cuStreamIsCapturing(<CUstream>stream, &status)
    return CAPTURE_UNSUPPORTED if code == SUCCESS and status != CU_STREAM_CAPTURE_STATUS_NONE else code


cdef int managed_pool_alloc_entered(int device, uintptr_t stream, size_t size, uintptr_t* out_address) noexcept nogil:
    cdef CUmemoryPool pool = NULL
    cdef int code = managed_pool(device, &pool)
    if code == SUCCESS:
        code = refuse_capturing(stream)
    return code if code else alloc_from(pool, stream, size, out_address)


cdef int managed_pool_free_entered(uintptr_t stream, uintptr_t address) noexcept nogil:
    cdef int code = refuse_capturing(stream)
    return code if code else cuMemFreeAsync(address, <CUstream>stream)


cdef int managed_pool_trim(int device, size_t keep) noexcept nogil:
    cdef CUmemoryPool pool = NULL
    cdef int code = managed_pool(device, &pool)
    return code if code else cuMemPoolTrimTo(pool, keep)


cdef int managed_pool_get(int device, int attribute, uint64_t* out_value) noexcept nogil:
    cdef CUmemoryPool pool = NULL
    cdef int code = managed_pool(device, &pool)
    out_value[0] = 0
    return code if code else cuMemPoolGetAttribute(pool, <CUmemPool_attribute>attribute, out_value)


cdef int managed_pool_set(int device, int attribute, uint64_t value) noexcept nogil:
    cdef CUmemoryPool pool = NULL
    cdef int code = managed_pool(device, &pool)
    return code if code else cuMemPoolSetAttribute(pool, <CUmemPool_attribute>attribute, &value)


# memory: managed.  Of the versions of two functions the later one is called where the driver is as new as it: an older
# driver answers a question for it with the earlier one.

cdef enum:
    WITH_NODES = 12020  # the version from which a place may be a NUMA node

cdef int find_location(int kind, int place, CUmemLocation* out_location) noexcept nogil:
    if kind == LOCATION_DEVICE and not 0 <= place < device_total:
        return INVALID_DEVICE
    out_location.type = kind
    out_location.id = devices[place].handle if kind == LOCATION_DEVICE else place
    return SUCCESS


cdef int prefetch_one(CUstream stream, const ManagedRange* moved) noexcept nogil:
    cdef CUmemLocation location
    cdef int code = find_location(moved.kind, moved.place, &location)
    if code != SUCCESS:
        return code
    if library_version >= WITH_NODES and cuMemPrefetchAsync != NULL:
        return cuMemPrefetchAsync(moved.address, moved.size, location, 0, stream)
    if cuMemPrefetchAsync_v8000 == NULL:
        return NOT_SUPPORTED
    return cuMemPrefetchAsync_v8000(
        moved.address, moved.size, <CUdevice>(location.id if moved.kind == LOCATION_DEVICE else THE_HOST), stream)


cdef int move_batch(CUstream stream, const ManagedRange* ranges, size_t count, bint discards, bint moves) noexcept nogil:
    # One call for all of them; each has its own entry in the list of locations.
    cdef size_t each = sizeof(CUdeviceptr) + 2 * sizeof(size_t) + sizeof(CUmemLocation), index
    cdef CUdeviceptr* addresses = <CUdeviceptr*>calloc(count, each)
    cdef size_t* sizes = <size_t*>(addresses + count)
    cdef size_t* places = sizes + count
    cdef CUmemLocation* locations = <CUmemLocation*>(places + count)
    cdef int code = SUCCESS if addresses != NULL else NO_HOST_MEMORY
    for index in range(count):
        if code != SUCCESS:
            break
        addresses[index], sizes[index], places[index] = ranges[index].address, ranges[index].size, index
        if moves:
            code = find_location(ranges[index].kind, ranges[index].place, &locations[index])
    if code == SUCCESS and not moves:
        code = cuMemDiscardBatchAsync(addresses, sizes, count, 0, stream)
    elif code == SUCCESS and discards:
        code = cuMemDiscardAndPrefetchBatchAsync(addresses, sizes, count, locations, places, count, 0, stream)
    elif code == SUCCESS:
        code = cuMemPrefetchBatchAsync(addresses, sizes, count, locations, places, count, 0, stream)
    free(addresses)
    return code


cdef int managed_prefetch_entered(uintptr_t stream, void* ranges, size_t count) noexcept nogil:
    # The legacy default stream takes no batch, and no driver does where a device cannot use the memory beside the host.
    cdef const ManagedRange* moved = <const ManagedRange*>ranges
    cdef size_t index
    cdef int code = SUCCESS
    if count > 1 and stream > 1 and all_concurrent and cuMemPrefetchBatchAsync != NULL:
        return move_batch(<CUstream>stream, moved, count, False, True)
    for index in range(count):
        if code == SUCCESS:
            code = prefetch_one(<CUstream>stream, &moved[index])
    return code


cdef int managed_discard_entered(uintptr_t stream, void* ranges, size_t count, bint prefetches) noexcept nogil:
    if stream <= 1:
        return INVALID_VALUE
    return move_batch(<CUstream>stream, <const ManagedRange*>ranges, count, True, prefetches) if count else SUCCESS


cdef int managed_advise_entered(uintptr_t address, size_t size, int advice, int kind, int place) noexcept nogil:
    cdef CUmemLocation location
    cdef int code = find_location(kind, place, &location)
    if code != SUCCESS:
        return code
    if library_version >= WITH_NODES and cuMemAdvise != NULL:
        return cuMemAdvise(address, size, <CUmem_advise>advice, location)
    if cuMemAdvise_v8000 == NULL:
        return NOT_SUPPORTED
    return cuMemAdvise_v8000(
        address, size, <CUmem_advise>advice, <CUdevice>(location.id if kind == LOCATION_DEVICE else THE_HOST))


cdef int ordinal_of_handle(int handle) noexcept nogil:
    cdef int index
    for index in range(device_total):
        if devices[index].handle == handle:
            return index
    return handle  # the host, or nowhere


cdef int managed_attribute_entered(
    uintptr_t address, size_t size, int attribute, void* values, size_t count
) noexcept nogil:
    cdef int* written = <int*>values
    cdef size_t index
    cdef int kind = LOCATION_DEVICE, code
    if cuMemRangeGetAttribute == NULL:
        return NOT_SUPPORTED
    code = cuMemRangeGetAttribute(written, count * sizeof(int), <CUmem_range_attribute>attribute, address, size)
    if code == SUCCESS and attribute in (PREFERRED_PLACE, PREFETCHED_PLACE):  # the number behind says of which kind it is
        code = cuMemRangeGetAttribute(&kind, sizeof(int), <CUmem_range_attribute>(attribute - 1), address, size)
    if code == SUCCESS and kind == LOCATION_DEVICE and attribute in (
            ACCESSED_BY, PREFERRED_DEVICE, PREFERRED_PLACE, PREFETCHED_DEVICE, PREFETCHED_PLACE):
        for index in range(count):
            written[index] = ordinal_of_handle(written[index])
    return code


# streams, copies and fills

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


cdef int stream_window_set_entered(
    uintptr_t stream, uintptr_t address, size_t size, float hit_ratio, int hit, int miss
) noexcept nogil:
    cdef CUlaunchAttributeValue value
    memset(&value, 0, sizeof(value))
    value.accessPolicyWindow.base_ptr = <void*>address
    value.accessPolicyWindow.num_bytes = size
    value.accessPolicyWindow.hitRatio = hit_ratio
    value.accessPolicyWindow.hitProp = <CUaccessProperty>hit
    value.accessPolicyWindow.missProp = <CUaccessProperty>miss
    return cuStreamSetAttribute(<CUstream>stream, CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW, &value)


cdef int stream_window_get_entered(
    uintptr_t stream, uintptr_t* out_address, size_t* out_size, float* out_hit_ratio, int* out_hit, int* out_miss
) noexcept nogil:
    cdef CUlaunchAttributeValue value
    cdef int code
    memset(&value, 0, sizeof(value))
    code = cuStreamGetAttribute(<CUstream>stream, CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW, &value)
    out_address[0] = <uintptr_t>value.accessPolicyWindow.base_ptr
    out_size[0] = value.accessPolicyWindow.num_bytes
    out_hit_ratio[0] = value.accessPolicyWindow.hitRatio
    out_hit[0] = value.accessPolicyWindow.hitProp
    out_miss[0] = value.accessPolicyWindow.missProp
    return code


cdef int stream_attribute_set_entered(uintptr_t stream, int attribute, int first, int second) noexcept nogil:
    cdef CUlaunchAttributeValue value
    memset(&value, 0, sizeof(value))
    if attribute == ATTRIBUTE_SYNC_POLICY:
        value.syncPolicy = <CUsynchronizationPolicy>first
    elif attribute == ATTRIBUTE_PRIORITY:
        value.priority = first
    elif attribute == ATTRIBUTE_DOMAIN:
        value.memSyncDomain = <CUlaunchMemSyncDomain>first
    elif attribute == ATTRIBUTE_DOMAIN_MAP and 0 <= first < 256 and 0 <= second < 256:
        value.memSyncDomainMap.default_ = <unsigned char>first
        value.memSyncDomainMap.remote = <unsigned char>second
    else:
        return INVALID_VALUE
    return cuStreamSetAttribute(<CUstream>stream, <CUlaunchAttributeID>attribute, &value)


cdef int stream_attribute_get_entered(
    uintptr_t stream, int attribute, int* out_first, int* out_second
) noexcept nogil:
    cdef CUlaunchAttributeValue value
    cdef int code
    memset(&value, 0, sizeof(value))
    if attribute not in (ATTRIBUTE_SYNC_POLICY, ATTRIBUTE_PRIORITY, ATTRIBUTE_DOMAIN, ATTRIBUTE_DOMAIN_MAP):
        return INVALID_VALUE
    code = cuStreamGetAttribute(<CUstream>stream, <CUlaunchAttributeID>attribute, &value)
    if code:
        return code
    if attribute == ATTRIBUTE_DOMAIN_MAP:
        out_first[0] = value.memSyncDomainMap.default_
        out_second[0] = value.memSyncDomainMap.remote
    elif attribute == ATTRIBUTE_SYNC_POLICY:
        out_first[0] = value.syncPolicy
    else:
        out_first[0] = value.priority if attribute == ATTRIBUTE_PRIORITY else <int>value.memSyncDomain
    return code


cdef int copy_entered(int device, uintptr_t stream, uintptr_t dst, uintptr_t src, size_t size) noexcept nogil:
    # A device that cannot reach pageable memory has it staged by the calling thread, which is what the
    # row promises.  One that can may leave the copy to its engines and return (CUDA driver API, "API
    # synchronization behavior": such a copy "might be synchronous"), so there the row waits.
    cdef int code = cuMemcpyAsync(dst, src, size, <CUstream>stream)
    if code == SUCCESS and devices[device].reads_pageable and needs_wait(dst, src):
        code = wait_slow(<CUstream>stream)
    return code


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


cdef int copy_3d_entered(
    uintptr_t stream, uintptr_t dst, size_t dst_pitch, size_t dst_lines, uintptr_t src, size_t src_pitch, size_t src_lines,
    size_t width, size_t height, size_t depth
) noexcept nogil:
    # The driver sees from the addresses which side is where (cuMemcpy3DAsync, CU_MEMORYTYPE_UNIFIED).  It wants slices as
    # high as the copy, of one slice too, where they say nothing.
    cdef CUDA_MEMCPY3D_v2 params
    if not (width and height and depth):
        return SUCCESS
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
    return cuMemcpy3DAsync(&params, <CUstream>stream)


# batches of copies.  Headers have these structs since 12.8, so they are declared here.

cdef extern from *:
    """
    typedef struct {
        int srcAccessOrder;
        CUmemLocation srcLocHint;
        CUmemLocation dstLocHint;
        unsigned int flags;
    } accelrt_copy_attributes;
    typedef struct {
        int type;
        union {
            struct { CUdeviceptr ptr; size_t rowLength; size_t layerHeight; CUmemLocation locHint; } ptr;
            struct { void* array; size_t x; size_t y; size_t z; } array;
        } op;
    } accelrt_copy_operand;
    typedef struct { size_t width; size_t height; size_t depth; } accelrt_copy_extent;
    typedef struct {
        accelrt_copy_operand src;
        accelrt_copy_operand dst;
        accelrt_copy_extent extent;
        int srcAccessOrder;
        unsigned int flags;
    } accelrt_copy_3d;
    static void accelrt_set_operand(accelrt_copy_operand* to, CUdeviceptr address, size_t pitch, size_t lines,
                                    CUmemLocation hint) {
        to->type = 1;  /* CU_MEMCPY_OPERAND_TYPE_POINTER */
        to->op.ptr.ptr = address;
        to->op.ptr.rowLength = pitch;
        to->op.ptr.layerHeight = lines;
        to->op.ptr.locHint = hint;
    }
    """
    ctypedef struct CopyAttributes "accelrt_copy_attributes":
        int srcAccessOrder
        CUmemLocation srcLocHint
        CUmemLocation dstLocHint
        unsigned int flags
    ctypedef struct CopyOperand "accelrt_copy_operand":
        pass
    ctypedef struct CopyExtent "accelrt_copy_extent":
        size_t width
        size_t height
        size_t depth
    ctypedef struct Copy3D "accelrt_copy_3d":
        CopyOperand src
        CopyOperand dst
        CopyExtent extent
        int srcAccessOrder
        unsigned int flags
    void set_operand "accelrt_set_operand"(CopyOperand* to, CUdeviceptr address, size_t pitch, size_t lines,
                                           CUmemLocation hint) noexcept nogil

cdef enum:
    IN_STREAM_ORDER = 1  # CU_MEMCPY_SRC_ACCESS_ORDER_STREAM
    LEGACY_STREAM = 1    # as 0 is
    FROM_13_0 = 13000    # the library's version
    FROM_13_2 = 13020


cdef CUmemLocation hint_of(uint64_t location) noexcept nogil:
    cdef CUmemLocation hint
    cdef int number = <int>location  # its low half
    memset(&hint, 0, sizeof(hint))
    hint.type = <CUmemLocationType>(location >> 32)
    hint.id = devices[number].handle if (hint.type == CU_MEM_LOCATION_TYPE_DEVICE and 0 <= number < device_total) else number
    return hint


cdef CopyAttributes attributes_of(uint64_t dst_location, uint64_t src_location, unsigned int flags) noexcept nogil:
    cdef CopyAttributes attributes
    memset(&attributes, 0, sizeof(attributes))
    attributes.srcAccessOrder = IN_STREAM_ORDER
    attributes.srcLocHint = hint_of(src_location)
    attributes.dstLocHint = hint_of(dst_location)
    attributes.flags = flags
    return attributes


cdef int takes_batches(uintptr_t stream, bint* out_takes) noexcept nogil:
    # The legacy default stream takes none ("Must not be legacy NULL stream", cuMemcpyBatchAsync), nor do captures of all
    # drivers.
    cdef CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE
    cdef int code = SUCCESS
    if stream > LEGACY_STREAM:
        code = cuStreamIsCapturing(<CUstream>stream, &status)
    out_takes[0] = stream > LEGACY_STREAM and status == CU_STREAM_CAPTURE_STATUS_NONE
    return code


cdef int copy_together(
    uintptr_t stream, CUdeviceptr* dsts, CUdeviceptr* srcs, size_t* sizes, size_t count, CopyAttributes* attributes
) noexcept nogil:
    cdef size_t first = 0, failed = 0
    if cuMemcpyBatchAsync_v13000 != NULL and library_version >= FROM_13_0:
        return cuMemcpyBatchAsync_v13000(dsts, srcs, sizes, count, attributes, &first, 1, <CUstream>stream)
    if cuMemcpyBatchAsync != NULL:
        return cuMemcpyBatchAsync(dsts, srcs, sizes, count, attributes, &first, 1, &failed, <CUstream>stream)
    return NOT_SUPPORTED


cdef int copy_batch_entered(
    uintptr_t stream, void* dsts, void* srcs, void* sizes, size_t count, uint64_t dst_location, uint64_t src_location,
    unsigned int flags, size_t* out_done
) noexcept nogil:
    # Copies that go one by one have their hints too, where the driver takes them.
    cdef CopyAttributes attributes = attributes_of(dst_location, src_location, flags)
    cdef CUdeviceptr* to = <CUdeviceptr*>dsts
    cdef CUdeviceptr* origin = <CUdeviceptr*>srcs
    cdef size_t* bytes_ = <size_t*>sizes
    cdef bint hinted = (dst_location != 0 or src_location != 0 or flags != 0) and library_version >= FROM_13_2
    cdef bint batches = False
    cdef int code = takes_batches(stream, &batches)
    if code == SUCCESS and batches and count:  # the driver refuses a batch of none
        code = copy_together(stream, to, origin, bytes_, count, &attributes)
        if code != NOT_SUPPORTED:
            out_done[0] = count if code == SUCCESS else 0
            return code
        code = SUCCESS
    hinted = hinted and cuMemcpyWithAttributesAsync != NULL
    while code == SUCCESS and out_done[0] < count:
        if hinted:
            code = cuMemcpyWithAttributesAsync(
                to[out_done[0]], origin[out_done[0]], bytes_[out_done[0]], &attributes, <CUstream>stream)
        else:
            code = cuMemcpyAsync(to[out_done[0]], origin[out_done[0]], bytes_[out_done[0]], <CUstream>stream)
        out_done[0] += code == SUCCESS
    return code


cdef int copy_together_3d(uintptr_t stream, Copy3D* operations, size_t count) noexcept nogil:
    cdef size_t failed = 0
    if cuMemcpy3DBatchAsync_v13000 != NULL and library_version >= FROM_13_0:
        return cuMemcpy3DBatchAsync_v13000(count, operations, 0, <CUstream>stream)
    if cuMemcpy3DBatchAsync != NULL:
        return cuMemcpy3DBatchAsync(count, operations, &failed, 0, <CUstream>stream)
    return NOT_SUPPORTED


cdef int copy_batch_3d_entered(
    uintptr_t stream, void* copies, size_t count, uint64_t dst_location, uint64_t src_location, unsigned int flags,
    size_t* out_done
) noexcept nogil:
    cdef const PitchedCopy* wanted = <const PitchedCopy*>copies
    cdef const PitchedCopy* one
    cdef Copy3D* operations = NULL
    cdef bint batches = False
    cdef size_t index
    cdef int code = takes_batches(stream, &batches)
    if code == SUCCESS and batches and count:
        operations = <Copy3D*>calloc(count, sizeof(Copy3D))
        if operations == NULL:
            return NO_HOST_MEMORY
        for index in range(count):
            one = &wanted[index]
            set_operand(&operations[index].src, one.src, one.src_pitch, one.src_lines if one.depth > 1 else 0,
                        hint_of(src_location))
            set_operand(&operations[index].dst, one.dst, one.dst_pitch, one.dst_lines if one.depth > 1 else 0,
                        hint_of(dst_location))
            operations[index].extent.width = one.width
            operations[index].extent.height = one.height
            operations[index].extent.depth = one.depth
            operations[index].srcAccessOrder = IN_STREAM_ORDER
            operations[index].flags = flags
        code = copy_together_3d(stream, operations, count)
        free(operations)
        if code != NOT_SUPPORTED:
            out_done[0] = count if code == SUCCESS else 0
            return code
        code = SUCCESS
    while code == SUCCESS and out_done[0] < count:
        one = &wanted[out_done[0]]
        code = copy_3d_entered(stream, one.dst, one.dst_pitch, one.dst_lines, one.src, one.src_pitch, one.src_lines,
                               one.width, one.height, one.depth)
        out_done[0] += code == SUCCESS
    return code


cdef int fill_entered(uintptr_t stream, uintptr_t dst, unsigned int value, int width, size_t count) noexcept nogil:
    if width == 1:
        return cuMemsetD8Async(dst, <unsigned char>value, count, <CUstream>stream)
    if width == 2:
        return cuMemsetD16Async(dst, <unsigned short>value, count, <CUstream>stream)
    if width == 4:
        return cuMemsetD32Async(dst, value, count, <CUstream>stream)
    return INVALID_VALUE


# between processes: the handles are 64 bytes that travel as they are

cdef int ipc_event_export_entered(uintptr_t event, char* out_ipc) noexcept nogil:
    cdef CUipcEventHandle handle
    cdef int code = cuIpcGetEventHandle(&handle, <CUevent>event)
    if code == SUCCESS:
        memcpy(out_ipc, &handle, sizeof(handle))
    return code


cdef int ipc_event_open_entered(const char* handle, uintptr_t* out_event) noexcept nogil:
    cdef CUipcEventHandle copied
    cdef CUevent event = NULL
    cdef int code
    memcpy(&copied, handle, sizeof(copied))
    code = cuIpcOpenEventHandle(&event, copied)
    out_event[0] = <uintptr_t>event if code == SUCCESS else 0
    return code


cdef int ipc_memory_export_entered(uintptr_t address, char* out_ipc) noexcept nogil:
    cdef CUipcMemHandle handle
    cdef int code = cuIpcGetMemHandle(&handle, address)
    if code == SUCCESS:
        memcpy(out_ipc, &handle, sizeof(handle))
    return code


cdef int ipc_memory_open_entered(const char* handle, uintptr_t* out_address) noexcept nogil:
    cdef CUipcMemHandle copied
    cdef CUdeviceptr address = 0
    cdef int code
    memcpy(&copied, handle, sizeof(copied))
    code = cuIpcOpenMemHandle(&address, copied, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)
    out_address[0] = address if code == SUCCESS else 0
    return code


# modules and their functions

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


# launches

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


cdef int kernel_launch_with_entered(
    uintptr_t stream, uintptr_t function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
    unsigned int block_x, unsigned int block_y, unsigned int block_z, unsigned int shared_bytes, void** arguments,
    unsigned int flags, unsigned int cluster_x, unsigned int cluster_y, unsigned int cluster_z
) noexcept nogil:
    cdef CUlaunchConfig config
    cdef CUlaunchAttribute[3] attributes
    describe_launch(&config, stream, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes)
    config.attrs = attributes
    if flags & LAUNCH_COOPERATIVE:
        add_attribute(&config, CU_LAUNCH_ATTRIBUTE_COOPERATIVE).value.cooperative = 1
    if flags & LAUNCH_PROGRAMMATIC:
        add_attribute(&config, CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION).value.programmaticStreamSerializationAllowed = 1  # no-cython-lint
    if cluster_x:
        add_cluster(&config, cluster_x, cluster_y, cluster_z)
    return cuLaunchKernelEx(&config, <CUfunction>function, arguments, NULL)


cdef int occupancy_clusters_entered(
    uintptr_t function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z, unsigned int block_x,
    unsigned int block_y, unsigned int block_z, unsigned int shared_bytes, unsigned int cluster_x, unsigned int cluster_y,
    unsigned int cluster_z, int* out_clusters
) noexcept nogil:
    cdef CUlaunchConfig config
    cdef CUlaunchAttribute[1] attributes
    describe_launch(&config, 0, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes)
    config.attrs = attributes
    add_cluster(&config, cluster_x, cluster_y, cluster_z)
    return cuOccupancyMaxActiveClusters(out_clusters, <CUfunction>function, &config)


# waits

# Called when all the other rows are filled: keeps them, and puts those that look for signals over them.
cdef int fill_waits(Table* table, Table* blank) except -1:
    memcpy(&rows, table, sizeof(Table))
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

cdef struct Errand:  # a wait for a device on a thread of its own
    pthread_mutex_t lock
    pthread_cond_t over
    int device
    int code
    int holders      # that thread, and the one that waits for it
    bint done


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
    if start(run_errand, errand):
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
