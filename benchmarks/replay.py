"""Replays recorded traces of training and serving through each allocator.

A trace (traces/*.npz) holds what PyTorch asked of its allocator, in order: op (1 alloc, 0 free), id, size
and stream.  Each is replayed four times in a row by one and the same Python loop; every allocator has a
process of its own and starts each trace empty.  The ratio is the most that it reserved in the four passes to
the most that was live; the times are per event, less the loop's.  With --quick only the first events are
replayed, and the ratios mean nothing.
"""

import sys
from pathlib import Path

from replay_subjects import SUBJECTS
from replay_trace import TRACES
from rows import Goal, Row
from suite import Suite, options

LIMITS = {
    "gnn": 1.02,
    "resnet": 1.013,
    "gpt2": 1.02,
    "lstm_small": 1.008,
    "unet_multistream": 1.02,
    "moe_train": 1.02,
    "llama_serve": 1.02,
    "vit_serve": 1.07,
}
PASSES = {"first": Goal(2, times="torch"), "fourth": Goal(0.25, times="torch")}


def rows() -> list[Row]:
    """First the memory of every trace, then the time of the first pass and of the fourth."""
    made = [Row(f"{name}.ratio", f"{name}: reserved / live", Goal(LIMITS[name]), "ratio") for name in TRACES]
    for key, goal in PASSES.items():
        made += [Row(f"{name}.{key}", f"{name}: {key} pass, per event", goal) for name in TRACES]
    return made


def main() -> None:
    """Every allocator in turn."""
    chosen = options()
    suite = Suite("replay", rows(), list(SUBJECTS), chosen.quick)
    script = str(Path(__file__).with_name("replay_trace.py"))
    for column, subject in SUBJECTS.items():
        suite.fill(column, [sys.executable, script, column], subject.environment)
    suite.print(chosen.json)


if __name__ == "__main__":
    main()
