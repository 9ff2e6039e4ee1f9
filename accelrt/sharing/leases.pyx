"""What this process has opened of others: the mappings, by what they map, and the leases on them.

A Buffer of another process's memory keeps a Lease.  That ends with it, in one step that nothing can interrupt, and
leaves an Ending in the queue of the memory's owner: the streams' work to wait for, the mapping to let go of, and the
number that the owner is to be told.  Everything here is done by one call each, so that a thread of Python's sees all
of it or nothing.
"""
cimport cython
from libc.stdint cimport uintptr_t
from libc.stdlib cimport calloc, free
from posix.unistd cimport getpid

from accelrt.driver.capture_guard cimport (
    DONE, LATER, ask_stream, enter_wait, go_relaxed, is_captured_event, leave_wait, meaning_of, record_behind, restore_mode,
)
cimport accelrt.driver.registry as registry
from accelrt.driver.table cimport EVENT_DISABLE_TIMING
from accelrt.allocator.interprocess cimport StreamUse, copy_uses
from accelrt.sharing.mapping cimport Mapping, is_lost
from accelrt.status cimport NOT_READY
from accelrt.streams.event cimport return_event_handle, take_event_handle
from accelrt.streams.stream cimport PER_THREAD, Stream

from queue import Empty, SimpleQueue

cdef enum:
    CONFIRMED = 2  # answers in a row that the device is lost
    DOUBTFUL = 4   # refusals in a row until the whole device is waited for instead of a stream

cdef struct Awaited:    # the work of one stream
    int device
    uintptr_t stream
    uintptr_t event     # behind the work; 0: not recorded yet
    int lost            # answers in a row that the device is lost
    int refused         # refusals in a row, whichever
    Awaited* next

cdef dict _mapped = {}  # what is mapped -> Mapping that may be used


# --- work to wait for ----------------------------------------------------------------------------------------------

cdef int record(Awaited* work) noexcept nogil:
    cdef uintptr_t event = 0
    cdef uintptr_t stream = 0 if work.stream == PER_THREAD else work.stream  # another thread's: the legacy one follows it
    cdef int code = take_event_handle(work.device, EVENT_DISABLE_TIMING, &event)
    if code:
        return code
    code = record_behind(registry.active(), work.device, event, stream)
    if meaning_of(code) == DONE:
        work.event = event
    else:
        return_event_handle(work.device, event)
    return code


cdef int query(Awaited* work) noexcept nogil:
    cdef int mode
    cdef int code = go_relaxed(registry.active(), &mode)
    if code == 0:
        code = registry.active().event_query(work.device, work.event)
        restore_mode(registry.active(), mode)
    return code


cdef void drop_event(Awaited* work) noexcept nogil:
    if work.event:
        return_event_handle(work.device, work.event)
        work.event = 0


cdef int wait_for_device(int device) noexcept nogil:
    cdef int mode
    cdef int code = NOT_READY
    if enter_wait():
        code = go_relaxed(registry.active(), &mode)
        if code == 0:
            code = registry.active().device_synchronize(device)
            restore_mode(registry.active(), mode)
        leave_wait()
    return code


cdef int look_otherwise(Awaited* work, int code) noexcept nogil:
    # After a refusal that may mean anything.  A stream that is idle needs no event; where it cannot be asked either, as one
    # of another library's that is destroyed, the whole device is waited for.
    if meaning_of(code) == LATER:
        return code
    work.refused += 1
    code = ask_stream(registry.active(), work.device, 0 if work.stream == PER_THREAD else work.stream)
    if code and meaning_of(code) != LATER and work.refused >= DOUBTFUL:
        code = wait_for_device(work.device)
    return code


cdef bint is_done(Awaited* work) noexcept nogil:
    # Only success means it, or a device that is lost, which says so whatever it is asked.
    cdef int code
    if work.event == 0:
        code = record(work)
        if code:
            code = look_otherwise(work, code)
            if code == 0:
                return True
        else:
            code = query(work)
    else:
        code = query(work)
    if code == 0 and work.event:
        drop_event(work)
        return True
    if meaning_of(code) != LATER or is_captured_event(code):
        drop_event(work)  # it is recorded anew
    work.lost = work.lost + 1 if is_lost(code) else 0
    if work.lost >= CONFIRMED:
        drop_event(work)
        return True
    return False


@cython.no_gc
cdef class Tally:
    """What this process has of one owner, and what of it is over and not given back.

    Attributes:
        leases: int, Leases that live, or whose memory is not given back yet.
        late: int, of those the ones that ended; late_bytes: their bytes.
    """

    cdef readonly long leases
    cdef readonly long late
    cdef readonly size_t late_bytes


@cython.no_gc
cdef class Ending:
    """What is left of a Lease that died: work to wait for, a mapping to let go of, an owner to tell.

    Attributes:
        number: int, the name that this process gave to what it opened.
        connection: int, the number of the connection on which it asked for that; 0 where it did not.
    """

    cdef readonly long number
    cdef public long connection
    cdef readonly size_t nbytes
    cdef readonly Mapping memory
    cdef Stream stream
    cdef Tally tally
    cdef object key
    cdef Awaited* works
    cdef bint listed       # works has what was under way when the lease ended
    cdef bint counted      # among the memory's users
    cdef bint ended        # the lease is dead
    cdef readonly bint is_back

    def __init__(self, long number, size_t nbytes, Stream stream not None, Tally tally not None):
        self.number = number
        self.nbytes = nbytes
        self.stream = stream
        self.tally = tally

    def __dealloc__(self):
        cdef Awaited* work
        while self.works != NULL:
            work = self.works
            self.works = work.next
            drop_event(work)
            free(work)

    def attach(self, key):
        """Has the lease use what is mapped already.

        Returns:
            bool; None where it is being unmapped, and has to be looked for again.
        """
        cdef Mapping found = _mapped.get(key)
        if found is None:
            return False
        if found.closing:
            return None
        self.use(key, found)
        return True

    def publish(self, key, Mapping made not None):
        """Has the lease use what it mapped, and others too; or another's mapping, which was faster."""
        cdef Mapping found = _mapped.get(key)
        if found is None or found.closing:
            found = _mapped[key] = made
        self.use(key, found)

    cdef int use(self, key, Mapping memory) except -1:
        self.key = key
        self.memory = memory
        self.counted = True
        memory.users += 1
        return 0

    cdef int list_works(self) except -1:
        cdef StreamUse* use = NULL
        cdef StreamUse* next_use
        cdef int code = self.add_work(self.stream.device_index, self.stream.handle)
        if code == 0:
            code = copy_uses(self.memory.base, &use)
        while use != NULL:
            next_use = use.next
            if code == 0 and (use.device != self.stream.device_index or use.stream != self.stream.handle):
                code = self.add_work(use.device, use.stream)
            free(use)
            use = next_use
        if code:
            raise MemoryError("the streams that use another process's memory could not be listed")
        self.listed = True
        return 0

    cdef int add_work(self, int device, uintptr_t stream) noexcept:
        cdef Awaited* work = self.works
        while work != NULL:
            if work.device == device and work.stream == stream:
                return 0
            work = work.next
        work = <Awaited*>calloc(1, sizeof(Awaited))
        if work == NULL:
            return -1
        work.device = device
        work.stream = stream
        work.next = self.works
        self.works = work
        return 0

    def is_idle(self):
        """Whether no stream's work uses the memory any more.  Waits for nothing, but for a device that answers neither for
        its streams nor for events behind their work."""
        cdef Awaited** link
        cdef Awaited* work
        cdef bint done
        if self.memory is None:
            return True
        if not self.listed:
            self.list_works()
        link = &self.works
        while link[0] != NULL:
            work = link[0]
            with nogil:
                done = is_done(work)
            if done:
                link[0] = work.next
                free(work)
            else:
                link = &work.next
        return self.works == NULL

    def let_go(self):
        """Unmaps what no other lease uses; False where the driver refuses, and it is to be called again."""
        cdef Mapping memory = self.memory
        cdef bint done
        if memory is None:
            return True
        if self.counted:
            self.counted = False
            memory.users -= 1
        if memory.users == 0 and memory.base:  # only the owner's thread comes here
            memory.closing = True
            done = memory.unmap() == 0
            if (done or memory.half_closed) and _mapped.get(self.key) is memory:
                del _mapped[self.key]
            memory.closing = memory.half_closed
            if not done:
                return False
        self.memory = None
        return True

    def come_back(self):
        """The owner was told, or is gone."""
        if self.ended and not self.is_back:
            self.is_back = True
            self.tally.leases -= 1
            self.tally.late -= 1
            self.tally.late_bytes -= self.nbytes


@cython.no_gc
cdef class Lease:
    """What a Buffer of another process's memory keeps: its end puts an Ending into a queue."""

    cdef object queue
    cdef readonly Ending ending
    cdef int pid

    def __init__(self, queue, Ending ending not None):
        self.pid = getpid()
        self.ending = ending
        ending.tally.leases += 1
        self.queue = queue

    def __dealloc__(self):
        self.end()

    def end(self):
        """Gives the memory back; doing it again does nothing."""
        if self.queue is None or self.pid != getpid():  # never made, or a forked child's copy: its parent has it
            return
        if self.ending.ended:
            return
        self.ending.ended = True
        self.ending.tally.late += 1
        self.ending.tally.late_bytes += self.ending.nbytes
        self.queue.put(self.ending)


# --- tickets ---------------------------------------------------------------------------------------------------------

_unclaimed = SimpleQueue()  # (name, pid, loan) of tickets that will not be used, whose owners have to be told
_open_ticket = None


@cython.no_gc
cdef class Claim:
    """A ticket that came here: unless it is settled, its end has the owner told that it will not be used."""

    cdef object ticket
    cdef int pid

    def __init__(self, str name, int pid, long loan):
        self.pid = getpid()
        self.ticket = (name, pid, loan)

    def __dealloc__(self):
        self.decline()

    def settle(self):
        """It was used."""
        self.ticket = None

    def decline(self):
        ticket, self.ticket = self.ticket, None
        if ticket is not None and self.pid == getpid():
            _unclaimed.put(ticket)


def next_unclaimed():
    """(name, pid, loan) of a ticket whose owner has to be told that it will not be used; None."""
    try:
        return _unclaimed.get_nowait()
    except Empty:
        return None


def provide_opening(function):
    """Sets what opens a ticket: it gets the values of a Place, the layout and the Claim."""
    global _open_ticket
    _open_ticket = function


def rebuild(tuple values not None, layout):
    """What multiprocessing unpickles a Buffer or Array by: the ticket is claimed before anything can be interrupted."""
    claim = Claim(values[0], values[1], values[2])
    return _open_ticket(values, layout, claim)


def statistics():
    """How many Buffers of other processes this one has opened, and how many mappings they lie on."""
    cdef Mapping memory
    cdef long opened = 0
    for memory in list(_mapped.values()):
        opened += memory.users
    return {"opened": opened, "mapped": len(_mapped)}


def forget():
    """In a forked child: all of it is the parent's.

    Returns:
        What has to be kept for ever, so that nothing of it ends here.
    """
    global _mapped, _unclaimed
    kept = (_mapped, _unclaimed)
    _mapped, _unclaimed = {}, SimpleQueue()
    return kept
