# What is known of a stream's progress, so that pages which it freed may serve another.  In the exclusive section.
from accelrt.memory.allocator.types cimport Block, Heap, Pool, Replay

cdef void poll_progress(Pool* pool, Heap* heap) noexcept nogil  # brings heap.settled up to date; asks, never waits
cdef void poll_others(Pool* pool, Heap* heap) noexcept nogil  # at those whose pages it may have
cdef void poll_all(Pool* pool) noexcept nogil  # at all but what graphs hold, and at replays of those that are gone
# Streams that may still replay graphs that are gone, to be waited for one by one where the device must not be.
cdef Replay* next_replay(Pool* pool) noexcept nogil  # that was not waited for yet; NULL: none
cdef void mark_replay(Pool* pool, Replay* found) noexcept nogil
cdef void drop_waited(Pool* pool, const Replay* waited) noexcept nogil  # it is past
cdef void drop_progress_events(Pool* pool) noexcept nogil
# Around a synchronisation with the device.  All locks are left meanwhile: what is freed then may be in use by
# work that was enqueued too late to be waited for.
cdef void close_epochs(Pool* pool) noexcept nogil  # before
cdef void mark_all_quiescent(Pool* pool) noexcept nogil    # after
cdef void settle_none(Pool* pool) noexcept nogil   # after it failed, or was given up
