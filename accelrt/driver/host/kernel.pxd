# The host driver's rows for modules, functions and launches.
from libc.stdint cimport uintptr_t

from accelrt.driver.host.queue cimport HostFunction, Launch
from accelrt.driver.table cimport Table

cdef enum:  # what a device takes, by the numbers of CUdevice_attribute; those of an H200
    MOST_THREADS = 1024
    MOST_DEEP = 64                # threads in a block's z
    MOST_WIDE_GRID = 0x7FFFFFFF   # blocks in x; in y and z:
    MOST_DEEP_GRID = 65535
    THREADS_AT_ONCE = 2048        # of a multiprocessor
    BLOCKS_AT_ONCE = 32
    SHARED = 48 << 10             # bytes of a block's memory, unless the function's attribute was set
    MOST_SHARED = 227 << 10       # up to which it may be
    SHARED_AT_ONCE = 228 << 10
    MOST_CLUSTER = 8              # blocks

cdef void fill_kernel(Table* table) noexcept nogil
cdef size_t count_modules() noexcept nogil  # under the queue's lock
cdef HostFunction* find_function(uintptr_t function) noexcept nogil  # under the queue's lock; NULL where it is none
# A launch with one holder, checked as a GPU checks it, and its arguments copied; under the queue's lock.
cdef int make_launch(
    HostFunction* function, const unsigned int* grid, const unsigned int* block, unsigned int shared_bytes,
    void** arguments, Launch** out_launch
) noexcept nogil
