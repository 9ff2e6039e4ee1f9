"""What a pool holds, as torch's snapshots say it.

The walk copies plain records under the pool's lock; the dicts are made after it is open again.
"""
from libc.stdint cimport uint64_t, uintptr_t
from libc.stdlib cimport free, malloc

from accelrt.memory.block cimport HOLE, LIVE, PENDING, PLAIN, Block, Heap, Segment
from accelrt.memory.pool cimport pool_if_made
from accelrt.memory.sizes cimport LARGE
from accelrt.memory.state cimport Pool
from accelrt.memory.world cimport enter, leave

cdef struct View:  # of a block, with what is needed of its segment
    uintptr_t address
    size_t size
    size_t requested
    int state
    bint opens          # the first of its segment, or behind a hole
    uint64_t serial
    int kind
    int shape
    uintptr_t stream
    uint64_t[2] owner

STATES = {LIVE: "active_allocated", PENDING: "active_pending_free"}


cdef size_t count_blocks(const Segment* segment) noexcept nogil:
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
    view.opens = block.before == NULL or block.before.state == HOLE
    view.serial = segment.serial
    view.kind = segment.kind
    view.shape = segment.shape
    view.stream = segment.heap.stream
    view.owner[0] = view.owner[1] = 0
    if segment.heap.owner != NULL:
        view.owner[0] = segment.heap.owner.id[0]
        view.owner[1] = segment.heap.owner.id[1]


cdef size_t view_segments(View* views, const Segment* segment, size_t index) noexcept nogil:
    # Pages are shown where they are at home: holes are not.
    cdef const Block* block
    while segment != NULL:
        block = segment.first
        while block != NULL:
            if block.state != HOLE:
                view_block(&views[index], segment, block)
                index += 1
            block = block.after
        segment = segment.after
    return index


cdef View* copy_blocks(Pool* pool, size_t* out_count) noexcept nogil:
    # NULL where the host has no memory for the copy.
    cdef const Heap* heap
    cdef View* views
    enter(pool)
    out_count[0] = count_blocks(pool.first)
    heap = pool.heaps
    while heap != NULL:
        out_count[0] += count_blocks(heap.first_window)
        heap = heap.next
    views = <View*>malloc((out_count[0] + 1) * sizeof(View))
    if views != NULL:
        out_count[0] = view_segments(views, pool.first, 0)
        heap = pool.heaps
        while heap != NULL:
            out_count[0] = view_segments(views, heap.first_window, out_count[0])
            heap = heap.next
    leave(pool, NULL)
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
        "total_size": 0,
        "allocated_size": 0,
        "active_size": 0,
        "requested_size": 0,
        "stream": view.stream,
        "segment_type": "large" if view.kind == LARGE else "small",
        "segment_pool_id": (view.owner[0], view.owner[1]),
        "is_expandable": view.shape != PLAIN,
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
        segment["total_size"] += view.size
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
