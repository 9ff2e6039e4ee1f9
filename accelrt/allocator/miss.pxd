# What the slow path does with blocks: those that wait for streams, those that are offered, and the steps of a miss.

# Blocks that were freed while another stream may still use them.  All in the exclusive section.
from libc.stdint cimport uint64_t, uintptr_t

from accelrt.allocator.private.private_types cimport PrivatePool
from accelrt.allocator.types cimport Block, Heap, Offer, Pool

cdef void defer(Pool* pool, Block* block) noexcept nogil  # makes it PENDING; record_events records its events
cdef int record_events(Pool* pool) noexcept nogil  # of deferred blocks, except on streams that capture
cdef void record_all_events(Pool* pool) noexcept nogil  # of each that can have them; others, after a failure too, stay
# Uses of all blocks by a stream that goes: they are its heir's, or of none where that is 0 (forget_stream of pool.pxd).
cdef void hand_on_uses(Pool* pool, int device, uintptr_t stream, uintptr_t heir) noexcept nogil
cdef int poll(Pool* pool) noexcept nogil  # frees blocks whose events are complete; never waits
cdef bint beside_capture(int code) noexcept nogil  # whether a wait was refused, or ended, for a capture's sake
cdef int await_all(Pool* pool) noexcept nogil  # wait_all, then the streams whose free pages others may not take yet
cdef int wait_all(Pool* pool) noexcept nogil  # frees what is pending now; waits outside the exclusive section

# Offers: blocks that are free as of an event of the caller's.  record numbers one recording of that event: streams that
# wait for this recording may claim the block at once.
cdef extern from *:
    """
    #define load_offers(place) __atomic_load_n(place, __ATOMIC_RELAXED)
    #define store_offers(place, offer) __atomic_store_n(place, offer, __ATOMIC_RELAXED)
    """
    # Of the pool's list.  Outside the exclusive section a load only says whether there are offers.
    Offer* load_offers(Offer** place) noexcept nogil
    void store_offers(Offer** place, Offer* offer) noexcept nogil

cdef int offer(Pool* pool, Block* block, uintptr_t event, uint64_t record) noexcept nogil  # a LIVE block; it is PENDING then
cdef int note_wait(Pool* pool, uintptr_t stream, uint64_t record) noexcept nogil  # the stream waits for that recording
cdef Block* claim(Pool* pool, const Heap* heap, size_t size) noexcept nogil  # a block that its stream may have; NULL: none


# The miss: what an allocation does when its heap has no block that fits.  allocator/DESIGN.md lists the steps.
cdef struct Request:
    size_t requested   # bytes
    size_t size        # bytes, rounded up
    int kind           # of the heap: SMALL or LARGE
    uintptr_t stream   # as the caller gave it; may be PER_THREAD
    Heap* heap
    bint across        # may take pages that other streams freed
    bint searched      # has looked for pages
    bint interruptible  # waits end at a signal: on INTERRUPTED the caller raises what the signal handler raised

# Runs the registered callbacks after a request was refused, with no lock held.  Returns whether one gave memory back;
# NULL while no callback is registered.
cdef int (*on_refusal)(int device, size_t size) noexcept nogil

cdef int find(Pool* pool, Request* request, uintptr_t* out_address) noexcept nogil  # in the exclusive section; no growth
cdef int retry(Pool* pool, Request* request, uintptr_t* out_address) noexcept nogil  # and under the growth lock
cdef int leave_audited(Pool* pool, int code) noexcept nogil  # leaves both, once the audit has looked at the pool
# Waits for devices by a function that call_unlocked runs, so that what any stream freed may serve every other.  NOT_READY
# beside a capture, where the driver refuses to.  In the exclusive section.
cdef int wait_by(Pool* pool, int (*wait)(Pool* pool, void* about) noexcept nogil, void* about) noexcept nogil
cdef int release_free(Pool* pool) noexcept nogil  # likewise; gives idle memory back to the device
cdef int release_ended(Pool* pool) noexcept nogil  # that of private pools without a use alone; NOT_READY beside a capture
cdef int release_own(Pool* pool, PrivatePool* owner) noexcept nogil  # only that of a private pool, unless graphs use it
cdef int release_with(Pool* pool, PrivatePool* owner) noexcept nogil  # and that of a MemPool, unless graphs use it
