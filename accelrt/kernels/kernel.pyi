from collections.abc import Sequence
from typing import NamedTuple

from accelrt.streams.stream import Stream

_Size = int | Sequence[int]
_Stream = Stream | int | None

class KernelAttributes(NamedTuple):
    max_threads_per_block: int
    shared_size_bytes: int
    const_size_bytes: int
    local_size_bytes: int
    num_regs: int
    ptx_version: int
    binary_version: int
    cache_mode_ca: int
    max_dynamic_shared_size_bytes: int

class Kernel:
    def __init__(self) -> None: ...
    @property
    def handle(self) -> int: ...
    @property
    def name(self) -> str: ...
    @property
    def device_index(self) -> int: ...
    @property
    def parameters(self) -> tuple[int, ...] | None: ...
    @property
    def attributes(self) -> KernelAttributes: ...
    def __getitem__(
        self,
        sizes: tuple[_Size, _Size] | tuple[_Size, _Size, _Stream] | tuple[_Size, _Size, _Stream, int],
    ) -> Launcher: ...
    def launch(
        self,
        grid: _Size,
        block: _Size,
        args: Sequence[object] = (),
        *,
        stream: _Stream = None,
        shared: int = 0,
        cooperative: bool = False,
        cluster: _Size | None = None,
        programmatic: bool = False,
    ) -> None: ...
    def occupancy(self, block: _Size, shared: int = 0) -> int: ...
    def max_potential_block_size(self, shared: int = 0, limit: int = 0) -> tuple[int, int]: ...
    def max_active_clusters(self, grid: _Size, block: _Size, cluster: _Size, shared: int = 0) -> int: ...

class Launcher:
    def __init__(self) -> None: ...
    @property
    def kernel(self) -> Kernel: ...
    @property
    def grid(self) -> tuple[int, int, int]: ...
    @property
    def block(self) -> tuple[int, int, int]: ...
    @property
    def shared(self) -> int: ...
    @property
    def stream(self) -> Stream | None: ...
    def __call__(self, *args: object) -> None: ...

def latest_kernels() -> list[tuple[str, int, int]]: ...
def name_suspects() -> str: ...
