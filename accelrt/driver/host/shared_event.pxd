# An event's state in memory that several processes map: what was recorded last, and what of it is done.
#
# The holders are counted under the queue's lock; the words are atomic.
from libc.stdint cimport uint32_t, uint64_t

cdef enum:
    IPC_BYTES = 64

# What the processes share.
cdef struct EventWords:
    uint64_t recorded   # the number of the last record
    uint64_t completed  # the greatest number that is done
    int recorder        # the process that made the last record
    uint32_t wakeups    # counts completions: what waiters sleep on

cdef struct SharedEvent:
    EventWords* words
    int file      # of the words
    int holders

# What a handle of 64 bytes says: the file that a process holds open, and what of it is meant.
cdef struct FileName:
    uint64_t purpose   # EVENT_FILE or MEMORY_FILE
    int process
    int file           # in that process
    uint64_t inode     # which tells whether it is still the same file
    long offset
    size_t size

cdef uint64_t EVENT_FILE
cdef uint64_t MEMORY_FILE

cdef int name_file(int file, uint64_t purpose, long offset, size_t size, char* out_ipc) noexcept nogil
# Opens the file of another process; the caller closes it.  INVALID_HANDLE where that process, or its file, is gone.
cdef int open_named(const char* handle, uint64_t purpose, FileName* out_name, int* out_file) noexcept nogil

cdef SharedEvent* make_shared_event() noexcept nogil  # NULL: no memory
cdef int open_shared_event(const char* handle, SharedEvent** out_event) noexcept nogil
cdef void drop_shared_event(SharedEvent* event) noexcept nogil
cdef uint64_t begin_record(SharedEvent* event) noexcept nogil  # the record's number
cdef void complete_record(SharedEvent* event, uint64_t number) noexcept nogil
# Whether the record is done, or will never be, for the process that made it has ended.
cdef bint is_record_done(SharedEvent* event, uint64_t number) noexcept nogil
cdef uint64_t last_record(SharedEvent* event) noexcept nogil
cdef void sleep_on(SharedEvent* event, uint64_t number) noexcept nogil  # until then, without any lock
