"""Other allocators behind the same functions.

backend            which backend the process chose; the backend pluggable, a library's alloc and free
external_pool      records, statistics and order of return, for memory of another allocator
external_types     its records, and the rows of a backend
cuda_malloc_async  the driver's stream-ordered pool
torch_plugin       accelrt's pool as C symbols in the ABI of torch's CUDAPluggableAllocator
"""
