"""The caching allocator's figures as Python sees them, with torch.cuda.memory's names."""
from libc.stdint cimport int64_t

from accelrt.devices.device cimport count_devices, current_ordinal, known_devices, ordinal_of, parse
from accelrt.driver.registry import opened_name
from accelrt.allocator.device_pools cimport MAX_DEVICES, pool_if_made
from accelrt.allocator.read_stats cimport (
    find_audit_failure, largest_free, max_split_of, peak_of, read_current, read_stats, reset_accumulated, reset_peaks,
    try_current,
)
from accelrt.allocator.read_stats import record_snapshot, segments
from accelrt.allocator.sizes cimport LARGE, SMALL
from accelrt.allocator.stats cimport (
    ACTIVE_BYTES, ALLOCATED_BYTES, STATS, RESERVED_BYTES, PER_HEAP, Counter, Stats, current_of,
)
from accelrt.allocator.types cimport Pool
from accelrt.allocator.external.backend cimport require_native
from accelrt.memory.history.recording import name_all, tag_stats


cdef bint is_unused():
    # Before first use: a figure that is asked for then opens no driver, so that the process may still fork.  A child that
    # was forked after it has no memory of its own either.
    return known_devices() == 0 and opened_name() in ("sentinel", "forked")


cdef Pool* pool_at(object device) except? NULL:
    # NULL before the device's first allocation.
    cdef int ordinal = 0
    if known_devices() == 0 and is_unused():
        if device is not None:
            parse(device)
        return NULL
    if device is not None or current_ordinal(&ordinal):
        ordinal = ordinal_of(device)
    return pool_if_made(ordinal)


def ordinal_for_figures(device=None):
    """The ordinal that a report is of; None before first use, which it is not."""
    if is_unused():
        pool_at(device)
        return None
    return ordinal_of(device)


cdef int64_t current_of_pool(Pool* pool, int figure) noexcept:
    # Like a hit, with the GIL unless another thread has the pool's lock.
    cdef int64_t answer
    if not try_current(pool, figure, &answer):
        with nogil:
            answer = read_current(pool, figure)
    return answer


cdef int64_t read_peak(Pool* pool, int figure) noexcept:
    cdef int64_t answer
    with nogil:
        answer = peak_of(pool, figure)
    return answer


def memory_allocated(device=None):
    """Bytes of live blocks of a device, rounded as allocated: to 512, and not at all by another backend."""
    return current_of_pool(pool_at(device), ALLOCATED_BYTES)


def memory_reserved(device=None):
    """Bytes that the allocator holds from a device, live and idle, without what sleeps; with the backend
    cudaMallocAsync, what the driver's pool holds for everybody in the process."""
    return current_of_pool(pool_at(device), RESERVED_BYTES)


def sleeping(device=None):
    """Bytes of pools that sleep: live or idle, they keep their addresses, and the device has the memory back."""
    cdef Pool* pool = pool_at(device)
    cdef Stats stats
    with nogil:
        stats = read_stats(pool)
    return stats.sleeping_bytes


def max_memory_allocated(device=None):
    """The most that memory_allocated was since the start or reset_peak_memory_stats."""
    return read_peak(pool_at(device), ALLOCATED_BYTES)


def max_memory_reserved(device=None):
    """The most that memory_reserved was since the start or reset_peak_memory_stats."""
    return read_peak(pool_at(device), RESERVED_BYTES)


# In the order of the figures in allocator/stats.pxd.
cdef tuple FIGURE_NAMES = (
    "allocation", "active", "inactive_split", "allocated_bytes", "active_bytes", "inactive_split_bytes",
    "requested_bytes", "segment", "reserved_bytes",
)
cdef tuple POOLS = ("small_pool", "large_pool", "all")
cdef tuple FIELDS = ("current", "peak", "allocated", "freed")
# Key of a figure -> (figure, pool, field), as numbers.
cdef dict PLACES = {
    f"{name}.{pool}.{field}": (figure, kind, part)
    for figure, name in enumerate(FIGURE_NAMES)
    for kind, pool in enumerate(POOLS)
    for part, field in enumerate(FIELDS)
}


cdef inline bint shares_segments(const Pool* pool) noexcept nogil:
    # Whether small and large blocks lie in the same segments, which grow page by page.
    return pool != NULL and pool.external == NULL and pool.settings.virtual_memory


cdef Counter reserved_of_kind(const Stats* stats, int kind) noexcept nogil:
    # Of segments that both kinds share: the small pool has what small blocks occupy, the large pool the rest.  What a
    # small block takes leaves the large pool.
    cdef Counter small = stats.counters[ACTIVE_BYTES][SMALL]
    cdef Counter rest = stats.counters[RESERVED_BYTES][LARGE]
    small.current = min(small.current, rest.current)  # what sleeps is not reserved
    if kind == SMALL:
        return small
    rest.current -= small.current
    rest.allocated += small.freed
    rest.freed += small.allocated
    return rest


cdef Counter counter_of(const Stats* stats, int figure, int kind, bint shared) noexcept nogil:
    # kind 2 is both together, with the peak of the sum.
    cdef Counter total
    if kind < 2 and shared and figure == RESERVED_BYTES:
        return reserved_of_kind(stats, kind)
    if kind < 2:
        return stats.counters[figure][kind]
    total.current = stats.counters[figure][0].current + stats.counters[figure][1].current
    total.peak = stats.peak_all[figure]
    total.allocated = stats.counters[figure][0].allocated + stats.counters[figure][1].allocated
    total.freed = stats.counters[figure][0].freed + stats.counters[figure][1].freed
    return total


cdef tuple fields_of(Counter counter):
    return counter.current, counter.peak, counter.allocated, counter.freed


cdef dict single_figures(const Stats* stats, Pool* pool):
    cdef int64_t idle = current_of(stats, RESERVED_BYTES) + stats.sleeping_bytes - current_of(stats, ACTIVE_BYTES)
    cdef int64_t largest, limit
    with nogil:
        largest = largest_free(pool)
        limit = max_split_of(pool)
    return {
        "num_alloc_retries": stats.num_alloc_retries,
        "num_ooms": stats.num_ooms,
        "num_sync_all_streams": stats.num_sync_all_streams,
        "num_device_alloc": stats.num_device_alloc,
        "num_device_free": stats.num_device_free,
        "max_split_size": limit,
        "virtual_memory_calls": stats.virtual_memory_calls,
        "stitched_bytes": stats.stitched_bytes,
        "reserved_addresses": stats.reserved_addresses,
        "sleeping_bytes": stats.sleeping_bytes,
        "largest_free_block": largest,
        "fragmentation": 1 - largest / idle if idle else 0.0,
    }


def memory_stats(device=None):
    """The allocator's figures for one device, with torch's keys (torch.cuda.memory_stats) and some more.

    Arguments:
        device: int, "cuda:1", ...; None is the current device.
    Returns:
        dict: "allocated_bytes.all.current" and the like: nine figures, for all and the small and large pools,
        current, peak, allocated and freed, in blocks or bytes; "oversize_allocations.current" and the like;
        counts of retries, failures and device calls.  Beyond torch's: virtual_memory_calls, calls of the
        driver's virtual memory; stitched_bytes, mapped a second time; reserved_addresses, bytes of address
        space; sleeping_bytes, which the device has back until their pools wake; largest_free_block, bytes;
        fragmentation, the part of the idle bytes outside that block, 0 to 1; "tag.NAME.allocated_bytes.current" and the
        like for each tag (accelrt.memory.tag), bytes and blocks.
        Where segments grow (expandable_segments), small and large blocks share them.  reserved_bytes.small_pool is then
        what small blocks occupy, live or pending, and large_pool the rest, idle memory included, with the peak of all;
        segments and splits all count as large.
        {} before the first use of a device, as in torch; every other figure is 0 then, and none is a first use.
    """
    cdef Pool* pool = pool_at(device)
    if pool == NULL and is_unused():
        return {}
    cdef Stats stats
    cdef int figure, kind
    cdef dict answer
    with nogil:
        stats = read_stats(pool)
    answer = single_figures(&stats, pool)
    for figure in range(STATS):
        for kind in range(3):
            fields = fields_of(counter_of(&stats, figure, kind, shares_segments(pool)))
            answer.update(zip([f"{FIGURE_NAMES[figure]}.{POOLS[kind]}.{field}" for field in FIELDS], fields))
    for name, fields in (
        ("oversize_allocations", fields_of(stats.oversize_allocations)),
        ("oversize_segments", fields_of(stats.oversize_segments)),
    ):
        answer.update(zip([f"{name}.{field}" for field in FIELDS], fields))
    if pool != NULL and pool.history != NULL:
        for tag, figures in tag_stats(pool.device).items():
            for name, fields in figures.items():
                answer.update({f"tag.{tag}.{name}.{field}": value for field, value in fields.items()})
    return dict(sorted(answer.items()))


def memory_stat(key, device=None):
    """One figure of memory_stats, without the others.

    Arguments:
        key: str, a key of memory_stats.
        device: as in memory_stats.
    Returns:
        int, or float for "fragmentation".
    Raises:
        KeyError: there is no such key.
    """
    cdef Pool* pool = pool_at(device)
    cdef Stats stats
    place = PLACES.get(key)
    if place is not None and place[1] == 2 and place[2] == 0 and place[0] < PER_HEAP:
        return current_of_pool(pool, place[0])
    with nogil:
        stats = read_stats(pool)
    if place is not None:
        return fields_of(counter_of(&stats, place[0], place[1], shares_segments(pool)))[place[2]]
    single = single_figures(&stats, pool)
    if key in single:
        return single[key]
    name, _, field = str(key).partition(".")
    if field in FIELDS and name in ("oversize_allocations", "oversize_segments"):
        counter = stats.oversize_allocations if name == "oversize_allocations" else stats.oversize_segments
        return fields_of(counter)[FIELDS.index(field)]
    raise KeyError(f"{key!r} is no key of memory_stats")


def memory_snapshot(device=None, include_traces=True, *, mempool_id=None):
    """The segments and blocks that the allocator holds.

    Arguments:
        device: as in memory_stats, but None means all devices.  A tuple of two ints is a mempool_id, which is what torch
            takes in this place.
        include_traces: for torch's sake; there are none in segments.
        mempool_id: (int, int), as MemPool.id: only the segments of that pool.
    Returns:
        list of dicts, one a segment, with torch's keys (torch.cuda.memory_snapshot) and "serial", the number
        of the segment in the order in which its device's were taken, and "asleep", whether its pool sleeps.
    Raises:
        NotSupportedError: the backend is not accelrt's own pool.
    """
    if isinstance(device, tuple):
        device, mempool_id = None, device
    states = read_states(device, "memory_snapshot")
    for ordinal, _, _ in states:
        record_snapshot(ordinal)
    found = [segment for _, held, _ in states for segment in held]
    if mempool_id is None or tuple(mempool_id) == (0, 0):
        return found
    return [segment for segment in found if segment["segment_pool_id"] == tuple(mempool_id)]


def read_states(device, call):
    """What a device's pool holds, or every device's.

    Returns:
        list of (int, list, int): an ordinal, its segments as memory_snapshot gives them, and the number of the first
        event that came later; of every device that is known, or of the one that was asked for.
    """
    require_native(call)
    if is_unused():
        pool_at(device)
        return []
    ordinals = range(count_devices()) if device is None else (ordinal_of(device),)
    states = [(ordinal, segments(ordinal)) for ordinal in ordinals]
    return [(ordinal, name_all(held), mark) for ordinal, (held, mark) in states]


def reset_peak_memory_stats(device=None):
    """Sets every peak of a device to the current figure."""
    cdef Pool* pool = pool_at(device)
    with nogil:
        reset_peaks(pool)


def reset_accumulated_memory_stats(device=None):
    """Sets a device's "allocated" and "freed" figures, and its counts of retries and failures, to 0."""
    cdef Pool* pool = pool_at(device)
    with nogil:
        reset_accumulated(pool)


def audited_hits(device=None):
    """What took the allocator's fast path under ACCELRT_DEBUG 1 or 2, for tests: the calls that were audited, and
    those among them that freed or allocated a block by turns.  (0, 0) at level 0, where nothing is counted."""
    cdef Pool* pool = pool_at(device)
    if pool == NULL:
        return 0, 0
    return pool.audited_hits, pool.audited_cached


def audit(device=None):
    """Walks every identity of the allocator (accelrt/allocator/DESIGN.md).

    Arguments:
        device: as in memory_stats, but None means all devices.
    Raises:
        AssertionError: one is violated; the text says which, and on which device.
    """
    if is_unused():
        pool_at(device)
        return
    ordinals = range(MAX_DEVICES) if device is None else (ordinal_of(device),)
    for ordinal in ordinals:
        found = find_audit_failure(pool_if_made(ordinal))
        if found is not None:
            raise AssertionError(f"device {ordinal}: violated: {found}")
