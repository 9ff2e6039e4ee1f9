"""Holds up the other modules of the cuda driver: devices, their primary contexts made current for one call, and what kind of
memory an address is of.
"""
from libc.stdint cimport uintptr_t

from accelrt.driver.cuda.types cimport (
    CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS, CU_MEMORYTYPE_HOST,
    CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CUpointer_attribute,
)
from accelrt.status cimport NO_DEVICE

# devices

cdef int count_devices() noexcept nogil:
    global all_concurrent, device_total, library_version
    cdef int found = 0, index, concurrent = 0, code = cuDeviceGetCount(&found)
    cdef bint all_are = True
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
        if code == SUCCESS:
            code = cuDeviceGetAttribute(
                &concurrent, CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, devices[index].handle)
        if code != SUCCESS:
            return code
        all_are = all_are and concurrent
    if cuDriverGetVersion != NULL:
        cuDriverGetVersion(&library_version)
    all_concurrent = all_are
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


# memory

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
