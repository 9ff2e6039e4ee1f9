"""AllocationProfile counts by parts of a program, LineProfile by its lines."""

from __future__ import annotations

import functools
import sys
import threading
from dataclasses import dataclass, field

from accelrt.core.printable import size_text
from accelrt.core.process import ForkSafeLock
from accelrt.errors import ArgumentTypeError
from accelrt.resources.current import current_resource
from accelrt.resources.resource import Resource, StatisticsAdaptor

TYPE_CHECKING = False  # typing's, which takes long to import
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType
    from typing import Literal, Self, TextIO, TypeVar

    _F = TypeVar("_F", bound=Callable[..., object])


@dataclass
class ProfileEntry:
    """The figures of one part of a program.

    Attributes:
        calls: int, how often it ran.
        total_bytes: int, bytes that it allocated in all.
        peak_bytes: int, the most that it had allocated at once, in one call.
    """

    calls: int = 0
    total_bytes: int = 0
    peak_bytes: int = 0


class AllocationProfile:
    """Counts the memory of a StatisticsAdaptor by parts of a program, which have names.

        profile = accelrt.resources.AllocationProfile()
        with profile.part("load"):
            ...
        @profile.part()
        def step(): ...
        print(profile.report())

    Arguments:
        resource: StatisticsAdaptor; None is the resource that is current where a part begins, and nothing is
            counted where that is none.
    Raises:
        TypeError: resource is none.

    Several threads may use one; the figures of a part have what other threads allocate meanwhile.
    """

    def __init__(self, resource: StatisticsAdaptor | None = None) -> None:
        if resource is not None and not isinstance(resource, StatisticsAdaptor):
            kind = type(resource).__name__
            raise ArgumentTypeError(
                f"resource is {resource!r} of type {kind}; pass a StatisticsAdaptor, or None"
            )
        self._resource = resource
        self._lock = ForkSafeLock()
        self._entries: dict[str, ProfileEntry] = {}

    @property
    def entries(self) -> dict[str, ProfileEntry]:
        """dict: the name of a part -> ProfileEntry."""
        with self._lock:
            return dict(self._entries)

    def part(self, name: str | None = None) -> ProfiledPart:
        """Makes a context manager, which is a decorator too, of one part of the program.

        Arguments:
            name: str; None, for a decorator alone, is "file:line(function)".
        Returns:
            ProfiledPart.
        """
        return ProfiledPart(self, name)

    def statistics(self) -> StatisticsAdaptor | None:
        """Returns the adaptor whose figures count now, or None."""
        resource: Resource = current_resource() if self._resource is None else self._resource
        return resource if isinstance(resource, StatisticsAdaptor) else None

    def add(self, name: str, total_bytes: int, peak_bytes: int) -> None:
        """Adds one call of a part.

        Arguments:
            name: str.
            total_bytes, peak_bytes: int, as of ProfileEntry.
        """
        with self._lock:
            entry = self._entries.setdefault(name, ProfileEntry())
            entry.calls += 1
            entry.total_bytes += total_bytes
            entry.peak_bytes = max(entry.peak_bytes, peak_bytes)

    def report(self, order: Literal["calls", "total_bytes", "peak_bytes"] = "peak_bytes") -> str:
        """Writes a table of the parts.

        Arguments:
            order: the column whose largest value comes first.
        Returns:
            str; it says so where there is no data.
        """
        entries = sorted(self.entries.items(), key=lambda entry: -int(getattr(entry[1], order)))
        if not entries:
            return "No data: no part ran while a StatisticsAdaptor was current"
        lines = [f"{'calls':>10} {'peak bytes':>18} {'total bytes':>18}  part"]
        lines += [
            f"{entry.calls:>10,} {entry.peak_bytes:>18,} {entry.total_bytes:>18,}  {name}"
            for name, entry in entries
        ]
        return "\n".join(lines)


class ProfiledPart:
    """One part of a program, for AllocationProfile: a context manager and a decorator.

    Arguments:
        profile: AllocationProfile.
        name: str, or None.
    """

    def __init__(self, profile: AllocationProfile, name: str | None) -> None:
        self._profile = profile
        self._name = name
        self._entered = threading.local()

    def __call__(self, function: _F) -> _F:
        code = getattr(function, "__code__", None)
        place = f"{code.co_filename}:{code.co_firstlineno}" if code is not None else "?"
        name = self._name or f"{place}({getattr(function, '__qualname__', function)!s})"

        @functools.wraps(function)
        def counted(*args: object, **keywords: object) -> object:
            with ProfiledPart(self._profile, name):
                return function(*args, **keywords)

        return counted  # type: ignore[return-value]

    def __enter__(self) -> Self:
        if not self._name:
            raise ValueError("a part that is a context manager needs a name: profile.part(name)")
        statistics = self._profile.statistics()
        if statistics is not None:
            statistics.push_counters()
        stack = self._entered.__dict__.setdefault("stack", [])
        stack.append(statistics)
        return self

    def __exit__(self, *error: object) -> None:
        statistics = self._entered.stack.pop()
        if statistics is not None and self._name:
            counts = statistics.pop_counters()
            self._profile.add(self._name, counts.total_bytes, counts.peak_bytes)


@dataclass
class LineNode:
    """A line of a program in a LineProfile.

    Attributes:
        used: int, bytes that were allocated by it and what it called.
        acquired: int, bytes that had to be taken from the device for it.
        below: dict, the line that it called -> LineNode.
    """

    used: int = 0
    acquired: int = 0
    below: dict[str, LineNode] = field(default_factory=dict)


class LineProfile:
    """Counts memory by the lines of a program that allocate it, as a tree of their calls.

        lines = accelrt.resources.LineProfile()
        device = HooksAdaptor(DeviceResource(), after_allocate=lines.acquired)
        pool = HooksAdaptor(PoolResource(device), after_allocate=lines.used)
        ...
        print(lines.report())

    Arguments:
        max_depth: int, how many levels the tree has, its root among them; 0 is no limit.
    """

    def __init__(self, max_depth: int = 0) -> None:
        self._max_depth = max_depth
        self._lock = ForkSafeLock()
        self._root = LineNode()

    def used(self, address: int, nbytes: int, stream: object) -> None:
        """Counts an allocation; for after_allocate of a HooksAdaptor on a pool.

        Arguments:
            address, nbytes, stream: as after_allocate has them.
        """
        self._add(sys._getframe(1), nbytes, 0)

    def acquired(self, address: int, nbytes: int, stream: object) -> None:
        """Counts what a pool took; for after_allocate of a HooksAdaptor below it.

        Arguments:
            address, nbytes, stream: as after_allocate has them.
        """
        self._add(sys._getframe(1), 0, nbytes)

    def _add(self, frame: FrameType | None, used: int, acquired: int) -> None:
        names = []
        while frame is not None:
            names.append(f"{frame.f_code.co_filename}:{frame.f_lineno}:{frame.f_code.co_name}")
            frame = frame.f_back
        names.reverse()
        if self._max_depth:
            names = names[: self._max_depth - 1]
        with self._lock:
            node = self._root
            node.used, node.acquired = node.used + used, node.acquired + acquired
            for name in names:
                node = node.below.setdefault(name, LineNode())
                node.used, node.acquired = node.used + used, node.acquired + acquired

    def report(self, file: TextIO | None = None) -> str:
        """Writes the tree: each line with the bytes that it used, and those of them that were acquired.

        Arguments:
            file: an object with write(text), which gets the text too; None is none.
        Returns:
            str.
        """
        lines: list[str] = []
        with self._lock:
            add_lines(lines, "_root", self._root, 0)
        text = "\n".join(lines) + "\n"
        if file is not None:
            file.write(text)
        return text


def add_lines(lines: list[str], name: str, node: LineNode, depth: int) -> None:
    lines.append(f"{'  ' * depth}{name} ({size_text(node.used)}, {size_text(node.acquired)})")
    for below, inner in node.below.items():
        add_lines(lines, below, inner, depth + 1)
