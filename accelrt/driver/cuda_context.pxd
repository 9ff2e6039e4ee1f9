# Devices, and their primary contexts made current for one call.
from libc.stdint cimport uintptr_t

from cuda.bindings.cydriver cimport CUcontext, CUdevice

from accelrt.driver.table cimport Table
from accelrt.status cimport INVALID_CONTEXT, SUCCESS

cdef extern from "cudaTypedefs.h" nogil:
    ctypedef int (*PFN_cuCtxGetCurrent_v4000)(CUcontext*) noexcept nogil

cdef extern from *:
    int ACQUIRE "__ATOMIC_ACQUIRE"
    int RELEASE "__ATOMIC_RELEASE"
    CUcontext load_context "__atomic_load_n"(CUcontext* from_, int order) noexcept nogil
    void store_context "__atomic_store_n"(CUcontext* to, CUcontext context, int order) noexcept nogil

cdef enum:
    MOST_DEVICES = 64
    LAST_DEFAULT_STREAM = 2  # 0, 1 and 2 name a default stream of whichever context is current

cdef struct Device:
    CUdevice handle     # written at open
    CUcontext primary   # NULL until the device is first needed; then the same for ever
    int reads_pageable  # whether it reaches host memory that is not page-locked; written at open

cdef int device_total                 # written at open
cdef Device[MOST_DEVICES] devices     # by ordinal
cdef PFN_cuCtxGetCurrent_v4000 cuCtxGetCurrent

cdef int fill_devices(Table* table, Table* blank) except -1  # a status code
cdef int count_devices() noexcept nogil  # after fill_devices

cdef int primary_of(int device, CUcontext* out_primary) noexcept nogil
cdef int enter_slow(int device, bint* out_pushed) noexcept nogil
cdef void pop() noexcept nogil
cdef int device_of_context(CUcontext context, int* out_device) noexcept nogil


# Makes the device's primary context current; every enter has its leave.  Where it is current already,
# as it mostly is, this is one call of the driver (some 20 ns) and leave is none.
cdef inline int enter(int device, bint* out_pushed) noexcept nogil:
    cdef CUcontext current = NULL, primary
    if 0 <= device < device_total:
        primary = load_context(&devices[device].primary, ACQUIRE)
        if primary != NULL and <int>cuCtxGetCurrent(&current) == SUCCESS and current == primary:
            return SUCCESS
    return enter_slow(device, out_pushed)


# The same for a call on a stream: one that was created knows its context and needs no other.
cdef inline int enter_for(int device, uintptr_t stream, bint* out_pushed) noexcept nogil:
    if stream > LAST_DEFAULT_STREAM:
        return SUCCESS
    return enter(device, out_pushed)


# After such a call: whether it has to be made again, because the driver wanted a context after all and the
# thread had none.  The device's is current now.
cdef inline bint wants_context(int code, int device, bint* out_pushed) noexcept nogil:
    return code == INVALID_CONTEXT and not out_pushed[0] and enter_slow(device, out_pushed) == SUCCESS and out_pushed[0]


cdef inline int leave(bint pushed, int code) noexcept nogil:
    if pushed:
        pop()
    return code
