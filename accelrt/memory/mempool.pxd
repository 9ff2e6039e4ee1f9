# Memory pools, managed memory and page-locked memory, for the modules beside it.
from libc.stdint cimport uint64_t, uintptr_t

from accelrt.allocator.private.private_types cimport Source
from accelrt.allocator.private.routes cimport PrivateStats


# The page-locked cache's Python border.
cdef size_t checked_host_size(object size, str name) except? 0  # bytes; TypeError, ValueError, OutOfMemoryError
cdef uintptr_t allocate_host_bytes(object device, size_t size) except? 0  # raises OutOfMemoryError; device None: current
cdef void release_host_bytes(uintptr_t address) noexcept  # for destructors

# Memory pools of the user's own.
cdef uint64_t next_pool() noexcept  # a number that no pool of this process had; under the GIL

# The numbers of a pool's id, from what names one: a MemPool, a CUDAGraph's pool() or graph_pool_handle().
cdef int read_pool_id(object pool, uint64_t* out_id) except -1

cdef dict figures_of(PrivateStats stats)  # as MemPool.stats gives them

# What sleep() and wake() of a pool do; call is what the user called, for errors, which name the pool, or the Reservation at
# an address where that is its pool.
cdef object put_to_sleep(
    str call, int ordinal, uint64_t first, uint64_t second, object keep, object exports, uintptr_t reservation=*)
cdef object wake_up(str call, int ordinal, uint64_t first, uint64_t second, uintptr_t reservation=*)
# A Reservation has a pool, by a weak reference, until it is gone: its own sleep() and wake() are called for the pool's id.
cdef int note_reservation(int ordinal, uint64_t number, object reference) except -1
cdef void forget_reservation(int ordinal, uint64_t number) noexcept
# Raises ArgumentError where a retain or a route of a pool answered that it is a Reservation's.
cdef int refuse_reserved(int code, str call, uint64_t first, uint64_t second) except -1

# As allocate_bytes (caching.pxd), of managed memory: from the pool that the thread is in, where that has such, else from one
# of the process.
cdef uintptr_t allocate_managed(int ordinal, size_t size, uintptr_t stream) except? <size_t>-1
# As allocate_host_bytes, of a file where shared, from a PinnedMemPool or None.
cdef uintptr_t allocate_pinned_for(object pool, object device, size_t size, bint shared) except? 0

cdef class MemPool:
    cdef uint64_t number      # the pool's id is (0, number)
    cdef size_t most          # bytes to reserve on each device; SIZE_MAX: no limit
    cdef uint64_t held        # a bit for each device where this object is one of the pool's uses
    cdef object plugged       # the allocator that was given, or None
    cdef const Source* source  # where its segments come from; NULL: the device
    cdef bint whole           # they are never split
    cdef bint lends           # its free blocks serve the common pool before that refuses a request
    cdef readonly int device  # where it was made, an ordinal
    cdef object __weakref__

    cdef int hold_on(self, int ordinal) except -1  # once on each device
    cdef int open_to(self, object peer, int access, str call) except -1
    cdef PrivateStats read(self, object device, bint reset) except *
