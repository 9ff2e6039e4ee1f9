from collections.abc import AsyncGenerator, Coroutine, Generator
from types import TracebackType
from typing import TypeVar, overload

from accelrt.streams.stream import Stream

_Y = TypeVar("_Y")
_S = TypeVar("_S")
_R = TypeVar("_R")

class StreamContext:
    stream: Stream | None
    def __init__(self, stream: Stream | None) -> None: ...
    def __enter__(self) -> Stream | None: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
    @overload
    def follow(self, steps: Coroutine[_Y, _S, _R]) -> Coroutine[_Y, _S, _R]: ...
    @overload
    def follow(self, steps: Generator[_Y, _S, _R]) -> Generator[_Y, _S, _R]: ...
    @overload
    def follow(self, steps: AsyncGenerator[_Y, _S]) -> AsyncGenerator[_Y, _S]: ...

def stream(stream: Stream | None) -> StreamContext: ...
