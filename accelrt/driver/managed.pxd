# What the rows of managed memory take and answer (table.pxd).
from libc.stdint cimport uintptr_t

cdef struct ManagedRange:  # of managed memory, and where it shall lie
    uintptr_t address
    size_t size
    int kind   # a LOCATION_ number
    int place  # an ordinal, or a NUMA node's number

cdef enum:  # managed_alloc flags
    MANAGED_GLOBAL = 1  # every stream of every device uses it
    MANAGED_HOST = 2    # no device does, but those that may use it beside the host

cdef enum:  # CUmemLocationType numbers
    LOCATION_NONE = 0
    LOCATION_DEVICE = 1
    LOCATION_HOST = 2
    LOCATION_NODE = 3          # a NUMA node of the host's
    LOCATION_CURRENT_NODE = 4  # that of the calling thread

cdef enum:  # CUdevice numbers in managed_attribute's answers
    THE_HOST = -1
    NOWHERE = -2

cdef enum:  # CUmem_advise numbers
    SET_READ_MOSTLY = 1
    UNSET_READ_MOSTLY = 2
    SET_PREFERRED = 3
    UNSET_PREFERRED = 4
    SET_ACCESSED_BY = 5
    UNSET_ACCESSED_BY = 6

cdef enum:  # CUmem_range_attribute numbers
    IS_READ_MOSTLY = 1
    PREFERRED_DEVICE = 2
    ACCESSED_BY = 3
    PREFETCHED_DEVICE = 4
    PREFERRED_KIND = 5
    PREFERRED_PLACE = 6
    PREFETCHED_KIND = 7
    PREFETCHED_PLACE = 8
