# DLPack's structures and numbers, of version 1.3 (dlpack.h), as far as Arrays use them.
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t

cdef enum:
    DLPACK_MAJOR = 1
    DLPACK_MINOR = 3

cdef enum:  # DLDevice.device_type
    DL_CPU = 1
    DL_CUDA = 2
    DL_CUDA_HOST = 3
    DL_CUDA_MANAGED = 13

cdef enum:  # DLManagedTensorVersioned.flags
    DL_READ_ONLY = 1
    DL_IS_COPIED = 2
    DL_PADDED = 4  # elements of less than a byte take one each

cdef struct DLDevice:
    int32_t device_type
    int32_t device_id

cdef struct DLDataType:
    uint8_t code
    uint8_t bits
    uint16_t lanes

cdef struct DLTensor:
    void* data
    DLDevice device
    int32_t ndim
    DLDataType dtype
    int64_t* shape
    int64_t* strides  # in elements; NULL: C order
    uint64_t byte_offset

cdef struct DLManagedTensor:            # unversioned
    DLTensor dl_tensor
    void* manager_ctx
    void (*deleter)(void* self_) noexcept nogil

cdef struct DLPackVersion:
    uint32_t major
    uint32_t minor

cdef struct DLManagedTensorVersioned:
    DLPackVersion version
    void* manager_ctx
    void (*deleter)(void* self_) noexcept nogil
    uint64_t flags
    DLTensor dl_tensor

ctypedef void (*set_error)(void* context, const char* kind, const char* message) noexcept

cdef struct DLPackExchangeAPI:
    DLPackVersion version
    void* prev_api
    int (*managed_tensor_allocator)(DLTensor* prototype, DLManagedTensorVersioned** out, void* error_ctx,
                                    set_error SetError) noexcept
    int (*managed_tensor_from_py_object_no_sync)(void* py_object, DLManagedTensorVersioned** out) noexcept
    int (*managed_tensor_to_py_object_no_sync)(DLManagedTensorVersioned* tensor, void** out_py_object) noexcept
    int (*dltensor_from_py_object_no_sync)(void* py_object, DLTensor* out) noexcept
    int (*current_work_stream)(int32_t device_type, int32_t device_id, void** out_stream) noexcept
