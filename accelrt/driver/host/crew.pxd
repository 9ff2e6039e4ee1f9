# Threads that share the blocks of a kernel with the thread that serves its stream.

# Does count parts of a task from first on; False: no more of them are to be done.  On any thread, under no lock.
ctypedef bint (*part_fn)(const void* task, unsigned long long first, unsigned long long count) noexcept nogil

cdef enum:
    MOST_THREADS = 64

cdef void crew_open(int threads) noexcept nogil  # 0: as many as the process may use processors
# Returns when all parts are done, or one said no and those under way are.
cdef void share(part_fn run, const void* task, unsigned long long count) noexcept nogil
cdef int crew_size() noexcept nogil
