"""Devices, their contexts and memory, streams and copies: the cuda driver's rows that are more than one call of the
library's; and what the rows of driver.pyx stand on, primary contexts made current for one call.
"""
from libc.stdint cimport uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset
from posix.fcntl cimport F_SETFD, fcntl, FD_CLOEXEC
from posix.unistd cimport close

from accelrt.core.descriptors cimport lift
from accelrt.driver.cuda.types cimport (
    CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED,
    CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS, CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW,
    CU_MEM_ACCESS_FLAGS_PROT_READWRITE, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED,
    CU_MEM_ALLOCATION_TYPE_PINNED, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, CU_MEM_LOCATION_TYPE_DEVICE,
    CU_MEMORYTYPE_HOST, CU_MEMORYTYPE_UNIFIED, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, CU_POINTER_ATTRIBUTE_IS_MANAGED,
    CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, CU_POINTER_ATTRIBUTE_RANGE_SIZE,
    CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, CU_STREAM_CAPTURE_STATUS_NONE, CUaccessProperty, CUDA_MEMCPY3D_v2,
    CUdevice_attribute, CUdeviceptr, CUlaunchAttributeID, CUlaunchAttributeValue, CUlaunchMemSyncDomain, CUmem_advise,
    CUmem_range_attribute, CUmemAccess_flags, CUmemAccessDesc, CUmemAllocationHandleType, CUmemAllocationProp,
    CUmemGenericAllocationHandle, CUmemLocation, CUmemLocationType, CUmemoryPool, CUmemPoolProps, CUmemPool_attribute,
    CUpointer_attribute, CUstream, CUstreamCaptureStatus, CUsynchronizationPolicy,
)
from accelrt.driver.managed cimport (
    ACCESSED_BY, LOCATION_DEVICE, LOCATION_HOST, LOCATION_NODE, LOCATION_NONE, ManagedRange, PREFERRED_DEVICE,
    PREFERRED_PLACE, PREFETCHED_DEVICE, PREFETCHED_PLACE, THE_HOST,
)
from accelrt.driver.memory cimport (
    CopyRun, KIND_DEVICE, KIND_HOST, KIND_MANAGED, KIND_NONE, PitchedCopy, run_from, SOURCE_AT_ANY_TIME, SOURCE_DURING_CALL,
    SOURCE_IN_STREAM_ORDER,
)
from accelrt.driver.node_params cimport (
    ATTRIBUTE_DOMAIN, ATTRIBUTE_DOMAIN_MAP, ATTRIBUTE_PRIORITY, ATTRIBUTE_SYNC_POLICY,
)
from accelrt.status cimport (
    CAPTURE_UNSUPPORTED, INVALID_VALUE, NO_DEVICE, NO_HOST_MEMORY, NOT_SUPPORTED, PEER_ACCESS_ENABLED,
)

include "memory_rows.pxi"


# devices

cdef int count_devices() noexcept nogil:
    global all_concurrent, device_total, library_version
    cdef int total = 0, index, concurrent = 0, code = cuDeviceGetCount(&total)
    cdef bint all_are = True
    if code != SUCCESS:
        return code
    if total == 0:
        return NO_DEVICE
    total = min(total, MOST_DEVICES)
    for index in range(total):
        code = cuDeviceGet(&devices[index].handle, index)
        if code == SUCCESS:
            code = cuDeviceGetAttribute(
                &devices[index].reads_pageable, CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS, devices[index].handle)
        if code == SUCCESS:
            code = cuDeviceGetAttribute(&concurrent, CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, devices[index].handle)
        if code != SUCCESS:
            return code
        cuDeviceGetAttribute(  # left at 0 by a library that does not know it
            &devices[index].takes_rdma, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED, devices[index].handle)
        all_are = all_are and concurrent
    if cuDriverGetVersion != NULL:
        cuDriverGetVersion(&library_version)
    all_concurrent = all_are
    device_total = total
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

cdef int describe_pointer(uintptr_t address, unsigned int* out_kind, int* out_ordinal) noexcept nogil:
    # Of memory that the driver neither allocated nor was told of it has no kind, 0, and no error: to ask for a single
    # attribute of such memory is one, which tools report.
    cdef CUpointer_attribute[2] attributes
    cdef void* answers[2]
    attributes[0] = CU_POINTER_ATTRIBUTE_MEMORY_TYPE
    attributes[1] = CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
    answers[0] = out_kind
    answers[1] = out_ordinal
    return cuPointerGetAttributes(2, attributes, answers, address)


cdef int memory_kind(uintptr_t address) noexcept nogil:
    # The caller has entered a device.
    cdef unsigned int kind = 0
    cdef int ordinal = -1
    if cuPointerGetAttributes == NULL or describe_pointer(address, &kind, &ordinal) != SUCCESS or kind == 0:
        return PAGEABLE
    return PAGE_LOCKED if kind == CU_MEMORYTYPE_HOST else ON_DEVICE


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
    cdef CUpointer_attribute[5] attributes
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
    attributes[0], answers[0] = CU_POINTER_ATTRIBUTE_MEMORY_TYPE, &kind
    attributes[1], answers[1] = CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, &ordinal
    attributes[2], answers[2] = CU_POINTER_ATTRIBUTE_IS_MANAGED, &managed
    attributes[3], answers[3] = CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, &begin
    attributes[4], answers[4] = CU_POINTER_ATTRIBUTE_RANGE_SIZE, &size
    code = enter_any(&pushed)
    if code == SUCCESS:
        code = cuPointerGetAttributes(5, attributes, answers, address)
    # Of page-locked memory of a pool the attribute is a place in the pool, and no address (580.159.04).
    if code == SUCCESS and size and not begin <= address < begin + size and cuMemGetAddressRange != NULL:
        code = cuMemGetAddressRange(&begin, &size, address)
    out_kind[0], out_device[0], out_start[0], out_size[0] = KIND_NONE, -1, 0, 0
    if code == SUCCESS and kind:
        out_kind[0] = KIND_MANAGED if managed & 0xFF else KIND_HOST if kind == CU_MEMORYTYPE_HOST else KIND_DEVICE
        out_device[0] = -1 if out_kind[0] == KIND_HOST else ordinal
        out_start[0], out_size[0] = begin, size
    return leave(pushed, code)


# memory: virtual

cdef CUmemAllocationProp pinned_on(int device) noexcept nogil:
    cdef CUmemAllocationProp properties
    memset(&properties, 0, sizeof(properties))
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE
    properties.location.id = devices[device].handle
    properties.allocFlags.gpuDirectRDMACapable = devices[device].takes_rdma != 0
    return properties


cdef int granularity(int device, size_t* out_size) noexcept nogil:
    cdef CUmemAllocationProp properties
    if not 0 <= device < device_total:
        return INVALID_DEVICE
    properties = pinned_on(device)
    return cuMemGetAllocationGranularity(out_size, &properties, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED)


cdef int physical_create_entered(int device, size_t size, bint shared, uintptr_t* out_handle) noexcept nogil:
    cdef CUmemGenericAllocationHandle handle = 0
    cdef CUmemAllocationProp properties = pinned_on(device)
    cdef int code
    if shared:
        properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
    code = cuMemCreate(&handle, size, &properties, 0)
    out_handle[0] = handle if code == SUCCESS else 0
    return code


cdef int physical_export(uintptr_t handle, int* out_file) noexcept nogil:
    cdef int file = -1
    cdef bint pushed = False
    cdef int code = enter_any(&pushed)
    if code == SUCCESS:
        code = cuMemExportToShareableHandle(&file, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0)
    if code == SUCCESS:
        fcntl(file, F_SETFD, FD_CLOEXEC)
        file = lift(file)
    out_file[0] = file if code == SUCCESS else -1
    return leave(pushed, code)


cdef CUmemAccessDesc access_of(int device, int access) noexcept nogil:
    cdef CUmemAccessDesc descriptor
    memset(&descriptor, 0, sizeof(descriptor))
    descriptor.location.type = CU_MEM_LOCATION_TYPE_DEVICE
    descriptor.location.id = devices[device].handle
    descriptor.flags = <CUmemAccess_flags>access
    return descriptor


cdef int memory_access_entered(uintptr_t address, size_t size, int device, int access) noexcept nogil:
    cdef CUmemAccessDesc descriptor = access_of(device, access)
    return cuMemSetAccess(address, size, &descriptor, 1)


# memory: stream-ordered, always the device's default pool, so that it is shared with other users of that

cdef int pool_of_device(int device, CUmemoryPool* out_pool) noexcept nogil:
    if cuDeviceGetDefaultMemPool == NULL:
        return NOT_SUPPORTED
    return cuDeviceGetDefaultMemPool(out_pool, devices[device].handle)


cdef int async_alloc_entered(int device, uintptr_t stream, size_t size, uintptr_t* out_address) noexcept nogil:
    cdef CUmemoryPool pool = NULL
    cdef int code = pool_of_device(device, &pool)
    return code if code else alloc_from(pool, stream, size, out_address)


cdef int alloc_from(CUmemoryPool pool, uintptr_t stream, size_t size, uintptr_t* out_address) noexcept nogil:
    cdef CUdeviceptr address = 0
    cdef int code = cuMemAllocFromPoolAsync(&address, size, pool, <CUstream>stream)
    out_address[0] = address if code == SUCCESS else 0
    return code


# memory: stream-ordered, of pools that the caller makes

cdef enum:
    MAX_SIZE = 24  # where CUmemPoolProps has maxSize, which headers name since 12.3; before, it is reserved

cdef int create_pool(
    int kind, CUmemLocation location, size_t limit, bint shared, uintptr_t* out_pool
) noexcept nogil:
    cdef CUmemoryPool pool = NULL
    cdef CUmemPoolProps wanted
    cdef int code
    memset(&wanted, 0, sizeof(wanted))
    wanted.allocType = kind
    wanted.handleTypes = <CUmemAllocationHandleType>(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR if shared else 0)
    wanted.location = location
    memcpy(<char*>&wanted + MAX_SIZE, &limit, sizeof(limit))
    code = cuMemPoolCreate(&pool, &wanted)
    out_pool[0] = <uintptr_t>pool if code == SUCCESS else 0
    return code


cdef int pool_create(int device, size_t limit, bint shared, uintptr_t* out_pool) noexcept nogil:
    out_pool[0] = 0
    if not 0 <= device < device_total:
        return INVALID_DEVICE
    return create_pool(CU_MEM_ALLOCATION_TYPE_PINNED, access_of(device, 0).location, limit, shared, out_pool)


cdef CUmemLocation host_location(int kind, int node) noexcept nogil:
    cdef CUmemLocation location
    memset(&location, 0, sizeof(location))
    location.type = <CUmemLocationType>kind
    location.id = node if kind == LOCATION_NODE else 0
    return location


# By cuda.h, cuMemPoolCreate: pools of the host's memory at no node are not for other processes, and the calling thread's
# node is refused; devices use none of it at first.

cdef int pinned_pool_create(int kind, int node, size_t limit, bint shared, uintptr_t* out_pool) noexcept nogil:
    out_pool[0] = 0
    if kind != LOCATION_HOST and kind != LOCATION_NODE:
        return INVALID_VALUE
    return create_pool(CU_MEM_ALLOCATION_TYPE_PINNED, host_location(kind, node), limit, shared, out_pool)


cdef int default_pool(int device, int kind, uintptr_t* out_pool) noexcept nogil:
    cdef CUmemoryPool pool = NULL
    cdef CUmemLocation location
    cdef int code
    out_pool[0] = 0
    if not 0 <= device < device_total:
        return INVALID_DEVICE
    if kind == KIND_MANAGED:
        code = managed_pool(device, &pool)
    elif kind == KIND_HOST:
        location = host_location(LOCATION_HOST, 0)
        code = pool_since_13(&location, CU_MEM_ALLOCATION_TYPE_PINNED, &pool)
    else:
        code = pool_of_device(device, &pool) if kind == KIND_DEVICE else INVALID_VALUE
    out_pool[0] = <uintptr_t>pool if code == SUCCESS else 0
    return code


cdef int pool_since_13(CUmemLocation* location, int kind, CUmemoryPool* out_pool) noexcept nogil:
    if cuMemGetDefaultMemPool == NULL or library_version < FROM_13_0:
        return NOT_SUPPORTED
    return cuMemGetDefaultMemPool(out_pool, location, kind)


cdef int pool_export(uintptr_t pool, int* out_file) noexcept nogil:
    cdef int file = -1
    cdef bint pushed = False
    cdef int code = enter_any(&pushed)
    if code == SUCCESS:
        code = cuMemPoolExportToShareableHandle(&file, <CUmemoryPool>pool, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0)
    if code == SUCCESS:
        fcntl(file, F_SETFD, FD_CLOEXEC)
        file = lift(file)
    out_file[0] = file if code == SUCCESS else -1
    return leave(pushed, code)


cdef int pool_import_entered(int device, int file, uintptr_t* out_pool) noexcept nogil:
    # The device that the caller names gets access, which an imported pool may have for none.
    cdef CUmemoryPool pool = NULL
    cdef int access = 0
    cdef int code = cuMemPoolImportFromShareableHandle(
        &pool, <void*><uintptr_t>file, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0)
    if code:
        return code
    code = pool_access_get(<uintptr_t>pool, device, &access)
    if code == SUCCESS and access != CU_MEM_ACCESS_FLAGS_PROT_READWRITE:
        code = pool_access_set(<uintptr_t>pool, device, CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
    if code:
        cuMemPoolDestroy(pool)
        return code
    out_pool[0] = <uintptr_t>pool
    return SUCCESS


cdef int pool_alloc_entered(uintptr_t stream, uintptr_t pool, size_t size, uintptr_t* out_address) noexcept nogil:
    return alloc_from(<CUmemoryPool>pool, stream, size, out_address)


cdef int pool_pointer_export_entered(uintptr_t address, char* out_ipc) noexcept nogil:
    # The driver refuses memory of a pool that it has not exported yet, and then of one that cannot be.
    cdef CUpointer_attribute attribute = <CUpointer_attribute>CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE
    cdef uintptr_t pool = 0
    cdef void* out_pool = &pool
    cdef int file = -1
    cdef int code = cuMemPoolExportPointer(out_ipc, address)
    if code != INVALID_VALUE or cuPointerGetAttributes(1, &attribute, &out_pool, address) != SUCCESS:
        return code
    if pool == 0 or pool_export(pool, &file) != SUCCESS:
        return code
    close(file)
    return cuMemPoolExportPointer(out_ipc, address)


cdef int pool_pointer_import_entered(uintptr_t pool, const char* handle, uintptr_t* out_address) noexcept nogil:
    cdef CUdeviceptr address = 0
    cdef char[64] pointer
    cdef int code
    memcpy(pointer, handle, 64)
    code = cuMemPoolImportPointer(&address, <CUmemoryPool>pool, pointer)
    out_address[0] = address if code == SUCCESS else 0
    return code


cdef int pool_trim(uintptr_t pool, int device, uintptr_t event, size_t keep) noexcept nogil:
    cdef int code = SUCCESS if 0 <= device < device_total else INVALID_DEVICE
    if code == SUCCESS and event:
        code = rows.event_synchronize(device, event)  # the driver's own
    return code if code else cuMemPoolTrimTo(<CUmemoryPool>pool, keep)


cdef int pool_get(uintptr_t pool, int attribute, uint64_t* out_value) noexcept nogil:
    # Some attributes are an int: written to the low half of a zero, they read right (little endian).
    out_value[0] = 0
    return cuMemPoolGetAttribute(<CUmemoryPool>pool, <CUmemPool_attribute>attribute, out_value)


cdef int pool_set(uintptr_t pool, int attribute, uint64_t value) noexcept nogil:
    return cuMemPoolSetAttribute(<CUmemoryPool>pool, <CUmemPool_attribute>attribute, &value)


cdef int pool_access_set(uintptr_t pool, int peer, int access) noexcept nogil:
    cdef CUmemAccessDesc wanted
    if not 0 <= peer < device_total:
        return INVALID_DEVICE
    wanted = access_of(peer, access)
    return cuMemPoolSetAccess(<CUmemoryPool>pool, &wanted, 1)


cdef int pool_access_get(uintptr_t pool, int peer, int* out_access) noexcept nogil:
    cdef CUmemLocation location
    cdef CUmemAccess_flags flags = <CUmemAccess_flags>0
    cdef int code = SUCCESS if 0 <= peer < device_total else INVALID_DEVICE
    if code == SUCCESS:
        location = access_of(peer, 0).location
        code = cuMemPoolGetAccess(&flags, <CUmemoryPool>pool, &location)
    out_access[0] = <int>flags if code == SUCCESS else 0
    return code


# memory: stream-ordered and managed.  Graphs take no such memory: a capture would have an allocation of the device's own
# instead.

cdef enum:
    MANAGED_TYPE = 2  # CU_MEM_ALLOCATION_TYPE_MANAGED, which headers have since 13.0

cdef int managed_pool(int device, CUmemoryPool* out_pool) noexcept nogil:
    cdef CUmemLocation location = access_of(device, 0).location
    return pool_since_13(&location, MANAGED_TYPE, out_pool)


cdef int managed_pool_create(int device, int kind, int place, uintptr_t* out_pool) noexcept nogil:
    cdef CUmemLocation location
    cdef int code = SUCCESS
    out_pool[0] = 0
    if not 0 <= device < device_total:
        return INVALID_DEVICE
    if library_version < FROM_13_0:
        return NOT_SUPPORTED
    memset(&location, 0, sizeof(location))  # no preference
    if kind != LOCATION_NONE:
        code = find_location(kind, place, &location)
    return code if code else create_pool(MANAGED_TYPE, location, 0, False, out_pool)


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


# memory: managed.  Of the versions of two functions the later one is called where the driver is as new as it: an older
# driver answers a question for it with the earlier one.

cdef enum:
    WITH_NODES = 12020  # the version from which a place may be a NUMA node

cdef int find_location(int kind, int number, CUmemLocation* out_location) noexcept nogil:
    if kind == LOCATION_DEVICE and not 0 <= number < device_total:
        return INVALID_DEVICE
    out_location.type = kind
    out_location.id = devices[number].handle if kind == LOCATION_DEVICE else number
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
    cdef size_t* range_indices = sizes + count
    cdef CUmemLocation* locations = <CUmemLocation*>(range_indices + count)
    cdef int code = SUCCESS if addresses != NULL else NO_HOST_MEMORY
    for index in range(count):
        if code != SUCCESS:
            break
        addresses[index], sizes[index], range_indices[index] = ranges[index].address, ranges[index].size, index
        if moves:
            code = find_location(ranges[index].kind, ranges[index].place, &locations[index])
    if code == SUCCESS and not moves:
        code = cuMemDiscardBatchAsync(addresses, sizes, count, 0, stream)
    elif code == SUCCESS and discards:
        code = cuMemDiscardAndPrefetchBatchAsync(addresses, sizes, count, locations, range_indices, count, 0, stream)
    elif code == SUCCESS:
        code = cuMemPrefetchBatchAsync(addresses, sizes, count, locations, range_indices, count, 0, stream)
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


cdef int managed_attribute_entered(uintptr_t address, size_t size, int attribute, void* values, size_t count) noexcept nogil:
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
    # Where the stream's context is no primary one, the driver says whose it is.  What a thread has current stays.
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


cdef int stream_attribute_get_entered(uintptr_t stream, int attribute, int* out_first, int* out_second) noexcept nogil:
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
    LEGACY_STREAM = 1    # as 0 is
    FROM_13_0 = 13000    # the library's version
    FROM_13_2 = 13020
    # Copies in one call.  An H100 that is idle when 4,096 of 16 KiB come is done with each before the next is there, and in
    # one call each then costs 2.9 us of the CPU; in calls of 64 0.7 us, at 25 GB/s instead of 6 to 14.
    TOGETHER = 64


cdef CUmemLocation hint_of(uint64_t location) noexcept nogil:
    cdef CUmemLocation hint
    cdef int number = <int>location  # its low half
    memset(&hint, 0, sizeof(hint))
    hint.type = <CUmemLocationType>(location >> 32)
    hint.id = devices[number].handle if (hint.type == CU_MEM_LOCATION_TYPE_DEVICE and 0 <= number < device_total) else number
    return hint


cdef CopyAttributes attributes_of(const CopyRun* run) noexcept nogil:
    cdef CopyAttributes attributes
    memset(&attributes, 0, sizeof(attributes))
    attributes.srcAccessOrder = run.order
    attributes.srcLocHint = hint_of(run.src_location)
    attributes.dstLocHint = hint_of(run.dst_location)
    attributes.flags = run.flags
    return attributes


cdef bint reads_now(const CopyRun* runs, size_t run_count) noexcept nogil:
    cdef size_t index
    for index in range(run_count):
        if runs[index].order == SOURCE_DURING_CALL:
            return True
    return False


cdef int takes_batches(uintptr_t stream, const CopyRun* runs, size_t run_count, bint* out_takes) noexcept nogil:
    # The legacy default stream takes none ("Must not be legacy NULL stream", cuMemcpyBatchAsync), nor do captures of all
    # drivers.  What goes one by one instead is read in the stream's order.
    cdef CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE
    cdef size_t index
    cdef int code = SUCCESS
    if run_count == 0 or runs[0].first:
        return INVALID_VALUE
    for index in range(run_count):
        if not SOURCE_IN_STREAM_ORDER <= runs[index].order <= SOURCE_AT_ANY_TIME:
            return INVALID_VALUE
    if stream > LEGACY_STREAM:
        code = cuStreamIsCapturing(<CUstream>stream, &status)
    out_takes[0] = stream > LEGACY_STREAM and status == CU_STREAM_CAPTURE_STATUS_NONE
    if code == SUCCESS and not out_takes[0] and reads_now(runs, run_count):
        return NOT_SUPPORTED
    return code


cdef int copy_together(
    uintptr_t stream, CUdeviceptr* dsts, CUdeviceptr* srcs, size_t* sizes, size_t first, size_t count, const CopyRun* run,
    const CopyRun* end
) noexcept nogil:
    # Up to TOGETHER of them; run: that of the first one.
    cdef CopyAttributes[TOGETHER] attributes
    cdef size_t[TOGETHER] firsts
    cdef size_t index, kinds = 0, failed = 0
    for index in range(count):
        if index == 0 or run + 1 < end and run[1].first <= first + index:
            run = run_from(run, end, first + index)
            attributes[kinds], firsts[kinds] = attributes_of(run), index
            kinds += 1
    if cuMemcpyBatchAsync_v13000 != NULL and library_version >= FROM_13_0:
        return cuMemcpyBatchAsync_v13000(
            &dsts[first], &srcs[first], &sizes[first], count, attributes, firsts, kinds, <CUstream>stream)
    if cuMemcpyBatchAsync != NULL:
        return cuMemcpyBatchAsync(
            &dsts[first], &srcs[first], &sizes[first], count, attributes, firsts, kinds, &failed, <CUstream>stream)
    return NOT_SUPPORTED


cdef int copy_one(uintptr_t stream, CUdeviceptr dst, CUdeviceptr src, size_t size, const CopyRun* run) noexcept nogil:
    # With its hints, where the driver takes them.
    cdef CopyAttributes attributes
    cdef bint hinted = run.dst_location != 0 or run.src_location != 0 or run.flags != 0
    if not hinted or library_version < FROM_13_2 or cuMemcpyWithAttributesAsync == NULL:
        return cuMemcpyAsync(dst, src, size, <CUstream>stream)
    attributes = attributes_of(run)
    return cuMemcpyWithAttributesAsync(dst, src, size, &attributes, <CUstream>stream)


cdef int copy_batch_entered(
    uintptr_t stream, void* dsts, void* srcs, void* sizes, size_t count, void* runs, size_t run_count, size_t* out_done
) noexcept nogil:
    cdef CUdeviceptr* to = <CUdeviceptr*>dsts
    cdef CUdeviceptr* origin = <CUdeviceptr*>srcs
    cdef size_t* bytes_ = <size_t*>sizes
    cdef const CopyRun* run = <const CopyRun*>runs
    cdef const CopyRun* end = run + run_count
    cdef bint batches = False
    cdef size_t part
    cdef int code = takes_batches(stream, run, run_count, &batches)
    while code == SUCCESS and batches and out_done[0] < count:
        part, run = min(count - out_done[0], <size_t>TOGETHER), run_from(run, end, out_done[0])
        code = copy_together(stream, to, origin, bytes_, out_done[0], part, run, end)
        if code == SUCCESS:
            out_done[0] += part
        elif code == NOT_SUPPORTED and not reads_now(<const CopyRun*>runs, run_count):
            code, batches = SUCCESS, False
    while code == SUCCESS and out_done[0] < count:
        run = run_from(run, end, out_done[0])
        code = copy_one(stream, to[out_done[0]], origin[out_done[0]], bytes_[out_done[0]], run)
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
    uintptr_t stream, void* copies, size_t count, void* runs, size_t run_count, size_t* out_done
) noexcept nogil:
    cdef const PitchedCopy* pitched = <const PitchedCopy*>copies
    cdef const PitchedCopy* one
    cdef const CopyRun* run = <const CopyRun*>runs
    cdef Copy3D* operations = NULL
    cdef bint batches = False
    cdef size_t index
    cdef int code = takes_batches(stream, run, run_count, &batches)
    if code == SUCCESS and batches and count:
        operations = <Copy3D*>calloc(count, sizeof(Copy3D))
        if operations == NULL:
            return NO_HOST_MEMORY
        for index in range(count):
            one, run = &pitched[index], run_from(run, <const CopyRun*>runs + run_count, index)
            set_operand(&operations[index].src, one.src, one.src_pitch, one.src_lines if one.depth > 1 else 0,
                        hint_of(run.src_location))
            set_operand(&operations[index].dst, one.dst, one.dst_pitch, one.dst_lines if one.depth > 1 else 0,
                        hint_of(run.dst_location))
            operations[index].extent.width = one.width
            operations[index].extent.height = one.height
            operations[index].extent.depth = one.depth
            operations[index].srcAccessOrder = run.order
            operations[index].flags = run.flags
        code = copy_together_3d(stream, operations, count)
        free(operations)
        if code != NOT_SUPPORTED or reads_now(<const CopyRun*>runs, run_count):
            out_done[0] = count if code == SUCCESS else 0
            return code
        code = SUCCESS
    while code == SUCCESS and out_done[0] < count:
        one = &pitched[out_done[0]]
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


# textures and surfaces

cdef int texture_create_entered(void* resource, void* sampling, uintptr_t* out_texture) noexcept nogil:
    cdef unsigned long long texture = 0
    cdef int code
    if sampling == NULL:
        code = cuSurfObjectCreate(&texture, resource)
    else:
        code = cuTexObjectCreate(&texture, resource, sampling, NULL)
    out_texture[0] = texture
    return code


cdef int texture_destroy_entered(uintptr_t texture, bint surface) noexcept nogil:
    return cuSurfObjectDestroy(texture) if surface else cuTexObjectDestroy(texture)
