# What happens in a fork and at the end of the process, in one order each.  DESIGN.md beside this lists who is in them.
from accelrt.core.descriptors cimport KeptFile

ctypedef void (*fork_hook)() noexcept nogil

# The order of what runs in C around a fork.  Children and parents are run forward, and locks are taken in reverse, so that
# the first rank's are the innermost.  process.pyx says why each stands where it does.
cdef enum ForkRank:
    FORK_MAIN_THREAD
    FORK_HOST_DRIVER
    FORK_GATE
    FORK_DRIVER
    FORK_POOLS
    FORK_USES
    FORK_RUNTIME
    FORK_DEVICES
    FORK_STREAMS
    FORK_HISTORY
    FORK_KERNELS
    FORK_GRAPHS
    FORK_TOOLS
    FORK_CONNECTIONS
    FORK_SHARING
    FORK_COLLECTIVES
    FORK_READINGS
    FORK_INITIALISATION
    FORK_THREAD_STATES
    FORK_RANKS  # how many there are

# Has functions run around every fork of the process, also one that C code makes; NULL: none.  At import, by any thread, with
# the GIL or without.  A name that is there already, as after an import that failed, is replaced.  A name is a literal.
# Functions run on the thread that forks.  None may register, and one of prepare may wait for nobody who needs the GIL.
cdef int at_fork(const char* name, ForkRank rank, fork_hook prepare, fork_hook parent, fork_hook child) except -1 nogil

# Raises an error, as of a signal's handler, at the calling thread's next step of Python, where code without Python comes
# before that; on another thread than the main one, an error of its class.
cdef void raise_soon(object error) noexcept


# The environment's variables that say which devices there are, and whether they changed.
cdef bint changed() noexcept nogil  # perhaps, since init; four words are compared, so that hot paths can ask
cdef int warn() except -1  # with the GIL: looks closer, and says once a process that a change has no effect
cdef bint is_same(object one, object other) noexcept  # as current() answered
cdef object current(int which)  # the value's own object, to be compared by identity; None where not set


# Locks of Python code: see process.pyx.
cdef class ForkSafeLock:
    cdef void* lock           # of the interpreter's threads
    cdef unsigned long owner  # the thread that has it; 0: none
    cdef long depth           # how often
    cdef long forks           # those before it was last renewed
    cdef object __weakref__

    cdef bint is_kept(self) noexcept
    cdef int renew(self) except -1
    cdef bint take(self, bint blocking, double timeout) except -1  # as acquire
    cdef bint wait(self, double timeout) except -1
    cdef int give_back(self) except -1  # as release


# File descriptors with an owner, for modules whose own code takes them from the system.
cdef class Descriptor:
    cdef int number     # -1 once it is closed or detached
    cdef KeptFile kept  # the same, with what tells whether other code has closed it
    cdef object __weakref__

    # Closes it where it is open, whatever the system says: for what has nothing left to write, such as a socket.
    cdef int release(self) except -1

    # What it has is another's from now on.
    cdef void forget(self) noexcept


cdef Descriptor own(int number)

# Each of `count` numbers as a Descriptor that is added to a list; where there is no memory for one, all are closed.
cdef int own_all(list descriptors, const int* numbers, size_t count) except -1
