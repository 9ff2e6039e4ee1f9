# What the host device's work does to bytes.
from libc.string cimport memset

from accelrt.driver.host_memory cimport UNKNOWN_MEMORY, owner_of
from accelrt.driver.host_queue cimport DST_KNOWN, FILL, SRC_KNOWN, Work


cdef inline void fill_memory(const Work* work) noexcept nogil:
    cdef size_t index
    if work.width == 1:
        memset(<void*>work.dst, work.value, work.size)
    elif work.width == 2:
        for index in range(work.size):
            (<unsigned short*>work.dst)[index] = work.value
    else:
        for index in range(work.size):
            (<unsigned int*>work.dst)[index] = work.value


cdef inline bint touches_nothing(const Work* work) noexcept nogil:
    # A replay may come when the memory that was captured is gone.
    cdef size_t size = work.size * work.width if work.kind == FILL else work.size
    if work.known & DST_KNOWN and owner_of(work.dst, size) == UNKNOWN_MEMORY:
        return True
    return work.known & SRC_KNOWN and owner_of(work.src, size) == UNKNOWN_MEMORY
