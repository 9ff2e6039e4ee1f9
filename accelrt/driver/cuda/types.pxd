# The types and constants of cuda.h that the cuda driver's rows name.
#
# They come from the headers themselves, so that no .pxd of another package has to fit the headers.  Pointer types
# are void* and enumerations int to Cython; the C compiler sees the real ones and checks every call against the
# PFN_ type that cudaTypedefs.h has for it.  Headers of CUDA 12.3 and later have all of this; setup.py checks it.
from libc.stdint cimport uint64_t

cdef extern from "cudaTypedefs.h" nogil:
    ctypedef int CUdevice
    ctypedef unsigned long long CUdeviceptr
    ctypedef unsigned long long CUmemGenericAllocationHandle
    ctypedef uint64_t cuuint64_t
    ctypedef uint64_t CUgraphConditionalHandle
    ctypedef void (*CUhostFn)(void* data) noexcept

    ctypedef void* CUcontext
    ctypedef void* CUmodule
    ctypedef void* CUfunction
    ctypedef void* CUstream
    ctypedef void* CUevent
    ctypedef void* CUmemoryPool
    ctypedef void* CUarray
    ctypedef void* CUmipmappedArray
    ctypedef void* CUgraph
    ctypedef void* CUgraphNode
    ctypedef void* CUgraphExec

    ctypedef int CUdevice_attribute
    ctypedef int CUpointer_attribute
    ctypedef int CUmemPool_attribute
    ctypedef int CUmemAllocationType
    ctypedef int CUmemAllocationHandleType
    ctypedef int CUmemAllocationGranularity_flags
    ctypedef int CUmemAccess_flags
    ctypedef int CUmemLocationType
    ctypedef int CUmem_advise
    ctypedef int CUmem_range_attribute
    ctypedef int CUstreamCaptureMode
    ctypedef int CUstreamCaptureStatus
    ctypedef int CUgraphNodeType
    ctypedef int CUgraphConditionalNodeType
    ctypedef int CUgraphMem_attribute
    ctypedef int CUgraphExecUpdateResult
    ctypedef int CUfunction_attribute
    ctypedef int CUjit_option
    ctypedef int CUlaunchAttributeID
    ctypedef int CUaccessProperty
    ctypedef int CUsynchronizationPolicy
    ctypedef int CUlaunchMemSyncDomain
    ctypedef int CUlimit
    ctypedef int CUmoduleLoadingMode
    ctypedef size_t (*CUoccupancyB2DSize)(int threads) noexcept

    int CU_GET_PROC_ADDRESS_LEGACY_STREAM
    int CU_JIT_ERROR_LOG_BUFFER
    int CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES
    int CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS
    int CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED
    int CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS
    int CU_POINTER_ATTRIBUTE_MEMORY_TYPE
    int CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
    int CU_POINTER_ATTRIBUTE_IS_MANAGED
    int CU_POINTER_ATTRIBUTE_RANGE_START_ADDR
    int CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE
    int CU_POINTER_ATTRIBUTE_RANGE_SIZE
    unsigned int CU_MEMORYTYPE_HOST
    unsigned int CU_MEMORYTYPE_ARRAY
    unsigned int CU_MEMORYTYPE_UNIFIED
    int CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    int CU_MEM_ALLOCATION_TYPE_PINNED
    int CU_MEM_ALLOC_GRANULARITY_RECOMMENDED
    int CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
    int CU_MEM_LOCATION_TYPE_DEVICE
    unsigned int CU_MEMHOSTALLOC_PORTABLE
    unsigned int CU_MEMHOSTREGISTER_PORTABLE
    unsigned int CU_EVENT_RECORD_EXTERNAL
    unsigned int CU_EVENT_WAIT_EXTERNAL
    int CU_STREAM_CAPTURE_STATUS_NONE
    int CU_STREAM_CAPTURE_STATUS_ACTIVE
    unsigned int CU_STREAM_SET_CAPTURE_DEPENDENCIES
    unsigned int CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS
    int CU_GRAPH_NODE_TYPE_CONDITIONAL
    unsigned int CU_GRAPH_COND_ASSIGN_DEFAULT
    int CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW
    int CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
    int CU_LAUNCH_ATTRIBUTE_COOPERATIVE
    int CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION

    ctypedef struct CUuuid:
        pass
    ctypedef struct CUipcEventHandle:
        pass
    ctypedef struct CUipcMemHandle:
        pass
    ctypedef struct CUgraphEdgeData:
        pass
    ctypedef struct CUmemLocation:
        CUmemLocationType type
        int id
    ctypedef struct AllocationFlags:  # which the header does not name: only its fields can be
        unsigned char gpuDirectRDMACapable
    ctypedef struct CUmemAllocationProp:
        CUmemAllocationType type
        CUmemAllocationHandleType requestedHandleTypes
        CUmemLocation location
        AllocationFlags allocFlags
    ctypedef struct CUmemAccessDesc:
        CUmemLocation location
        CUmemAccess_flags flags
    ctypedef struct CUDA_MEMCPY3D_v2:
        size_t srcXInBytes
        size_t srcY
        size_t srcZ
        unsigned int srcMemoryType
        const void* srcHost
        CUdeviceptr srcDevice
        size_t srcPitch
        size_t srcHeight
        size_t dstXInBytes
        size_t dstY
        size_t dstZ
        unsigned int dstMemoryType
        void* dstHost
        CUdeviceptr dstDevice
        size_t dstPitch
        size_t dstHeight
        size_t WidthInBytes
        size_t Height
        size_t Depth
    ctypedef struct CUgraphExecUpdateResultInfo:
        CUgraphExecUpdateResult result
        CUgraphNode errorNode
    ctypedef struct CUDA_CONDITIONAL_NODE_PARAMS:
        CUgraphConditionalHandle handle
        CUgraphConditionalNodeType type
        unsigned int size
        CUgraph* phGraph_out
        CUcontext ctx
    ctypedef struct CUmemPoolProps:
        CUmemAllocationType allocType
        CUmemAllocationHandleType handleTypes
        CUmemLocation location
    ctypedef struct CUDA_MEM_ALLOC_NODE_PARAMS:
        CUmemPoolProps poolProps
        const CUmemAccessDesc* accessDescs
        size_t accessDescCount
        size_t bytesize
        CUdeviceptr dptr
    ctypedef struct CUDA_MEMSET_NODE_PARAMS:
        CUdeviceptr dst
        size_t pitch
        unsigned int value
        unsigned int elementSize
        size_t width
        size_t height
    ctypedef struct CUDA_HOST_NODE_PARAMS:
        CUhostFn fn
        void* userData
    # Those that a node's params hold are second versions, of which these are the fields that are named.
    ctypedef struct KernelFields "CUDA_KERNEL_NODE_PARAMS_v3":
        CUfunction func
        unsigned int gridDimX
        unsigned int gridDimY
        unsigned int gridDimZ
        unsigned int blockDimX
        unsigned int blockDimY
        unsigned int blockDimZ
        unsigned int sharedMemBytes
        void** kernelParams
    ctypedef struct CopyFields "CUDA_MEMCPY_NODE_PARAMS":
        CUcontext copyCtx
        CUDA_MEMCPY3D_v2 copyParams
    ctypedef struct FillFields "CUDA_MEMSET_NODE_PARAMS_v2":
        CUdeviceptr dst
        size_t pitch
        unsigned int value
        unsigned int elementSize
        size_t width
        size_t height
        CUcontext ctx
    ctypedef struct HostFields "CUDA_HOST_NODE_PARAMS_v2":
        CUhostFn fn
        void* userData
    ctypedef struct ChildFields "CUDA_CHILD_GRAPH_NODE_PARAMS":
        CUgraph graph
    ctypedef struct WaitFields "CUDA_EVENT_WAIT_NODE_PARAMS":
        CUevent event
    ctypedef struct RecordFields "CUDA_EVENT_RECORD_NODE_PARAMS":
        CUevent event
    ctypedef struct AllocateFields "CUDA_MEM_ALLOC_NODE_PARAMS_v2":
        CUmemPoolProps poolProps
        const CUmemAccessDesc* accessDescs
        size_t accessDescCount
        size_t bytesize
        CUdeviceptr dptr
    ctypedef struct FreeFields "CUDA_MEM_FREE_NODE_PARAMS":
        CUdeviceptr dptr
    ctypedef struct CUgraphNodeParams:
        CUgraphNodeType type
        KernelFields kernel
        CopyFields memcpy
        FillFields memset
        HostFields host
        ChildFields graph
        WaitFields eventWait
        RecordFields eventRecord
        AllocateFields alloc
        FreeFields free
        CUDA_CONDITIONAL_NODE_PARAMS conditional
    ctypedef struct Dimensions "CUdim3":  # a name for what CUlaunchAttributeValue holds without one
        unsigned int x
        unsigned int y
        unsigned int z
    ctypedef struct CUaccessPolicyWindow:
        void* base_ptr
        size_t num_bytes
        float hitRatio
        CUaccessProperty hitProp
        CUaccessProperty missProp
    ctypedef struct CUlaunchMemSyncDomainMap:
        unsigned char default_
        unsigned char remote
    ctypedef union CUlaunchAttributeValue:
        CUaccessPolicyWindow accessPolicyWindow
        CUsynchronizationPolicy syncPolicy
        int priority
        CUlaunchMemSyncDomainMap memSyncDomainMap
        CUlaunchMemSyncDomain memSyncDomain
        int cooperative
        int programmaticStreamSerializationAllowed
        Dimensions clusterDim
    ctypedef struct CUlaunchAttribute:
        CUlaunchAttributeID id
        CUlaunchAttributeValue value
    ctypedef struct CUlaunchConfig:
        unsigned int gridDimX
        unsigned int gridDimY
        unsigned int gridDimZ
        unsigned int blockDimX
        unsigned int blockDimY
        unsigned int blockDimZ
        unsigned int sharedMemBytes
        CUstream hStream
        CUlaunchAttribute* attrs
        unsigned int numAttrs
    ctypedef struct CUDA_KERNEL_NODE_PARAMS_v1:  # which the second version begins with
        pass
    ctypedef struct CUDA_KERNEL_NODE_PARAMS:
        CUfunction func
        unsigned int gridDimX
        unsigned int gridDimY
        unsigned int gridDimZ
        unsigned int blockDimX
        unsigned int blockDimY
        unsigned int blockDimZ
        unsigned int sharedMemBytes
        void** kernelParams
