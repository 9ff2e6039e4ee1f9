"""The memory rows of the cuda driver: plain, virtual, stream-ordered and host memory."""
from libc.stdint cimport uint64_t, uintptr_t
from libc.string cimport memset

from accelrt.driver.cuda.types cimport (
    CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    CU_MEM_ALLOC_GRANULARITY_RECOMMENDED,
    CU_MEM_ALLOCATION_TYPE_PINNED,
    CU_MEM_LOCATION_TYPE_DEVICE,
    CU_MEMHOSTALLOC_PORTABLE,
    CU_MEMHOSTREGISTER_PORTABLE,
    CU_MEMORYTYPE_HOST,
    CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
    CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
    CUdevice,
    CUdeviceptr,
    CUmemAccessDesc,
    CUmemAllocationGranularity_flags,
    CUmemAllocationProp,
    CUmemGenericAllocationHandle,
    CUmemoryPool,
    CUmemPool_attribute,
    CUpointer_attribute,
    CUstream,
)

from accelrt.driver.cuda.context cimport device_total, devices, enter, enter_any, leave
from accelrt.driver.cuda.library cimport Symbol, resolve
from accelrt.driver.table cimport Table
from accelrt.status cimport INVALID_DEVICE, INVALID_VALUE, NOT_SUPPORTED, SUCCESS

cdef extern from "cudaTypedefs.h" nogil:
    ctypedef int (*PFN_cuMemAlloc_v3020)(CUdeviceptr*, size_t) noexcept nogil
    ctypedef int (*PFN_cuMemFree_v3020)(CUdeviceptr) noexcept nogil
    ctypedef int (*PFN_cuPointerGetAttributes_v7000)(
        unsigned int, CUpointer_attribute*, void**, CUdeviceptr) noexcept nogil
    ctypedef int (*PFN_cuMemGetAllocationGranularity_v10020)(
        size_t*, const CUmemAllocationProp*, CUmemAllocationGranularity_flags) noexcept nogil
    ctypedef int (*PFN_cuMemAddressReserve_v10020)(
        CUdeviceptr*, size_t, size_t, CUdeviceptr, unsigned long long) noexcept nogil
    ctypedef int (*PFN_cuMemAddressFree_v10020)(CUdeviceptr, size_t) noexcept nogil
    ctypedef int (*PFN_cuMemCreate_v10020)(
        CUmemGenericAllocationHandle*, size_t, const CUmemAllocationProp*, unsigned long long) noexcept nogil
    ctypedef int (*PFN_cuMemRelease_v10020)(CUmemGenericAllocationHandle) noexcept nogil
    ctypedef int (*PFN_cuMemMap_v10020)(
        CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long) noexcept nogil
    ctypedef int (*PFN_cuMemSetAccess_v10020)(
        CUdeviceptr, size_t, const CUmemAccessDesc*, size_t) noexcept nogil
    ctypedef int (*PFN_cuMemUnmap_v10020)(CUdeviceptr, size_t) noexcept nogil
    ctypedef int (*PFN_cuDeviceGetDefaultMemPool_v11020)(CUmemoryPool*, CUdevice) noexcept nogil
    ctypedef int (*PFN_cuMemAllocFromPoolAsync_v11020)(
        CUdeviceptr*, size_t, CUmemoryPool, CUstream) noexcept nogil
    ctypedef int (*PFN_cuMemFreeAsync_v11020)(CUdeviceptr, CUstream) noexcept nogil
    ctypedef int (*PFN_cuMemPoolTrimTo_v11020)(CUmemoryPool, size_t) noexcept nogil
    ctypedef int (*PFN_cuMemPoolGetAttribute_v11020)(
        CUmemoryPool, CUmemPool_attribute, void*) noexcept nogil
    ctypedef int (*PFN_cuMemPoolSetAttribute_v11020)(
        CUmemoryPool, CUmemPool_attribute, void*) noexcept nogil
    ctypedef int (*PFN_cuMemHostAlloc_v2020)(void**, size_t, unsigned int) noexcept nogil
    ctypedef int (*PFN_cuMemFreeHost_v2000)(void*) noexcept nogil
    ctypedef int (*PFN_cuMemHostRegister_v6050)(void*, size_t, unsigned int) noexcept nogil
    ctypedef int (*PFN_cuMemHostUnregister_v4000)(void*) noexcept nogil

cdef PFN_cuMemAlloc_v3020 cuMemAlloc
cdef PFN_cuMemFree_v3020 cuMemFree
cdef PFN_cuPointerGetAttributes_v7000 cuPointerGetAttributes
cdef PFN_cuMemGetAllocationGranularity_v10020 cuMemGetAllocationGranularity
cdef PFN_cuMemAddressReserve_v10020 cuMemAddressReserve
cdef PFN_cuMemAddressFree_v10020 cuMemAddressFree
cdef PFN_cuMemCreate_v10020 cuMemCreate
cdef PFN_cuMemRelease_v10020 cuMemRelease
cdef PFN_cuMemMap_v10020 cuMemMap
cdef PFN_cuMemSetAccess_v10020 cuMemSetAccess
cdef PFN_cuMemUnmap_v10020 cuMemUnmap
cdef PFN_cuDeviceGetDefaultMemPool_v11020 cuDeviceGetDefaultMemPool
cdef PFN_cuMemAllocFromPoolAsync_v11020 cuMemAllocFromPoolAsync
cdef PFN_cuMemFreeAsync_v11020 cuMemFreeAsync
cdef PFN_cuMemPoolTrimTo_v11020 cuMemPoolTrimTo
cdef PFN_cuMemPoolGetAttribute_v11020 cuMemPoolGetAttribute
cdef PFN_cuMemPoolSetAttribute_v11020 cuMemPoolSetAttribute
cdef PFN_cuMemHostAlloc_v2020 cuMemHostAlloc
cdef PFN_cuMemFreeHost_v2000 cuMemFreeHost
cdef PFN_cuMemHostRegister_v6050 cuMemHostRegister
cdef PFN_cuMemHostUnregister_v4000 cuMemHostUnregister


cdef int fill_memory(Table* table, Table* blank) except -1:
    fill_plain(table, blank)
    fill_virtual(table, blank)
    fill_async(table, blank)
    fill_host(table, blank)
    return SUCCESS


# plain

cdef int fill_plain(Table* table, Table* blank) except -1:
    cdef Symbol[3] symbols = [
        Symbol(b"cuMemAlloc", 3020, <void**>&cuMemAlloc, <void**>&table.memory_alloc),
        Symbol(b"cuMemFree", 3020, <void**>&cuMemFree, <void**>&table.memory_free),
        Symbol(b"cuPointerGetAttributes", 7000, <void**>&cuPointerGetAttributes, <void**>&table.pointer_device),
    ]
    table.memory_alloc = memory_alloc
    table.memory_free = memory_free
    table.pointer_device = pointer_device
    return resolve(symbols, 3, table, blank)


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
        code = describe(address, &kind, &ordinal)
    if code == SUCCESS and kind == 0:
        code = INVALID_VALUE
    out_device[0] = ordinal if code == SUCCESS and kind != CU_MEMORYTYPE_HOST else -1
    return leave(pushed, code)


cdef int describe(uintptr_t address, unsigned int* out_kind, int* out_ordinal) noexcept nogil:
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
    if cuPointerGetAttributes == NULL or describe(address, &kind, &ordinal) != SUCCESS or kind == 0:
        return PAGEABLE
    return PAGE_LOCKED if kind == CU_MEMORYTYPE_HOST else ON_DEVICE


# virtual

cdef int fill_virtual(Table* table, Table* blank) except -1:
    cdef Symbol[8] symbols = [
        Symbol(b"cuMemGetAllocationGranularity", 10020, <void**>&cuMemGetAllocationGranularity,
               <void**>&table.granularity),
        Symbol(b"cuMemAddressReserve", 10020, <void**>&cuMemAddressReserve, <void**>&table.address_reserve),
        Symbol(b"cuMemAddressFree", 10020, <void**>&cuMemAddressFree, <void**>&table.address_free),
        Symbol(b"cuMemCreate", 10020, <void**>&cuMemCreate, <void**>&table.physical_create),
        Symbol(b"cuMemRelease", 10020, <void**>&cuMemRelease, <void**>&table.physical_release),
        Symbol(b"cuMemMap", 10020, <void**>&cuMemMap, <void**>&table.memory_map),
        Symbol(b"cuMemSetAccess", 10020, <void**>&cuMemSetAccess, <void**>&table.memory_access),
        Symbol(b"cuMemUnmap", 10020, <void**>&cuMemUnmap, <void**>&table.memory_unmap),
    ]
    table.granularity = granularity
    table.address_reserve = address_reserve
    table.address_free = address_free
    table.physical_create = physical_create
    table.physical_release = physical_release
    table.memory_map = memory_map
    table.memory_access = memory_access
    table.memory_unmap = memory_unmap
    return resolve(symbols, 8, table, blank)


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


cdef int physical_create(int device, size_t size, uintptr_t* out_handle) noexcept nogil:
    cdef CUmemGenericAllocationHandle handle = 0
    cdef CUmemAllocationProp wanted
    cdef bint pushed = False
    cdef int code = enter(device, &pushed)
    if code == SUCCESS:
        wanted = pinned_on(device)
        code = cuMemCreate(&handle, size, &wanted, 0)
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


# stream-ordered: always the device's default pool, so that it is shared with other users of that

cdef int fill_async(Table* table, Table* blank) except -1:
    cdef Symbol[6] symbols = [
        Symbol(b"cuMemAllocFromPoolAsync", 11020, <void**>&cuMemAllocFromPoolAsync, <void**>&table.async_alloc),
        Symbol(b"cuMemFreeAsync", 11020, <void**>&cuMemFreeAsync, <void**>&table.async_free),
        Symbol(b"cuMemPoolTrimTo", 11020, <void**>&cuMemPoolTrimTo, <void**>&table.async_trim),
        Symbol(b"cuMemPoolGetAttribute", 11020, <void**>&cuMemPoolGetAttribute, <void**>&table.async_get),
        Symbol(b"cuMemPoolSetAttribute", 11020, <void**>&cuMemPoolSetAttribute, <void**>&table.async_set),
        Symbol(b"cuDeviceGetDefaultMemPool", 11020, <void**>&cuDeviceGetDefaultMemPool, <void**>&table.async_alloc),
    ]
    table.async_alloc = async_alloc
    table.async_free = async_free
    table.async_trim = async_trim
    table.async_get = async_get
    table.async_set = async_set
    return resolve(symbols, 6, table, blank)


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


cdef int async_trim(int device, size_t keep) noexcept nogil:
    cdef CUmemoryPool pool = NULL
    cdef int code = default_pool(device, &pool)
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


# host

cdef int fill_host(Table* table, Table* blank) except -1:
    cdef Symbol[4] symbols = [
        Symbol(b"cuMemHostAlloc", 2020, <void**>&cuMemHostAlloc, <void**>&table.host_alloc),
        Symbol(b"cuMemFreeHost", 2000, <void**>&cuMemFreeHost, <void**>&table.host_free),
        Symbol(b"cuMemHostRegister", 6050, <void**>&cuMemHostRegister, <void**>&table.host_register),
        Symbol(b"cuMemHostUnregister", 4000, <void**>&cuMemHostUnregister, <void**>&table.host_unregister),
    ]
    table.host_alloc = host_alloc
    table.host_free = host_free
    table.host_register = host_register
    table.host_unregister = host_unregister
    return resolve(symbols, 4, table, blank)


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
