# What a device's pool holds; holdings.pyx says what of it Python sees.  The caller holds no lock.
from libc.stdint cimport uintptr_t

cdef struct LiveBlock:
    uintptr_t address
    size_t size
    uintptr_t stream

cdef struct LivePool:      # a private pool that is in use, or has live memory
    unsigned long long first   # its id
    unsigned long long second
    int users              # MemPools and contexts that retain it
    int graphs             # graphs and captures that do
    size_t reserved
    size_t live

# The live blocks of a device, for the end of the process: how many there are and their bytes, and the largest of them, as
# many as there is room for, the largest first.  False where another thread has the pool's lock, so that nothing was read.
# Without the GIL or Python.
cdef bint list_live(int device, LiveBlock* blocks, size_t room, size_t* out_count, size_t* out_bytes) noexcept nogil
cdef size_t list_live_pools(int device, LivePool* pools, size_t room) noexcept nogil  # how many were written
