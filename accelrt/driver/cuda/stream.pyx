"""The stream, event, copy and fill rows of the cuda driver.

A stream or an event that was created knows its context, yet the driver looks for some things in the current one
(memory that is mapped from several handles, say), so that every row but event_query has its device's current.
"""
from libc.stdint cimport uintptr_t

from accelrt.driver.cuda.types cimport (
    CU_EVENT_RECORD_EXTERNAL,
    CU_EVENT_WAIT_EXTERNAL,
    CU_STREAM_CAPTURE_STATUS_NONE,
    CUcontext,
    CUdeviceptr,
    CUevent,
    CUhostFn,
    CUstream,
    CUstreamCaptureStatus,
)

from accelrt.driver.cuda.context cimport (
    LAST_DEFAULT_STREAM, device_of_context, devices, enter, enter_any, leave, primary_of,
)
from accelrt.driver.cuda.library cimport Symbol, resolve
from accelrt.driver.cuda.memory cimport ON_DEVICE, PAGEABLE, memory_kind
from accelrt.driver.table cimport Table, host_fn
from accelrt.status cimport INVALID_VALUE, SUCCESS

cdef extern from "cudaTypedefs.h" nogil:
    ctypedef int (*PFN_cuCtxGetStreamPriorityRange_v5050)(int*, int*) noexcept nogil
    ctypedef int (*PFN_cuStreamCreateWithPriority_v5050)(CUstream*, unsigned int, int) noexcept nogil
    ctypedef int (*PFN_cuStreamDestroy_v4000)(CUstream) noexcept nogil
    ctypedef int (*PFN_cuStreamGetFlags_v5050)(CUstream, unsigned int*) noexcept nogil
    ctypedef int (*PFN_cuStreamGetCtx_v9020)(CUstream, CUcontext*) noexcept nogil
    ctypedef int (*PFN_cuStreamGetPriority_v5050)(CUstream, int*) noexcept nogil
    ctypedef int (*PFN_cuStreamQuery_v2000)(CUstream) noexcept nogil
    ctypedef int (*PFN_cuStreamSynchronize_v2000)(CUstream) noexcept nogil
    ctypedef int (*PFN_cuStreamWaitEvent_v3020)(CUstream, CUevent, unsigned int) noexcept nogil
    ctypedef int (*PFN_cuStreamIsCapturing_v10000)(CUstream, CUstreamCaptureStatus*) noexcept nogil
    ctypedef int (*PFN_cuLaunchHostFunc_v10000)(CUstream, CUhostFn, void*) noexcept nogil
    ctypedef int (*PFN_cuEventCreate_v2000)(CUevent*, unsigned int) noexcept nogil
    ctypedef int (*PFN_cuEventDestroy_v4000)(CUevent) noexcept nogil
    ctypedef int (*PFN_cuEventRecord_v2000)(CUevent, CUstream) noexcept nogil
    ctypedef int (*PFN_cuEventRecordWithFlags_v11010)(CUevent, CUstream, unsigned int) noexcept nogil
    ctypedef int (*PFN_cuEventQuery_v2000)(CUevent) noexcept nogil
    ctypedef int (*PFN_cuEventSynchronize_v2000)(CUevent) noexcept nogil
    ctypedef int (*PFN_cuEventElapsedTime_v2000)(float*, CUevent, CUevent) noexcept nogil
    ctypedef int (*PFN_cuMemcpyAsync_v4000)(CUdeviceptr, CUdeviceptr, size_t, CUstream) noexcept nogil
    ctypedef int (*PFN_cuMemcpyPeerAsync_v4000)(
        CUdeviceptr, CUcontext, CUdeviceptr, CUcontext, size_t, CUstream) noexcept nogil
    ctypedef int (*PFN_cuMemsetD8Async_v3020)(CUdeviceptr, unsigned char, size_t, CUstream) noexcept nogil
    ctypedef int (*PFN_cuMemsetD16Async_v3020)(CUdeviceptr, unsigned short, size_t, CUstream) noexcept nogil
    ctypedef int (*PFN_cuMemsetD32Async_v3020)(CUdeviceptr, unsigned int, size_t, CUstream) noexcept nogil

cdef PFN_cuCtxGetStreamPriorityRange_v5050 cuCtxGetStreamPriorityRange
cdef PFN_cuStreamCreateWithPriority_v5050 cuStreamCreateWithPriority
cdef PFN_cuStreamDestroy_v4000 cuStreamDestroy
cdef PFN_cuStreamGetFlags_v5050 cuStreamGetFlags
cdef PFN_cuStreamGetCtx_v9020 cuStreamGetCtx
cdef PFN_cuStreamGetPriority_v5050 cuStreamGetPriority
cdef PFN_cuStreamQuery_v2000 cuStreamQuery
cdef PFN_cuStreamSynchronize_v2000 cuStreamSynchronize
cdef PFN_cuStreamWaitEvent_v3020 cuStreamWaitEvent
cdef PFN_cuStreamIsCapturing_v10000 cuStreamIsCapturing
cdef PFN_cuLaunchHostFunc_v10000 cuLaunchHostFunc
cdef PFN_cuEventCreate_v2000 cuEventCreate
cdef PFN_cuEventDestroy_v4000 cuEventDestroy
cdef PFN_cuEventRecord_v2000 cuEventRecord
cdef PFN_cuEventRecordWithFlags_v11010 cuEventRecordWithFlags
cdef PFN_cuEventQuery_v2000 cuEventQuery
cdef PFN_cuEventSynchronize_v2000 cuEventSynchronize
cdef PFN_cuEventElapsedTime_v2000 cuEventElapsedTime
cdef PFN_cuMemcpyAsync_v4000 cuMemcpyAsync
cdef PFN_cuMemcpyPeerAsync_v4000 cuMemcpyPeerAsync
cdef PFN_cuMemsetD8Async_v3020 cuMemsetD8Async
cdef PFN_cuMemsetD16Async_v3020 cuMemsetD16Async
cdef PFN_cuMemsetD32Async_v3020 cuMemsetD32Async


cdef int fill_streams(Table* table, Table* blank) except -1:
    fill_stream_rows(table, blank)
    fill_event_rows(table, blank)
    fill_copy_rows(table, blank)
    return SUCCESS


# streams

cdef int fill_stream_rows(Table* table, Table* blank) except -1:
    cdef Symbol[11] symbols = [
        Symbol(b"cuCtxGetStreamPriorityRange", 5050, <void**>&cuCtxGetStreamPriorityRange,
               <void**>&table.stream_priority_range),
        Symbol(b"cuStreamCreateWithPriority", 5050, <void**>&cuStreamCreateWithPriority,
               <void**>&table.stream_create),
        Symbol(b"cuStreamDestroy", 4000, <void**>&cuStreamDestroy, <void**>&table.stream_destroy),
        Symbol(b"cuStreamGetPriority", 5050, <void**>&cuStreamGetPriority, <void**>&table.stream_priority),
        Symbol(b"cuStreamGetFlags", 5050, <void**>&cuStreamGetFlags, <void**>&table.stream_flags),
        Symbol(b"cuStreamGetCtx", 9020, <void**>&cuStreamGetCtx, <void**>&table.stream_device),
        Symbol(b"cuStreamQuery", 2000, <void**>&cuStreamQuery, <void**>&table.stream_query),
        Symbol(b"cuStreamSynchronize", 2000, <void**>&cuStreamSynchronize, <void**>&table.stream_synchronize),
        Symbol(b"cuStreamWaitEvent", 3020, <void**>&cuStreamWaitEvent, <void**>&table.stream_wait_event),
        Symbol(b"cuStreamWaitEvent", 3020, <void**>&cuStreamWaitEvent, <void**>&table.stream_wait_external),
        Symbol(b"cuLaunchHostFunc", 10000, <void**>&cuLaunchHostFunc, <void**>&table.stream_host_func),
    ]
    table.stream_priority_range = stream_priority_range
    table.stream_create = stream_create
    table.stream_destroy = stream_destroy
    table.stream_priority = stream_priority
    table.stream_flags = stream_flags
    table.stream_device = stream_device
    table.stream_query = stream_query
    table.stream_synchronize = stream_synchronize
    table.stream_wait_event = stream_wait_event
    table.stream_host_func = stream_host_func
    table.stream_wait_external = stream_wait_external
    return resolve(symbols, 11, table, blank)


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


# events

cdef int fill_event_rows(Table* table, Table* blank) except -1:
    cdef Symbol[7] symbols = [
        Symbol(b"cuEventCreate", 2000, <void**>&cuEventCreate, <void**>&table.event_create),
        Symbol(b"cuEventDestroy", 4000, <void**>&cuEventDestroy, <void**>&table.event_destroy),
        Symbol(b"cuEventRecord", 2000, <void**>&cuEventRecord, <void**>&table.event_record),
        Symbol(b"cuEventRecordWithFlags", 11010, <void**>&cuEventRecordWithFlags,
               <void**>&table.event_record_external),
        Symbol(b"cuEventQuery", 2000, <void**>&cuEventQuery, <void**>&table.event_query),
        Symbol(b"cuEventSynchronize", 2000, <void**>&cuEventSynchronize, <void**>&table.event_synchronize),
        Symbol(b"cuEventElapsedTime", 2000, <void**>&cuEventElapsedTime, <void**>&table.event_elapsed),
    ]
    table.event_create = event_create
    table.event_destroy = event_destroy
    table.event_record = event_record
    table.event_query = event_query
    table.event_synchronize = event_synchronize
    table.event_elapsed = event_elapsed
    table.event_record_external = event_record_external
    return resolve(symbols, 7, table, blank)


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

cdef int fill_copy_rows(Table* table, Table* blank) except -1:
    cdef Symbol[9] symbols = [
        Symbol(b"cuMemcpyAsync", 4000, <void**>&cuMemcpyAsync, <void**>&table.copy),
        Symbol(b"cuMemcpyAsync", 4000, <void**>&cuMemcpyAsync, <void**>&table.copy_async),
        Symbol(b"cuStreamIsCapturing", 10000, <void**>&cuStreamIsCapturing, <void**>&table.copy),
        Symbol(b"cuStreamSynchronize", 2000, <void**>&cuStreamSynchronize, <void**>&table.copy),
        Symbol(b"cuMemcpyPeerAsync", 4000, <void**>&cuMemcpyPeerAsync, <void**>&table.copy_peer),
        Symbol(b"cuMemcpyPeerAsync", 4000, <void**>&cuMemcpyPeerAsync, <void**>&table.copy_across),
        Symbol(b"cuMemsetD8Async", 3020, <void**>&cuMemsetD8Async, <void**>&table.fill),
        Symbol(b"cuMemsetD16Async", 3020, <void**>&cuMemsetD16Async, <void**>&table.fill),
        Symbol(b"cuMemsetD32Async", 3020, <void**>&cuMemsetD32Async, <void**>&table.fill),
    ]
    table.copy = copy
    table.copy_peer = copy_peer
    table.fill = fill
    table.copy_async = copy_async
    table.copy_across = copy_across
    return resolve(symbols, 9, table, blank)


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
