"""Memory between processes.

Of this process's, which pages a live block is made of, and how often each of them is exported.  Of other processes', which
this one has mapped, the streams that were recorded as using it, until it is given back.
"""
from libc.stdlib cimport calloc, free
from libc.string cimport memset

from accelrt.core.locks cimport spin_lock, spin_unlock
from accelrt.core.process cimport FORK_POOLS, at_fork
cimport accelrt.driver.registry as registry
from accelrt.allocator.address_table cimport block_at
from accelrt.allocator.backing.pages cimport (
    keep_file, kept_file, make_pages_shareable, pages_are_shareable, slot_index,
)
from accelrt.allocator.device_pools cimport pool_if_made
from accelrt.allocator.exclusive cimport lock_all, unlock_all
from accelrt.allocator.types cimport LIVE, PLAIN, Block, Page, Pool, Segment
from accelrt.status cimport NOT_ALLOCATED, NOT_SUPPORTED, NO_HOST_MEMORY, SLEEPING

cdef struct Imported:
    uintptr_t address
    size_t size
    StreamUse* uses
    Imported* next

cdef int lock = 0
cdef Imported* imported = NULL  # the latest first; under the lock


# --- this process's memory -------------------------------------------------------------------------------------

cdef void share_new_pages() noexcept nogil:
    make_pages_shareable()


cdef bint are_pages_shared() noexcept nogil:
    return pages_are_shareable()


cdef Block* live_block(const Pool* pool, uintptr_t address) noexcept nogil:
    cdef Block* block = block_at(pool, address)
    return block if block != NULL and block.state == LIVE else NULL


cdef size_t first_slot(const Block* block) noexcept nogil:
    return slot_index(block.segment, block.address + 1) - 1


cdef size_t end_slot(const Block* block) noexcept nogil:
    return slot_index(block.segment, block.address + block.size)


cdef int list_pages(const Block* block, Exported* made) noexcept nogil:
    # In the exclusive section.
    cdef const Segment* segment = block.segment
    cdef size_t first = first_slot(block), end = end_slot(block), index
    cdef Page* page
    made.pages = <ExportedPage*>calloc(end - first, sizeof(ExportedPage))
    if made.pages == NULL:
        return NO_HOST_MEMORY
    made.count = end - first
    made.base = segment.slots[first].address
    made.size = segment.slots[end - 1].address + segment.slots[end - 1].size - made.base
    for index in range(first, end):
        page = segment.slots[index].page
        made.pages[index - first].serial = page.serial
        made.pages[index - first].handle = page.handle
        made.pages[index - first].size = page.size
        made.refused += not page.shareable
    return 0


cdef void count_exports(const Block* block, int change) noexcept nogil:
    # In the exclusive section.
    cdef size_t index
    for index in range(first_slot(block), end_slot(block)):
        block.segment.slots[index].page.exports += change


cdef int export_block(const Block* block, Exported* made) noexcept nogil:
    # In the exclusive section.
    cdef int code
    made.is_private = block.heap.owner != NULL
    if block.heap.owner != NULL and block.heap.owner.suspension != NULL:
        return SLEEPING
    if block.segment.shape == PLAIN:
        made.base = block.segment.address
        made.size = block.segment.size
        made.serial = block.segment.serial
        return 0
    code = list_pages(block, made)
    if code == 0 and made.refused == 0:
        count_exports(block, 1)
    return code


cdef int begin_export(int device, uintptr_t address, Exported* out_exported) noexcept nogil:
    cdef Pool* pool = pool_if_made(device)
    cdef const Block* block
    cdef int code
    memset(out_exported, 0, sizeof(Exported))
    if pool == NULL:
        return NOT_ALLOCATED
    if pool.external != NULL:
        return NOT_SUPPORTED
    lock_all(pool)
    block = live_block(pool, address)
    code = export_block(block, out_exported) if block != NULL else NOT_ALLOCATED
    unlock_all(pool, NULL)
    if code or out_exported.refused:
        free(out_exported.pages)
        out_exported.pages = NULL
    return code


cdef void end_export(int device, uintptr_t address) noexcept nogil:
    cdef Pool* pool = pool_if_made(device)
    cdef const Block* block
    if pool == NULL or pool.external != NULL:
        return
    lock_all(pool)
    block = live_block(pool, address)
    if block != NULL and block.segment.shape != PLAIN:
        count_exports(block, -1)
    unlock_all(pool, NULL)


cdef int export_page(uintptr_t handle, int* out_file, bint* out_kept) noexcept nogil:
    cdef int code = 0
    out_file[0] = kept_file(handle)
    out_kept[0] = True
    if out_file[0] < 0:
        code = registry.active().physical_export(handle, out_file)
        out_kept[0] = code == 0 and keep_file(handle, out_file[0])
    return code


# --- other processes' memory -----------------------------------------------------------------------------------

cdef void forget_imported() noexcept nogil:
    # In a forked child, which may not use the device: a thread of the parent's may have held the lock.
    global lock, imported
    lock = 0
    imported = NULL


cdef Imported* around(uintptr_t address) noexcept nogil:
    cdef Imported* found = imported
    while found != NULL and address - found.address >= found.size:
        found = found.next
    return found


cdef int add_imported(uintptr_t address, size_t size) noexcept nogil:
    global imported
    cdef Imported* made = <Imported*>calloc(1, sizeof(Imported))
    if made == NULL:
        return NO_HOST_MEMORY
    made.address = address
    made.size = size
    spin_lock(&lock)
    made.next = imported
    imported = made
    spin_unlock(&lock)
    return 0


cdef void free_uses(StreamUse* uses) noexcept nogil:
    cdef StreamUse* next_use
    while uses != NULL:
        next_use = uses.next
        free(uses)
        uses = next_use


cdef void drop_imported(uintptr_t address) noexcept nogil:
    cdef Imported** link
    cdef Imported* found
    spin_lock(&lock)
    link = &imported
    while link[0] != NULL and link[0].address != address:
        link = &link[0].next
    found = link[0]
    if found != NULL:
        link[0] = found.next
    spin_unlock(&lock)
    if found != NULL:
        free_uses(found.uses)
        free(found)


cdef int use_imported(uintptr_t address, int device, uintptr_t stream) noexcept nogil:
    cdef StreamUse* made = NULL
    cdef StreamUse* use
    cdef Imported* found
    cdef int code = NOT_ALLOCATED
    if imported == NULL:
        return code
    made = <StreamUse*>calloc(1, sizeof(StreamUse))
    if made == NULL:
        return NO_HOST_MEMORY
    made.device = device
    made.stream = stream
    spin_lock(&lock)
    found = around(address)
    if found != NULL:
        code = 0
        use = found.uses
        while use != NULL and (use.stream != stream or use.device != device):
            use = use.next
        if use == NULL:
            made.next = found.uses
            found.uses = made
            made = NULL
    spin_unlock(&lock)
    free(made)
    return code


cdef int copy_uses(uintptr_t address, StreamUse** out_uses) noexcept nogil:
    cdef Imported* found
    cdef const StreamUse* use
    cdef StreamUse* made
    cdef int code = 0
    out_uses[0] = NULL
    spin_lock(&lock)
    found = around(address)
    use = found.uses if found != NULL else NULL
    while use != NULL and code == 0:
        made = <StreamUse*>calloc(1, sizeof(StreamUse))
        if made == NULL:
            code = NO_HOST_MEMORY
        else:
            made.device = use.device
            made.stream = use.stream
            made.next = out_uses[0]
            out_uses[0] = made
        use = use.next
    spin_unlock(&lock)
    return code


at_fork("allocator.interprocess", FORK_POOLS, NULL, NULL, &forget_imported)
