"""The memory rows of the cuda driver: plain, virtual, stream-ordered and host memory."""
from libc.stdint cimport uint64_t, uintptr_t
from libc.string cimport memset
from posix.fcntl cimport F_SETFD, FD_CLOEXEC, fcntl

from accelrt.driver.cuda.context cimport Symbol, device_total, devices, enter, enter_any, leave, resolve
from accelrt.driver.cuda.types cimport (
    CU_MEMHOSTALLOC_PORTABLE, CU_MEMHOSTREGISTER_PORTABLE, CU_MEMORYTYPE_HOST, CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    CU_MEM_ALLOCATION_TYPE_PINNED, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
    CU_MEM_LOCATION_TYPE_DEVICE,
    CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CUdevice, CUdeviceptr, CUmemAccessDesc,
    CUmemAllocationGranularity_flags, CUmemAllocationHandleType, CUmemAllocationProp, CUmemGenericAllocationHandle,
    CUmemPool_attribute, CUmemoryPool, CUpointer_attribute, CUstream,
)
from accelrt.driver.table cimport Table
from accelrt.status cimport INVALID_DEVICE, INVALID_VALUE, NOT_SUPPORTED, SUCCESS

cdef extern from "cudaTypedefs.h" nogil:
    ctypedef int (*PFN_cuMemAlloc_v3020)(CUdeviceptr*, size_t) noexcept nogil  # memory_alloc
    ctypedef int (*PFN_cuMemFree_v3020)(CUdeviceptr) noexcept nogil  # memory_free
    ctypedef int (*PFN_cuPointerGetAttributes_v7000)(
        unsigned int, CUpointer_attribute*, void**, CUdeviceptr) noexcept nogil  # pointer_device
    ctypedef int (*PFN_cuMemGetAllocationGranularity_v10020)(
        size_t*, const CUmemAllocationProp*, CUmemAllocationGranularity_flags) noexcept nogil  # granularity
    ctypedef int (*PFN_cuMemAddressReserve_v10020)(
        CUdeviceptr*, size_t, size_t, CUdeviceptr, unsigned long long) noexcept nogil  # address_reserve
    ctypedef int (*PFN_cuMemAddressFree_v10020)(CUdeviceptr, size_t) noexcept nogil  # address_free
    ctypedef int (*PFN_cuMemCreate_v10020)(
        CUmemGenericAllocationHandle*, size_t, const CUmemAllocationProp*,
        unsigned long long) noexcept nogil  # physical_create, physical_create_shared
    ctypedef int (*PFN_cuMemExportToShareableHandle_v10020)(
        void*, CUmemGenericAllocationHandle, CUmemAllocationHandleType,
        unsigned long long) noexcept nogil  # physical_export
    ctypedef int (*PFN_cuMemImportFromShareableHandle_v10020)(
        CUmemGenericAllocationHandle*, void*, CUmemAllocationHandleType) noexcept nogil  # physical_import
    ctypedef int (*PFN_cuMemRelease_v10020)(CUmemGenericAllocationHandle) noexcept nogil  # physical_release
    ctypedef int (*PFN_cuMemMap_v10020)(
        CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long) noexcept nogil  # memory_map
    ctypedef int (*PFN_cuMemSetAccess_v10020)(
        CUdeviceptr, size_t, const CUmemAccessDesc*, size_t) noexcept nogil  # memory_access
    ctypedef int (*PFN_cuMemUnmap_v10020)(CUdeviceptr, size_t) noexcept nogil  # memory_unmap
    ctypedef int (*PFN_cuMemAllocFromPoolAsync_v11020)(
        CUdeviceptr*, size_t, CUmemoryPool, CUstream) noexcept nogil  # async_alloc
    ctypedef int (*PFN_cuMemFreeAsync_v11020)(CUdeviceptr, CUstream) noexcept nogil  # async_free
    ctypedef int (*PFN_cuMemPoolTrimTo_v11020)(CUmemoryPool, size_t) noexcept nogil  # async_trim
    ctypedef int (*PFN_cuMemPoolGetAttribute_v11020)(
        CUmemoryPool, CUmemPool_attribute, void*) noexcept nogil  # async_get
    ctypedef int (*PFN_cuMemPoolSetAttribute_v11020)(
        CUmemoryPool, CUmemPool_attribute, void*) noexcept nogil  # async_set
    ctypedef int (*PFN_cuDeviceGetDefaultMemPool_v11020)(CUmemoryPool*, CUdevice) noexcept nogil  # async_alloc
    ctypedef int (*PFN_cuMemHostAlloc_v2020)(void**, size_t, unsigned int) noexcept nogil  # host_alloc
    ctypedef int (*PFN_cuMemFreeHost_v2000)(void*) noexcept nogil  # host_free
    ctypedef int (*PFN_cuMemHostRegister_v6050)(void*, size_t, unsigned int) noexcept nogil  # host_register
    ctypedef int (*PFN_cuMemHostUnregister_v4000)(void*) noexcept nogil  # host_unregister

include "memory_rows.pxi"


# plain

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


cdef int create(int device, size_t size, bint shared, uintptr_t* out_handle) noexcept nogil:
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
    return create(device, size, False, out_handle)


cdef int physical_create_shared(int device, size_t size, uintptr_t* out_handle) noexcept nogil:
    return create(device, size, True, out_handle)


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


# stream-ordered: always the device's default pool, so that it is shared with other users of that

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
