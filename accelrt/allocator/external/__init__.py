"""Other allocators behind the same functions.

backends        which backend the process chose: a library's alloc and free, or two Python functions;
                accelrt's pool under torch, by C symbols of CUDAPluggableAllocator's ABI and all else that
                torch calls
external_pool   records, statistics and order of return, for memory of another allocator; cudaMallocAsync, the
                driver's stream-ordered pool
external_types  its records, and the rows of a backend
torch_abi.h     what torch calls of a plugged allocator, in C
torch_table     the table of functions that interop/torch_allocator.cpp calls, an object of torch's class;
                torch_table.h has it in C
torch_types     the same declarations for Cython
"""
