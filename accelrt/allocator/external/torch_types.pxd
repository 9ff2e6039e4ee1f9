# The table of C functions that torch's allocator object calls (torch_table.h says what each does).
from libc.stdint cimport int64_t, uint32_t, uint64_t, uintptr_t

cdef extern from "torch_table.h":
    enum:
        TORCH_TABLE_VERSION
        TORCH_TEXT
        TORCH_HANDLE
        TORCH_CAPTURE
        TORCH_THREAD
        TORCH_HOLDER
        TORCH_LIVE
        TORCH_PENDING
    ctypedef struct TorchCounter "struct TorchCounter":
        int64_t current
        int64_t peak
        int64_t allocated
        int64_t freed
    ctypedef struct TorchStats "struct TorchStats":
        TorchCounter[3][9] counters
        TorchCounter oversize_allocations
        TorchCounter oversize_segments
        int64_t retries
        int64_t refusals
        int64_t waits
        int64_t device_allocations
        int64_t device_frees
        int64_t max_split
    ctypedef struct TorchTiming "struct TorchTiming":
        int64_t total
        int64_t largest
        int64_t least
        int64_t count
    ctypedef struct TorchPinnedStats "struct TorchPinnedStats":
        TorchCounter segments
        TorchCounter segment_bytes
        TorchCounter blocks
        TorchCounter block_bytes
        TorchTiming take
        TorchTiming give
    ctypedef struct TorchBlock "struct TorchBlock":
        uint64_t address
        uint64_t size
        uint64_t requested
        uint64_t stream
        uint64_t[2] pool
        int state
        int opens
        int large
        int expandable
        uint32_t tag
    ctypedef struct TorchEvent "struct TorchEvent":
        uint64_t address
        uint64_t size
        uint64_t stream
        uint64_t[2] pool
        int action
        int device
        uint32_t tag
    ctypedef void (*TorchWatcher)(const TorchEvent* event) noexcept nogil
    ctypedef struct TorchSource "struct TorchSource":
        pass
    ctypedef void* (*Take "TorchTake")(size_t size, int device, void* stream) noexcept nogil
    ctypedef void (*Give "TorchGive")(void* address, size_t size, int device, void* stream) noexcept nogil
    ctypedef struct TorchTable "struct TorchTable":
        int version
        int (*alloc)(size_t size, int device, void* stream, uintptr_t* out_address, char* text) noexcept nogil
        int (*release)(void* address, int device, int answers) noexcept nogil
        void (*record_stream)(void* address, void* stream) noexcept nogil
        int (*device_at)(uintptr_t address) noexcept nogil
        size_t (*size_of)(int device, uintptr_t address) noexcept nogil
        int (*base_of)(int device, uintptr_t address, uintptr_t* out_base, size_t* out_size) noexcept nogil
        int (*plain_alloc)(int device, size_t size, uintptr_t* out_address, char* text) noexcept nogil
        void (*plain_free)(uintptr_t address) noexcept nogil
        int (*reach)(int device, int other, char* text) noexcept nogil
        void (*empty)() noexcept nogil
        void (*empty_pool)(uint64_t first, uint64_t second) noexcept nogil
        size_t (*largest)(int device) noexcept nogil
        void (*set_fraction)(double fraction, int device) noexcept nogil
        double (*get_fraction)(int device) noexcept nogil
        int (*init)(int count, char* text) noexcept nogil
        void (*totals)(int device, int64_t* out_allocated, int64_t* out_reserved) noexcept nogil
        void (*read_stats)(int device, TorchStats* out_stats) noexcept nogil
        void (*reset_peaks)(int device) noexcept nogil
        void (*reset_accumulated)(int device) noexcept nogil
        int (*blocks)(int device, TorchBlock** out_blocks, size_t* out_count) noexcept nogil
        void (*release_blocks)(TorchBlock* blocks) noexcept nogil
        int (*begin_pool)(int device, uint64_t first, uint64_t second, int purpose, uintptr_t stream,
                          char* text) noexcept nogil
        void (*end_pool)(int device, uint64_t first, uint64_t second) noexcept nogil
        void (*release_pool)(int device, uint64_t first, uint64_t second) noexcept nogil
        int (*enter_pool)(int device, uint64_t first, uint64_t second) noexcept nogil
        void (*leave_pool)(int device, uint64_t first, uint64_t second) noexcept nogil
        int (*enter_home)(int device, void* stream) noexcept nogil
        void (*leave_home)(int device) noexcept nogil
        TorchSource* (*make_source)(Take take, Give give) noexcept nogil
        int (*set_up_pool)(int device, uint64_t first, uint64_t second, const TorchSource* source, int whole,
                           int lends) noexcept nogil
        int (*pool_uses)(int device, uint64_t first, uint64_t second) noexcept nogil
        int (*save_pool)(int device, uint64_t first, uint64_t second, void** out_state, char* text) noexcept nogil
        int (*restore_pool)(void* state, uintptr_t** out_live, size_t* out_live_count, uintptr_t** out_freed,
                            size_t* out_freed_count, char* text) noexcept nogil
        void (*forget)(uintptr_t* addresses) noexcept nogil
        void (*forget_state)(void* state) noexcept nogil
        int (*pinned_hit)(size_t size, uintptr_t* out_address) noexcept nogil
        int (*pinned_alloc)(int device, size_t size, uintptr_t* out_address, char* text) noexcept nogil
        void (*pinned_release)(uintptr_t address) noexcept nogil
        int (*pinned_use)(uintptr_t address, int device, void* stream) noexcept nogil
        void (*pinned_empty)() noexcept nogil
        void (*pinned_stats)(TorchPinnedStats* out_stats) noexcept nogil
        void (*pinned_reset)(int peaks) noexcept nogil
        int (*settle)(int device) noexcept nogil
        int (*watch)(TorchWatcher watcher) noexcept nogil
        int (*share)(int device, uintptr_t address, char* handle, size_t* out_length, size_t* out_offset,
                     char* text) noexcept nogil
        int (*open_shared)(const char* handle, size_t length, int device, uintptr_t* out_base, void** out_memory,
                           char* text) noexcept nogil
        void (*close_shared)(void* memory) noexcept nogil
