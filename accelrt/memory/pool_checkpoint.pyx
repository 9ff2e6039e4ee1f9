"""The state of a private pool, kept and gone back to: torch._C's _cuda_getCheckpointState and its kin.

A program that captures several graphs into one pool, to replay them along different paths, needs the pool to be as it was
at a branch: then what is captured next lies where nothing of that path is live.  `allocator/private/routes.pyx` saves and
restores; allocator/private/DESIGN.md says what a restore may change (Checkpoints).
"""
from collections import namedtuple
from libc.stdint cimport uint64_t
from libc.string cimport memset

from accelrt.allocator.private.routes cimport (
    CAPTURED, FIXED, forget_saved, forget_turned, LENT, NO_SUCH_POOL, read_private, restore_pool, save_pool, Saved,
    SavedBlock, SavedSegment, Turned, USED, WAITS, WENT,
)
from accelrt.allocator.readers import segments
from accelrt.allocator.sizes cimport LARGE
from accelrt.allocator.types cimport HOLE, LIVE, PLAIN
from accelrt.devices.device cimport ordinal_of
from accelrt.errors import ArgumentError
from accelrt.memory.caching cimport require_native
from accelrt.memory.mempool cimport MemPool, read_pool_id
from accelrt.status cimport raise_status, refuse_copy


# stub: CHECKPOINT_REASONS: dict[int, str]
CHECKPOINT_REASONS = {
    WAITS: "memory of it that was given back is in use on other streams, or waits for a capture to end; synchronise "
           "first, outside captures",
    CAPTURED: "a capture allocates from it; end that first",
    LENT: "pages of it serve other memory, since nothing used it for a while; free that memory, or make a new pool",
    WENT: "segments of it went back to the device since: it was not in use throughout; hold a MemPool or a graph of it "
          "for as long as its checkpoints matter",
    USED: "memory that would be freed was recorded on other streams; give it back yourself before",
    FIXED: "it is a Reservation's, whose memory changes by commit() and decommit() alone; call these, and keep what "
           "committed() answers",
}


class Restored(namedtuple("Restored", ("became_live", "freed"))):
    """The changes that set_checkpoint_state made.

    Attributes:
        became_live, freed: list of int, addresses.
    """
    __slots__ = ()
    # stub: became_live: list[int]
    # stub: freed: list[int]


cdef int raise_checkpoint_reason(int code, str call, tuple pool, int ordinal) except -1:
    if code == NO_SUCH_POOL:
        raise ArgumentError(
            f"{call}: device {ordinal} has no memory pool {pool}: nothing was allocated into it there, or nothing used it "
            "any more and its memory went back"
        )
    if code in CHECKPOINT_REASONS:
        raise RuntimeError(f"{call}: not possible with pool {pool} of device {ordinal} now: {CHECKPOINT_REASONS[code]}")
    raise_status(code, call, ("pool_id", pool, "device", ordinal))
    return 0


cdef class PoolCheckpoint:
    """PoolCheckpoint()\n--\n\n\
    The state of a memory pool at one moment: its segments and blocks.  Made by get_checkpoint_state.

    It does not hold the pool's memory: a MemPool, or a graph that was captured into the pool, does.
    """

    cdef Saved saved
    cdef bint filled
    cdef object __weakref__

    def __dealloc__(self):
        forget_saved(&self.saved)

    cdef int fill(self, object pool, int ordinal) except -1:
        cdef uint64_t[2] name
        cdef uint64_t first, second
        cdef int code
        read_pool_id(pool, name)
        first, second = name[0], name[1]
        with nogil:
            code = save_pool(ordinal, first, second, &self.saved)
        if code:
            raise_checkpoint_reason(code, "get_checkpoint_state", (first, second), ordinal)
        self.filled = True
        return 0

    def __reduce__(self):
        refuse_copy(self, "it is a state of one pool of this process; take another one with get_checkpoint_state()")

    @property
    def device(self) -> int:
        """The ordinal of the pool's device."""
        return self.saved.device

    @property
    def pool_id(self) -> tuple[int, int]:
        """(int, int), the pool's id."""
        return self.saved.id[0], self.saved.id[1]

    @property
    def live_addresses(self) -> list[int]:
        """The addresses that are live in this state, in the order of the segments."""
        cdef size_t index
        return [self.saved.blocks[index].address for index in range(self.saved.block_count)
                if self.saved.blocks[index].state == LIVE]

    @property
    def segments(self) -> list[dict[str, Any]]:
        """list of dicts, one a segment: address, total_size, stream, segment_type, is_expandable, serial, and its blocks,
        each with address, size, requested_size (bytes) and state ("active_allocated" or "inactive").  Addresses
        whose pages were mapped elsewhere are no blocks."""
        cdef size_t index
        return [segment_dict(&self.saved, &self.saved.segments[index]) for index in range(self.saved.segment_count)]

    def __repr__(self):
        return (f"<accelrt.memory.PoolCheckpoint of pool {self.pool_id} of device {self.device}: "
                f"{self.saved.segment_count} segments, {len(self.live_addresses)} live blocks>")


cdef dict segment_dict(const Saved* saved, const SavedSegment* segment):
    cdef const SavedBlock* block
    cdef size_t index
    cdef list blocks = []
    for index in range(segment.first_block, segment.first_block + segment.block_count):
        block = &saved.blocks[index]
        if block.state != HOLE:
            state = "active_allocated" if block.state == LIVE else "inactive"
            blocks.append({"address": block.address, "size": block.size, "requested_size": block.requested, "state": state})
    return {
        "address": segment.address,
        "total_size": sum([described["size"] for described in blocks]),
        "stream": segment.stream,
        "segment_type": "large" if segment.kind == LARGE else "small",
        "is_expandable": segment.shape != PLAIN,
        "serial": segment.serial,
        "blocks": blocks,
    }


cdef tuple pool_and_device(object pool, object device):
    # torch._C's functions name the device first.
    swapped = isinstance(device, (MemPool, tuple)) and not isinstance(pool, (MemPool, tuple))
    return (device, pool) if swapped else (pool, device)


def get_checkpoint_state(pool_id: tuple[int, int] | MemPool, device: DeviceArgument | None = None) -> PoolCheckpoint:
    """Takes down the state of a memory pool (torch._C._cuda_getCheckpointState, whose order of arguments is taken too).

    Arguments:
        pool_id: (int, int), as MemPool.id, CUDAGraph.pool() and graph_pool_handle() give it; or a MemPool.
        device: int, "cuda:1", ...; None is the current device.
    Returns:
        PoolCheckpoint, for set_checkpoint_state, any number of times.
    Raises:
        ValueError: the device has no such pool.
        RuntimeError: memory of the pool that was given back is still in use on other streams.
        NotSupportedError: the allocator's backend is not accelrt's own.
    """
    cdef PoolCheckpoint state = PoolCheckpoint.__new__(PoolCheckpoint)
    require_native("get_checkpoint_state")
    pool_id, device = pool_and_device(pool_id, device)
    state.fill(pool_id, ordinal_of(device))
    return state


def set_checkpoint_state(state: PoolCheckpoint) -> Restored:
    """Makes a pool what it was: block for block, what was live is live and what was free is free
    (torch._C._cuda_setCheckpointPoolState).  What the pool took from the device since stays with it, as free memory.

    Arguments:
        state: PoolCheckpoint.
    Returns:
        Restored: became_live, the addresses that are live now and were not, to be given back one by one by the caller
        (caching_allocator_delete); and freed, those that were live and are not, which their owners must not give back
        any more.  A block that is live in both, with the same size, stays with its owner, and is in neither list; one
        that begins at the same address with another size is in both.
    Raises:
        RuntimeError: segments of the pool went back to the device since, a capture allocates from it, memory that was
            given back is still in use on other streams, or memory that would be freed was recorded on other streams.
        ValueError: there is no such pool any more.
        TypeError: state is no PoolCheckpoint.

    After an error the pool is as before.  Nothing waits for the device and no driver call is made: the order of
    the work that uses the memory is the caller's concern.
    """
    cdef PoolCheckpoint checked
    cdef Turned turned
    cdef size_t index
    cdef int code
    if not isinstance(state, PoolCheckpoint) or not (<PoolCheckpoint>state).filled:
        raise TypeError(f"state is {state!r} of type {type(state).__name__}; pass what get_checkpoint_state() returned")
    checked = state
    memset(&turned, 0, sizeof(Turned))
    with nogil:
        code = restore_pool(&checked.saved, &turned)
    try:
        if code:
            raise_checkpoint_reason(code, "set_checkpoint_state", checked.pool_id, checked.saved.device)
        return Restored([turned.live[index] for index in range(turned.live_count)],
                        [turned.freed[index] for index in range(turned.freed_count)])
    finally:
        forget_turned(&turned)


def check_pool_live_allocations(
    pool_id: tuple[int, int] | MemPool, expected_addresses: Iterable[int], device: DeviceArgument | None = None,
) -> bool:
    """Tells whether exactly these addresses are live in a pool (torch._C._cuda_checkPoolLiveAllocations, whose order of
    arguments, the device, the pool and the addresses, is taken too).

    Arguments:
        pool_id: (int, int) or MemPool, as for get_checkpoint_state.
        expected_addresses: iterable of int.
        device: int, "cuda:1", ...; None is the current device.
    Returns:
        bool.
    Raises:
        ValueError: the device has no such pool.
        NotSupportedError: the allocator's backend is not accelrt's own.
    """
    cdef uint64_t[2] name
    cdef int ordinal
    cdef bint exists
    if not isinstance(pool_id, (MemPool, tuple)) and isinstance(expected_addresses, (MemPool, tuple)):
        pool_id, expected_addresses, device = expected_addresses, device, pool_id
    if not hasattr(expected_addresses, "__iter__"):
        kind = type(expected_addresses).__name__
        raise TypeError(f"expected_addresses is {expected_addresses!r:.60} of type {kind}; pass a sequence or a set of ints")
    ordinal = ordinal_of(device)
    require_native("check_pool_live_allocations")
    read_pool_id(pool_id, name)
    with nogil:
        exists = read_private(ordinal, name[0], name[1], False).known
    if not exists:
        raise_checkpoint_reason(NO_SUCH_POOL, "check_pool_live_allocations", (name[0], name[1]), ordinal)
    pool = (name[0], name[1])
    live = {
        block["address"] for segment in segments(ordinal)[0] if segment["segment_pool_id"] == pool
        for block in segment["blocks"] if block["state"] == "active_allocated"
    }
    return live == set(expected_addresses)
