from typing import Literal

from accelrt.annotations import Memory
from accelrt.streams.stream import Stream

MODES: tuple[str, ...]

def use(
    memory: Memory,
    nbytes: int | None = None,
    stream: Stream | int | Literal["host"] | None = None,
    mode: Literal["r", "w", "rw"] = "rw",
) -> None: ...
