# What the rows of memory and of copies take and answer (table.pxd); managed memory has managed.pxd.
from libc.stdint cimport uint64_t, uintptr_t

cdef struct PitchedCopy:  # of copy_batch_3d: what copy_3d takes
    uintptr_t dst
    size_t dst_pitch
    size_t dst_lines
    uintptr_t src
    size_t src_pitch
    size_t src_lines
    size_t width
    size_t height
    size_t depth

cdef struct CopyRun:      # of a batch of copies: how those from `first` on are made, up to the next run's first
    size_t first          # 0 of the first run, and no less than that of the run before; of two equal ones the later counts
    uint64_t dst_location  # hints where a side is better looked for: kind << 32 | id of CUmemLocation, or 0
    uint64_t src_location
    unsigned int flags    # CUmemcpyFlags
    int order             # a SOURCE_ number

cdef inline const CopyRun* run_from(const CopyRun* runs, const CopyRun* end, size_t index) noexcept nogil:
    # The run of a copy; runs: that of an earlier one, or of this one.
    while runs + 1 < end and runs[1].first <= index:
        runs += 1
    return runs

cdef enum:  # copy_batch: when sources are read, numbers of CUmemcpySrcAccessOrder
    SOURCE_IN_STREAM_ORDER = 1
    # Before the row returns, beside the stream's earlier work, ordinary host memory too; NOT_SUPPORTED in captures, on the
    # legacy default stream, and before CUDA 12.8
    SOURCE_DURING_CALL = 2
    SOURCE_AT_ANY_TIME = 3  # beside the stream's earlier work

cdef enum:  # copy_3d
    MAX_PITCH = 0x7FFFFFFF  # CU_DEVICE_ATTRIBUTE_MAX_PITCH of every device

cdef enum:  # memory_access, pool_access_set
    MEMORY_CLOSED = 0
    MEMORY_READ = 1
    MEMORY_WRITTEN = 3  # and read

cdef enum:  # pointer_range
    KIND_NONE = 0     # the driver knows nothing of it
    KIND_HOST = 1     # page-locked
    KIND_DEVICE = 2
    KIND_MANAGED = 3
