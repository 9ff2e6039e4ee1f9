# What stands between callers and the driver: waits that signals end, the gate of captures, who may ask a stream; and the
# record that a stream uses bytes, with the events that end it.

# Waits that a signal may end, and thread states for threads that come to run Python.
#
# Python's handlers run on the main thread alone, and only when it asks for them.
#
# A caller that holds no lock and can leave what it waits for brackets the call of a row; on the main thread the rows
# stream_synchronize, event_synchronize and device_synchronize then look for signals now and then, and answer
# INTERRUPTED where a handler raised.  On every other thread, and without the brackets, they wait as ever.
from libc.stdint cimport uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport calloc

from accelrt.core.handle_map cimport AddressMap
from accelrt.core.locks cimport load_count, pthread_mutex_t
from accelrt.core.slots cimport Slot
from accelrt.core.threads cimport pthread_cond_t
from accelrt.driver.table cimport Table
from accelrt.status cimport NO_HOST_MEMORY

ctypedef int (*question)(int device, uintptr_t handle) noexcept nogil  # NOT_READY while work is left

cdef enum:
    INTERRUPTED = -50  # what the row would have waited for goes on; end_wait raises what the handler raised
    LOOK_NS = 40 * 1000 * 1000  # between two looks for signals

# --- for callers, with the GIL ---
cdef void begin_wait(bint sleeps) noexcept  # sleeps: spend no processor on it, at some microseconds of delay
cdef int end_wait(int code) except -1       # raises what a handler raised meanwhile
cdef bint is_main_thread() noexcept nogil   # whether begin_wait does anything
cdef void abandon_waits() noexcept nogil    # the interpreter's exit was interrupted: no bracketed wait waits any more
cdef bint are_abandoned() noexcept nogil

# --- for callers under a lock, where no handler may run, on the main thread ---
# Until end_slice the rows answer INTERRUPTED after so long at the latest.  The caller then leaves its locks, looks for
# signals, and waits on, for longer than before: work that others put in meanwhile must not keep it waiting for ever.
cdef void begin_slice(long long ns) noexcept nogil
cdef void begin_main_slice(long long ns) noexcept nogil  # on the main thread alone, which signals interrupt
cdef void end_slice() noexcept nogil
cdef bint is_to_end() noexcept nogil           # whether a handler raised, which raise_interruption raises; takes the GIL
cdef int raise_interruption() except -1

# --- for rows that wait ---
cdef bint is_interruptible() noexcept nogil
# Waits for the condition once, as pthread_cond_wait; True where the wait is to end.  The mutex is open meanwhile.
cdef bint pause_on(pthread_cond_t* wake, pthread_mutex_t* mutex) noexcept nogil
# Asks until the answer is another than NOT_READY, or the wait is to end; late by at most 2 % of what it waited.  For
# callers too, within the brackets, that wait for something of their own.
cdef int poll(question ask, int device, uintptr_t handle) noexcept nogil
cdef int poll_briefly(question ask, int device, uintptr_t handle) noexcept nogil  # the same, but NOT_READY after 20 us

# --- for threads of a driver's, or of a user's C code, that come to run Python; they have a thread state meanwhile ---
#     cdef bint made = make_thread_state()
#     with gil:
#         drop_with_gil(made)
#         ...
cdef bint make_thread_state() noexcept nogil  # without the GIL or a lock; whether the thread had none
cdef void drop_with_gil(bint made) noexcept   # what was made goes at the end of the block, with the GIL still held


# Captures of accelrt's, and what would break them or be broken by them: each keeps out of the other's way.
#
# A driver refuses to wait for a device that has a capture, in whatever mode, and breaks the capture for it; asking
# whether a capturing stream is idle breaks the capture too.  So a thread that does either on accelrt's own account
# enters first; and a capture is counted before it begins, which it does once they have left.
cdef enum Meaning:  # of a driver's answer about a stream, to memory that the stream used
    DONE    # it uses the memory no more, or has an event behind its work
    LATER   # it works, or it captures, or some stream does: to be tried again
    GONE    # there is no such stream on that device, or no more: it uses nothing
    FAILED  # none of these: an error to be reported to the caller

cdef long captures  # written by guard.pyx alone; others call captures_open()
cdef void expect_capture() noexcept nogil  # before one begins; may wait, so without the GIL and any lock of ours
cdef void count_out_capture() noexcept nogil  # after it ended, or did not begin
# False: a capture is open or about to begin, so do not query or wait.  Never waits, may nest, and may be called under
# any lock: a thread inside waits for no lock that a beginning capture could hold, which is none of ours.
cdef bint enter_wait() noexcept nogil
cdef void leave_wait() noexcept nogil  # after an enter_wait that answered True
# Around a wait for a lock that a thread in expect_capture may hold: the calling thread is outside, and then as it was.
cdef void step_outside() noexcept nogil
cdef void come_back() noexcept nogil
# Waits for a device inside, and not at all where a capture is open.  Within the caller's brackets signals' handlers run
# between two slices, outside: one may begin a capture, or wait for a thread that does.
cdef int await_inside(Table* table, int device) noexcept nogil

# While one thread ends a capture, a driver crashes where another asks it anything about the capture's streams but
# stream_is_capturing.  So the active table is a driver's with rows of the guard over those that name a stream or an event:
# each says that it asks, and the row capture_end waits until nobody does.  Who comes meanwhile waits for the end.
cdef Table* guard_table(Table* table, Table* blank) noexcept nogil  # blank: a table with no row filled

# Rows with which the driver takes memory for itself (a kernel's stacks, an instance of a graph, a module's variables) are
# put again where it has none, once function has given the device what is idle, and answered that there was some.  It is
# called with nothing entered here, and under no lock of the allocator: those rows are never called under one.
ctypedef bint (*room_fn)(int device) noexcept nogil
cdef void make_room_by(room_fn function) noexcept nogil

# For rows: waits while a capture ends, unless the thread is inside already.  may_wait: the call may wait within the driver.
# The answer is for leave_asking, on the same thread, and may be NULL.
cdef Slot* enter_asking(bint may_wait) noexcept nogil
cdef void leave_asking(Slot* asker) noexcept nogil

# Captures that others end, who say so afterwards or never.  From before one begins until it is said to be over no stream
# is recorded on accelrt's own account.
cdef void expect_told_capture() noexcept nogil  # as expect_capture
cdef void count_out_told_capture() noexcept nogil

cdef int meaning_of(int code) noexcept nogil  # of record_behind's answer; of other rows' after as_refusal
# Whether an answer says that the device runs nothing more, so that nothing is in use.
cdef bint is_device_lost(int code) noexcept nogil
# The answer of a row that names no stream, or an event of accelrt's: a refusal says nothing of a stream, so what would
# read as GONE becomes NOT_READY, unless the device is lost.
cdef int as_refusal(int code) noexcept nogil
# Whether the stream is captured, by accelrt or another library; for the legacy default stream, whether one is that it
# would wait for.
cdef bint is_capturing(Table* table, int device, uintptr_t stream, int* out_code) noexcept nogil
# Whether a stream is idle: NOT_READY where it is not, or may not be asked now.  Breaks no capture.
cdef int ask_stream(Table* table, int device, uintptr_t stream) noexcept nogil
# The same for a stream on which no capture can begin meanwhile; row is the driver's call that answered.
cdef int query_uncaptured(Table* table, int device, uintptr_t stream, const char** out_row) noexcept nogil
# After a refusal that reads as GONE: whether the stream, asked once more, has no work.
cdef bint is_idle_or_gone(Table* table, int device, uintptr_t stream) noexcept nogil
# Records an event of accelrt's behind the stream's work.  NOT_READY where that would be, or may have become, part of
# a capture; the event must be recorded anew before it is asked then.
cdef int record_behind(Table* table, int device, uintptr_t event, uintptr_t stream) noexcept nogil
cdef bint is_captured_event(int code) noexcept nogil  # an event's answer that says only that it was captured


cdef inline bint captures_open() noexcept nogil:  # or about to begin
    return load_count(&captures) > 0


# A thread's capture mode around calls that a driver refuses beside a capture, and that would break it: in
# relaxed mode they are permitted.  Every go_relaxed that succeeds has its restore_mode, on the same thread.

cdef int go_relaxed(Table* table, int* out_before) noexcept nogil
cdef void restore_mode(Table* table, int before) noexcept nogil


# A stream uses these bytes: the records of such uses, the driver events that say when the stream is past them, and queues of
# events.
#
# Lists of uses and queues are guarded by their owner's lock (a device pool's, the page-locked cache's, an external pool's);
# the pool of events by a lock of its own, the last in the order, which is held for no call of the driver.
cdef enum:
    MAX_DEVICES = 64

# Whether an instance leaves nodes out.  Which those are after an update is sure only where it is by its own graph, unchanged
# but for what nodes do.
cdef bint leaves_nodes_out(uintptr_t exec_) noexcept nogil

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
# Those that keep no time, and what fills that are left out wrote to, where none is; stops at the first failure.
cdef int destroy_spare(Table* table, int device) noexcept nogil
# Takes one and records it behind the stream's work; NULL where the answer, of record_behind, is not 0.
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
# Has the owner wait for the oldest event of each queue, which no capture took, and take it, as often as the queue has events
# now: what others free meanwhile takes no place of what was freed before.  Stops at the first failure.
ctypedef int (*waiting)(Queue* queue, void* owner) noexcept nogil
cdef int wait_queues(Queues* queues, waiting wait, void* owner) noexcept nogil
cdef void push(Queues* queues, Queue* queue, PooledEvent* event, void* block) noexcept nogil  # at the end, as the newest
cdef void put_back(Queues* queues, Queue* queue, PooledEvent* event) noexcept nogil  # at the start, as the oldest
cdef PooledEvent* take_oldest(Queues* queues, Queue* queue) noexcept nogil  # complete or not; the queue is not empty
cdef PooledEvent* take_of(Queues* queues, Queue* queue, const void* block) noexcept nogil  # that of a queued block
# Queues an event for the block, counted in `events`, and drops the use; a stream that was destroyed uses nothing any more.
# The use stays where the stream captures, which is NOT_READY, and after a failure.
cdef int queue_use(Table* table, Queues* queues, UseStore* store, Use** link, void* block, uint32_t* events) noexcept nogil
# Completes what is complete, and never waits; 0 or a failure of the driver.
cdef int poll_queues(Table* table, Queues* queues, completing complete, void* owner) noexcept nogil
