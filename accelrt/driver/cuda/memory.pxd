# Devices, their primary contexts made current for one call, and what else the two modules of the cuda driver share.
from libc.stdint cimport uintptr_t

cimport accelrt.core.locks
from accelrt.driver.cuda.functions cimport (
    PFN_cuDriverGetVersion_v2020, PFN_cuDeviceGet_v2000, PFN_cuDeviceGetCount_v2000, PFN_cuDeviceGetAttribute_v2000,
    PFN_cuCtxGetCurrent_v4000, PFN_cuCtxPushCurrent_v4000, PFN_cuCtxPopCurrent_v4000,
    PFN_cuDevicePrimaryCtxRetain_v7000, PFN_cuDevicePrimaryCtxGetState_v7000, PFN_cuPointerGetAttributes_v7000,
)
from accelrt.driver.cuda.graph_functions cimport PFN_cuStreamIsCapturing_v10000
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

# Asks the library for functions; where it lacks one, the row that cannot work without it goes back to what it is in blank.
ctypedef int (*resolve_fn)(Symbol* symbols, int total, Table* table, Table* blank) except -1

cdef extern from *:
    CUcontext load_context "accelrt_load_pointer" (CUcontext* place) noexcept nogil
    void store_context "accelrt_store_pointer" (CUcontext* place, CUcontext context) noexcept nogil
    uintptr_t load_function "accelrt_load_pointer" (uintptr_t* place) noexcept nogil
    void store_function "accelrt_store_pointer" (uintptr_t* place, uintptr_t function) noexcept nogil

cdef enum:
    MOST_DEVICES = 64
    LAST_DEFAULT_STREAM = 2  # 0, 1 and 2 name a default stream of whichever context is current

cdef enum:  # kinds of memory
    PAGEABLE = 0  # host memory that is not page-locked
    PAGE_LOCKED = 1
    ON_DEVICE = 2

cdef struct Device:
    CUdevice handle     # written at open
    CUcontext primary   # NULL until the device is first needed; then the same for ever
    int reads_pageable  # whether it reaches host memory that is not page-locked; written at open
    int takes_rdma      # whether network cards may reach its virtual memory, where that asks for it; written at open

cdef int device_total              # written at open
cdef Device[MOST_DEVICES] devices  # by ordinal
cdef int library_version           # of the driver, as 13000 is 13.0; written at open
cdef bint all_concurrent           # every device uses managed memory beside the host: so batches of it may be moved
cdef Table rows                    # the driver's table without the waits that a signal may end; written at open

# Functions of the library that both modules call; driver.pyx asks for them.
cdef PFN_cuDriverGetVersion_v2020 cuDriverGetVersion
cdef PFN_cuDeviceGet_v2000 cuDeviceGet
cdef PFN_cuDeviceGetCount_v2000 cuDeviceGetCount
cdef PFN_cuDeviceGetAttribute_v2000 cuDeviceGetAttribute
cdef PFN_cuCtxGetCurrent_v4000 cuCtxGetCurrent
cdef PFN_cuCtxPushCurrent_v4000 cuCtxPushCurrent
cdef PFN_cuCtxPopCurrent_v4000 cuCtxPopCurrent
cdef PFN_cuDevicePrimaryCtxRetain_v7000 cuDevicePrimaryCtxRetain
cdef PFN_cuDevicePrimaryCtxGetState_v7000 cuDevicePrimaryCtxGetState
cdef PFN_cuPointerGetAttributes_v7000 cuPointerGetAttributes
cdef PFN_cuStreamIsCapturing_v10000 cuStreamIsCapturing

cdef void fill_memory(Table* table) noexcept nogil
cdef int resolve_memory(resolve_fn resolve, Table* table, Table* blank) except -1
cdef int count_devices() noexcept nogil
cdef int primary_of(int device, CUcontext* out_primary) noexcept nogil
cdef int describe_pointer(uintptr_t address, unsigned int* out_kind, int* out_ordinal) noexcept nogil
cdef int memory_kind(uintptr_t address) noexcept nogil
cdef int enter_slow(int device, CUcontext current, bint* out_pushed) noexcept nogil
cdef int enter_any_slow(bint* out_pushed) noexcept nogil
cdef void pop_context() noexcept nogil


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
        pop_context()
    return code
