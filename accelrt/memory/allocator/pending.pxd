# Blocks that were given back while another stream may still use them.  All in the exclusive section.
from libc.stdint cimport uint64_t, uintptr_t

from accelrt.memory.allocator.types cimport Block, Heap, Offer, Pool

cdef void defer(Pool* pool, Block* block) noexcept nogil  # makes it PENDING, without events yet
cdef int record_events(Pool* pool) noexcept nogil  # records the events of deferred blocks, but on capturing streams
cdef int poll(Pool* pool) noexcept nogil  # frees what is complete; never waits
cdef int wait_all(Pool* pool) noexcept nogil  # frees what is pending now; leaves all locks while it waits
cdef int await_event(Pool* pool, void* entry) noexcept nogil  # an Errand (exclusive.pxd) for an entry's event

# Offers: blocks freed as of somebody's event, of which record says which record it was.
cdef extern from *:
    """
    #define load_offers(place) __atomic_load_n(place, __ATOMIC_RELAXED)
    #define store_offers(place, offer) __atomic_store_n(place, offer, __ATOMIC_RELAXED)
    """
    # Of the pool's list: outside the exclusive section it may be asked whether there are any.
    Offer* load_offers(Offer** place) noexcept nogil
    void store_offers(Offer** place, Offer* offer) noexcept nogil

cdef int offer(Pool* pool, Block* block, uintptr_t event, uint64_t record) noexcept nogil  # from LIVE
cdef int note_wait(Pool* pool, uintptr_t stream, uint64_t record) noexcept nogil  # the stream waits for it
cdef Block* claim(Pool* pool, const Heap* heap, size_t size) noexcept nogil  # what its stream may take; NULL
