"""The state of a memory pool, kept and gone back to: torch._C's _cuda_getCheckpointState and its kin.

A program that captures several graphs into one pool, to replay them along different paths, needs the pool to be as
it was at a branch: then what is captured next lies where nothing of that path is live.
"""
from collections import namedtuple

from libc.stdint cimport uint64_t
from libc.string cimport memset

from accelrt.devices.device cimport ordinal_of
from accelrt.memory.allocator.checkpoint cimport (
    CAPTURED, LENT, NO_SUCH_POOL, USED, WAITS, WENT, Saved, SavedBlock, SavedSegment, Turned, forget_saved,
    forget_turned, restore_pool, save_pool,
)
from accelrt.memory.allocator.read_stats import segments
from accelrt.memory.allocator.routes cimport read_private
from accelrt.memory.allocator.sizes cimport LARGE
from accelrt.memory.allocator.types cimport HOLE, LIVE, PLAIN
from accelrt.memory.backends.backend cimport require_native
from accelrt.memory.mempool cimport read_pool_id
from accelrt.status cimport raise_status, refuse_copy

REASONS = {
    WAITS: "memory of it that was given back is in use on other streams, or waits for a capture to end; synchronise "
           "first, outside captures",
    CAPTURED: "a capture allocates from it; end that first",
    LENT: "pages of it serve other memory, since nothing used it for a while; free that memory, or make a new pool",
    WENT: "segments of it went back to the device since: it was not in use throughout; hold a MemPool or a graph of it "
          "for as long as its checkpoints matter",
    USED: "memory that would be freed was recorded on other streams; give it back yourself before",
}

Restored = namedtuple("Restored", ("became_live", "freed"))
Restored.__doc__ = "What set_checkpoint_state changed, as lists of addresses."


cdef int raise_reason(int code, str call, tuple pool, int ordinal) except -1:
    if code == NO_SUCH_POOL:
        raise ValueError(
            f"{call}: device {ordinal} has no memory pool {pool}: nothing was allocated into it there, or nothing used it "
            "any more and its memory went back"
        )
    if code in REASONS:
        raise RuntimeError(f"{call}: not possible with pool {pool} of device {ordinal} now: {REASONS[code]}")
    raise_status(code, call, ("pool_id", pool, "device", ordinal))
    return 0


cdef class PoolCheckpoint:
    """The state of a memory pool at one moment: its segments and blocks.  Made by get_checkpoint_state.

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
            raise_reason(code, "get_checkpoint_state", (first, second), ordinal)
        self.filled = True
        return 0

    def __reduce__(self):
        refuse_copy(self, "it is a state of one pool of this process; take another one with get_checkpoint_state()")

    @property
    def device(self):
        """The ordinal of the pool's device."""
        return self.saved.device

    @property
    def pool_id(self):
        """(int, int), the pool's id."""
        return self.saved.id[0], self.saved.id[1]

    @property
    def live_addresses(self):
        """The addresses that are live in this state, in the order of the segments."""
        cdef size_t index
        return [
            self.saved.blocks[index].address for index in range(self.saved.block_count)
            if self.saved.blocks[index].state == LIVE
        ]

    @property
    def segments(self):
        """list of dicts, one a segment: address, total_size, stream, segment_type, is_expandable, serial, and its blocks,
        each with address, size, requested_size (bytes) and state ("active_allocated" or "inactive").  Addresses
        whose pages were mapped elsewhere are no blocks."""
        cdef size_t index
        return [segment_dict(&self.saved, &self.saved.segments[index]) for index in range(self.saved.segment_count)]

    def __repr__(self):
        return (
            f"<accelrt.memory.PoolCheckpoint of pool {self.pool_id} of device {self.device}: "
            f"{self.saved.segment_count} segments, {len(self.live_addresses)} live blocks>"
        )


cdef dict segment_dict(const Saved* saved, const SavedSegment* segment):
    cdef const SavedBlock* block
    cdef size_t index
    cdef list blocks = []
    for index in range(segment.first_block, segment.first_block + segment.block_count):
        block = &saved.blocks[index]
        if block.state != HOLE:
            state = "active_allocated" if block.state == LIVE else "inactive"
            blocks.append({
                "address": block.address, "size": block.size, "requested_size": block.requested, "state": state,
            })
    return {
        "address": segment.address,
        "total_size": sum(block["size"] for block in blocks),
        "stream": segment.stream,
        "segment_type": "large" if segment.kind == LARGE else "small",
        "is_expandable": segment.shape != PLAIN,
        "serial": segment.serial,
        "blocks": blocks,
    }


def get_checkpoint_state(pool_id, device=None):
    """Takes down the state of a memory pool (torch._C._cuda_getCheckpointState).

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
    state.fill(pool_id, ordinal_of(device))
    return state


def set_checkpoint_state(state):
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
            raise_reason(code, "set_checkpoint_state", checked.pool_id, checked.saved.device)
        return Restored(
            [turned.live[index] for index in range(turned.live_count)],
            [turned.freed[index] for index in range(turned.freed_count)],
        )
    finally:
        forget_turned(&turned)


def check_pool_live_allocations(pool_id, expected_addresses, device=None):
    """Whether exactly these addresses are live in a pool (torch._C._cuda_checkPoolLiveAllocations).

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
    cdef int ordinal = ordinal_of(device)
    cdef bint known
    require_native("check_pool_live_allocations")
    read_pool_id(pool_id, name)
    with nogil:
        known = read_private(ordinal, name[0], name[1], False).known
    if not known:
        raise_reason(NO_SUCH_POOL, "check_pool_live_allocations", (name[0], name[1]), ordinal)
    pool = (name[0], name[1])
    live = {
        block["address"] for segment in segments(ordinal) if segment["segment_pool_id"] == pool
        for block in segment["blocks"] if block["state"] == "active_allocated"
    }
    return live == set(expected_addresses)
