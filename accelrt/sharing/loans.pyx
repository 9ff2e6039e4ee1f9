"""What this process lends: each loan is the memory and the event that says when others may use it.

A handle keeps its loan; a ticket, which nobody keeps here, is kept by a table until it is opened.  So whatever is
interrupted between the making of a loan and that of its handle leaves nothing behind.  Each call here is one step.
"""
cimport cython
from posix.unistd cimport getpid

from accelrt.sharing.mapping import SharedBytes
from accelrt.status cimport refuse_copy
from accelrt.streams.event cimport Event
from accelrt.streams.stream cimport Stream

import weakref

cdef enum:
    MOST_EVENTS = 512  # of one process; a driver has no more than some thousands for all

cdef dict _loans = {}         # number -> weak reference to a Loan
cdef dict _tickets = {}       # number -> Loan that nobody opened yet
cdef dict _spare_events = {}  # device -> Events of loans that ended
cdef long _event_count = 0    # of loans, and spare ones
cdef long _last_number = 0


@cython.no_gc
cdef class Loan:
    """Memory that others may open, and the event behind the owner's work.

    Attributes:
        number: int, by which others ask for it.
        memory: SharedBytes.
        event: Event; None where the work was waited for.
        ticket: bool, opened once.
    """

    cdef readonly long number
    cdef readonly object memory
    cdef readonly Event event
    cdef readonly bint ticket
    cdef int event_device
    cdef int pid
    cdef object __weakref__

    def __init__(self, memory, bint ticket):
        global _last_number
        if not isinstance(memory, SharedBytes):
            raise TypeError(f"memory is of type {type(memory).__name__}; it has to be a SharedBytes")
        self.pid = getpid()
        self.memory = memory
        self.ticket = ticket
        _last_number += 1
        self.number = _last_number

    def __reduce__(self):
        refuse_copy(self, "it is of this process; its MemoryHandle pickles")

    def __dealloc__(self):
        if self.pid != getpid():
            return
        _loans.pop(self.number, None)
        if self.event is not None:
            _spare_events.setdefault(self.event_device, []).append(self.event)

    def record(self, Stream stream not None):
        """Records an event of the loan behind a stream's work; False where the process has too many of them."""
        global _event_count
        cdef list spare = _spare_events.setdefault(stream.device_index, [])
        if self.event is None:
            if not spare and _event_count >= MOST_EVENTS:
                return False
            if spare:
                self.event = spare.pop()
            else:
                self.event = Event(interprocess=True)
                _event_count += 1
            self.event_device = stream.device_index
        self.event.record(stream)
        return True

    def offer(self):
        """From now on others find it: a handle while somebody keeps the Loan, a ticket until it is taken."""
        if self.ticket:
            _tickets[self.number] = self
        else:
            _loans[self.number] = weakref.ref(self)

    def withdraw(self):
        """Nobody finds it any more."""
        _tickets.pop(self.number, None)
        _loans.pop(self.number, None)


def find(long number):
    """The loan of that number, or None; who finds a ticket has taken it."""
    reference = _loans.get(number)
    return _tickets.pop(number, None) if reference is None else reference()


def drop_ticket(long number):
    """Takes back a ticket that will not be opened; the Loan, to be let go of, or None."""
    return _tickets.pop(number, None)


def drop_tickets():
    """Takes back all tickets.

    Returns:
        list of Loans.
    """
    global _tickets
    gone = list(_tickets.values())
    _tickets = {}
    return gone


def live():
    """The loans that others may open: a list."""
    found = [reference() for reference in list(_loans.values())]
    return [loan for loan in found if loan is not None] + list(_tickets.values())


def forget():
    """In a forked child, which may not use its parent's memory.

    Returns:
        What has to be kept for ever, so that nothing of it ends here.
    """
    global _loans, _tickets, _spare_events, _event_count
    kept = (live(), _spare_events)
    _loans, _tickets, _spare_events, _event_count = {}, {}, {}, 0
    return kept
