# Each device's pool: it is made at its first use, with the settings that are wanted then.  Devices are valid ordinals.
# Callers hold none of the pool's locks and, unless a comment says otherwise, not the GIL.
from libc.stdint cimport uint64_t, uintptr_t

from accelrt.allocator.event_ring cimport Follower
from accelrt.allocator.history_types cimport HistorySettings
from accelrt.allocator.pool_settings cimport PoolSettings
from accelrt.allocator.types cimport Pool
from accelrt.driver.guard cimport MAX_DEVICES, Use, UseStore

cdef extern from *:
    """
    #define load_pool(place) __atomic_load_n(place, __ATOMIC_ACQUIRE)
    """
    Pool* load_pool(Pool** place) noexcept nogil

# What the fast path looks at: the pool, a stand-in while it is watched (pool.pyx), or one that is not made.  Written by
# pool.pyx alone.
cdef Pool* pools[MAX_DEVICES]

cdef int make_pool(int device, Pool** out_pool) noexcept nogil  # where pool_of finds none; a device that does not exist too


cdef inline Pool* listed_pool(int device) noexcept nogil:
    # Never NULL.  Any thread, without a lock, as the next.
    return load_pool(&pools[device])


cdef inline Pool* pool_if_made(int device) noexcept nogil:
    # NULL before the device's first allocation.
    return listed_pool(device).whole


cdef inline int pool_of(int device, Pool** out_pool) noexcept nogil:
    # Makes it if it does not exist.
    cdef Pool* pool = pool_if_made(device)
    if pool == NULL:
        return make_pool(device, out_pool)
    out_pool[0] = pool
    return 0


# Of all pools, those that are made later too.  NO_HOST_MEMORY: some have it, some don't.  Callers take turns.
cdef int set_history(const HistorySettings* settings) noexcept nogil
cdef int follow_history(Follower follower) noexcept nogil  # told of all pools' events from now on; NULL: no longer
cdef Pool* recorded_pool(int device) noexcept nogil  # made if events of it are to be recorded; NULL: nothing is
# For callers that come without the GIL from Python, under no lock: whether operations of this level keep their stack
# (history_types.pxd); and, with the GIL, takes the one of the operation that is about to begin.
cdef bint wants_stack(int level) noexcept nogil
cdef void take_stack_of(int device, int level) noexcept nogil


# Memory between processes: what others have to map to have a live block's bytes, and which streams use what this process has
# mapped of theirs.
# --- this process's memory: called with no lock held and without the GIL ---

cdef struct ExportedPage:
    uint64_t serial   # identifies the page while it lives
    uintptr_t handle  # valid while the block lives
    size_t size

cdef struct Exported:
    uintptr_t base     # where the first page, or the plain segment, begins
    size_t size        # bytes from there on
    uint64_t serial    # of a plain segment
    size_t count       # pages; 0: a plain segment
    size_t refused     # pages that were made for this process alone; if not 0, nothing was exported
    ExportedPage* pages  # the caller frees them
    bint is_private    # of a private pool

cdef void share_new_pages() noexcept nogil  # pages that are made from now on may be exported, if the device can do that
# NOT_ALLOCATED, NOT_SUPPORTED for memory of a backend that is not accelrt's own, SLEEPING, NO_HOST_MEMORY.  A pool does not
# sleep while pages of it are exported.
cdef int begin_export(int device, uintptr_t address, Exported* out_exported) noexcept nogil
cdef void end_export(int device, uintptr_t address) noexcept nogil  # once for each begin_export, before the block is freed
# A descriptor of a page, between the two: the allocator's, which keeps it while the page lives, or the caller's to close.
cdef int export_page(uintptr_t handle, int* out_file, bint* out_kept) noexcept nogil

# --- other processes' memory, which no pool has: any thread, under no lock or any lock but this module's own ---

# For a device whose work uses memory: once devices use each other's memory, it reaches that of the others.
cdef int let_device_reach(int device) noexcept nogil
cdef int let_devices_reach() noexcept nogil  # devices use each other's memory from now on
# Opens what was mapped of a device for it, and for those that use each other's pages; the driver's code.
cdef int open_imported(int device, uintptr_t address, size_t size) noexcept nogil
# The device of what contains an address, and its addresses; -1: none does.
cdef int imported_around(uintptr_t address, uintptr_t* out_low, uintptr_t* out_high) noexcept nogil
cdef int add_imported(int device, uintptr_t address, size_t size) noexcept nogil  # 0 or NO_HOST_MEMORY
cdef void drop_imported(uintptr_t address) noexcept nogil
# Adds the recorded uses to a list of the caller's; 0 or NO_HOST_MEMORY, with some of them.
cdef int copy_uses(uintptr_t address, UseStore* store, Use** uses) noexcept nogil

# --- memory that a resource lent, by the address at which it begins: any thread, under no lock ---

cdef int add_lent(uintptr_t address) noexcept nogil  # 0 or NO_HOST_MEMORY
cdef bint is_lent(uintptr_t address) noexcept nogil
# Ends it, and adds the streams that were recorded as using it to a list of the caller's; NO_HOST_MEMORY: it is lent still,
# and the list has some of them.
cdef int drop_lent(uintptr_t address, UseStore* store, Use** uses) noexcept nogil


# One device's caching allocator: the entry points.  A device is a valid ordinal; its pool is made at the first use.
# Addresses are those that allocate returned; 0 stands for no memory.  Callers hold none of the pool's locks and, unless a
# comment says otherwise, not the GIL: a thread that holds a lock may be waiting for Python.
# Allocates, and frees, by the fast path if it can; else in the exclusive section, and a miss under the growth lock too.
# Size 0 gives address 0, and freeing address 0 does nothing.
cdef int allocate(int device, size_t size, uintptr_t stream, uintptr_t* out_address) noexcept nogil
# For callers that can raise: on the main thread, a wait for memory in use ends with INTERRUPTED (driver/guard.pxd) if
# the handler of a signal raised an exception.
cdef int allocate_interruptibly(int device, size_t size, uintptr_t stream, uintptr_t* out_address) noexcept nogil
cdef int release(int device, uintptr_t address) noexcept nogil
# The same for callers that hold the GIL: they never wait, and answer NOT_READY if the caller has to release the GIL and
# call the full function.
cdef int try_allocate(int device, size_t size, uintptr_t stream, uintptr_t* out_address) noexcept nogil
cdef int try_release(int device, uintptr_t address) noexcept nogil

cdef int device_at(uintptr_t address) noexcept nogil  # of its heap, without a lock or a driver call; -1: no pool has it
cdef int locate(int hint, uintptr_t address, int* out_device) noexcept nogil  # hint: tried first; or NOT_ALLOCATED
# The addresses of the live block that contains one; NOT_ALLOCATED where the address is the pool's and in none, and 0 to 0
# where it is not the pool's, or the pool's memory is another allocator's.
cdef int block_around(int device, uintptr_t address, uintptr_t* out_low, uintptr_t* out_high) noexcept nogil
# Whether it is live memory of a private pool, and which one's.
cdef bint in_private(int device, uintptr_t address, uint64_t* out_id) noexcept nogil
cdef int empty_named(int device, const uint64_t* name) noexcept nogil  # the same of one private pool, unless graphs use it
cdef int empty(int device) noexcept nogil  # waits for pending blocks, then releases idle memory
cdef int set_limit(int device, size_t limit) noexcept nogil

# Memory that streams other than its own use: these streams are recorded, or an event says when the memory is free.
cdef int use_on(int device, uintptr_t address, uintptr_t stream) noexcept nogil  # record_stream
# The same for a stream of device stream_on.
cdef int use_across(int device, uintptr_t address, int stream_on, uintptr_t stream) noexcept nogil
# The same for callers that hold the GIL, as try_allocate.  The device has to be valid.
cdef int try_use_across(int device, uintptr_t address, int stream_on, uintptr_t stream) noexcept nogil
# Whether memory was allocated on the stream and the stream lives as long as the process: then it is of this device.  Takes
# no lock, and may answer False for such a stream.
cdef bint knows_stream(int device, uintptr_t stream) noexcept nogil
# After the end of a capture, while its streams live: what was freed beside it is put behind their work, on all devices.
cdef void record_deferred_uses() noexcept nogil
# Before a stream is destroyed that others own: the same, and what used memory on it did so on its heir from now on, a
# stream of the same device's that waits for its work; 0: it has no work.
cdef void forget_stream(int stream_on, uintptr_t stream, uintptr_t heir) noexcept nogil
# Frees memory as of a recorded event; a stream that waits for the same recording may get the memory at once.  record is
# the number of the recording, unique in the process.
cdef int release_after(int device, uintptr_t address, uintptr_t event, uint64_t record) noexcept nogil
cdef int stream_waits(int device, uintptr_t stream, uint64_t record) noexcept nogil  # after the driver's call
