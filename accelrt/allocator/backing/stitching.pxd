# Free pages that may serve again: stream epochs, stitched segments and their budget.

# How far each stream has finished with the memory that it freed, so that its free pages may serve other streams.  All in
# the exclusive section.
from accelrt.allocator.private.private_types cimport Replay
from accelrt.allocator.types cimport Block, Heap, Page, Pool, Segment

cdef void poll_progress(Pool* pool, Heap* heap) noexcept nogil  # updates heap.quiescent_epoch; never waits
cdef void poll_all(Pool* pool) noexcept nogil  # polls all but graphs' heaps, and the replays of destroyed graphs
# Streams that may still run a replay of a destroyed graph, to wait for one by one where a wait for the device is refused.
cdef Replay* next_replay(Pool* pool) noexcept nogil  # the next one that is not marked waited; NULL: none
cdef void drop_waited(Pool* pool, const Replay* waited) noexcept nogil  # after the wait for it succeeded
cdef void drop_progress_events(Pool* pool) noexcept nogil  # they go back
# Around a synchronisation with the device, which runs outside the exclusive section.  What is freed meanwhile gets a later
# epoch: work that was enqueued after the synchronisation began may use it.
cdef void close_epochs(Pool* pool) noexcept nogil  # before
cdef void mark_all_quiescent(Pool* pool) noexcept nogil    # after
cdef void cancel_device_wait(Pool* pool) noexcept nogil   # after it failed or was given up


# Stitching: one block made of free pages that are not contiguous.  Under the growth lock and in the exclusive section.
cdef struct Run:  # a free block, and the bytes of the whole pages in it
    Block* block
    size_t pages

cdef struct Found:  # of one search at a time; the caller frees runs.  Ranked heaps are not in it
    bint across  # the search was for pages of all heaps
    bint lists   # the blocks are kept in runs
    Run* runs
    size_t count
    size_t capacity
    size_t stuck

cdef size_t find_pages(Pool* pool, Heap* heap, bint across, Found* found) noexcept nogil  # marks pages it may take; bytes
# Marks wholly free, quiescent pages that may go back: those to evict before the exclusive section is released.  0 or
# NO_HOST_MEMORY, and none is marked.
cdef int mark_leaving(Pool* pool) noexcept nogil
cdef bint reuse_stitched(Pool* pool, Heap* heap, size_t size) noexcept nogil  # of marked pages; no driver call
cdef void evict(Pool* pool, Page* page) noexcept nogil  # its slot becomes a HOLE; page.cover must be current
cdef int stitch(Pool* pool, Heap* heap, size_t size, Found* found) noexcept nogil  # of marked pages, newly mapped
cdef void free_block(Pool* pool, Block* block) noexcept nogil  # from LIVE or PENDING; no growth lock
cdef void return_all_pages(Pool* pool) noexcept nogil  # pages that heaps keep (Heap.keeps_pages)
# Asks the streams that may still use guarded pages, but for the requester's own; NULL: all of them.  A page whose stream is
# busy goes back to where it was freed.  0 or NO_HOST_MEMORY, and some are guarded still.
cdef int confirm_pages(Pool* pool, const Heap* requester) noexcept nogil
cdef bint has_too_many_stitched(const Pool* pool) noexcept nogil  # then drop those that are idle
cdef int drop_idle_stitched(Pool* pool) noexcept nogil  # those that hold no page and that no work uses
cdef void forget_missing(Pool* pool) noexcept nogil  # after pages were released: clears Fit.missing

# The stitching budget: whether new stitched segments are worth what they cost.  In the exclusive section, but for
# reset_budget of a pool that is being made.

cdef void reset_budget(Pool* pool) noexcept nogil  # to the most, as for an empty pool
# Once for each request that looks for pages: work whose sizes do not come again reuses no stitched segment.
cdef void note_size(Pool* pool, size_t size) noexcept nogil
cdef bint is_over_budget(Pool* pool) noexcept nogil
cdef bint has_much_budget(Pool* pool) noexcept nogil  # half of the most, or more, and sizes recur
cdef void restart_budget_count(Pool* pool) noexcept nogil  # before the allocation counters restart at 0
