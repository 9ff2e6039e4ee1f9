"""A training program on torch's own allocator and on accelrt plugged into torch.

ResNet-50 in float32, 50 steps of SGD with momentum on random images, 16 to 64 of them with sides of 128 to
256, others in each step.  Every allocator has a process of its own; seeds, shapes and kernels are the same,
and only deterministic kernels are allowed, so the losses are the same bit for bit unless memory was mixed up.
Reserved and live are the peaks of the whole program, as the allocator counts them.  A step's time is wall
time up to its loss, which waits for the device; the median leaves out the first five.  A process that did
not end well is named below.  With --quick there are few steps, whose times mean nothing.
"""

import sys
from pathlib import Path

from replay_subjects import EXPANDABLE
from rows import Row
from suite import Suite, options
from training_process import PLUGGED

REPEATABLE = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
NATIVE = "torch"
COLUMNS = {PLUGGED: {}, NATIVE: {}, "torch expandable": EXPANDABLE}  # and what its process needs
ROWS = [
    Row("reserved", "peak reserved", unit="GiB"),
    Row("live", "peak live", unit="GiB"),
    Row("median", "a step, median", unit="ms"),
    Row("total", "all steps", unit="s"),
    Row("losses", "steps whose loss is torch's, bit for bit", unit="count"),
]
TIMEOUT = 150.0  # seconds for one allocator's process


def compare(suite: Suite) -> None:
    """Turns the losses into how many of them are torch's; a difference is a failure, with its first place."""
    cells = suite.cells.get("losses", {})
    expected = cells.get(NATIVE)
    if expected is None:
        for column in cells:
            suite.fail("losses", column, "there are none of torch's to compare with")
        cells.clear()
    for column, cell in cells.items():
        same = [ours == theirs for ours, theirs in zip(cell["losses"], expected["losses"], strict=True)]
        cell["value"] = float(sum(same))
        cell["weights_equal"] = cell["weights"] == expected["weights"]
        if not all(same):
            suite.fail("losses", column, f"differs from step {same.index(False) + 1} on")
        elif not cell["weights_equal"]:
            suite.fail("losses", column, "the losses are torch's, the weights in the end are not")


def main() -> None:
    """Every allocator in turn."""
    chosen = options()
    suite = Suite("training", ROWS, list(COLUMNS), chosen.quick, timeout=TIMEOUT)
    script = str(Path(__file__).with_name("training_process.py"))
    for column, environment in COLUMNS.items():
        suite.fill(column, [sys.executable, script, column], {**REPEATABLE, **environment})
    compare(suite)
    suite.print(chosen.json)


if __name__ == "__main__":
    main()
