"""accelrt's pool behind an allocator object of torch's own class, which interop/torch_allocator.cpp is the source of."""
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdint cimport SIZE_MAX, int64_t, uint64_t, uintptr_t
from libc.stdio cimport snprintf
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset

from accelrt.allocator.event_ring cimport Follower
from accelrt.allocator.external.backends cimport (
    enter_gil, explain, fill_hooks, fraction_of_limit, is_outside, leave_gil, torchs_name, translate,
)
from accelrt.allocator.external.torch_types cimport (
    TORCH_HANDLE, TORCH_LIVE, TORCH_PENDING, TORCH_TABLE_VERSION, TORCH_TEXT, TorchBlock, TorchCounter, TorchEvent,
    TorchPinnedStats, TorchSource, TorchStats, TorchTable, TorchTiming, TorchWatcher,
)
from accelrt.allocator.history_types cimport Event
from accelrt.allocator.heaps cimport block_at, lock_all, thread_number, unlock_all
from accelrt.allocator.pinned.block cimport PinnedStats, Tally, Timing
from accelrt.allocator.pinned.cache cimport (
    allocate_pinned_on, empty_pinned, read_pinned_stats, release_pinned, reset_pinned_peaks, reset_pinned_sums,
    try_allocate_pinned, try_release_pinned, use_pinned_on,
)
from accelrt.allocator.pool cimport (
    MAX_DEVICES, Exported, begin_export, device_at, empty_named, end_export, follow_history, pool_if_made,
)
from accelrt.allocator.private.private_types cimport Source
from accelrt.allocator.private.routes cimport (
    CAPTURED, LENT, NO_SUCH_POOL, USED, WAITS, WENT, Saved, Turned, begin_pool, begin_pool_for_common, end_pool,
    forget_saved, read_private, restore_pool, retain_pool, save_pool, set_up_pool,
)
from accelrt.allocator.readers cimport (
    View, allocated_bytes, copy_blocks, max_split_of, read_stats, reserved_bytes, reset_accumulated, reset_peaks,
)
from accelrt.allocator.sizes cimport LARGE
from accelrt.allocator.stats cimport Counter, STATS, Stats
from accelrt.allocator.types cimport LIVE, PENDING, PLAIN, Block, Pool
from accelrt.core.handle_map cimport AddressMap, map_clear, map_find, map_insert, map_remove, map_reserve
from accelrt.core.interpreter cimport interpreter_is_gone
from accelrt.core.locks cimport (
    add_count, load_count, pthread_mutex_init, pthread_mutex_lock, pthread_mutex_t, pthread_mutex_unlock, store_count,
)
from accelrt.core.process cimport FORK_POOLS, at_fork
from accelrt.driver.guard cimport enter_wait, leave_wait
cimport accelrt.driver.registry as registry
from accelrt.status cimport (
    FORKED, INVALID_DEVICE, NO_HOST_MEMORY, NOT_ALLOCATED, NOT_READY, raise_status, status_text,
)


cdef extern from *:
    void set_bits "__sync_fetch_and_or" (uint64_t* value, uint64_t bits) noexcept nogil


# --- memory --------------------------------------------------------------------------------------------------

cdef inline Pool* pool_at(int device) noexcept nogil:
    return NULL if is_outside(device) else pool_if_made(device)


cdef size_t size_of(int device, uintptr_t address) noexcept nogil:
    cdef uintptr_t base = 0
    cdef size_t size = 0
    return block_size(device, address, &base, &size)


cdef size_t block_size(int device, uintptr_t address, uintptr_t* out_base, size_t* out_size) noexcept nogil:
    # Of the live block that begins there, and where its segment lies; 0: there is none.
    cdef Pool* pool = pool_at(device)
    cdef const Block* block
    cdef size_t answer = 0
    if pool == NULL or pool.external != NULL:
        return 0
    lock_all(pool)
    block = block_at(pool, address)
    if block != NULL and block.state == LIVE:
        answer = block.size
        out_base[0] = block.segment.address
        out_size[0] = block.segment.size
    unlock_all(pool, NULL)
    return answer


cdef int base_of(int device, uintptr_t address, uintptr_t* out_base, size_t* out_size) noexcept nogil:
    return 0 if block_size(device, address, out_base, out_size) else -1


cdef int plain_alloc(int device, size_t size, uintptr_t* out_address, char* text) noexcept nogil:
    cdef int code = INVALID_DEVICE if is_outside(device) else registry.active().memory_alloc(device, size, out_address)
    if code:
        explain(text, "allocate past its cache", device, code)
    return code


cdef void plain_free(uintptr_t address) noexcept nogil:
    cdef int device = 0
    if registry.active().pointer_device(address, &device) == 0 and device >= 0:
        registry.active().memory_free(device, address)


cdef void empty_pool(uint64_t first, uint64_t second) noexcept nogil:
    cdef uint64_t[2] name
    translate(first, second, name)
    empty_private(name[0], name[1])


cdef void empty_private(uint64_t first, uint64_t second) noexcept nogil:
    cdef void* state = leave_gil()
    cdef uint64_t[2] name = [first, second]
    cdef int device
    for device in range(MAX_DEVICES):
        empty_named(device, name)
    enter_gil(state)


# --- figures -------------------------------------------------------------------------------------------------

cdef void totals(int device, int64_t* out_allocated, int64_t* out_reserved) noexcept nogil:
    out_allocated[0] = allocated_bytes(pool_at(device))
    out_reserved[0] = reserved_bytes(pool_at(device))


cdef void copy_counter(TorchCounter* into, const Counter* counter) noexcept nogil:
    into.current, into.peak = counter.current, counter.peak
    into.allocated, into.freed = counter.allocated, counter.freed


cdef void stats_of(int device, TorchStats* out_stats) noexcept nogil:
    cdef Stats stats = read_stats(pool_at(device))
    cdef int stat, kind
    cdef TorchCounter* both
    memset(out_stats, 0, sizeof(TorchStats))
    for stat in range(STATS):
        both = &out_stats.counters[stat][0]
        for kind in range(2):
            copy_counter(&out_stats.counters[stat][1 + kind], &stats.counters[stat][kind])
            both.current += stats.counters[stat][kind].current
            both.allocated += stats.counters[stat][kind].allocated
            both.freed += stats.counters[stat][kind].freed
        both.peak = stats.peak_all[stat]
    copy_counter(&out_stats.oversize_allocations, &stats.oversize_allocations)
    copy_counter(&out_stats.oversize_segments, &stats.oversize_segments)
    out_stats.retries = stats.num_alloc_retries
    out_stats.refusals = stats.num_ooms
    out_stats.waits = stats.num_sync_all_streams
    out_stats.device_allocations = stats.num_device_alloc
    out_stats.device_frees = stats.num_device_free
    out_stats.max_split = max_split_of(pool_at(device))


cdef void restart_peaks(int device) noexcept nogil:
    reset_peaks(pool_at(device))


cdef void restart_accumulated(int device) noexcept nogil:
    reset_accumulated(pool_at(device))


cdef int blocks_of(int device, TorchBlock** out_blocks, size_t* out_count) noexcept nogil:
    cdef Pool* pool = pool_at(device)
    cdef View* views
    cdef TorchBlock* block
    cdef uint64_t mark = 0
    cdef size_t index
    out_blocks[0], out_count[0] = NULL, 0
    if pool == NULL or pool.external != NULL:
        return 0
    views = copy_blocks(pool, out_count, &mark)
    if views != NULL:
        out_blocks[0] = <TorchBlock*>calloc(out_count[0] + 1, sizeof(TorchBlock))
    if out_blocks[0] == NULL:
        free(views)
        return NO_HOST_MEMORY
    for index in range(out_count[0]):
        block = &out_blocks[0][index]
        block.address, block.size, block.requested = views[index].address, views[index].size, views[index].requested
        block.stream, block.tag, block.opens = views[index].stream, views[index].tag, views[index].opens
        block.large, block.expandable = views[index].kind == LARGE, views[index].shape != PLAIN
        if views[index].state == LIVE:
            block.state = TORCH_LIVE
        elif views[index].state == PENDING:
            block.state = TORCH_PENDING
        if views[index].owner[0] or views[index].owner[1] != home:
            torchs_name(views[index].owner, block.pool)
    free(views)
    return 0


cdef void release_blocks(TorchBlock* blocks) noexcept nogil:
    free(blocks)


# --- pools ---------------------------------------------------------------------------------------------------

cdef int enter_pool(int device, uint64_t first, uint64_t second) noexcept nogil:
    cdef uint64_t[2] name
    translate(first, second, name)
    return begin_pool(device, name[0], name[1])


cdef void leave_pool(int device, uint64_t first, uint64_t second) noexcept nogil:
    cdef uint64_t[2] name
    translate(first, second, name)
    end_pool(device, name[0], name[1], thread_number())


# torch's default memory lies in a private pool if it is to sleep, for nothing of the common heaps can.  While that pool
# sleeps, the common heaps serve torch.
cdef uint64_t home = 0         # its second number; 0: none
cdef uint64_t home_devices = 0  # a bit for each device on which it is retained for good
cdef void (*empty_common)() noexcept nogil


cdef int enter_home(int device, void* stream) noexcept nogil:
    global home_devices
    cdef int code = 0
    if home == 0 or is_outside(device):
        return NOT_READY
    if not home_devices >> device & 1:  # a second thread that retains it does no harm
        code = retain_pool(device, 0, home, True, SIZE_MAX)
        if code == 0:
            set_bits(&home_devices, <uint64_t>1 << device)
    return code if code else begin_pool_for_common(device, <uintptr_t>stream, 0, home)


cdef void leave_home(int device) noexcept nogil:
    end_pool(device, 0, home, thread_number())


cdef void empty_all() noexcept nogil:
    empty_common()
    if home:
        empty_private(0, home)


def choose_home(number: int) -> None:
    """Has torch's default memory lie in the private pool (0, number) from now on; 0: in the common heaps."""
    global home, home_devices
    if home != number:
        home, home_devices = number, 0


cdef int prepare_pool(int device, uint64_t first, uint64_t second, const TorchSource* source, int whole,
                      int lends) noexcept nogil:
    cdef uint64_t[2] name
    translate(first, second, name)
    return set_up_pool(device, name[0], name[1], <const Source*>source, whole, lends)


cdef int pool_uses(int device, uint64_t first, uint64_t second) noexcept nogil:
    cdef uint64_t[2] name
    translate(first, second, name)
    return 0 if is_outside(device) else read_private(device, name[0], name[1], False).uses


# --- checkpoints ---------------------------------------------------------------------------------------------

cdef const char* reason_of(int code) noexcept nogil:
    if code == NO_SUCH_POOL:
        return b"there is no such pool"
    if code == WAITS:
        return b"memory of it that was given back is in use on other streams; synchronise first, outside captures"
    if code == CAPTURED:
        return b"a capture allocates from it; end that first"
    if code == LENT:
        return b"pages of it serve other memory, since nothing used it for a while"
    if code == WENT:
        return b"segments of it went back to the device since: it was not in use throughout"
    if code == USED:
        return b"memory that would be freed was recorded on other streams"
    return status_text(code)


cdef int refuse_state(char* text, const char* call, int device, int code) noexcept nogil:
    snprintf(text, TORCH_TEXT, "accelrt, which is torch's allocator here, cannot %s a pool's checkpoint on device %d: %s",
             call, device, reason_of(code))
    return code


cdef int save_state(int device, uint64_t first, uint64_t second, void** out_state, char* text) noexcept nogil:
    cdef void* gil = leave_gil()
    cdef Saved* saved = <Saved*>calloc(1, sizeof(Saved))
    cdef uint64_t[2] name
    cdef int code = NO_HOST_MEMORY
    translate(first, second, name)
    if saved != NULL:
        code = save_pool(device, name[0], name[1], saved)
    enter_gil(gil)
    if code:
        forget_state(saved)
        return refuse_state(text, "take", device, code)
    out_state[0] = saved
    return 0


cdef int restore_state(void* state, uintptr_t** out_live, size_t* out_live_count, uintptr_t** out_freed,
                       size_t* out_freed_count, char* text) noexcept nogil:
    cdef void* gil = leave_gil()
    cdef Saved* saved = <Saved*>state
    cdef Turned turned
    cdef size_t index
    cdef int code
    memset(&turned, 0, sizeof(Turned))
    code = restore_pool(saved, &turned)
    enter_gil(gil)
    if code:
        free(turned.live)
        free(turned.freed)
        return refuse_state(text, "go back to", saved.device, code)
    for index in range(turned.freed_count):
        forget_share(turned.freed[index])
    out_live[0], out_live_count[0] = turned.live, turned.live_count
    out_freed[0], out_freed_count[0] = turned.freed, turned.freed_count
    return 0


cdef void forget(uintptr_t* addresses) noexcept nogil:
    free(addresses)


cdef void forget_state(void* state) noexcept nogil:
    if state != NULL:
        forget_saved(<Saved*>state)
        free(state)


# --- page-locked memory --------------------------------------------------------------------------------------
# torch calls all of it with the GIL or without; only a hit, and a free of what no stream uses, keep it.

cdef int pinned_alloc(int device, size_t size, uintptr_t* out_address, char* text) noexcept nogil:
    cdef void* gil = leave_gil()
    cdef int code = allocate_pinned_on(device, size, out_address)
    enter_gil(gil)
    return explain(text, "take page-locked memory", device, code) if code else 0


cdef void pinned_release(uintptr_t address) noexcept nogil:
    # A child holds its parent's memory in vain.
    cdef void* gil
    if try_release_pinned(address):
        gil = leave_gil()
        release_pinned(address)
        enter_gil(gil)


cdef int pinned_use(uintptr_t address, int device, void* stream) noexcept nogil:
    cdef int code = use_pinned_on(address, device, <uintptr_t>stream)
    return -1 if code == NOT_ALLOCATED or code == FORKED else code


cdef void pinned_empty() noexcept nogil:
    cdef void* gil = leave_gil()
    empty_pinned()  # what the driver refuses to take back stays in the cache
    enter_gil(gil)


cdef void copy_tally(TorchCounter* into, const Tally* tally) noexcept nogil:
    into.current, into.peak, into.allocated, into.freed = tally.current, tally.peak, tally.allocated, tally.freed


cdef void copy_timing(TorchTiming* into, const Timing* timing) noexcept nogil:
    into.total, into.largest, into.least, into.count = timing.total, timing.largest, timing.least, timing.count


cdef void pinned_stats(TorchPinnedStats* out_stats) noexcept nogil:
    cdef PinnedStats stats = read_pinned_stats()
    copy_tally(&out_stats.segments, &stats.segments)
    copy_tally(&out_stats.segment_bytes, &stats.segment_bytes)
    copy_tally(&out_stats.blocks, &stats.blocks)
    copy_tally(&out_stats.block_bytes, &stats.block_bytes)
    copy_timing(&out_stats.take, &stats.take)
    copy_timing(&out_stats.give, &stats.give)


cdef void pinned_reset(int peaks) noexcept nogil:
    if peaks:
        reset_pinned_peaks()
    else:
        reset_pinned_sums()


cdef int settle(int device) noexcept nogil:
    cdef void* gil = leave_gil()
    cdef int code = NOT_READY
    if enter_wait():
        code = registry.active().device_synchronize(device)
        leave_wait()
    enter_gil(gil)
    return code


# --- what happens to memory ----------------------------------------------------------------------------------

cdef TorchWatcher watcher_of_torch = NULL


cdef void tell_torch(const Event* event) noexcept nogil:
    cdef TorchEvent told
    told.address, told.size, told.stream, told.tag = event.address, event.size, event.stream, event.tag
    told.action, told.device = event.action, event.device
    torchs_name(event.pool, told.pool)
    watcher_of_torch(&told)


cdef int watch(TorchWatcher watcher) noexcept nogil:
    # It stays known to threads that are telling it something.
    global watcher_of_torch
    cdef void* gil = leave_gil()
    cdef Follower follower = NULL
    cdef int code
    if watcher != NULL:
        watcher_of_torch = watcher
        follower = tell_torch
    code = follow_history(follower)
    enter_gil(gil)
    return code


# --- sharing -------------------------------------------------------------------------------------------------
# Blocks that other processes may open: each is exported from when torch first shares it until torch frees it, and goes back
# to the pool once no hand-out of its pages is under way either.  What is said between processes is accelrt.sharing's, whose
# functions (sharing/tensors.py) are set by interop/torch.py.

cdef struct Share:
    int device
    Exported export
    long keepers     # torch, until it frees the block, and hand-outs under way
    bint is_freed    # by torch

cdef pthread_mutex_t shares_lock  # before the pool's; held for no call of the driver
cdef AddressMap shares            # by address of the block
cdef long share_count = 0         # of them, so that who shares nothing pays no lock
cdef object sharer = None         # (device, address) -> (handle, offset)
cdef object opener = None         # (handle, device) -> (base, an object that keeps the memory mapped)
cdef void (*release_block)(void* address, int device) noexcept nogil  # the hook, for blocks that nobody shares


def set_sharing(share: Callable[[int, int], tuple[bytes, int]], open: Callable[[bytes, int], tuple[int, object]]) -> None:
    """Says who makes handles of torch's blocks, and opens those of other processes.

    Arguments:
        share: called with a device and the address of a block, answers a handle of at most 256 bytes and how far into
            the memory that it names the block lies.
        open: called with a handle and a device, answers the address of that memory in this process and what keeps it.
    """
    global sharer, opener
    sharer, opener = share, open


def begin_share(int device, uintptr_t address) -> tuple[int, int, int, bool, int]:
    """Exports a block of torch's until torch frees it; again for one that is exported already.

    Returns:
        (base, size, serial, plain, refused): where its pages lie, or its plain segment; the serial of the first of them,
        or of that; and how many pages were made for this process alone: if not 0, it is not exported.
    Raises:
        CudaError: there is no live block, or its pool sleeps.
        MemoryError: the host has none.
    """
    cdef Exported export
    cdef int code
    with nogil:
        code = add_share(device, address, &export)
    if code == NO_HOST_MEMORY:
        raise MemoryError("no memory for the record of a tensor that is shared")
    if code:
        raise_status(code, "share", ("device", device, "address", address))
    return export.base, export.size, serial_of(&export), export.count == 0, export.refused


cdef uint64_t serial_of(const Exported* export) noexcept nogil:
    return export.pages[0].serial if export.pages != NULL else export.serial


cdef int add_share(int device, uintptr_t address, Exported* out_export) noexcept nogil:
    # torch's thread, whose tensor keeps the block.  A copy of what is exported; pages are valid where 0 were refused.
    cdef Share* share
    cdef int code = 0
    pthread_mutex_lock(&shares_lock)
    share = <Share*>map_find(&shares, address)
    if share == NULL:
        share = <Share*>calloc(1, sizeof(Share))
        code = NO_HOST_MEMORY if share == NULL else map_reserve(&shares)
        if code == 0:
            code = NOT_ALLOCATED if is_outside(device) else begin_export(device, address, &share.export)
        if code == 0 and share.export.refused == 0:
            share.device, share.keepers = device, 1
            map_insert(&shares, address, share)
            add_count(&share_count, 1)
    if code == 0:
        out_export[0] = share.export
    if share != NULL and share.keepers == 0:
        free(share)
    pthread_mutex_unlock(&shares_lock)
    return code


cdef int end_share(uintptr_t address, bint by_torch) noexcept nogil:
    # One keeper's end; the device of the block where it was the last, and else -1.
    cdef Share* share
    cdef int device = -1
    pthread_mutex_lock(&shares_lock)
    share = <Share*>map_find(&shares, address)
    if share != NULL and not (by_torch and share.is_freed):
        share.is_freed = share.is_freed or by_torch
        share.keepers -= 1
        if share.keepers == 0:
            map_remove(&shares, address)
            add_count(&share_count, -1)
            device = share.device
    pthread_mutex_unlock(&shares_lock)
    if device >= 0:
        end_export(device, address)
        free(share.export.pages)
        free(share)
    return device


cdef void forget_share(uintptr_t address) noexcept nogil:
    # Of a block that a checkpoint took away, which nobody frees; a hand-out that is under way may read the record.
    cdef Share* share
    pthread_mutex_lock(&shares_lock)
    share = <Share*>map_remove(&shares, address)
    if share != NULL:
        add_count(&share_count, -1)
    if share != NULL and share.keepers == 1:
        free(share.export.pages)
        free(share)
    pthread_mutex_unlock(&shares_lock)


cdef bint is_shared(uintptr_t address) noexcept nogil:
    cdef bint answer
    if load_count(&share_count) == 0:
        return False
    pthread_mutex_lock(&shares_lock)
    answer = map_find(&shares, address) != NULL
    pthread_mutex_unlock(&shares_lock)
    return answer


cdef void release(void* address, int device) noexcept nogil:
    if not is_shared(<uintptr_t>address) or end_share(<uintptr_t>address, True) >= 0:
        release_block(address, device)


cdef const Exported* hold_share(
    int device, uintptr_t base, size_t size, uint64_t serial, uintptr_t* out_address,
) noexcept nogil:
    cdef Share* share
    cdef const Exported* export = NULL
    cdef size_t index
    pthread_mutex_lock(&shares_lock)
    for index in range(shares.capacity):
        share = <Share*>shares.slots[index].value
        if export == NULL and share != NULL and share.device == device and not share.is_freed:
            if share.export.base == base and share.export.size == size and serial_of(&share.export) == serial:
                share.keepers += 1
                out_address[0] = shares.slots[index].key
                export = &share.export
    pthread_mutex_unlock(&shares_lock)
    return export


cdef void let_go_of_share(uintptr_t address) noexcept nogil:
    cdef int device = end_share(address, False)
    if device >= 0:
        release_block(<void*>address, device)


cdef void forget_shares() noexcept nogil:
    # In a forked child, whose parent's blocks they are.
    pthread_mutex_init(&shares_lock, NULL)
    map_clear(&shares)
    store_count(&share_count, 0)


cdef void tell_error(char* text, error) noexcept:
    cdef bytes told = str(error).encode(errors="replace")
    snprintf(text, TORCH_TEXT, "%s", <const char*>told)


cdef int share_block(int device, uintptr_t address, char* handle, size_t* out_length, size_t* out_offset,
                     char* text) noexcept with gil:
    cdef bytes made
    try:
        made, out_offset[0] = sharer(device, address)
        if len(made) > TORCH_HANDLE:
            raise ValueError(f"a handle of {len(made)} bytes")
        out_length[0] = len(made)
        memcpy(handle, <const char*>made, len(made))
        return 0
    except BaseException as error:
        tell_error(text, error)
        return -1


cdef int open_shared(const char* handle, size_t length, int device, uintptr_t* out_base, void** out_memory,
                     char* text) noexcept with gil:
    try:
        out_base[0], memory = opener(handle[:length], device)
        Py_INCREF(memory)
        out_memory[0] = <PyObject*>memory
        return 0
    except BaseException as error:
        tell_error(text, error)
        return -1


cdef void close_shared(void* memory) noexcept nogil:
    # What the interpreter's end leaves mapped goes with the process.
    if not interpreter_is_gone():
        drop_memory(memory)


cdef void drop_memory(void* memory) noexcept with gil:
    Py_DECREF(<object>memory)


forget_shares()
at_fork("allocator.external.torch_table", FORK_POOLS, NULL, NULL, &forget_shares)


# --- the table -----------------------------------------------------------------------------------------------

cdef TorchTable table
table.version = TORCH_TABLE_VERSION
fill_hooks(&table)
release_block = table.release
table.release = release
empty_common, table.empty = table.empty, empty_all
table.device_at = device_at
table.size_of = size_of
table.base_of = base_of
table.plain_alloc = plain_alloc
table.plain_free = plain_free
table.empty_pool = empty_pool
table.get_fraction = fraction_of_limit
table.totals = totals
table.read_stats = stats_of
table.reset_peaks = restart_peaks
table.reset_accumulated = restart_accumulated
table.blocks = blocks_of
table.release_blocks = release_blocks
table.enter_pool = enter_pool
table.leave_pool = leave_pool
table.enter_home = enter_home
table.leave_home = leave_home
table.set_up_pool = prepare_pool
table.pool_uses = pool_uses
table.save_pool = save_state
table.restore_pool = restore_state
table.forget = forget
table.forget_state = forget_state
table.pinned_hit = try_allocate_pinned
table.pinned_alloc = pinned_alloc
table.pinned_release = pinned_release
table.pinned_use = pinned_use
table.pinned_empty = pinned_empty
table.pinned_stats = pinned_stats
table.pinned_reset = pinned_reset
table.settle = settle
table.watch = watch
table.share = share_block
table.open_shared = open_shared
table.close_shared = close_shared


def address() -> int:
    """Where the table is, which lives as long as the process."""
    return <uintptr_t>&table
