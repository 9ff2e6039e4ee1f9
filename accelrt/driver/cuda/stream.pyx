"""The stream, event, copy and fill rows of the cuda driver.

A stream or an event that was created knows its context, yet the driver looks for some things in the current one
(memory that is mapped from several handles, say), so that every row but event_query has its device's current.
"""
from libc.stdint cimport uintptr_t
from libc.string cimport memset

from accelrt.driver.cuda.context cimport (
    LAST_DEFAULT_STREAM, Symbol, device_of_context, devices, enter, enter_any, leave, primary_of, resolve,
)
from accelrt.driver.cuda.memory cimport ON_DEVICE, PAGEABLE, memory_kind
from accelrt.driver.cuda.types cimport (
    CU_EVENT_RECORD_EXTERNAL, CU_EVENT_WAIT_EXTERNAL, CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW, CU_MEMORYTYPE_UNIFIED,
    CU_STREAM_CAPTURE_STATUS_NONE, CUDA_MEMCPY3D_v2, CUaccessProperty, CUcontext, CUdeviceptr, CUevent, CUhostFn,
    CUlaunchAttributeID, CUlaunchAttributeValue, CUstream, CUstreamCaptureStatus,
)
from accelrt.driver.table cimport Table, host_fn
from accelrt.status cimport INVALID_VALUE, SUCCESS

cdef extern from "cudaTypedefs.h" nogil:
    ctypedef int (*PFN_cuCtxGetStreamPriorityRange_v5050)(int*, int*) noexcept nogil  # stream_priority_range
    ctypedef int (*PFN_cuStreamCreateWithPriority_v5050)(CUstream*, unsigned int, int) noexcept nogil  # stream_create
    ctypedef int (*PFN_cuStreamDestroy_v4000)(CUstream) noexcept nogil  # stream_destroy
    ctypedef int (*PFN_cuStreamGetPriority_v5050)(CUstream, int*) noexcept nogil  # stream_priority
    ctypedef int (*PFN_cuStreamGetFlags_v5050)(CUstream, unsigned int*) noexcept nogil  # stream_flags
    ctypedef int (*PFN_cuStreamGetCtx_v9020)(CUstream, CUcontext*) noexcept nogil  # stream_device
    ctypedef int (*PFN_cuStreamQuery_v2000)(CUstream) noexcept nogil  # stream_query
    ctypedef int (*PFN_cuStreamSynchronize_v2000)(CUstream) noexcept nogil  # stream_synchronize, copy
    ctypedef int (*PFN_cuStreamWaitEvent_v3020)(
        CUstream, CUevent, unsigned int) noexcept nogil  # stream_wait_event, stream_wait_external
    ctypedef int (*PFN_cuLaunchHostFunc_v10000)(CUstream, CUhostFn, void*) noexcept nogil  # stream_host_func
    ctypedef int (*PFN_cuStreamSetAttribute_v11000)(
        CUstream, CUlaunchAttributeID, const CUlaunchAttributeValue*) noexcept nogil  # stream_window_set
    ctypedef int (*PFN_cuStreamGetAttribute_v11000)(
        CUstream, CUlaunchAttributeID, CUlaunchAttributeValue*) noexcept nogil  # stream_window_get
    ctypedef int (*PFN_cuEventCreate_v2000)(CUevent*, unsigned int) noexcept nogil  # event_create
    ctypedef int (*PFN_cuEventDestroy_v4000)(CUevent) noexcept nogil  # event_destroy
    ctypedef int (*PFN_cuEventRecord_v2000)(CUevent, CUstream) noexcept nogil  # event_record
    ctypedef int (*PFN_cuEventRecordWithFlags_v11010)(
        CUevent, CUstream, unsigned int) noexcept nogil  # event_record_external
    ctypedef int (*PFN_cuEventQuery_v2000)(CUevent) noexcept nogil  # event_query
    ctypedef int (*PFN_cuEventSynchronize_v2000)(CUevent) noexcept nogil  # event_synchronize
    ctypedef int (*PFN_cuEventElapsedTime_v2000)(float*, CUevent, CUevent) noexcept nogil  # event_elapsed
    ctypedef int (*PFN_cuMemcpyAsync_v4000)(
        CUdeviceptr, CUdeviceptr, size_t, CUstream) noexcept nogil  # copy, copy_async
    ctypedef int (*PFN_cuStreamIsCapturing_v10000)(CUstream, CUstreamCaptureStatus*) noexcept nogil  # copy
    ctypedef int (*PFN_cuMemcpyPeerAsync_v4000)(
        CUdeviceptr, CUcontext, CUdeviceptr, CUcontext, size_t, CUstream) noexcept nogil  # copy_peer, copy_across
    ctypedef int (*PFN_cuMemcpy3DAsync_v3020)(const CUDA_MEMCPY3D_v2*, CUstream) noexcept nogil  # copy_3d
    ctypedef int (*PFN_cuMemsetD8Async_v3020)(CUdeviceptr, unsigned char, size_t, CUstream) noexcept nogil  # fill
    ctypedef int (*PFN_cuMemsetD16Async_v3020)(CUdeviceptr, unsigned short, size_t, CUstream) noexcept nogil  # fill
    ctypedef int (*PFN_cuMemsetD32Async_v3020)(CUdeviceptr, unsigned int, size_t, CUstream) noexcept nogil  # fill

include "stream_rows.pxi"


# streams

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


cdef int stream_window_set(int device, uintptr_t stream, uintptr_t address, size_t size, float hit_ratio, int hit,
                           int miss) noexcept nogil:
    cdef CUlaunchAttributeValue value
    cdef bint pushed = False
    cdef int code = enter(device, &pushed)
    memset(&value, 0, sizeof(value))
    value.accessPolicyWindow.base_ptr = <void*>address
    value.accessPolicyWindow.num_bytes = size
    value.accessPolicyWindow.hitRatio = hit_ratio
    value.accessPolicyWindow.hitProp = <CUaccessProperty>hit
    value.accessPolicyWindow.missProp = <CUaccessProperty>miss
    if code == SUCCESS:
        code = cuStreamSetAttribute(<CUstream>stream, CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW, &value)
    return leave(pushed, code)


cdef int stream_window_get(int device, uintptr_t stream, uintptr_t* out_address, size_t* out_size, float* out_hit_ratio,
                           int* out_hit, int* out_miss) noexcept nogil:
    cdef CUlaunchAttributeValue value
    cdef bint pushed = False
    cdef int code = enter(device, &pushed)
    memset(&value, 0, sizeof(value))
    if code == SUCCESS:
        code = cuStreamGetAttribute(<CUstream>stream, CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW, &value)
    out_address[0] = <uintptr_t>value.accessPolicyWindow.base_ptr
    out_size[0] = value.accessPolicyWindow.num_bytes
    out_hit_ratio[0] = value.accessPolicyWindow.hitRatio
    out_hit[0] = value.accessPolicyWindow.hitProp
    out_miss[0] = value.accessPolicyWindow.missProp
    return leave(pushed, code)


# events

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


cdef int copy_3d(int device, uintptr_t stream, uintptr_t dst, size_t dst_pitch, size_t dst_lines, uintptr_t src,
                 size_t src_pitch, size_t src_lines, size_t width, size_t height, size_t depth) noexcept nogil:
    # The driver sees from the addresses which side is where (cuMemcpy3DAsync, CU_MEMORYTYPE_UNIFIED).  It wants slices as
    # high as the copy, of one slice too, where they say nothing.
    cdef CUDA_MEMCPY3D_v2 params
    cdef bint pushed = False
    cdef int code = enter(device, &pushed)
    if code == SUCCESS and width and height and depth:
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
        code = cuMemcpy3DAsync(&params, <CUstream>stream)
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
