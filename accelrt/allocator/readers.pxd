# A pool's statistics, each read at one moment.  A NULL pool was never used: all its statistics are 0.  A thread may hold the
# pool's mutex in a call of the driver that waits for a Python function, so all but try_current are called without the
# GIL.  Each takes the locks it needs; the caller holds none.
from libc.stdint cimport int64_t, uint32_t, uint64_t, uintptr_t

from accelrt.allocator.pinned.block cimport PinnedPool
from accelrt.allocator.stats cimport Stats
from accelrt.allocator.types cimport Pool
from accelrt.driver.guard cimport MAX_DEVICES
from accelrt.driver.memory cimport KIND_MANAGED

# The current value of a per-heap statistic, or the reserved bytes.  try_current returns False where it would have to wait.
cdef int64_t read_current(Pool* pool, int stat) noexcept nogil
cdef bint try_current(Pool* pool, int stat, int64_t* out_answer) noexcept nogil
cdef int64_t allocated_bytes(Pool* pool) noexcept nogil
cdef int64_t active_bytes(Pool* pool) noexcept nogil
cdef int64_t reserved_bytes(Pool* pool) noexcept nogil
cdef int64_t peak_of(Pool* pool, int stat) noexcept nogil  # of the sum of both kinds
cdef size_t largest_free(Pool* pool) noexcept nogil  # bytes of the largest free block of any heap
cdef int64_t max_split_of(Pool* pool) noexcept nogil  # bytes; -1: no limit
cdef size_t limit_of(Pool* pool) noexcept nogil  # most bytes to reserve; SIZE_MAX: no limit
cdef Stats read_stats(Pool* pool) noexcept nogil
cdef void reset_peaks(Pool* pool) noexcept nogil
cdef void reset_accumulated(Pool* pool) noexcept nogil
cdef object find_audit_failure(Pool* pool)  # the failed identity as str, or None; releases the GIL meanwhile


# What a device's pool holds; readers.pyx says what of it Python sees.  The caller holds no lock.
cdef struct LiveBlock:
    uintptr_t address
    size_t size
    uintptr_t stream

cdef struct LivePool:      # a private pool that is in use, or has live memory
    unsigned long long first   # its id
    unsigned long long second
    int users              # MemPools and contexts that retain it
    int graphs             # graphs and captures that do
    size_t reserved
    size_t live

# The live blocks of a device, of the driver's pools too, for the end of the process: how many there are and their bytes,
# and the largest of them, as many as there is room for, the largest first.  False where another thread has the pool's lock,
# so that nothing was read.  Without the GIL or Python.
cdef bint list_live(int device, LiveBlock* blocks, size_t room, size_t* out_count, size_t* out_bytes) noexcept nogil
# Notes in a device's history, with the stack, that a CUDA array came or went, which is no part of the pool.  Where history
# is recorded and the device has no pool yet, it is made.
cdef void record_array(int device, bint came, uintptr_t handle, size_t size) noexcept
cdef size_t list_live_pools(int device, LivePool* pools, size_t room) noexcept nogil  # how many were written

cdef struct PoolMemory:    # memory of a pool of the driver's that is live, which no segment has
    uintptr_t address
    size_t size
    uintptr_t stream       # in whose order it came
    int device             # that stream's
    int kind               # KIND_ of driver/memory.pxd
    uint32_t tag           # the allocating thread's
    uint32_t stack         # 0: none

cdef long[KIND_MANAGED + 1][MAX_DEVICES] pool_bytes  # of it, by kind; read by load_count

# Records what a pool gave, and tells the history; neither where the host has no memory for it.  It is taken out before the
# driver has it back, for the address may be another thread's at once, and ends, or is kept anew, by the driver's answer;
# NULL: there was none.
cdef void add_pooled(int device, int kind, uintptr_t address, size_t size, uintptr_t stream) noexcept
cdef PoolMemory* take_pooled(uintptr_t address) noexcept
cdef void end_pooled(PoolMemory* memory, bint is_gone) noexcept

cdef struct View:  # a copy of a block's fields, with those of its segment
    uintptr_t address
    size_t size
    size_t requested
    int state
    bint opens          # the first of its segment, or after a hole: shown as a segment of its own
    uint64_t serial
    int kind
    int shape
    bint asleep         # its pool is suspended
    bint managed        # the segment is of managed memory
    uintptr_t stream
    uint64_t[2] owner
    uint32_t stack
    uint32_t tag
    uint32_t segment_stack

# A pool's blocks, segment by segment; to be freed.  NULL where the host has no memory for the copy.
cdef View* copy_blocks(Pool* pool, size_t* out_count, uint64_t* out_mark) noexcept nogil

# Of page-locked memory: peaks of one pool, and of the first one, which has the figures of all; sums; and the audit.
cdef void reset_pinned_pool(PinnedPool* pool) noexcept nogil
cdef void reset_pinned_peaks() noexcept nogil
cdef void reset_pinned_sums() noexcept nogil
cdef const char* pinned_audit_failure() noexcept nogil  # NULL where every identity holds
