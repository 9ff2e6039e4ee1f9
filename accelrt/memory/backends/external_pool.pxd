# What serves a pool whose memory comes from another allocator; its records are in external_types.pxd.
from libc.stdint cimport uintptr_t

from accelrt.driver.table cimport Table
from accelrt.memory.allocator.stats cimport Stats
from accelrt.memory.backends.external_types cimport Backend, Foreign

# Which backend the pools are made on; NULL is accelrt's own.  ILLEGAL_STATE once one was made on another.
cdef int choose(const Backend* backend) noexcept nogil
cdef const Backend* chosen_backend() noexcept nogil
# For the maker of a device's pool, once: NULL where accelrt's own allocator serves.  It fixes the choice.
cdef int foreign_attach(int device, Table* table, int debug, Foreign** out_room) noexcept nogil

# What memory/allocator/pool.pxd promises, for a pool with a foreign room.
cdef int foreign_allocate(Foreign* room, size_t size, uintptr_t stream, uintptr_t* out_address) noexcept nogil
cdef int foreign_release(Foreign* room, uintptr_t address) noexcept nogil
cdef int foreign_use_on(Foreign* room, uintptr_t address, int stream_on, uintptr_t stream) noexcept nogil
cdef bint foreign_holds(Foreign* room, uintptr_t address) noexcept nogil
cdef int foreign_empty(Foreign* room) noexcept nogil
cdef int foreign_set_limit(Foreign* room, size_t limit) noexcept nogil
cdef int foreign_begin_capture(Foreign* room) noexcept nogil
cdef int foreign_end_capture(Foreign* room) noexcept nogil

# For backends: NOT_READY where somebody captures the stream, whose work then cannot be waited for.
cdef int not_capturing(Foreign* room, int device, uintptr_t stream) noexcept nogil

# A foreign room's figures; each but the last takes the room's lock.

cdef Stats foreign_stats(Foreign* room) noexcept nogil
cdef size_t foreign_limit(Foreign* room) noexcept nogil
cdef void foreign_reset_peaks(Foreign* room) noexcept nogil
cdef void foreign_reset_accumulated(Foreign* room) noexcept nogil
cdef const char* foreign_audit(Foreign* room) noexcept nogil  # what is violated now, or was in a debug audit
cdef const char* foreign_violation(Foreign* room) noexcept nogil  # under the lock; NULL where all is well
