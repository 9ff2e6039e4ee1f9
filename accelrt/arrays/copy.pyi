from collections.abc import Iterable
from types import TracebackType
from typing import Literal, Self

from accelrt.annotations import Memory
from accelrt.streams.stream import Stream

class MemoryUse:
    def __init__(self, call: str, memory: Iterable[object]) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]: ...

class View: ...

def copy(
    dst: Memory,
    src: Memory,
    nbytes: int | None = None,
    *,
    dst_offset: int = 0,
    src_offset: int = 0,
    stream: Stream | int | None = None,
    blocking: bool = True,
) -> None: ...
def fill(
    dst: Memory,
    value: int = 0,
    count: int | None = None,
    *,
    width: int = 1,
    offset: int = 0,
    stream: Stream | int | None = None,
    blocking: bool = False,
) -> None: ...
def device_span(source: object, name: str = "flag") -> tuple[int, int, int]: ...
def use(
    memory: Memory,
    nbytes: int | None = None,
    stream: Stream | int | Literal["host"] | None = None,
    mode: Literal["r", "w", "rw"] = "rw",
) -> None: ...
