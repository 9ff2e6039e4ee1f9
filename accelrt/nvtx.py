"""Marks and ranges in the timeline of a profiler (NVIDIA Tools Extension), with torch.cuda.nvtx's names.

    accelrt.nvtx.mark("batch read")
    with accelrt.nvtx.range("step {}", number):
        ...

The work is the `nvtx` package's (the extra accelrt[nvtx]).  Whether a tool listens is asked once, at the
first call: NVTX itself looks for one only then, where the environment names it (NVTX_INJECTION64_PATH,
which nsys and ncu set).  Where none listens, or the package is not installed, a call returns at once, and
formats no text.
"""

from __future__ import annotations

import functools
import importlib
import os
import threading
import warnings
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Protocol, TypeVar

from accelrt.errors import refuse_copy

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

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

NO_TRACKING = -2  # what NVTX answers for a depth where no tool listens (NVTX_NO_PUSH_POP_TRACKING)

_F = TypeVar("_F", bound="Callable[..., object]")
_is_silent = False  # no tool listens; final once it is True
_default: Domain | None = None  # found by the first call, and then the same for good
_domains: dict[str, Domain] = {}  # by name; that without a name is the default


class _Range(Protocol):
    def __enter__(self) -> None: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> bool: ...
    def __call__(self, function: _F, /) -> _F: ...


def _find_default() -> Domain:
    """Returns the domain of what bears no domain's name, and finds out at the first call whether a tool
    listens."""
    global _is_silent, _default
    if _default is None:
        backend, is_missing = _find_backend("")
        _default = _domains.setdefault("", _new_domain("", backend))  # another thread may have been faster
        _is_silent = _default._backend is None
        tool = os.environ.get("NVTX_INJECTION64_PATH")
        if is_missing and tool:
            warnings.warn(
                f"a profiler listens to NVTX ({tool}), but the nvtx package is not installed and it hears "
                "nothing of accelrt.nvtx; install accelrt[nvtx]",
                RuntimeWarning,
                stacklevel=3,
            )
    return _default


def _find_backend(name: str) -> tuple[Any, bool]:
    """The nvtx package's domain, None where no tool listens to it; and whether the package is missing."""
    try:
        nvtx = importlib.import_module("nvtx")
    except ImportError:
        return None, True
    domain = nvtx.get_domain(name or None) if nvtx.enabled() else None  # not where NVTX_DISABLE is set
    return None if type(domain).__name__ == "DummyDomain" else domain, False


def _new_domain(name: str, backend: Any) -> Domain:
    domain = Domain.__new__(Domain)
    domain._name = name
    domain._backend = backend
    domain._depths = threading.local()
    return domain


class Domain:
    """Marks and ranges under a name of their own, which a profiler can show or leave out as a whole; made by
    get_domain.

    Attributes:
        name: str.
    """

    __slots__ = ("__weakref__", "_backend", "_depths", "_name")
    _backend: Any  # the nvtx package's; None where no tool listens
    _depths: threading.local  # of the calling thread's open ranges
    _name: str

    def __init__(self, *_: object) -> None:
        raise TypeError("a Domain is made by accelrt.nvtx.get_domain(name)")

    def __reduce__(self) -> NoReturn:
        refuse_copy(self, "it stands for a domain of this process; call get_domain(name) there")

    def __repr__(self) -> str:
        return f"<accelrt.nvtx.Domain {self._name!r}>"

    @property
    def name(self) -> str:
        """str."""
        return self._name

    def mark(
        self,
        msg: str,
        color: str | int | None = None,
        category: str | int | None = None,
        payload: float | None = None,
    ) -> None:
        """Marks a moment.

        Arguments:
            msg: str.
            color: a name such as "blue", 0xRRGGBB, or None.
            category: str or int, or None.
            payload: int or float to show with it, or None.
        """
        if self._backend is not None:
            self._backend.mark(message=str(msg), color=color, category=category, payload=payload)

    def range_push(
        self,
        msg: str,
        color: str | int | None = None,
        category: str | int | None = None,
        payload: float | None = None,
    ) -> int:
        """Begins a range inside of the calling thread's others.

        Arguments: as mark.
        Returns:
            int, how many were open before it; -2 where no tool listens.
        """
        if self._backend is None:
            return NO_TRACKING
        depth: int = getattr(self._depths, "open", 0)
        self._backend.push_range(message=str(msg), color=color, category=category, payload=payload)
        self._depths.open = depth + 1
        return depth

    def range_pop(self) -> int:
        """Ends the range that the calling thread began last.

        Returns:
            int, how many are left open; -1 where none was open, -2 where no tool listens.
        """
        if self._backend is None:
            return NO_TRACKING
        depth: int = getattr(self._depths, "open", 0) - 1
        self._backend.pop_range()
        self._depths.open = max(depth, 0)
        return depth

    def range_start(
        self,
        msg: str,
        color: str | int | None = None,
        category: str | int | None = None,
        payload: float | None = None,
    ) -> int:
        """Begins a range that any thread may end.

        Arguments: as mark.
        Returns:
            int, for range_end; 0 where no tool listens.
        """
        if self._backend is None:
            return 0
        number: int = self._backend.start_range(
            message=str(msg), color=color, category=category, payload=payload
        )
        return number

    def range_end(self, range_id: int) -> None:
        """Ends a range that range_start began.

        Arguments:
            range_id: int, what range_start returned.
        """
        if self._backend is not None:
            self._backend.end_range(range_id)

    def range(self, msg: str, *args: object, **kwargs: object) -> _Range:
        """Returns a context, or a decorator of functions, that is a range.

        Arguments: as accelrt.nvtx.range.
        """
        if self._backend is None:
            return _nothing
        return _PushedRange(self, msg.format(*args, **kwargs) if args or kwargs else str(msg))


class _PushedRange:
    """A context, or a decorator of functions, that pushes a range and pops it; made by range()."""

    __slots__ = ("__weakref__", "_domain", "_text")

    def __init__(self, domain: Domain, text: str) -> None:
        self._domain, self._text = domain, text

    def __enter__(self) -> None:
        self._domain.range_push(self._text)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> Literal[False]:
        self._domain.range_pop()
        return False

    def __call__(self, function: _F, /) -> _F:
        @functools.wraps(function)
        def inner(*args: object, **kwargs: object) -> object:
            with self:
                return function(*args, **kwargs)

        return inner  # type: ignore[return-value]

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a range cannot be pickled or copied: it belongs to a domain of this process; call "
            "accelrt.nvtx.range there"
        )


class _NoRange:
    """The range that range() returns where no tool listens."""

    __slots__ = ("__weakref__",)

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> Literal[False]:
        return False

    def __call__(self, function: _F, /) -> _F:
        return function

    def __reduce__(self) -> NoReturn:
        raise TypeError("a range cannot be pickled or copied: call accelrt.nvtx.range there")


_nothing = _NoRange()


def is_listening() -> bool:
    """Tells whether a profiler listens to what this module tells."""
    _find_default()
    return not _is_silent


def get_domain(name: str) -> Domain:
    """Returns a domain: a name under which a profiler files marks and ranges.

    Arguments:
        name: str, such as the name of your library.
    Returns:
        Domain, the same object for the same name.
    Raises:
        ValueError: the name is empty.
        TypeError: it is no str.
    """
    if not isinstance(name, str):
        raise TypeError(
            f"name is of type {type(name).__name__}; pass a str, such as the name of your library"
        )
    if not name:
        raise ValueError("name is empty; a domain has a name, and marks without one are accelrt.nvtx.mark's")
    _find_default()
    domain = _domains.get(name)
    if domain is None:
        fresh = _new_domain(name, None if _is_silent else _find_backend(name)[0])
        domain = _domains.setdefault(name, fresh)
    return domain


def mark(msg: str) -> None:
    """Marks a moment.

    Arguments:
        msg: str.
    """
    if not _is_silent:
        _find_default().mark(msg)


def range_push(msg: str) -> int:
    """Begins a range inside of the calling thread's others.

    Arguments:
        msg: str.
    Returns:
        int, how many were open before it; -2 where no tool listens.
    """
    return NO_TRACKING if _is_silent else _find_default().range_push(msg)


def range_pop() -> int:
    """Ends the range that the calling thread began last.

    Returns:
        int, how many are left open; -1 where none was open, -2 where no tool listens.
    """
    return NO_TRACKING if _is_silent else _find_default().range_pop()


def range_start(msg: str) -> int:
    """Begins a range that any thread may end.

    Arguments:
        msg: str.
    Returns:
        int, for range_end; 0 where no tool listens.
    """
    return 0 if _is_silent else _find_default().range_start(msg)


def range_end(range_id: int) -> None:
    """Ends a range that range_start began.

    Arguments:
        range_id: int, what range_start returned.
    """
    if not _is_silent:
        _find_default().range_end(range_id)


def range(msg: str, *args: object, **kwargs: object) -> _Range:
    """Returns a context, or a decorator of functions, that is a range.

        with accelrt.nvtx.range("step {}", number):
            ...

    Arguments:
        msg: str.
        args, kwargs: for msg.format, which is called where there are any and a tool listens.
    Returns:
        an object that may be entered any number of times, on any thread.
    """
    return _nothing if _is_silent else _find_default().range(msg, *args, **kwargs)
