# What was given back while streams may still use it.  Each stream has a queue of events, oldest first, and of what
# waits for them; events of one stream complete in order, so a poll stops at the first that has not.  The pool that
# keeps the queues guards them, and counts.
from libc.stdint cimport uint64_t, uintptr_t

from accelrt.core.handle_map cimport AddressMap
from accelrt.driver.table cimport Table

# The block may be in use until the event is complete.
cdef struct Entry:
    uintptr_t event
    int device
    void* block        # a Block, or a PinnedBlock; NULL while the record is spare
    bint lost          # the event became part of a capture: to be recorded anew before it is asked
    Entry* next

cdef struct Queue:
    uintptr_t stream
    int device
    size_t number      # by the order of their first use
    Entry* head        # oldest
    Entry* tail
    Queue* same_key    # in the index

cdef struct Queues:
    AddressMap index   # by stream and device
    Queue** all        # by number
    size_t count
    size_t capacity
    uint64_t* filled   # bits: which are not empty

# One a stream, kept; NULL where the host has no memory.
cdef Queue* queue_of(Queues* queues, int device, uintptr_t stream) noexcept nogil
cdef Queue* next_filled(const Queues* queues, size_t number) noexcept nogil  # the first not empty from there on; NULL
cdef Queue* busy_queue(const Queues* queues) noexcept nogil  # the first whose oldest event can be waited for; NULL
# Records an event behind the stream's work, for the block.  As record_behind (driver/capture_guard.pxd): NOT_READY where
# somebody captures the stream.
cdef int enqueue(Table* table, Queues* queues, Entry** spare, int device, uintptr_t stream, void* block) noexcept nogil
cdef void push(Queues* queues, Queue* queue, Entry* entry, void* block) noexcept nogil  # as the newest
cdef void put_back(Queues* queues, Queue* queue, Entry* entry) noexcept nogil  # as the oldest
# Out of its queue; NULL.  The caller is in relaxed mode.
cdef Entry* take_complete(Table* table, Queues* queues, Queue* queue, int* out_code) noexcept nogil
cdef Entry* take_oldest(Queues* queues, Queue* queue) noexcept nogil  # complete or not; there is one
cdef Entry* take_of(Queues* queues, Queue* queue, const void* block) noexcept nogil  # likewise

# Records of entries, chained by next, whose events are created and idle.
cdef int take_entry(Table* table, int device, Entry** spare, Entry** out_entry) noexcept nogil  # made if need be
cdef int destroy_entries(Table* table, Entry** spare) noexcept nogil  # gives the events back to the driver


cdef inline void put_entry(Entry** spare, Entry* entry) noexcept nogil:
    entry.block = NULL
    entry.next = spare[0]
    spare[0] = entry
