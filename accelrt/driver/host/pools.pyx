"""The host driver's stream-ordered pools.

Each device has one of its memory and one of managed memory, and the process one of page-locked memory.  The caller makes
others, whose memory is in a file, which other processes may have.  Memory that was freed serves its stream at once, and
others when that stream is past the free; what is idle then, above the threshold, is given up when the pool is next asked for
anything.  No capture takes them.
"""
from libc.stdint cimport SIZE_MAX, int64_t, uint64_t, uintptr_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset

from accelrt.core.host_pages cimport close_file, copy_file, prefer_node
from accelrt.driver.host.machine cimport (
    HOST_MEMORY, MANAGED, MANAGED_PAGE, MAX_HOST_DEVICES, PAGE, PLAIN, POOLED, Range, drop_room, drop_ticket, find_room,
    find_stream, known_device, lock, lock_memory, make_file, mark, memory as all_memory, new_handle, rounded, show,
    take_bytes, uncharge, unlock, unlock_memory,
)
from accelrt.driver.host.memory cimport (
    file_size, free_plain, make_managed, make_plain, place, prefer_device, range_of, take_away,
)
from accelrt.driver.host.stream cimport enter, gate, gate_any
from accelrt.driver.host.work cimport HostStream, Ticket
from accelrt.driver.managed cimport LOCATION_HOST, LOCATION_NODE
from accelrt.driver.memory cimport MEMORY_CLOSED, MEMORY_READ, MEMORY_WRITTEN
from accelrt.driver.table cimport Table
from accelrt.status cimport (
    CAPTURE_UNSUPPORTED, INVALID_DEVICE, INVALID_HANDLE, INVALID_VALUE, NO_HOST_MEMORY, OPERATING_SYSTEM, OUT_OF_MEMORY,
)

cdef extern from *:
    """
    #ifndef _GNU_SOURCE
    #define _GNU_SOURCE
    #endif
    #include <fcntl.h>
    #include <linux/falloc.h>
    #include <sys/stat.h>
    #include <sys/syscall.h>
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
    static void accelrt_empty(int file, long offset, long size) {
        syscall(SYS_fallocate, file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset, size);
    }
    """
    ctypedef struct FileId "accelrt_file_id":
        uint64_t place
        uint64_t number
    FileId id_of "accelrt_id_of"(int file) noexcept nogil
    void empty_file "accelrt_empty"(int file, long offset, long size) noexcept nogil
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
    bint alive         # not destroyed
    bint shared        # other processes may have it
    int file           # (POOLED)
    size_t limit       # bytes of it, with the header
    bint imported      # another process's
    Pooled* blocks
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

cdef uint64_t POOL_MARK = 0x6C6F6F7074726C65
cdef uint64_t POINTER_MARK = 0x7265746E696F7074

# Guarded by the queue's lock.
cdef HostPool[MAX_HOST_DEVICES] plain_pools
cdef HostPool[MAX_HOST_DEVICES] managed_pools
cdef HostPool* made_pools   # the newest first
cdef HostPool* own_pinned   # of these the process's own of page-locked memory; NULL before it is first asked for
cdef int node_count = 1


cdef void pools_open(int nodes) noexcept nogil:
    global node_count
    node_count = nodes


include "pools_rows.pxi"


cdef HostPool* pool_of(int device, int kind) noexcept nogil:
    cdef HostPool* pool = &managed_pools[device] if kind == MANAGED else &plain_pools[device]
    pool.kind, pool.device, pool.alive = kind, device, True
    return pool


cdef HostPool* find_pool(uintptr_t handle) noexcept nogil:
    cdef HostPool* pool = made_pools
    while pool != NULL and (pool.handle != handle or not pool.alive):
        pool = pool.after
    return pool


cdef bint is_past(const Pooled* block) noexcept nogil:
    return block.ticket == NULL or block.ticket.done


cdef void count_pooled(HostPool* pool, int attribute, int64_t change) noexcept nogil:
    # The peak of a figure has the next number.
    pool.values[attribute] += change
    pool.values[attribute + 1] = max(pool.values[attribute + 1], pool.values[attribute])


cdef int take_room(const HostPool* pool, size_t size) noexcept nogil:
    # Of the device, which has no page-locked memory.
    cdef long offset = 0
    cdef int code
    if pool.device == HOST_MEMORY:
        return 0
    lock_memory()
    code = take_bytes(pool.device, size, &offset)
    unlock_memory()
    return code


cdef void give_room(const HostPool* pool, size_t size) noexcept nogil:
    if pool.device != HOST_MEMORY:
        lock_memory()
        uncharge(pool.device, size)
        unlock_memory()


cdef void forget_block(HostPool* pool, Pooled** slot) noexcept nogil:
    # Whose memory is gone.
    cdef Pooled* block = slot[0]
    slot[0] = block.next
    count_pooled(pool, RESERVED_BYTES, -<int64_t>block.size)
    if block.used:
        count_pooled(pool, USED_BYTES, -<int64_t>block.taken)
    if pool.kind == POOLED and not pool.imported:
        empty_file(pool.file, block.offset, block.size)
        give_room(pool, block.size)
    drop_ticket(block.ticket)
    free(block)


cdef void give_up_idle(HostPool* pool, size_t keep) noexcept nogil:
    cdef Pooled** slot = &pool.blocks
    while slot[0] != NULL:
        if slot[0].used or not is_past(slot[0]) or pool.values[RESERVED_BYTES] <= keep:
            slot = &slot[0].next
            continue
        take_away(slot[0].address, pool.kind, pool.device)
        forget_block(pool, slot)


cdef void drop_destroyed() noexcept nogil:
    # Pools that were destroyed, and of which nothing is allocated any more.
    cdef HostPool** slot = &made_pools
    cdef HostPool* pool
    while slot[0] != NULL:
        pool = slot[0]
        if not pool.alive:
            give_up_idle(pool, 0)
        if pool.alive or pool.blocks != NULL:
            slot = &pool.after
            continue
        slot[0] = pool.after
        close_file(pool.file)
        free(pool)


cdef void settle_pools() noexcept nogil:
    # Gives up what is idle above the thresholds, as a wait does on a GPU.
    cdef HostPool* pool = made_pools
    cdef int device
    for device in range(MAX_HOST_DEVICES):
        give_up_idle(&plain_pools[device], plain_pools[device].values[THRESHOLD])
        give_up_idle(&managed_pools[device], managed_pools[device].values[THRESHOLD])
    while pool != NULL:
        give_up_idle(pool, pool.values[THRESHOLD])
        pool = pool.after
    drop_destroyed()


cdef Pooled* idle_pooled(HostPool* pool, int device, uintptr_t stream, size_t size, size_t most) noexcept nogil:
    # The smallest that fits and has less than so many bytes, for a stream of a device.
    cdef Pooled* block = pool.blocks
    cdef Pooled* best = NULL
    cdef bint is_its_own
    while block != NULL:
        is_its_own = block.stream == stream and block.stream_on == device
        if not block.used and size <= block.size < most and (is_its_own or is_past(block)):
            if best == NULL or block.size < best.size:
                best = block
        block = block.next
    return best


cdef int check_pool_stream(int device, uintptr_t stream, HostStream** out_stream) noexcept nogil:
    out_stream[0] = find_stream(device, stream)
    if out_stream[0] == NULL:
        return INVALID_HANDLE
    return CAPTURE_UNSUPPORTED if out_stream[0].capture != NULL else 0


cdef int take_pooled(HostPool* pool, int device, uintptr_t stream, size_t size, uintptr_t* out_address) noexcept nogil:
    # Under the lock.
    cdef size_t whole = rounded(size, MANAGED_PAGE if pool.kind == MANAGED else PAGE if size >= 1 << 20 else 4096)
    cdef HostStream* on
    cdef Pooled* block
    cdef int code = check_pool_stream(device, stream, &on)
    if size == 0 or size >> 60:
        return INVALID_VALUE if size == 0 else OUT_OF_MEMORY
    if code:
        return code
    block = idle_pooled(pool, device, stream, whole, 2 * whole)
    if block == NULL:
        give_up_idle(pool, pool.values[THRESHOLD])
        code = add_pooled(pool, whole, &block)
    if code == OUT_OF_MEMORY:
        give_up_idle(pool, 0)
        code = add_pooled(pool, whole, &block)
    if code == OUT_OF_MEMORY:  # what is idle for this stream alone, however large
        block = idle_pooled(pool, device, stream, whole, SIZE_MAX)
        code = 0 if block != NULL else OUT_OF_MEMORY
    if code == 0:
        drop_ticket(block.ticket)
        block.ticket, block.used, block.taken = NULL, True, rounded(size, 512)  # as NVIDIA's driver counts
        count_pooled(pool, USED_BYTES, block.taken)
        out_address[0] = block.address
    return code


cdef int add_pooled(HostPool* pool, size_t size, Pooled** out_block) noexcept nogil:
    cdef Pooled* block = <Pooled*>calloc(1, sizeof(Pooled))
    cdef int code
    if block == NULL:
        return NO_HOST_MEMORY
    if pool.kind == MANAGED:
        code = make_managed(pool.device, size, &block.address)
    elif pool.kind == PLAIN:
        code = make_plain(pool.device, size, &block.address)
    else:
        code = make_part(pool, size, &block.offset, &block.address)
    if code:
        free(block)
        return code
    if pool.kind == MANAGED:
        prefer_device(block.address, pool.device)
    keep_block(pool, block, size)
    out_block[0] = block
    return 0


cdef void keep_block(HostPool* pool, Pooled* block, size_t size) noexcept nogil:
    block.size, block.next = size, pool.blocks
    pool.blocks = block
    count_pooled(pool, RESERVED_BYTES, size)


cdef int make_part(HostPool* pool, size_t size, long* out_offset, uintptr_t* out_address) noexcept nogil:
    # The first part of the pool's file that is free and large enough.
    cdef Pooled* block = pool.blocks
    cdef long offset = HEADER
    cdef int code
    while block != NULL:
        if offset < block.offset + <long>block.size and block.offset < offset + <long>size:
            offset = block.offset + <long>block.size
            block = pool.blocks
        else:
            block = block.next
    if <size_t>offset + size > pool.limit:
        return OUT_OF_MEMORY
    code = take_room(pool, size)
    if code:
        return code
    code = map_part(pool, offset, size, out_address)
    if code:
        give_room(pool, size)
    out_offset[0] = offset
    return code


cdef int map_part(const HostPool* pool, long offset, size_t size, uintptr_t* out_address) noexcept nogil:
    cdef Range part
    cdef void* room = find_room(size, 4096)
    if room == NULL:
        return OUT_OF_MEMORY
    if not show(room, size, pool.file, offset, PROT_READ | PROT_WRITE):
        drop_room(room, size)
        return OUT_OF_MEMORY
    prefer_node(room, size, pool.node)
    part = range_of(POOLED, pool.device, <uintptr_t>room, size)
    return place(&all_memory, &part, out_address)


cdef Pooled** place_in(HostPool* pool, uintptr_t address) noexcept nogil:
    # Of the block that begins there; of NULL where none does.
    cdef Pooled** slot = &pool.blocks
    while slot[0] != NULL and slot[0].address != address:
        slot = &slot[0].next
    return slot


cdef Pooled** find_pooled(int device, uintptr_t address, HostPool** out_pool) noexcept nogil:
    # NULL: it is no address of any pool of the device's, nor of page-locked memory.
    cdef HostPool* pool = pool_of(device, PLAIN)
    cdef Pooled** slot = place_in(pool, address)
    if slot[0] == NULL:
        pool = pool_of(device, MANAGED)
        slot = place_in(pool, address)
        if slot[0] == NULL:
            pool = made_pools
    while pool != NULL and slot[0] == NULL:
        if pool.device == device or pool.device == HOST_MEMORY:
            slot = place_in(pool, address)
        if slot[0] == NULL:
            pool = pool.after
    out_pool[0] = pool
    return NULL if pool == NULL else slot


cdef int give_pooled(int device, uintptr_t stream, uintptr_t address) noexcept nogil:
    cdef HostStream* on
    cdef HostPool* pool = NULL
    cdef Pooled** slot = find_pooled(device, address, &pool)
    cdef Pooled* block
    cdef int code = check_pool_stream(device, stream, &on)
    if code == 0 and (slot == NULL or not slot[0].used):
        code = INVALID_VALUE
    if code:
        return code
    block = slot[0]
    block.ticket = mark(on, &code)
    if code == 0:
        block.used, block.stream_on, block.stream = False, device, stream
        count_pooled(pool, USED_BYTES, -<int64_t>block.taken)
        drop_destroyed()
    return code


cdef int memory_free(int device, uintptr_t address) noexcept nogil:
    # Memory of pools too.
    cdef HostPool* pool = NULL
    cdef Pooled** slot
    cdef int code = free_plain(device, address)
    if code == 0 and address:
        lock()
        slot = find_pooled(device, address, &pool)
        if slot != NULL:
            forget_block(pool, slot)
            drop_destroyed()
        unlock()
    return code


cdef int read_pool(HostPool* pool, int attribute, uint64_t* out_value) noexcept nogil:
    if not FOLLOWS_EVENTS <= attribute <= MOST_USED_BYTES:
        return INVALID_VALUE
    give_up_idle(pool, pool.values[THRESHOLD])
    # How memory may be used again is kept as whether it may not, and is of no effect: it is past its stream's frees, or is
    # the stream's own.
    out_value[0] = not pool.values[attribute] if attribute <= FOLLOWS_INTERNALLY else pool.values[attribute]
    return 0


cdef int write_pool(HostPool* pool, int attribute, uint64_t value) noexcept nogil:
    if not FOLLOWS_EVENTS <= attribute <= MOST_USED_BYTES or attribute == RESERVED_BYTES or attribute == USED_BYTES:
        return INVALID_VALUE
    if value and (attribute == MOST_RESERVED or attribute == MOST_USED_BYTES):
        return INVALID_VALUE
    if attribute <= FOLLOWS_INTERNALLY:
        pool.values[attribute] = value == 0
    elif attribute == THRESHOLD:
        pool.values[attribute] = value
    else:
        pool.values[attribute] = pool.values[attribute - 1]
    return 0


cdef int write_access(HostPool* pool, int peer, int access) noexcept nogil:
    if not known_device(peer):
        return INVALID_DEVICE
    if access not in (MEMORY_CLOSED, MEMORY_READ, MEMORY_WRITTEN) or peer == pool.device and access != MEMORY_WRITTEN:
        return INVALID_VALUE
    pool.access[peer] = access
    return 0


cdef int read_access(const HostPool* pool, int peer, int* out_access) noexcept nogil:
    if not known_device(peer):
        return INVALID_DEVICE
    out_access[0] = MEMORY_WRITTEN if peer == pool.device else pool.access[peer]
    return 0


cdef int trim_pool(HostPool* pool, size_t keep) noexcept nogil:
    give_up_idle(pool, keep)
    return 0


# Of the pools that each device has.

cdef int async_alloc_locked(int device, uintptr_t stream, size_t size, uintptr_t* out_address) noexcept nogil:
    return take_pooled(pool_of(device, PLAIN), device, stream, size, out_address)


cdef int managed_pool_alloc_locked(int device, uintptr_t stream, size_t size, uintptr_t* out_address) noexcept nogil:
    return take_pooled(pool_of(device, MANAGED), device, stream, size, out_address)


cdef int async_free_locked(int device, uintptr_t stream, uintptr_t address) noexcept nogil:
    return give_pooled(device, stream, address)


cdef int managed_pool_free_locked(int device, uintptr_t stream, uintptr_t address) noexcept nogil:
    return give_pooled(device, stream, address)


cdef int async_trim_locked(int device, size_t keep) noexcept nogil:
    return trim_pool(pool_of(device, PLAIN), keep)


cdef int managed_pool_trim_locked(int device, size_t keep) noexcept nogil:
    return trim_pool(pool_of(device, MANAGED), keep)


cdef int async_get_locked(int device, int attribute, uint64_t* out_value) noexcept nogil:
    return read_pool(pool_of(device, PLAIN), attribute, out_value)


cdef int managed_pool_get_locked(int device, int attribute, uint64_t* out_value) noexcept nogil:
    return read_pool(pool_of(device, MANAGED), attribute, out_value)


cdef int async_set_locked(int device, int attribute, uint64_t value) noexcept nogil:
    return write_pool(pool_of(device, PLAIN), attribute, value)


cdef int managed_pool_set_locked(int device, int attribute, uint64_t value) noexcept nogil:
    return write_pool(pool_of(device, MANAGED), attribute, value)


cdef int async_access_set_locked(int device, int peer, int access) noexcept nogil:
    return write_access(pool_of(device, PLAIN), peer, access)


cdef int async_access_get_locked(int device, int peer, int* out_access) noexcept nogil:
    return read_access(pool_of(device, PLAIN), peer, out_access)


# Of those that the caller makes.

cdef HostPool* add_pool(int device, int file, size_t limit) noexcept nogil:
    # Under the lock; takes the file.  NULL: no memory.
    global made_pools
    cdef HostPool* pool = <HostPool*>calloc(1, sizeof(HostPool))
    if pool == NULL:
        close_file(file)
        return NULL
    pool.kind, pool.device, pool.file, pool.limit, pool.alive, pool.node = POOLED, device, file, limit, True, -1
    pool.handle = new_handle()
    drop_destroyed()
    pool.after = made_pools
    made_pools = pool
    return pool


cdef int make_pool(int device, size_t limit, HostPool** out_pool) noexcept nogil:
    # Under the lock.  Of 0, more than there is: nothing of a file takes memory before it is used.
    cdef Header header
    cdef int file
    if limit >> 60:
        return INVALID_VALUE
    header.mark, header.limit = POOL_MARK, HEADER + (rounded(limit, PAGE) if limit else <size_t>1 << 42)
    header.device = device
    file = make_file("accelrt-pool", header.limit)
    if file < 0:
        return OPERATING_SYSTEM
    if pwrite(file, &header, sizeof(Header), 0) != sizeof(Header):
        close_file(file)
        return OPERATING_SYSTEM
    out_pool[0] = add_pool(device, file, header.limit)
    return 0 if out_pool[0] != NULL else NO_HOST_MEMORY


cdef int pool_create_locked(int device, size_t limit, uintptr_t* out_pool) noexcept nogil:
    cdef HostPool* pool = NULL
    cdef int code = make_pool(device, limit, &pool)
    if code == 0:
        pool.shared, out_pool[0] = True, pool.handle
    return code


cdef int pinned_pool_locked(uintptr_t* out_pool) noexcept nogil:
    global own_pinned
    cdef int code = make_pool(HOST_MEMORY, 0, &own_pinned) if own_pinned == NULL else 0
    if code == 0:
        out_pool[0] = own_pinned.handle
    return code


cdef int pinned_pool_create_locked(int kind, int node, size_t limit, bint shared, uintptr_t* out_pool) noexcept nogil:
    # NVIDIA's driver has none of the calling thread's node, and shares none of whichever (cuMemPoolCreate).
    cdef HostPool* pool = NULL
    cdef int code
    if kind != LOCATION_NODE and (kind != LOCATION_HOST or shared):
        return INVALID_VALUE
    if kind == LOCATION_NODE and not 0 <= node < node_count:
        return INVALID_VALUE
    code = make_pool(HOST_MEMORY, limit, &pool)
    if code == 0:
        pool.node, pool.shared, out_pool[0] = node if kind == LOCATION_NODE else -1, shared, pool.handle
    return code


cdef int pool_import_locked(int device, int file, uintptr_t* out_pool) noexcept nogil:
    cdef Header header
    cdef HostPool* pool
    cdef int own
    header.mark = header.limit = 0
    if pread(file, &header, sizeof(Header), 0) != sizeof(Header) or header.mark != POOL_MARK:
        return INVALID_VALUE
    if file_size(file) != <long>header.limit:
        return INVALID_VALUE
    own = copy_file(file)
    if own < 0:
        return OPERATING_SYSTEM
    pool = add_pool(HOST_MEMORY if header.device == HOST_MEMORY else device, own, header.limit)
    if pool == NULL:
        return NO_HOST_MEMORY
    pool.imported, pool.access[device], out_pool[0] = True, MEMORY_WRITTEN, pool.handle
    return 0


cdef int pool_destroy_locked(HostPool* pool) noexcept nogil:
    if pool == own_pinned:
        return INVALID_VALUE
    pool.alive = False
    drop_destroyed()
    return 0


cdef int pool_export_locked(HostPool* pool, int* out_file) noexcept nogil:
    # NVIDIA's driver exports no pool that it imported.
    out_file[0] = -1
    if pool.imported or not pool.shared:
        return INVALID_VALUE
    out_file[0] = copy_file(pool.file)
    return 0 if out_file[0] >= 0 else OPERATING_SYSTEM


cdef int pool_alloc_locked(
    int device, uintptr_t stream, HostPool* pool, size_t size, uintptr_t* out_address
) noexcept nogil:
    if pool.imported or pool.device != device and pool.device != HOST_MEMORY:
        return INVALID_VALUE
    return take_pooled(pool, device, stream, size, out_address)


cdef int pool_pointer_export_locked(int device, uintptr_t address, char* out_ipc) noexcept nogil:
    cdef HostPool* pool = NULL
    cdef Pooled** slot = find_pooled(device, address, &pool)
    cdef Pointer pointer
    memset(out_ipc, 0, 64)
    if slot == NULL or not slot[0].used or not pool.shared:
        return INVALID_VALUE
    pointer.mark, pointer.file, pointer.offset, pointer.size = POINTER_MARK, id_of(pool.file), slot[0].offset, slot[0].size
    memcpy(out_ipc, &pointer, sizeof(Pointer))
    return 0


cdef bint is_part_of(const Pointer* pointer, const HostPool* pool) noexcept nogil:
    cdef FileId file = id_of(pool.file)
    if pointer.mark != POINTER_MARK or pointer.file.place != file.place or pointer.file.number != file.number:
        return False
    if pointer.offset % 4096 or pointer.size % 4096 or pointer.size == 0:
        return False
    return HEADER <= pointer.offset < pool.limit and pointer.size <= pool.limit - pointer.offset


cdef int pool_pointer_import_locked(
    int device, HostPool* pool, const char* handle, uintptr_t* out_address
) noexcept nogil:
    cdef Pointer pointer
    cdef Pooled* block
    cdef int code
    memcpy(&pointer, handle, sizeof(Pointer))
    if not pool.imported or not is_part_of(&pointer, pool) or pool.device != device and pool.device != HOST_MEMORY:
        return INVALID_VALUE
    block = <Pooled*>calloc(1, sizeof(Pooled))
    if block == NULL:
        return NO_HOST_MEMORY
    code = map_part(pool, pointer.offset, pointer.size, &block.address)
    if code:
        free(block)
        return code
    block.offset, block.used, block.taken = pointer.offset, True, pointer.size
    keep_block(pool, block, pointer.size)
    count_pooled(pool, USED_BYTES, pointer.size)
    out_address[0] = block.address
    return 0


cdef int pool_trim_locked(HostPool* pool, size_t keep) noexcept nogil:
    return trim_pool(pool, keep)


cdef int pool_get_locked(HostPool* pool, int attribute, uint64_t* out_value) noexcept nogil:
    return read_pool(pool, attribute, out_value)


cdef int pool_set_locked(HostPool* pool, int attribute, uint64_t value) noexcept nogil:
    return write_pool(pool, attribute, value)


cdef int pool_access_set_locked(HostPool* pool, int peer, int access) noexcept nogil:
    return write_access(pool, peer, access)


cdef int pool_access_get_locked(HostPool* pool, int peer, int* out_access) noexcept nogil:
    return read_access(pool, peer, out_access)
