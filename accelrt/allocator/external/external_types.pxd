# One device's memory where it does not come from accelrt's own pool: the records, the statistics and the order
# of going back, over a backend that only takes and gives.  Every live address has one record in one map.
from libc.stdint cimport uintptr_t
from accelrt.core.handle_map cimport AddressMap
from accelrt.core.locks cimport pthread_mutex_lock, pthread_mutex_t, pthread_mutex_unlock
from accelrt.driver.table cimport Table
from accelrt.allocator.stats cimport Stats
from accelrt.driver.guard cimport Use, UseStore

# Bytes that were handed out, and are live or leaving.
cdef struct Record:
    uintptr_t address
    size_t size        # bytes asked for, exactly what the backend was asked for
    uintptr_t stream   # in whose order they go back: the one that they were asked for on
    Use* uses          # by other streams; with an event once it was given back, where the backend waits for events
    Record* next       # while leaving: the one given back after it

# Where memory comes from.  No row is called under a pool's lock, some under relief; every one may be called by any
# thread.
cdef struct Backend:
    const char* name
    # Once for each device, before its first use; 0, or why it cannot serve the device.
    int (*open)(ExternalPool* pool) noexcept nogil
    # Fills record.address from its size and stream; OUT_OF_MEMORY where there is none.
    int (*take)(ExternalPool* pool, Record* record) noexcept nogil
    # Before a record with uses is given: puts its going back after their work, and drops them.  NOT_READY: ask
    # again later, which with wait it never answers because of work that is under way.
    int (*part)(ExternalPool* pool, Record* record, bint wait) noexcept nogil
    int (*give)(ExternalPool* pool, const Record* record) noexcept nogil
    # Gives idle memory back to the device, once the work before now on that stream is done.
    int (*trim)(ExternalPool* pool, uintptr_t stream) noexcept nogil
    # What it holds from the device, into RESERVED_BYTES; NULL where that is what is live and leaving.
    int (*read_reserved)(ExternalPool* pool, Stats* stats) noexcept nogil
    int (*reset_reserved_peak)(ExternalPool* pool) noexcept nogil  # NULL as above

# active = live + leaving + departing, in blocks and bytes.  Under lock unless said otherwise.
cdef struct ExternalPool:
    pthread_mutex_t lock     # inner; held for bookkeeping and calls that cannot wait
    const Backend* backend   # fixed
    Table* table             # fixed
    int device               # fixed
    int debug                # ACCELRT_DEBUG when it was made
    int captures             # of ours that are under way; nothing goes back meanwhile, nor while one begins
    size_t limit             # most bytes to have live and leaving
    size_t promised          # bytes that threads are asking the backend for
    AddressMap live          # address -> Record
    Record* oldest           # leaving: given back, in order, but not gone
    Record* newest
    size_t leaving           # how many
    size_t departing         # records that a thread is sending off
    size_t departing_bytes
    uintptr_t ordered        # the driver's pool, where the backend is cudaMallocAsync
    uintptr_t outlet         # the backend's own stream, made when it needs one
    UseStore uses            # of records
    AddressMap givers        # streams, alive as long as the process, on which memory went back since it was last trimmed
    const char* audit_failure  # the identity that a debug audit found untrue
    Stats stats


cdef inline void lock_external(ExternalPool* pool) noexcept nogil:
    pthread_mutex_lock(&pool.lock)


cdef inline void unlock_external(ExternalPool* pool) noexcept nogil:
    pthread_mutex_unlock(&pool.lock)
