"""A map from bytes to what was last done with them."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")
Part = tuple[int, int, T]  # begin, end, what holds from begin up to end


@dataclass(slots=True)
class IntervalMap(Generic[T]):
    """Disjoint ranges of bytes in ascending order, each with a value that nobody changes."""

    begins: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    values: list[T] = field(default_factory=list)

    def parts(self, begin: int, end: int) -> list[Part[T]]:
        """Returns what lies in a range, cut at its edges."""
        first, last = self.span(begin, end)
        return [
            (max(self.begins[index], begin), min(self.ends[index], end), self.values[index])
            for index in range(first, last)
        ]

    def set(self, begin: int, end: int, value: T) -> None:
        """Gives all bytes of a range one value."""
        self.put(begin, end, [(begin, end, value)])

    def remove(self, begin: int, end: int) -> None:
        """Forgets a range."""
        self.put(begin, end, [])

    def change(self, begin: int, end: int, change: Callable[[T | None], T | None]) -> None:
        """Gives every part of a range the value that change makes of its old one; None: there is no value."""
        parts: list[Part[T]] = []
        for low, high, old in self.cover(begin, end):
            value = change(old)
            if value is None:
                continue
            if parts and parts[-1][1] == low and parts[-1][2] == value:
                low = parts.pop()[0]
            parts.append((low, high, value))
        self.put(begin, end, parts)

    def cover(self, begin: int, end: int) -> Iterator[tuple[int, int, T | None]]:
        start = begin
        for low, high, value in self.parts(begin, end):
            if start < low:
                yield start, low, None
            yield low, high, value
            start = high
        if start < end:
            yield start, end, None

    def span(self, begin: int, end: int) -> tuple[int, int]:
        return bisect_right(self.ends, begin), bisect_left(self.begins, end)

    def put(self, begin: int, end: int, parts: list[Part[T]]) -> None:
        first, last = self.span(begin, end)
        new_parts = list(parts)
        if first < last and self.begins[first] < begin:
            new_parts.insert(0, (self.begins[first], begin, self.values[first]))
        if first < last and self.ends[last - 1] > end:
            new_parts.append((end, self.ends[last - 1], self.values[last - 1]))
        self.begins[first:last] = [low for low, _, _ in new_parts]
        self.ends[first:last] = [high for _, high, _ in new_parts]
        self.values[first:last] = [value for _, _, value in new_parts]

    def __len__(self) -> int:
        return len(self.values)
