# What is known of a stream's progress, so that pages which it freed may serve another.  Inside the world.
from libc.stdint cimport uintptr_t

from accelrt.memory.block cimport Block, Heap
from accelrt.memory.state cimport Pool

# Streams that live as long as the process: leased ones, and the legacy default stream.  Others belong to
# somebody who may destroy them, and are never asked.  Any thread, without a lock of ours.
cdef int trust_stream(uintptr_t stream) noexcept nogil
cdef bint is_trusted(uintptr_t stream) noexcept nogil

cdef void look(Pool* pool, Heap* heap) noexcept nogil  # brings heap.settled up to date; asks, never waits
cdef void look_at_others(Pool* pool, Heap* heap) noexcept nogil  # at those whose pages it may have
cdef void drop_markers(Pool* pool) noexcept nogil
# Around a synchronisation with the device.  The world is open meanwhile: what is freed then may be in use by
# work that was enqueued too late to be waited for.
cdef void close_epochs(Pool* pool) noexcept nogil  # before
cdef void settle_all(Pool* pool) noexcept nogil    # after


cdef inline bint is_settled(const Block* block) noexcept nogil:
    # No work uses what is free: epochs are compared as they wrap around.
    return <int>(block.heap.settled - block.epoch) >= 0


cdef inline bint is_quiet(const Heap* heap) noexcept nogil:
    # Nothing was freed that is not settled.
    return <int>(heap.settled - heap.last_freed) >= 0
