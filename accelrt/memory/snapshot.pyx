"""What a pool holds, as torch's snapshots say it.

The walk copies plain records under the pool's lock; the dicts are made after it is open again.
"""
from libc.stdint cimport uint64_t, uintptr_t
from libc.stdlib cimport free, malloc

from accelrt.memory.block cimport (
    LIVE, PENDING, Block, Pool, Segment, pthread_mutex_lock, pthread_mutex_unlock,
)
from accelrt.memory.pool cimport pool_if_made
from accelrt.memory.sizes cimport LARGE

cdef struct View:  # of a block, with what is needed of its segment
    uintptr_t address
    size_t size
    size_t requested
    int state
    bint opens          # the first of its segment
    size_t segment_size
    uint64_t serial
    int kind
    uintptr_t stream
    uint64_t[2] owner

STATES = {LIVE: "active_allocated", PENDING: "active_pending_free"}


cdef size_t count_blocks(const Pool* pool) noexcept nogil:
    cdef const Segment* segment = pool.first
    cdef const Block* block
    cdef size_t count = 0
    while segment != NULL:
        block = segment.first
        while block != NULL:
            count += 1
            block = block.after
        segment = segment.after
    return count


cdef void view_block(View* view, const Segment* segment, const Block* block) noexcept nogil:
    view.address = block.address
    view.size = block.size
    view.requested = block.requested
    view.state = block.state
    view.opens = block.before == NULL
    view.segment_size = segment.size
    view.serial = segment.serial
    view.kind = segment.kind
    view.stream = segment.heap.stream
    view.owner[0] = view.owner[1] = 0
    if segment.heap.owner != NULL:
        view.owner[0] = segment.heap.owner.id[0]
        view.owner[1] = segment.heap.owner.id[1]


cdef View* copy_blocks(Pool* pool, size_t* out_count) noexcept nogil:
    # NULL where the host has no memory for the copy.
    cdef const Segment* segment
    cdef const Block* block
    cdef View* views
    pthread_mutex_lock(&pool.lock)
    out_count[0] = count_blocks(pool)
    views = <View*>malloc((out_count[0] + 1) * sizeof(View))
    segment = pool.first
    cdef size_t index = 0
    while segment != NULL and views != NULL:
        block = segment.first
        while block != NULL:
            view_block(&views[index], segment, block)
            index += 1
            block = block.after
        segment = segment.after
    pthread_mutex_unlock(&pool.lock)
    return views


cdef dict block_dict(const View* view):
    return {
        "address": view.address,
        "size": view.size,
        "requested_size": view.requested,
        "state": STATES.get(view.state, "inactive"),
        "frames": [],
    }


cdef dict segment_dict(int device, const View* view):
    return {
        "device": device,
        "address": view.address,
        "total_size": view.segment_size,
        "allocated_size": 0,
        "active_size": 0,
        "requested_size": 0,
        "stream": view.stream,
        "segment_type": "large" if view.kind == LARGE else "small",
        "segment_pool_id": (view.owner[0], view.owner[1]),
        "is_expandable": False,
        "serial": view.serial,
        "frames": [],
        "blocks": [],
    }


cdef list segments_of(int device, const View* views, size_t count):
    cdef size_t index
    cdef const View* view
    cdef list segments = []
    cdef dict segment = {}
    for index in range(count):
        view = &views[index]
        if view.opens:
            segment = segment_dict(device, view)
            segments.append(segment)
        segment["blocks"].append(block_dict(view))
        if view.state == LIVE:
            segment["allocated_size"] += view.size
        if view.state == LIVE or view.state == PENDING:
            segment["active_size"] += view.size
            segment["requested_size"] += view.requested
    return segments


def segments(int device):
    """The segments of one device's pool, in the order in which they were taken.

    Arguments:
        device: int, an ordinal.
    Returns:
        A list of dicts with torch's keys (torch.cuda.memory_snapshot) and "serial"; [] where the device's
        pool was never used.
    Raises:
        MemoryError: the host has no memory for the copy.
    """
    cdef Pool* pool = pool_if_made(device)
    cdef View* views
    cdef size_t count = 0
    if pool == NULL:
        return []
    with nogil:
        views = copy_blocks(pool, &count)
    if views == NULL:
        raise MemoryError(f"no host memory for a snapshot of {count} blocks")
    try:
        return segments_of(device, views, count)
    finally:
        free(views)
