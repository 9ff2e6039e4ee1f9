"""A thread's open groups, counted where no signal comes in between: a group that stayed open would hold back whatever the
thread calls later."""
import threading

from accelrt.core.process import call_at_fork
from accelrt.nccl.groups import perform
from accelrt.status cimport refuse_copy


class Groups(threading.local):
    """A thread's open groups, and what was called in them."""

    def __init__(self):
        self.depth = 0
        self.pending = []


groups = Groups()


def group_start():
    """Opens a group on this thread: what is called until group_end() is put into the streams there, all at
    once (ncclGroupStart).  Groups may be nested; the outermost counts."""
    groups.depth += 1


def group_end():
    """Ends the group, and puts into the streams what was called in it.

    Raises:
        NcclError: NCCL refused an operation; those that came before it may be in their streams.
        RuntimeError: no group is open on this thread.
    """
    if groups.depth == 0:
        raise RuntimeError("group_end() without group_start() on this thread")
    groups.depth -= 1
    if groups.depth == 0:
        pending, groups.pending = groups.pending, []
        if pending:
            perform(pending)


cdef class group:
    """group()\n--\n\n\
    A group as a context: operations of several communicators of one thread, or transfers that wait for
    each other.  If its body raises, none of them is put into a stream.

    with accelrt.nccl.group():
        for comm, array in zip(comms, arrays):
            comm.all_reduce(array)
    """

    cdef object __weakref__

    def __reduce__(self):
        refuse_copy(self, "it is of a thread")

    def __enter__(self):
        groups.depth += 1

    def __exit__(self, kind, error, trace):
        if kind is None:
            group_end()
        elif groups.depth:
            groups.depth -= 1
            groups.pending.clear()


def forget_in_child():
    groups.depth = 0
    groups.pending = []


call_at_fork("nccl.open_groups", "collectives", child=forget_in_child)
