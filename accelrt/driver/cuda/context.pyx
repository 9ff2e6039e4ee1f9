"""The device rows of the cuda driver, and the primary contexts that all its rows run in.

A primary context is retained when its device is first needed and never released: it is the one that the
CUDA runtime and every other library of the process use.
"""
from accelrt.driver.cuda.types cimport (
    CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS,
    CUcontext,
    CUdevice,
    CUdevice_attribute,
    CUuuid,
)

from accelrt.driver.cuda.library cimport Symbol, resolve
from accelrt.driver.table cimport TEXT_BYTES, Table
from accelrt.status cimport INVALID_DEVICE, NO_DEVICE, PEER_ACCESS_ENABLED, SUCCESS

cdef extern from "cudaTypedefs.h" nogil:
    ctypedef int (*PFN_cuDriverGetVersion_v2020)(int*) noexcept nogil
    ctypedef int (*PFN_cuDeviceGet_v2000)(CUdevice*, int) noexcept nogil
    ctypedef int (*PFN_cuDeviceGetCount_v2000)(int*) noexcept nogil
    ctypedef int (*PFN_cuDeviceGetName_v2000)(char*, int, CUdevice) noexcept nogil
    ctypedef int (*PFN_cuDeviceGetUuid_v11040)(CUuuid*, CUdevice) noexcept nogil
    ctypedef int (*PFN_cuDeviceGetPCIBusId_v4010)(char*, int, CUdevice) noexcept nogil
    ctypedef int (*PFN_cuDeviceGetAttribute_v2000)(int*, CUdevice_attribute, CUdevice) noexcept nogil
    ctypedef int (*PFN_cuDeviceTotalMem_v3020)(size_t*, CUdevice) noexcept nogil
    ctypedef int (*PFN_cuMemGetInfo_v3020)(size_t*, size_t*) noexcept nogil
    ctypedef int (*PFN_cuCtxSetCurrent_v4000)(CUcontext) noexcept nogil
    ctypedef int (*PFN_cuCtxPushCurrent_v4000)(CUcontext) noexcept nogil
    ctypedef int (*PFN_cuCtxPopCurrent_v4000)(CUcontext*) noexcept nogil
    ctypedef int (*PFN_cuCtxGetDevice_v2000)(CUdevice*) noexcept nogil
    ctypedef int (*PFN_cuCtxSynchronize_v2000)() noexcept nogil
    ctypedef int (*PFN_cuDevicePrimaryCtxRetain_v7000)(CUcontext*, CUdevice) noexcept nogil
    ctypedef int (*PFN_cuDevicePrimaryCtxGetState_v7000)(CUdevice, unsigned int*, int*) noexcept nogil
    ctypedef int (*PFN_cuDeviceCanAccessPeer_v4000)(int*, CUdevice, CUdevice) noexcept nogil
    ctypedef int (*PFN_cuCtxEnablePeerAccess_v4000)(CUcontext, unsigned int) noexcept nogil

cdef int device_total = 0
cdef PFN_cuDriverGetVersion_v2020 cuDriverGetVersion
cdef PFN_cuDeviceGet_v2000 cuDeviceGet
cdef PFN_cuDeviceGetCount_v2000 cuDeviceGetCount
cdef PFN_cuDeviceGetName_v2000 cuDeviceGetName
cdef PFN_cuDeviceGetUuid_v11040 cuDeviceGetUuid  # the one that tells the instances of a MIG device apart
cdef PFN_cuDeviceGetPCIBusId_v4010 cuDeviceGetPCIBusId
cdef PFN_cuDeviceGetAttribute_v2000 cuDeviceGetAttribute
cdef PFN_cuDeviceTotalMem_v3020 cuDeviceTotalMem
cdef PFN_cuMemGetInfo_v3020 cuMemGetInfo
cdef PFN_cuCtxSetCurrent_v4000 cuCtxSetCurrent
cdef PFN_cuCtxPushCurrent_v4000 cuCtxPushCurrent
cdef PFN_cuCtxPopCurrent_v4000 cuCtxPopCurrent
cdef PFN_cuCtxGetDevice_v2000 cuCtxGetDevice
cdef PFN_cuCtxSynchronize_v2000 cuCtxSynchronize
cdef PFN_cuDevicePrimaryCtxRetain_v7000 cuDevicePrimaryCtxRetain
cdef PFN_cuDevicePrimaryCtxGetState_v7000 cuDevicePrimaryCtxGetState
cdef PFN_cuDeviceCanAccessPeer_v4000 cuDeviceCanAccessPeer
cdef PFN_cuCtxEnablePeerAccess_v4000 cuCtxEnablePeerAccess


cdef int fill_devices(Table* table, Table* blank) except -1:
    cdef Symbol[19] symbols = [
        Symbol(b"cuDriverGetVersion", 2020, <void**>&cuDriverGetVersion, <void**>&table.driver_version),
        Symbol(b"cuDeviceGet", 2000, <void**>&cuDeviceGet, NULL),
        Symbol(b"cuDeviceGetCount", 2000, <void**>&cuDeviceGetCount, NULL),
        Symbol(b"cuDeviceGetName", 2000, <void**>&cuDeviceGetName, <void**>&table.device_name),
        Symbol(b"cuDeviceGetUuid", 11040, <void**>&cuDeviceGetUuid, <void**>&table.device_uuid),
        Symbol(b"cuDeviceGetPCIBusId", 4010, <void**>&cuDeviceGetPCIBusId, <void**>&table.device_pci_bus_id),
        Symbol(b"cuDeviceGetAttribute", 2000, <void**>&cuDeviceGetAttribute, NULL),
        Symbol(b"cuDeviceTotalMem", 3020, <void**>&cuDeviceTotalMem, <void**>&table.device_memory),
        Symbol(b"cuMemGetInfo", 3020, <void**>&cuMemGetInfo, <void**>&table.memory_info),
        Symbol(b"cuCtxGetCurrent", 4000, <void**>&cuCtxGetCurrent, NULL),
        Symbol(b"cuCtxSetCurrent", 4000, <void**>&cuCtxSetCurrent, NULL),
        Symbol(b"cuCtxPushCurrent", 4000, <void**>&cuCtxPushCurrent, NULL),
        Symbol(b"cuCtxPopCurrent", 4000, <void**>&cuCtxPopCurrent, NULL),
        Symbol(b"cuCtxGetDevice", 2000, <void**>&cuCtxGetDevice, NULL),
        Symbol(b"cuCtxSynchronize", 2000, <void**>&cuCtxSynchronize, <void**>&table.device_synchronize),
        Symbol(b"cuDevicePrimaryCtxRetain", 7000, <void**>&cuDevicePrimaryCtxRetain, NULL),
        Symbol(b"cuDevicePrimaryCtxGetState", 7000, <void**>&cuDevicePrimaryCtxGetState, NULL),
        Symbol(b"cuDeviceCanAccessPeer", 4000, <void**>&cuDeviceCanAccessPeer, <void**>&table.can_access_peer),
        Symbol(b"cuCtxEnablePeerAccess", 4000, <void**>&cuCtxEnablePeerAccess, <void**>&table.enable_peer),
    ]
    table.driver_version = driver_version
    table.device_count = device_count
    table.device_name = device_name
    table.device_uuid = device_uuid
    table.device_pci_bus_id = device_pci_bus_id
    table.device_attribute = device_attribute
    table.device_memory = device_memory
    table.memory_info = memory_info
    table.current_device = current_device
    table.set_device = set_device
    table.device_synchronize = device_synchronize
    table.can_access_peer = can_access_peer
    table.enable_peer = enable_peer
    return resolve(symbols, 19, table, blank)


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
    # A context that somebody else made, or a primary one that accelrt has not needed so far.
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
