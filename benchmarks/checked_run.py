"""How far a long run may go, and its end where something differs."""

import random
import sys
from dataclasses import dataclass, field
from time import perf_counter

LOOK = 1000  # changes of one sample, and steps between two audits


def check(condition: bool, text: str) -> None:
    """Ends the program where something differs."""
    if not condition:
        sys.exit(f"long_runs: {text}")


@dataclass
class Run:
    """How far a run may go, and what it says."""

    count: int
    seconds: float
    seed: int
    said: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.end = perf_counter() + self.seconds

    def over(self) -> bool:
        """Whether the seconds are."""
        return perf_counter() > self.end
