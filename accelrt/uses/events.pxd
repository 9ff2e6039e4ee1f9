# A stream uses these bytes: the records of such uses, the driver events that say when the stream is past them, and queues of
# events.
#
# Lists of uses and queues are guarded by their owner's lock (a device pool's, the page-locked cache's, an external pool's);
# the pool of events by a lock of its own, the last in the order, which is held for no call of the driver.
from libc.stdint cimport uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport calloc

from accelrt.core.handle_map cimport AddressMap
from accelrt.driver.table cimport Table
from accelrt.status cimport NO_HOST_MEMORY

cdef enum:
    MAX_DEVICES = 64

# --- driver events, handed out again once they are returned: to have one costs no driver call then ---
cdef struct PooledEvent:
    uintptr_t handle
    int device
    unsigned int flags
    bint captured         # the last record became part of a capture: to be recorded anew before it is asked for
    void* block           # in a queue: a Block or a PinnedBlock that may be in use until the event is complete
    PooledEvent* next     # in its queue, or in the pool

cdef PooledEvent* take_spare(int device, unsigned int flags) noexcept nogil  # NULL: the pool has none
cdef int make_event(Table* table, int device, unsigned int flags, PooledEvent** out_event) noexcept nogil
# One of the two.
cdef int take_event(Table* table, int device, unsigned int flags, PooledEvent** out_event) noexcept nogil  # NULL on failure
# To the pool; not one that other processes have.  It may still be pending: recording it anew leaves those who wait for its
# last record alone.
cdef void return_event(PooledEvent* event) noexcept nogil
cdef void release_event(Table* table, PooledEvent* event) noexcept nogil  # the same; destroys one that was captured
# In relaxed mode asks for an event, or waits for it; the driver's answer.
cdef int ask_event(Table* table, const PooledEvent* event, bint wait) noexcept nogil
cdef int destroy_spare(Table* table, int device) noexcept nogil  # those that keep no time; stops at the first failure
# Takes one and records it behind the stream's work; NULL where the answer, of record_behind (driver/guard.pxd), is not 0.
cdef int mark_behind(Table* table, int device, uintptr_t stream, PooledEvent** out_event) noexcept nogil


cdef inline void unmark(PooledEvent** event) noexcept nogil:
    # Returns it, if there is one.
    if event[0] != NULL:
        return_event(event[0])
        event[0] = NULL


# --- uses ---
cdef struct Use:
    uintptr_t stream
    int device            # the stream's: default streams of all devices have the same handles
    # For owners that ask for their uses one by one, rather than queue events:
    short lost            # answers in a row that the device is lost
    short refused         # refusals in a row, whichever
    PooledEvent* event    # behind the work that counts; NULL: none yet
    Use* next

cdef struct UseStore:     # of one owner
    Use* spare            # records to reuse
    long count            # records in lists


cdef inline bint has_use(const Use* uses, int device, uintptr_t stream) noexcept nogil:
    while uses != NULL and not (uses.stream == stream and uses.device == device):
        uses = uses.next
    return uses != NULL


cdef inline int add_use(UseStore* store, Use** uses, int device, uintptr_t stream) noexcept nogil:
    # Unless the list has it; 0 or NO_HOST_MEMORY.
    cdef Use* use = store.spare
    if has_use(uses[0], device, stream):
        return 0
    if use == NULL:
        use = <Use*>calloc(1, sizeof(Use))
        if use == NULL:
            return NO_HOST_MEMORY
    else:
        store.spare = use.next
    store.count += 1
    use.stream = stream
    use.device = device
    use.lost = use.refused = 0
    use.next = uses[0]
    uses[0] = use
    return 0


cdef inline void drop_use(UseStore* store, Use** link) noexcept nogil:
    # Without its event.
    cdef Use* use = link[0]
    link[0] = use.next
    use.next = store.spare
    store.spare = use
    store.count -= 1

# Work that was put into the stream is the heir's from now on, a stream of the same device's that waits for it; 0: there is
# no such work.  A use with an event names its stream no more.
cdef void hand_on(UseStore* store, Use** uses, int device, uintptr_t stream, uintptr_t heir) noexcept nogil
cdef int mark_use(Table* table, Use* use) noexcept nogil  # as of mark_behind; 0 where it has its event already
# Asks for the event of a use, or waits for it.  The event is dropped where the stream is past it (0), where the device is
# lost (is_device_lost), and where it says nothing any more (NOT_READY): then the use is to be marked anew.
cdef int ask_use(Table* table, Use* use, bint wait) noexcept nogil
cdef void unmark_use(Table* table, Use* use) noexcept nogil  # its event goes back; the use may be marked anew

# --- queues: memory that was freed while streams may still use it ---
# Each stream has a queue of events, oldest first, and of the blocks that wait for them.  Events of one stream complete in
# order, so a poll stops at the first that is not complete.
cdef struct Queue:
    uintptr_t stream
    int device
    size_t number         # in the order of first use
    PooledEvent* head     # oldest
    PooledEvent* tail
    Queue* same_key       # in the index

cdef struct Queues:
    AddressMap index      # by stream and device
    Queue** all           # by number
    size_t count
    size_t capacity
    uint64_t* filled      # one bit a queue: set if it is not empty
    long pending          # events in all queues

# Takes an event that is in no queue any more, and returns it.
ctypedef void (*completing)(const Queue* queue, PooledEvent* event, void* owner) noexcept nogil

# Made at first use and never freed; NULL where the host has no memory.
cdef Queue* queue_of(Queues* queues, int device, uintptr_t stream) noexcept nogil
cdef Queue* next_filled(const Queues* queues, size_t number) noexcept nogil  # first non-empty one from number on; NULL
cdef Queue* busy_queue(const Queues* queues) noexcept nogil  # first whose oldest event can be waited for; NULL
cdef void push(Queues* queues, Queue* queue, PooledEvent* event, void* block) noexcept nogil  # at the end, as the newest
cdef void put_back(Queues* queues, Queue* queue, PooledEvent* event) noexcept nogil  # at the start, as the oldest
cdef PooledEvent* take_oldest(Queues* queues, Queue* queue) noexcept nogil  # complete or not; the queue is not empty
cdef PooledEvent* take_of(Queues* queues, Queue* queue, const void* block) noexcept nogil  # that of a queued block
# Queues an event for the block, counted in `events`, and drops the use; a stream that was destroyed uses nothing any more.
# The use stays where the stream captures, which is NOT_READY, and after a failure.
cdef int queue_use(Table* table, Queues* queues, UseStore* store, Use** link, void* block, uint32_t* events) noexcept nogil
# Completes what is complete, and never waits; 0 or a failure of the driver.
cdef int poll_queues(Table* table, Queues* queues, completing complete, void* owner) noexcept nogil
