# A device's history: a ring of events, and the figures of tags.  While it is off, Pool.history is NULL or records nothing,
# and no stand-in leads the fast path here (pool.pyx).  The functions that record something are called under the lock of the
# heap concerned, or in the exclusive section, and return at once where the pool has no history.
from libc.stdint cimport uint32_t, uint64_t, uintptr_t

from accelrt.allocator.history_types cimport Event, History, TagFigures
from accelrt.allocator.private.private_types cimport PrivatePool
from accelrt.allocator.types cimport Block, Pool

# What a free needs to know of its block, which may be merged by then.
cdef struct Freed:
    uint64_t size
    uint64_t requested
    uint64_t stream
    uint64_t[2] pool
    uint32_t tag

# Notes of blocks.
cdef void record_allocation(Pool* pool, Block* block, bint claimed) noexcept nogil  # just made LIVE
cdef Freed describe(const Block* block) noexcept nogil
cdef void record_free(Pool* pool, uintptr_t address, const Freed* freed, bint completed) noexcept nogil  # no longer LIVE
cdef void record_free_requested(Pool* pool, const Block* block) noexcept nogil  # the same, in the exclusive section
cdef void record_free_completed(Pool* pool, const Block* block) noexcept nogil  # about to be merged
# Any other event.
cdef void record_event(
    Pool* pool, int action, uintptr_t address, size_t size, uintptr_t stream, const PrivatePool* owner) noexcept nogil
# Of the user's program; any thread, with any lock.
cdef void record_annotation(Pool* pool, int action, uint32_t number) noexcept nogil

# The stack of the operation that the calling thread is in.  Called without locks; entry: the name of a function that has no
# frame of Python's, or NULL.
cdef void take_stack(const Pool* pool, int level, const char* entry) noexcept nogil
cdef void take_first_stack(int context) noexcept nogil  # of a pool that is yet to be made, with this context
cdef uint32_t drop_stack() noexcept nogil  # which it was; 0: none
cdef uint32_t stack_of_block(const Pool* pool) noexcept nogil  # to be kept with what is allocated
# Takes the stack, as a number (0: none), with the GIL or without; before: the one taken last.  NULL: no stacks are taken.
ctypedef uint32_t (*Capture)(const char* entry, uint32_t before) noexcept nogil
cdef void set_capture(Capture function) noexcept nogil

# The calling thread's tag, which what it allocates gets.
cdef uint32_t exchange_tag(uint32_t tag) noexcept nogil  # the tag before
# Has a number stand for a tag within another one, which may stand for several itself: memory of it counts for each.
cdef void nest_tag(uint32_t number, uint32_t inner, uint32_t outer) noexcept nogil

# Page-locked memory has one history for all of it, without tags; its functions are called under the lock of its pool.
cdef History host_history
cdef void record_host(int action, uintptr_t address, size_t size) noexcept nogil  # at once nothing while it is off
cdef void take_host_stack() noexcept nogil  # as take_stack
cdef int set_host_history(bint records, int context, size_t capacity) noexcept nogil  # one thread at a time

# Who is told of events as they happen, of pools whose history is followed: under the locks of the event, on its thread.
ctypedef void (*Follower)(const Event* event) noexcept nogil
cdef void set_follower(Follower function) noexcept nogil

# Making and changing; the pool's exclusive section is held.
cdef int ensure_history(Pool* pool) noexcept nogil
cdef Event* new_ring(size_t capacity) noexcept nogil  # NULL: no host memory
cdef Event* replace_ring(History* history, Event* ring, size_t capacity) noexcept nogil  # the old one, to be freed
cdef void clear_ring(History* history) noexcept nogil

# Reading; takes the history's lock alone.
# The number of the oldest that is kept; that of the first since the history was cleared, and of the one to come.
cdef uint64_t first_event(History* history, uint64_t* out_next, uint64_t* out_begin) noexcept nogil
cdef uint64_t copy_some(
    History* history, uint64_t start, size_t most, Event* out_events, size_t* out_count) noexcept nogil  # the first's number
cdef TagFigures read_tag(History* history, uint32_t tag) noexcept nogil
cdef void reset_tag_peaks(History* history) noexcept nogil
