# NVIDIA's library and its functions; devices, and their primary contexts made current for one call.
from libc.stdint cimport uintptr_t

cimport accelrt.core.locks
from accelrt.driver.cuda.types cimport CUcontext, CUdevice
from accelrt.driver.table cimport Table
from accelrt.status cimport INVALID_DEVICE, SUCCESS

# One function of the library; rowgen.py writes them from the types of the pointers.
cdef struct Symbol:
    const char* name  # without a version suffix
    int version       # 12000 is 12.0
    void** function   # where its address goes; NULL is left there where the driver lacks it
    void** row        # the row that cannot work without it; NULL where there is no such row
    bint needed       # by every row: opening fails without it

cdef str reason  # why open failed; "" while it did not

# Both raise where the library is missing or too old to be asked for its functions.
cdef int start() except -1  # a status code
# Leaves unfilled, as in blank, the rows whose function is missing.  NOT_SUPPORTED where no row can work.
cdef int resolve(Symbol* symbols, int total, Table* table, Table* blank) except -1

cdef extern from "cudaTypedefs.h" nogil:
    ctypedef int (*PFN_cuCtxGetCurrent_v4000)(CUcontext*) noexcept nogil  # needed

cdef extern from *:
    CUcontext load_context "accelrt_load_pointer" (CUcontext* place) noexcept nogil
    void store_context "accelrt_store_pointer" (CUcontext* place, CUcontext context) noexcept nogil

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

cdef Table rows                       # as the modules filled them, without the waits that a signal may end

cdef int fill_context(Table* table, Table* blank) except -1  # a status code
cdef int count_devices() noexcept nogil  # after fill_context
cdef int fill_waits(Table* table, Table* blank) except -1  # after all the others

cdef int primary_of(int device, CUcontext* out_primary) noexcept nogil
cdef int enter_slow(int device, CUcontext current, bint* out_pushed) noexcept nogil
cdef int enter_any_slow(bint* out_pushed) noexcept nogil
cdef void pop() noexcept nogil
cdef int device_of_context(CUcontext context, int* out_device) noexcept nogil


# Makes the device's primary context current; every enter has its leave.  Where it is current already,
# as it mostly is, this is one call of the driver (some 20 ns) and leave is none.
cdef inline int enter(int device, bint* out_pushed) noexcept nogil:
    cdef CUcontext current = NULL
    cdef int code
    if not 0 <= device < device_total:
        return INVALID_DEVICE
    code = cuCtxGetCurrent(&current)
    if code == SUCCESS and (current == NULL or current != load_context(&devices[device].primary)):
        return enter_slow(device, current, out_pushed)
    return code


# The same for rows that name no device: whichever context the thread has will do; where it has none, it gets that
# of a device which has one.
cdef inline int enter_any(bint* out_pushed) noexcept nogil:
    cdef CUcontext current = NULL
    cdef int code = cuCtxGetCurrent(&current)
    return enter_any_slow(out_pushed) if code == SUCCESS and current == NULL else code


# The same for calls that want a context only to know whose default stream is meant (driver/cuda/DESIGN.md names them).
cdef inline int enter_for(int device, uintptr_t stream, bint* out_pushed) noexcept nogil:
    if stream > LAST_DEFAULT_STREAM:
        return SUCCESS
    return enter(device, out_pushed)


cdef inline int leave(bint pushed, int code) noexcept nogil:
    if pushed:
        pop()
    return code
