# Memory that was freed while streams may still use it: each stream has a queue of events, oldest first, and of the
# blocks that wait for them.  Events of one stream complete in order, so a poll stops at the first that is not complete.
# The owner of the queues (a device pool or the page-locked cache) locks them and counts their entries.
from libc.stdint cimport uint64_t, uintptr_t

from accelrt.core.handle_map cimport AddressMap
from accelrt.driver.table cimport Table

# The block may be in use until the event is complete.
cdef struct Entry:
    uintptr_t event
    int device
    void* block        # a Block, or a PinnedBlock; NULL while the record is spare
    bint lost          # the event became part of a capture: it has to be recorded again before it is queried
    Entry* next

cdef struct Queue:
    uintptr_t stream
    int device         # the stream's: default streams of all devices have the same handles
    size_t number      # in the order of first use
    Entry* head        # oldest
    Entry* tail
    Queue* same_key    # in the index

cdef struct Queues:
    AddressMap index   # by stream and device
    Queue** all        # by number
    size_t count
    size_t capacity
    uint64_t* filled   # one bit a queue: set if it is not empty

# Made at first use and never freed; NULL where the host has no memory.
cdef Queue* queue_of(Queues* queues, int device, uintptr_t stream) noexcept nogil
cdef Queue* next_filled(const Queues* queues, size_t number) noexcept nogil  # first non-empty one from number on; NULL
cdef Queue* busy_queue(const Queues* queues) noexcept nogil  # first whose oldest event can be waited for; NULL
# Records an event behind the stream's work and queues it for the block.  NOT_READY if the stream captures, as of
# record_behind (driver/guard.pxd).
cdef int enqueue(Table* table, Queues* queues, Entry** spare, int device, uintptr_t stream, void* block) noexcept nogil
cdef void push(Queues* queues, Queue* queue, Entry* entry, void* block) noexcept nogil  # at the end, as the newest
cdef void put_back(Queues* queues, Queue* queue, Entry* entry) noexcept nogil  # at the start, as the oldest
# The oldest entry, out of its queue, if its event is complete; else NULL.  The caller is in relaxed capture mode.
cdef Entry* take_complete(Table* table, Queues* queues, Queue* queue, int* out_code) noexcept nogil
cdef Entry* take_oldest(Queues* queues, Queue* queue) noexcept nogil  # complete or not; the queue is not empty
cdef Entry* take_of(Queues* queues, Queue* queue, const void* block) noexcept nogil  # that of a queued block

# Spare entries, chained by next; their events are created and wait for nothing.
cdef int take_entry(Table* table, int device, Entry** spare, Entry** out_entry) noexcept nogil  # makes one if none is spare
cdef int destroy_entries(Table* table, Entry** spare) noexcept nogil  # with their events; stops at the first failure


cdef inline void put_entry(Entry** spare, Entry* entry) noexcept nogil:
    entry.block = NULL
    entry.next = spare[0]
    spare[0] = entry
