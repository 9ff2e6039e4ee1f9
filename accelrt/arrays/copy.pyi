from typing import Literal

from accelrt.annotations import Memory
from accelrt.streams.stream import Stream

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
