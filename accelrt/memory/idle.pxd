# What is known of a stream's progress, so that pages which it freed may serve another.  Inside the world.
from libc.stdint cimport uintptr_t

from accelrt.memory.block cimport Block, Heap
from accelrt.memory.state cimport Pool
from accelrt.memory.terms cimport Replay

# Where a leased stream comes from; written under the GIL, read inside the world of any pool.
cdef struct Lineage:
    uintptr_t parent  # the stream that was current when it was leased last
    int returned      # nobody has it now

cdef extern from *:
    """
    #define accelrt_load(place) __atomic_load_n(place, __ATOMIC_ACQUIRE)
    #define accelrt_store(place, value) __atomic_store_n(place, value, __ATOMIC_RELEASE)
    """
    uintptr_t load_parent "accelrt_load"(const uintptr_t* place) noexcept nogil
    void store_parent "accelrt_store"(uintptr_t* place, uintptr_t value) noexcept nogil
    int load_returned "accelrt_load"(const int* place) noexcept nogil
    void store_returned "accelrt_store"(int* place, int value) noexcept nogil

# Streams that live as long as the process: leased ones, and the legacy default stream.  Others belong to
# somebody who may destroy them, and are never asked.  Any thread, without a lock of ours.
cdef int trust_stream(uintptr_t stream, Lineage* lineage) noexcept nogil
cdef const Lineage* lineage_of(uintptr_t stream) noexcept nogil  # NULL for a stream that is not leased
cdef bint is_trusted(uintptr_t stream) noexcept nogil

cdef void look(Pool* pool, Heap* heap) noexcept nogil  # brings heap.settled up to date; asks, never waits
cdef void settle_epoch(Heap* heap) noexcept nogil  # its stream was seen idle
cdef void look_at_others(Pool* pool, Heap* heap) noexcept nogil  # at those whose pages it may have
cdef void look_at_all(Pool* pool) noexcept nogil  # at all but what graphs hold, and at replays of those that are gone
# Streams that may still replay graphs that are gone, to be waited for one by one where the device must not be.
cdef Replay* next_replay(Pool* pool) noexcept nogil  # that was not waited for yet; NULL: none
cdef void mark_replay(Pool* pool, Replay* found) noexcept nogil
cdef void drop_waited(Pool* pool, const Replay* waited) noexcept nogil  # it is past
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
