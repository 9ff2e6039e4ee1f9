"""Rows: the pieces of work of a benchmark, and what accelrt has to show in them."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Goal:
    """What accelrt has to show: a limit, or one that depends on another column of the same run."""

    amount: float
    sign: str = "<="  # or ">="
    plus: str = ""  # the column that the amount is added to
    times: str = ""  # the column that the amount multiplies
    scale: float = 1.0  # of the column that the amount is added to

    def text(self) -> str:
        """The goal in a few characters."""
        if self.plus:
            scaled = self.plus if self.scale == 1.0 else f"{self.scale:g} x {self.plus}"
            return f"{self.sign} {scaled} + {self.amount:g}"
        if self.times:
            return f"{self.sign} {self.amount:g} x {self.times}"
        return f"{self.sign} {self.amount:g}"

    def limit(self, cells: dict[str, dict]) -> float | None:
        """The number; None where the column that it depends on is empty."""
        base = self.plus or self.times
        if not base:
            return self.amount
        if base not in cells:
            return None
        value: float = cells[base]["value"]
        return value * self.scale + self.amount if self.plus else value * self.amount

    def judged(self, cells: dict[str, dict]) -> dict:
        """The goal as JSON holds it, with its number, and whether accelrt meets it (None: not known)."""
        limit, ours = self.limit(cells), cells.get("accelrt", {}).get("value")
        met = None
        if limit is not None and ours is not None:
            met = ours <= limit if self.sign == "<=" else ours >= limit
        return {"text": self.text(), "limit": limit, "met": met, "depends": bool(self.plus or self.times)}


@dataclass(frozen=True)
class Row:
    """A piece of work.  The peers' methods of the same name as its key say how each does it."""

    key: str
    title: str
    goal: Goal | None = None
    unit: str = "ns"  # "GB/s" and "x" are better when more; "count" has no decimals
    batch: int = 200
