# The records of the host driver's stream-ordered pools, and what they ask of files.
from libc.stdint cimport int64_t, uint64_t, uintptr_t

from accelrt.core.descriptors cimport KeptFile
from accelrt.driver.host.machine cimport MAX_HOST_DEVICES
from accelrt.driver.host.work cimport Ticket

cdef extern from *:
    """
    #ifndef _GNU_SOURCE
    #define _GNU_SOURCE
    #endif
    #include <fcntl.h>
    #include <sys/stat.h>
    #include <unistd.h>
    typedef struct { unsigned long long place, number; } accelrt_file_id;  /* the same file in every process */
    static accelrt_file_id accelrt_id_of(int file) {
        struct stat found;
        accelrt_file_id id = {0, 0};
        if (fstat(file, &found) == 0) {
            id.place = found.st_dev;
            id.number = found.st_ino;
        }
        return id;
    }
    """
    ctypedef struct FileId "accelrt_file_id":
        uint64_t place
        uint64_t number
    FileId id_of "accelrt_id_of"(int file) noexcept nogil
    ssize_t pread(int file, void* data, size_t size, long offset) noexcept nogil
    ssize_t pwrite(int file, const void* data, size_t size, long offset) noexcept nogil
    enum:
        PROT_READ
        PROT_WRITE

cdef enum:  # CUmemPool_attribute
    FOLLOWS_EVENTS = 1
    FOLLOWS_INTERNALLY = 3
    THRESHOLD = 4
    RESERVED_BYTES = 5
    MOST_RESERVED = 6
    USED_BYTES = 7
    MOST_USED_BYTES = 8

cdef struct Pooled:
    uintptr_t address
    size_t size        # bytes, of whole pages
    long offset        # in the pool's file
    bint used
    size_t taken       # bytes that count as used, while it is
    int stream_on      # the device of the stream that freed it,
    uintptr_t stream   # that stream, and
    Ticket* ticket     # where in its order; NULL: it was past it at once
    Pooled* next

cdef struct HostPool:
    uintptr_t handle   # 0: one that each device has
    int kind           # of its memory: PLAIN, MANAGED or POOLED
    int device         # HOST_MEMORY: it is of page-locked memory
    int node           # of the host's memory, on which it had better be; or -1
    bint made          # by the caller
    int preferred_kind  # (MANAGED) a LOCATION_ number
    int preferred
    bint alive         # not destroyed
    bint shared        # other processes may have it
    KeptFile file      # (POOLED)
    size_t limit       # bytes of it, with the header
    bint imported      # another process's
    Pooled* blocks     # by their offsets
    uint64_t[9] values  # by attribute
    int[MAX_HOST_DEVICES] access  # MEMORY_ numbers of other devices, which reach all memory whatever this says
    HostPool* after

cdef struct Header:     # of a pool's file, of which it takes a page
    uint64_t mark
    uint64_t limit
    int64_t device      # as it was there; HOST_MEMORY

cdef struct Pointer:    # what another process gets, in out_ipc
    uint64_t mark
    FileId file
    uint64_t offset
    uint64_t size

cdef enum:
    HEADER = 4096
    POOL_CHUNK = 1 << 25
