# Memory between processes: what others have to map to have a live block's bytes, and which streams use what this process has
# mapped of theirs.
from libc.stdint cimport uint64_t, uintptr_t

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
cdef bint are_pages_shared() noexcept nogil
# NOT_ALLOCATED, NOT_SUPPORTED for memory of a backend that is not accelrt's own, SLEEPING, NO_HOST_MEMORY.  A pool does not
# sleep while pages of it are exported.
cdef int begin_export(int device, uintptr_t address, Exported* out_exported) noexcept nogil
cdef void end_export(int device, uintptr_t address) noexcept nogil  # once for each begin_export, before the block is freed
# A descriptor of a page, between the two: the allocator's, which keeps it while the page lives, or the caller's to close.
cdef int export_page(uintptr_t handle, int* out_file, bint* out_kept) noexcept nogil

# --- other processes' memory, which no pool has: any thread, under no lock or any lock but this module's own ---

cdef struct StreamUse:
    int device
    uintptr_t stream
    StreamUse* next

cdef int add_imported(uintptr_t address, size_t size) noexcept nogil  # 0 or NO_HOST_MEMORY
cdef void drop_imported(uintptr_t address) noexcept nogil
cdef int use_imported(uintptr_t address, int device, uintptr_t stream) noexcept nogil  # NOT_ALLOCATED: it is none of these
# The recorded uses, which the caller frees one by one; 0 or NO_HOST_MEMORY, with some of them.
cdef int copy_uses(uintptr_t address, StreamUse** out_uses) noexcept nogil
