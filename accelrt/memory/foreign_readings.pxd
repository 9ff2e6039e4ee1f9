# A foreign room's figures; each but the last takes the room's lock.
from accelrt.memory.foreign cimport Foreign
from accelrt.memory.stats cimport Stats

cdef Stats foreign_stats(Foreign* room) noexcept nogil
cdef size_t foreign_limit(Foreign* room) noexcept nogil
cdef void foreign_reset_peaks(Foreign* room) noexcept nogil
cdef void foreign_reset_accumulated(Foreign* room) noexcept nogil
cdef const char* foreign_audit(Foreign* room) noexcept nogil  # what is violated now, or was in a debug audit
cdef const char* foreign_violation(Foreign* room) noexcept nogil  # under the lock; NULL where all is well
