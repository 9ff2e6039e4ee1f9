"""The host backend of collectives, for tests alone: ranks on host devices, over memory that they share.

It makes programs that use accelrt.nccl run, and be tested, where there is no GPU: each rank's collectives are
host functions in its stream's order, so that they can be captured.  Nothing in it is meant to be fast.  It
finds what NCCL leaves to chance: ranks that disagree on what is next, and ranks that have gone.  The ranks
themselves are compiled, in ranks.pyx.
"""

from __future__ import annotations

import hashlib
import os

from accelrt.nccl.ranks import (
    ID_MARK,
    abandon_host_group,
    abort,
    async_error,
    awaited,
    can_suspend,
    close_host_group,
    destroy,
    hold_up,
    impersonate,
    in_progress,
    init_rank,
    issue,
    memory_stats,
    open_host_group,
    path_of,
    prefix,
    reduce_chunks,
    resume,
    revoke,
    shrink,
    split,
    suspend,
    suspended,
)

TYPE_CHECKING = False  # typing's, which takes long to import
if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "abort",
    "async_error",
    "awaited",
    "can_suspend",
    "destroy",
    "hold_up",
    "impersonate",
    "in_progress",
    "init_rank",
    "issue",
    "memory_stats",
    "path_of",
    "prefix",
    "reduce_chunks",
    "resume",
    "revoke",
    "shrink",
    "split",
    "suspend",
    "suspended",
]

MAY_TAKE_LONG = False  # calls are over when they return
ID_BYTES = 128  # NCCL_UNIQUE_ID_BYTES

group_start: Callable[[], None] = open_host_group
group_end: Callable[[], None] = close_host_group
group_abandon: Callable[[], None] = abandon_host_group


def version() -> int:
    """NCCL's number of its version; 0, which NCCL never had, for this backend."""
    return 0


def unique_id() -> bytes:
    """128 bytes that name a communicator to be."""
    return bytes(ID_MARK + os.urandom(32)).ljust(ID_BYTES, b"\0")


def name_of_split(name: bytes, number: int, color: int) -> bytes:
    """The 128 bytes that name what is split off: all ranks know them without a word."""
    content = name + number.to_bytes(8, "little") + color.to_bytes(8, "little")
    return bytes(ID_MARK + hashlib.sha256(content).digest()).ljust(ID_BYTES, b"\0")
