from typing import Any, Literal

from accelrt.stream import Stream

MODES: tuple[str, ...]

def use(
    memory: Any,
    nbytes: int | None = None,
    stream: Stream | int | Literal["host"] | None = None,
    mode: Literal["r", "w", "rw"] = "rw",
) -> None: ...
