from types import TracebackType

from accelrt.graphs.graph import CUDAGraph
from accelrt.memory.mempool import MemPool
from accelrt.streams.stream import Stream

class graph:
    def __init__(
        self,
        cuda_graph: CUDAGraph,
        pool: tuple[int, int] | CUDAGraph | MemPool | None = None,
        stream: Stream | None = None,
        capture_error_mode: str = "global",
        *,
        synchronize: bool = False,
        empty_cache: bool = False,
    ) -> None: ...
    def __enter__(self) -> None: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

def is_current_stream_capturing() -> bool: ...
