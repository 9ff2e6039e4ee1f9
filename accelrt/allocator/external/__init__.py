"""Other allocators behind the same functions.

external_pool   records, statistics and order of return, for memory of another allocator; where it comes from:
                cudaMallocAsync, the driver's stream-ordered pool; a library's alloc and free; or two Python
                functions
external_types  its records, and the rows of a backend
torch_abi.h     what torch calls of a plugged allocator, in C
torch_table     accelrt's pool under torch: C symbols of CUDAPluggableAllocator's ABI, all else that torch
                calls of such an allocator, and the table of functions that interop/torch_allocator.cpp
                calls, an object of torch's class; torch_table.h has it in C
torch_types     the same declarations for Cython
"""
