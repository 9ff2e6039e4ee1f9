from collections.abc import Callable
from types import TracebackType
from typing import Protocol, TypeVar

__all__ = [
    "Domain",
    "get_domain",
    "is_listening",
    "mark",
    "range",
    "range_end",
    "range_pop",
    "range_push",
    "range_start",
]

_F = TypeVar("_F", bound=Callable[..., object])

class _Range(Protocol):
    def __enter__(self) -> None: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> bool: ...
    def __call__(self, function: _F, /) -> _F: ...

class Domain:
    name: str
    def __init__(self, *args: object) -> None: ...
    def mark(
        self,
        msg: str,
        color: str | int | None = None,
        category: str | int | None = None,
        payload: float | None = None,
    ) -> None: ...
    def range_push(
        self,
        msg: str,
        color: str | int | None = None,
        category: str | int | None = None,
        payload: float | None = None,
    ) -> int: ...
    def range_pop(self) -> int: ...
    def range_start(
        self,
        msg: str,
        color: str | int | None = None,
        category: str | int | None = None,
        payload: float | None = None,
    ) -> int: ...
    def range_end(self, range_id: int) -> None: ...
    def range(self, msg: str, *args: object, **kwargs: object) -> _Range: ...

def is_listening() -> bool: ...
def get_domain(name: str) -> Domain: ...
def mark(msg: str) -> None: ...
def range_push(msg: str) -> int: ...
def range_pop() -> int: ...
def range_start(msg: str) -> int: ...
def range_end(range_id: int) -> None: ...
def range(msg: str, *args: object, **kwargs: object) -> _Range: ...
