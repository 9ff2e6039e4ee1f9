"""The rows of the cuda driver for modules, functions, launches and kernel nodes."""
from libc.stdint cimport uintptr_t
from libc.string cimport memset

from accelrt.driver.cuda.context cimport Symbol, enter, enter_any, leave, resolve
from accelrt.driver.cuda.types cimport (
    CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES, CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION,
    CU_LAUNCH_ATTRIBUTE_COOPERATIVE, CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION, CUDA_KERNEL_NODE_PARAMS,
    CUdeviceptr, CUfunction, CUfunction_attribute, CUgraphExec, CUgraphNode, CUjit_option, CUlaunchAttribute,
    CUlaunchConfig, CUmodule, CUmoduleLoadingMode, CUoccupancyB2DSize, CUstream,
)
from accelrt.driver.table cimport LAUNCH_COOPERATIVE, LAUNCH_PROGRAMMATIC, LOG_BYTES, Table
from accelrt.status cimport SUCCESS

cdef extern from "cudaTypedefs.h" nogil:
    ctypedef int (*PFN_cuModuleLoadData_v2000)(CUmodule*, const void*) noexcept nogil  # module_load
    ctypedef int (*PFN_cuModuleLoadDataEx_v2010)(
        CUmodule*, const void*, unsigned int, CUjit_option*, void**) noexcept nogil  # module_log
    ctypedef int (*PFN_cuModuleUnload_v2000)(CUmodule) noexcept nogil  # module_unload
    ctypedef int (*PFN_cuModuleGetLoadingMode_v11070)(CUmoduleLoadingMode*) noexcept nogil  # module_loading
    ctypedef int (*PFN_cuModuleGetFunction_v2000)(CUfunction*, CUmodule, const char*) noexcept nogil  # module_function
    ctypedef int (*PFN_cuModuleGetGlobal_v3020)(
        CUdeviceptr*, size_t*, CUmodule, const char*) noexcept nogil  # module_global
    ctypedef int (*PFN_cuFuncGetAttribute_v2020)(
        int*, CUfunction_attribute, CUfunction) noexcept nogil  # function_attribute
    ctypedef int (*PFN_cuFuncSetAttribute_v9000)(
        CUfunction, CUfunction_attribute, int) noexcept nogil  # function_attribute_set
    ctypedef int (*PFN_cuLaunchKernel_v4000)(
        CUfunction, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int, unsigned
        int, CUstream, void**, void**) noexcept nogil  # kernel_launch
    ctypedef int (*PFN_cuLaunchKernelEx_v11060)(
        const CUlaunchConfig*, CUfunction, void**, void**) noexcept nogil  # kernel_launch_with
    ctypedef int (*PFN_cuOccupancyMaxActiveBlocksPerMultiprocessor_v6050)(
        int*, CUfunction, int, size_t) noexcept nogil  # occupancy_blocks
    ctypedef int (*PFN_cuOccupancyMaxPotentialBlockSize_v6050)(
        int*, int*, CUfunction, CUoccupancyB2DSize, size_t, int) noexcept nogil  # occupancy_block_size
    ctypedef int (*PFN_cuOccupancyMaxActiveClusters_v11070)(
        int*, CUfunction, const CUlaunchConfig*) noexcept nogil  # occupancy_clusters
    ctypedef int (*PFN_cuGraphKernelNodeGetParams_v12000)(
        CUgraphNode, CUDA_KERNEL_NODE_PARAMS*) noexcept nogil  # kernel_node
    ctypedef int (*PFN_cuGraphKernelNodeSetParams_v12000)(
        CUgraphNode, const CUDA_KERNEL_NODE_PARAMS*) noexcept nogil  # kernel_node_set
    ctypedef int (*PFN_cuGraphExecKernelNodeSetParams_v12000)(
        CUgraphExec, CUgraphNode, const CUDA_KERNEL_NODE_PARAMS*) noexcept nogil  # kernel_node_set

# Typed by hand: headers have had it since 12.4 only.
ctypedef int (*PFN_cuFuncGetParamInfo_v12040)(CUfunction, size_t, size_t*, size_t*) noexcept nogil  # function_parameter

include "kernel_rows.pxi"


# modules and their functions

cdef int module_loading(int* out_mode) noexcept nogil:
    return cuModuleGetLoadingMode(<CUmoduleLoadingMode*>out_mode)


cdef int module_load(int device, const char* image, uintptr_t* out_module) noexcept nogil:
    cdef CUmodule module = NULL
    cdef bint pushed = False
    cdef int code = enter(device, &pushed)
    if code == SUCCESS:
        code = cuModuleLoadData(&module, image)
    out_module[0] = <uintptr_t>module if code == SUCCESS else 0
    return leave(pushed, code)


cdef int module_log(int device, const char* image, char* out_log) noexcept nogil:
    # What NVIDIA's loader finds wrong is in the log of errors; a module that it loads is given back.
    cdef CUjit_option[2] options = [CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES]
    cdef void* values[2]
    cdef CUmodule module = NULL
    cdef bint pushed = False
    cdef int code = enter(device, &pushed)
    memset(out_log, 0, LOG_BYTES)
    values[0], values[1] = <void*>out_log, <void*><uintptr_t>(LOG_BYTES - 1)
    if code == SUCCESS and <int>cuModuleLoadDataEx(&module, image, 2, options, values) == SUCCESS:
        cuModuleUnload(module)
    return leave(pushed, code)


cdef int module_unload(int device, uintptr_t module) noexcept nogil:
    cdef bint pushed = False
    cdef int code = enter(device, &pushed)
    if code == SUCCESS:
        code = cuModuleUnload(<CUmodule>module)
    return leave(pushed, code)


cdef int module_function(uintptr_t module, const char* name, uintptr_t* out_function) noexcept nogil:
    cdef CUfunction function = NULL
    cdef bint pushed = False
    cdef int code = enter_any(&pushed)
    if code == SUCCESS:
        code = cuModuleGetFunction(&function, <CUmodule>module, name)
    out_function[0] = <uintptr_t>function if code == SUCCESS else 0
    return leave(pushed, code)


cdef int module_global(uintptr_t module, const char* name, uintptr_t* out_address, size_t* out_size) noexcept nogil:
    cdef CUdeviceptr address = 0
    cdef bint pushed = False
    cdef int code = enter_any(&pushed)
    out_size[0] = 0
    if code == SUCCESS:
        code = cuModuleGetGlobal(&address, out_size, <CUmodule>module, name)
    out_address[0] = address if code == SUCCESS else 0
    return leave(pushed, code)


cdef int function_attribute(uintptr_t function, int attribute, int* out_value) noexcept nogil:
    cdef bint pushed = False
    cdef int code = enter_any(&pushed)
    out_value[0] = 0
    if code == SUCCESS:
        code = cuFuncGetAttribute(out_value, <CUfunction_attribute>attribute, <CUfunction>function)
    return leave(pushed, code)


cdef int function_attribute_set(uintptr_t function, int attribute, int value) noexcept nogil:
    cdef bint pushed = False
    cdef int code = enter_any(&pushed)
    if code == SUCCESS:
        code = cuFuncSetAttribute(<CUfunction>function, <CUfunction_attribute>attribute, value)
    return leave(pushed, code)


cdef int function_parameter(uintptr_t function, size_t index, size_t* out_offset, size_t* out_size) noexcept nogil:
    cdef bint pushed = False
    cdef int code = enter_any(&pushed)
    out_offset[0] = out_size[0] = 0
    if code == SUCCESS:
        code = cuFuncGetParamInfo(<CUfunction>function, index, out_offset, out_size)
    return leave(pushed, code)


cdef int occupancy_blocks(uintptr_t function, int threads, size_t shared_bytes, int* out_blocks) noexcept nogil:
    cdef bint pushed = False
    cdef int code = enter_any(&pushed)
    out_blocks[0] = 0
    if code == SUCCESS:
        code = cuOccupancyMaxActiveBlocksPerMultiprocessor(out_blocks, <CUfunction>function, threads, shared_bytes)
    return leave(pushed, code)


cdef int occupancy_block_size(
    uintptr_t function, size_t shared_bytes, int limit, int* out_grid, int* out_threads
) noexcept nogil:
    cdef bint pushed = False
    cdef int code = enter_any(&pushed)
    out_grid[0] = out_threads[0] = 0
    if code == SUCCESS:
        code = cuOccupancyMaxPotentialBlockSize(out_grid, out_threads, <CUfunction>function, NULL, shared_bytes, limit)
    return leave(pushed, code)


# launches

cdef int kernel_launch(int device, uintptr_t stream, uintptr_t function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z, unsigned int block_x, unsigned int block_y, unsigned int block_z, unsigned int shared_bytes, void** arguments) noexcept nogil:  # no-cython-lint
    cdef bint pushed = False
    cdef int code = enter(device, &pushed)
    if code == SUCCESS:
        code = cuLaunchKernel(<CUfunction>function, grid_x, grid_y, grid_z, block_x, block_y, block_z,
                              shared_bytes, <CUstream>stream, arguments, NULL)
    return leave(pushed, code)


cdef void describe(
    CUlaunchConfig* config, uintptr_t stream, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
    unsigned int block_x, unsigned int block_y, unsigned int block_z, unsigned int shared_bytes
) noexcept nogil:
    memset(config, 0, sizeof(CUlaunchConfig))
    config.hStream = <CUstream>stream
    config.gridDimX = grid_x
    config.gridDimY = grid_y
    config.gridDimZ = grid_z
    config.blockDimX = block_x
    config.blockDimY = block_y
    config.blockDimZ = block_z
    config.sharedMemBytes = shared_bytes


cdef CUlaunchAttribute* add_attribute(CUlaunchConfig* config, int kind) noexcept nogil:
    cdef CUlaunchAttribute* added = &config.attrs[config.numAttrs]
    memset(added, 0, sizeof(CUlaunchAttribute))
    added.id = kind
    config.numAttrs += 1
    return added


cdef void add_cluster(CUlaunchConfig* config, unsigned int x, unsigned int y, unsigned int z) noexcept nogil:
    cdef CUlaunchAttribute* added = add_attribute(config, CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION)
    added.value.clusterDim.x = x
    added.value.clusterDim.y = y
    added.value.clusterDim.z = z


cdef int kernel_launch_with(int device, uintptr_t stream, uintptr_t function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z, unsigned int block_x, unsigned int block_y, unsigned int block_z, unsigned int shared_bytes, void** arguments, unsigned int flags, unsigned int cluster_x, unsigned int cluster_y, unsigned int cluster_z) noexcept nogil:  # no-cython-lint
    cdef CUlaunchConfig config
    cdef CUlaunchAttribute[3] attributes
    cdef bint pushed = False
    cdef int code = enter(device, &pushed)
    describe(&config, stream, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes)
    config.attrs = attributes
    if flags & LAUNCH_COOPERATIVE:
        add_attribute(&config, CU_LAUNCH_ATTRIBUTE_COOPERATIVE).value.cooperative = 1
    if flags & LAUNCH_PROGRAMMATIC:
        add_attribute(&config, CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION).value.programmaticStreamSerializationAllowed = 1  # no-cython-lint
    if cluster_x:
        add_cluster(&config, cluster_x, cluster_y, cluster_z)
    if code == SUCCESS:
        code = cuLaunchKernelEx(&config, <CUfunction>function, arguments, NULL)
    return leave(pushed, code)


cdef int occupancy_clusters(int device, uintptr_t function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z, unsigned int block_x, unsigned int block_y, unsigned int block_z, unsigned int shared_bytes, unsigned int cluster_x, unsigned int cluster_y, unsigned int cluster_z, int* out_clusters) noexcept nogil:  # no-cython-lint
    cdef CUlaunchConfig config
    cdef CUlaunchAttribute[1] attributes
    cdef bint pushed = False
    cdef int code = enter(device, &pushed)
    out_clusters[0] = 0
    describe(&config, 0, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes)
    config.attrs = attributes
    add_cluster(&config, cluster_x, cluster_y, cluster_z)
    if code == SUCCESS:
        code = cuOccupancyMaxActiveClusters(out_clusters, <CUfunction>function, &config)
    return leave(pushed, code)


# kernel nodes

cdef int kernel_node(uintptr_t graph, uintptr_t node, uintptr_t* out_function, unsigned int* out_grid_x, unsigned int* out_grid_y, unsigned int* out_grid_z, unsigned int* out_block_x, unsigned int* out_block_y, unsigned int* out_block_z, unsigned int* out_shared_bytes, uintptr_t* out_arguments) noexcept nogil:  # no-cython-lint
    cdef CUDA_KERNEL_NODE_PARAMS found
    cdef bint pushed = False
    cdef int code = enter_any(&pushed)
    memset(&found, 0, sizeof(found))
    if code == SUCCESS:
        code = cuGraphKernelNodeGetParams(<CUgraphNode>node, &found)
    out_function[0] = <uintptr_t>found.func
    out_grid_x[0], out_grid_y[0], out_grid_z[0] = found.gridDimX, found.gridDimY, found.gridDimZ
    out_block_x[0], out_block_y[0], out_block_z[0] = found.blockDimX, found.blockDimY, found.blockDimZ
    out_shared_bytes[0] = found.sharedMemBytes
    out_arguments[0] = <uintptr_t>found.kernelParams
    return leave(pushed, code)


cdef int kernel_node_set(uintptr_t graph, uintptr_t exec_, uintptr_t node, uintptr_t function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z, unsigned int block_x, unsigned int block_y, unsigned int block_z, unsigned int shared_bytes, void** arguments) noexcept nogil:  # no-cython-lint
    cdef CUDA_KERNEL_NODE_PARAMS given
    cdef bint pushed = False
    cdef int code = enter_any(&pushed)
    memset(&given, 0, sizeof(given))
    given.func = <CUfunction>function
    given.gridDimX, given.gridDimY, given.gridDimZ = grid_x, grid_y, grid_z
    given.blockDimX, given.blockDimY, given.blockDimZ = block_x, block_y, block_z
    given.sharedMemBytes = shared_bytes
    given.kernelParams = arguments
    if code == SUCCESS and exec_:
        code = cuGraphExecKernelNodeSetParams(<CUgraphExec>exec_, <CUgraphNode>node, &given)
    elif code == SUCCESS:
        code = cuGraphKernelNodeSetParams(<CUgraphNode>node, &given)
    return leave(pushed, code)
