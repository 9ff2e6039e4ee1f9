from collections.abc import Iterable
from types import TracebackType
from typing import Any, Literal, Self

class MemoryUse:
    def __init__(self, call: str, memory: Iterable[Any]) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]: ...
