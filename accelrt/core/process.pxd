# What happens in a fork and at the end of the process, in one order each.  DESIGN.md beside this lists who is in them.

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
cdef int at_fork(
    const char* name, ForkRank rank, fork_hook prepare, fork_hook parent, fork_hook child,
) except -1 nogil
