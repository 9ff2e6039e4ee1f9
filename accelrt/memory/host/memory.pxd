# Page-locked memory of the driver's: taken and given back, whole segments at a time.  Never under a lock.
from accelrt.memory.host.block cimport PinnedPool, PinnedSegment

# A segment in no pool yet; device -1 is the calling thread's current one.
cdef int take_memory(PinnedPool* pool, int device, size_t size, int kind, PinnedSegment** out_segment) noexcept nogil
# Gives a list of detached segments back, after the work of their devices; those that the driver keeps are
# attached again.
cdef int give_memory(PinnedPool* pool, PinnedSegment* segments) noexcept nogil
# The same for what no work ever used: waits for nothing, so that it may be called beside a capture.
cdef int give_unused(PinnedPool* pool, PinnedSegment* segments) noexcept nogil
