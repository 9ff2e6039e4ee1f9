"""Other allocators behind the same functions.

backend         which backend the process chose; the backend pluggable, a library's alloc and free; accelrt's
                pool as C symbols in the ABI of torch's CUDAPluggableAllocator
callbacks       the backend of two Python functions, such as the methods of a library's memory resource
external_pool   records, statistics and order of return, for memory of another allocator; cudaMallocAsync, the
                driver's stream-ordered pool
external_types  its records, and the rows of a backend
torch_hooks     all that torch calls of a plugged allocator, for accelrt.interop.torch
torch_abi.h     the same as torch calls it, in C
"""
