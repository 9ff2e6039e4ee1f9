# What was given back while streams may still use it.  Each stream has a queue of events, oldest first, and of what
# waits for them; events of one stream complete in order, so a poll stops at the first that has not.  Whoever keeps
# the queues guards them, and counts.
from libc.stdint cimport uintptr_t

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
    Entry* head        # oldest
    Entry* tail
    Queue* next

# One a stream, kept, in the order of their first use; NULL where the host has no memory.
cdef Queue* queue_of(Queue** queues, int device, uintptr_t stream) noexcept nogil
cdef Queue* busy_queue(Queue* first) noexcept nogil  # the first whose oldest event can be waited for; NULL
# Records an event behind the stream's work, for the block.  As record_behind (driver/captures.pxd): NOT_READY where
# somebody captures the stream.
cdef int enqueue(Table* table, Queue** queues, Entry** spare, int device, uintptr_t stream, void* block) noexcept nogil
# Out of its queue; NULL.  The caller is in relaxed mode.
cdef Entry* take_complete(Table* table, Queue* queue, int* out_code) noexcept nogil
cdef Entry* take_of(Queue* queue, const void* block) noexcept nogil  # likewise, complete or not; there is one

# Records of entries, chained by next, whose events are created and idle.
cdef int take_entry(Table* table, int device, Entry** spare, Entry** out_entry) noexcept nogil  # made if need be
cdef int destroy_entries(Table* table, Entry** spare) noexcept nogil  # gives the events back to the driver


cdef inline void put_entry(Entry** spare, Entry* entry) noexcept nogil:
    entry.block = NULL
    entry.next = spare[0]
    spare[0] = entry


cdef inline void push(Queue* queue, Entry* entry, void* block) noexcept nogil:
    entry.block = block
    entry.lost = False
    entry.next = NULL
    if queue.head == NULL:
        queue.head = entry
    else:
        queue.tail.next = entry
    queue.tail = entry
