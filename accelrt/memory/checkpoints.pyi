from collections.abc import Iterable
from typing import Any, NamedTuple

from accelrt.annotations import DeviceArgument
from accelrt.memory.mempool import MemPool

class Restored(NamedTuple):
    became_live: list[int]
    freed: list[int]

class PoolCheckpoint:
    @property
    def device(self) -> int: ...
    @property
    def pool_id(self) -> tuple[int, int]: ...
    @property
    def live_addresses(self) -> list[int]: ...
    @property
    def segments(self) -> list[dict[str, Any]]: ...

def get_checkpoint_state(
    pool_id: tuple[int, int] | MemPool, device: DeviceArgument | None = None
) -> PoolCheckpoint: ...
def set_checkpoint_state(state: PoolCheckpoint) -> Restored: ...
def check_pool_live_allocations(
    pool_id: tuple[int, int] | MemPool,
    expected_addresses: Iterable[int],
    device: DeviceArgument | None = None,
) -> bool: ...
