# What the caches of page-locked memory are made of: sizes, figures, records.  The memory is portable, every device can use
# it, so that a process has one such pool; more where it has NUMA nodes, or users ask for pools of their own.  audit.pyx
# walks the identities of memory/DESIGN.md.
from libc.stdint cimport uint32_t, uint64_t, uintptr_t
from libc.string cimport memset

from accelrt.core.descriptors cimport KeptFile
from accelrt.core.handle_map cimport AddressMap
from accelrt.core.locks cimport pthread_mutex_t, spin_lock, spin_unlock
from accelrt.allocator.sizes cimport round_up
from accelrt.driver.guard cimport Queues, Use, UseStore

cdef enum:
    STEP = 64               # every block is a multiple; the class step up to 512 bytes
    FINE = 9                # log2 of the size from which a power of two has eight classes
    PAGE = 4096             # what the operating system locks; every large block is a multiple
    SMALL = 0               # kinds of segment
    LARGE = 1
    SMALL_LIMIT = 1 << 20   # the largest small block
    SMALL_SEGMENT = 2 << 20
    CLASSES = 448           # of sizes below 2**HOST_ROUND_LIMIT: seven words of a bit map
    WORDS = 7
    HOST_ROUND_LIMIT = 60        # requests of 2**60 bytes and more are refused unseen
    ANY_NODE = -1           # of the host's memory: wherever the system puts it
    NO_FILE = -1

cdef extern from *:
    int log2_floor "63 - __builtin_clzll" (unsigned long long value) noexcept nogil
    int lowest_bit "__builtin_ctzll" (unsigned long long value) noexcept nogil


cdef inline size_t class_size(size_t size) noexcept nogil:
    # The request's size rounded up to its class; size is at least 1.
    if size <= 1 << FINE:
        return round_up(size, STEP)
    return round_up(size, <size_t>1 << (log2_floor(size - 1) - 3))


cdef inline int class_above(size_t size) noexcept nogil:
    # The number of the smallest class of at least size: every block of its list, and of later ones, suffices.
    cdef int power
    if size <= 1 << FINE:
        return <int>((size + STEP - 1) // STEP) - 1
    power = log2_floor(size - 1)
    return 8 * (power - FINE) + <int>((size - 1) >> (power - 3))


cdef inline int class_below(size_t size) noexcept nogil:
    # The number of the largest class of at most size: the list of a free block.
    return class_above(size) if class_size(size) == size else class_above(size) - 1


cdef inline int kind_of(size_t size) noexcept nogil:
    return LARGE if size > SMALL_LIMIT else SMALL

# Figures of the page-locked memory.

cdef struct Tally:
    long long current
    long long peak       # the most that current was since the start or the last reset
    long long allocated  # sum of increases since the start or the last reset
    long long freed      # sum of decreases, likewise

cdef struct Timing:      # of driver calls, in microseconds
    long long total
    long long largest
    long long least      # 0 while count is
    long long count

cdef struct PinnedStats:
    Tally segments        # taken from the driver and not given back
    Tally segment_bytes
    Tally blocks          # live and pending
    Tally block_bytes     # of those, rounded as handed out
    Timing take           # host_alloc, or mapping and host_register; its count is num_host_alloc
    Timing give           # host_free, or host_unregister and unmapping


cdef inline void add(Tally* tally, long long amount) noexcept nogil:
    tally.current += amount
    tally.allocated += amount
    if tally.current > tally.peak:
        tally.peak = tally.current


cdef inline void subtract(Tally* tally, long long amount) noexcept nogil:
    tally.current -= amount
    tally.freed += amount


cdef inline void time_call(Timing* timing, long long microseconds) noexcept nogil:
    timing.total += microseconds
    timing.largest = max(timing.largest, microseconds)
    timing.least = microseconds if timing.count == 0 else min(timing.least, microseconds)
    timing.count += 1


cdef inline void reset_peak(Tally* tally) noexcept nogil:
    tally.peak = tally.current


cdef inline void reset_sums(Tally* tally) noexcept nogil:
    tally.allocated = tally.freed = 0


cdef inline void reset_timing(Timing* timing) noexcept nogil:
    memset(timing, 0, sizeof(Timing))

cdef enum:  # PinnedBlock.state
    FREE = 0      # in one free list
    LIVE = 1      # in the address map
    PENDING = 2   # given back, in the address map until no stream uses it any more
    LEAVING = 3   # a whole segment on its way back to the driver, in no list

# A run of a segment.  size is a multiple of STEP; the sizes of a segment's blocks add up to the segment's.
cdef struct PinnedBlock:
    uintptr_t address
    size_t size
    PinnedSegment* segment
    PinnedBlock* before   # neighbour below, NULL at the segment's start
    PinnedBlock* after    # neighbour above, NULL at the segment's end
    PinnedBlock* left     # in its free list; in the deferred list left is NULL
    PinnedBlock* right    # in its free list, the deferred list or the spare records
    Use* uses             # of a live block; of a pending one those whose events are not recorded yet
    uint32_t events       # queued ones that name it; guarded by order
    int state

# Memory of one driver call.  starts has a bit for each unit of bytes at which a block starts.
cdef struct PinnedSegment:
    uintptr_t address
    size_t size           # bytes, a multiple of PAGE
    uint64_t* starts
    PinnedBlock* first    # the block at address
    PinnedSegment* next   # of those on their way out
    size_t unit           # STEP in small segments, PAGE in large ones
    int kind              # SMALL or LARGE: the sizes of blocks that come from it
    int device            # that took it
    bint registered       # memory of the operating system's, registered, rather than the driver's own
    bint carved           # of the reserve: it stays for as long as the process
    bint uncached         # one block, given back to the driver when it is free
    KeptFile file         # whose memory it is, which other processes may have too; NO_FILE: none

cdef struct PinnedSettings:   # written under lock
    size_t round_limit        # bytes; larger requests are rounded to pages only
    size_t cache_limit        # bytes; larger blocks are given back at once
    int register_threads      # that touch the pages of memory to be registered
    bint use_register         # segments are the operating system's memory, registered
    bint background           # a thread polls
    size_t reserve            # bytes that are taken at the first miss, for segments to be carved of; 0: none

# Memory of one driver call that segments are carved of, the lower addresses first.  Guarded by lock.
cdef struct Reserve:
    uintptr_t address         # 0: not taken yet
    size_t size
    size_t used
    int device                # that took it
    bint registered
    bint wanted               # some thread is taking it

cdef struct PinnedPool:
    # A spin lock (core/locks.pxd) that guards everything but what order does.  Held for bookkeeping only: no driver
    # call, no GIL, no other lock.  So it may be taken with the GIL held.
    int lock
    PinnedBlock* free[2][CLASSES]    # by kind and class, the latest first
    uint64_t filled[2][WORDS]        # a bit for each list that is not empty
    AddressMap live           # address -> block, live and pending ones
    PinnedSegment** segments  # by address
    size_t segment_count
    size_t segment_room       # how many segments has room for
    PinnedSegment* doomed     # uncached and free, to be given back
    PinnedBlock* spare_blocks
    UseStore uses             # of blocks
    PinnedStats stats
    PinnedSettings settings
    Reserve reserve
    pthread_mutex_t order     # taken before lock; held around events, never while something is waited for
    Queues queues             # guarded by order
    PinnedBlock* deferred     # pending, with uses whose events are not recorded yet
    long awaited              # events that some thread took out to wait for them
    void* watch               # the thread that polls; guarded by order
    # The first pool's figures have in them those of all others, which add theirs under its lock too, taken behind their own.
    PinnedPool* whole         # the first pool; NULL: this is it
    size_t limit              # the most bytes of segments; SIZE_MAX: none
    size_t growing            # bytes that threads are asking the driver for
    int node                  # the NUMA node that its memory is to lie on, or ANY_NODE
    bint common               # its idle memory goes when everybody's does
    bint unshared             # no child of a fork has its memory, which is registered in huge pages where it can be
    long holders              # objects and contexts; guarded by lock


cdef enum Held:  # what the figures count
    SEGMENTS
    BLOCKS  # live and pending


# Counts so many more of them, of so many bytes, or as many fewer where both are below 0.
cdef inline void count_held(PinnedPool* pool, Held kind, long long number, long long bytes_) noexcept nogil:
    cdef Tally* numbers = &pool.stats.blocks if kind == BLOCKS else &pool.stats.segments
    cdef Tally* sizes = &pool.stats.block_bytes if kind == BLOCKS else &pool.stats.segment_bytes
    if number > 0:
        add(numbers, number)
        add(sizes, bytes_)
    else:
        subtract(numbers, -number)
        subtract(sizes, -bytes_)
    if pool.whole != NULL:
        spin_lock(&pool.whole.lock)
        count_held(pool.whole, kind, number, bytes_)
        spin_unlock(&pool.whole.lock)
