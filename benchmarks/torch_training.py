"""Training programs on torch's own allocator, with and without expandable segments, and on accelrt.

ResNet-50 in float32 by SGD with momentum, on 16 to 48 images with sides of 128 to 224, and a 12-layer GPT in
bfloat16 (autocast) by AdamW, on 2 to 8 sentences of 128 to 896 tokens: 200 steps each, others in each step.
The GPT's clipping and optimizer's step are captured in torch.cuda.graph and replayed.  The data come from
two workers through page-locked memory.  Every allocator has a process of its own for each; seeds, shapes and
kernels are the same, and only deterministic kernels are allowed, so the losses are the same bit for bit
unless memory was mixed up.  Reserved and live are the peaks of the whole program, as the allocator counts
them.  A step's time is wall time from its batch to its loss, which waits for the device; the median leaves
out the first ten.  A process that did not end well is named below.  With --quick there are few steps, whose
times mean nothing.
"""

import sys
from pathlib import Path

from replay_subjects import EXPANDABLE
from rows import Row
from suite import Suite, options
from training_process import MODELS, PLUGGED

REPEATABLE = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
NATIVE = "torch"
COLUMNS = {NATIVE: {}, "torch expandable": EXPANDABLE, PLUGGED: {}}  # and what its process needs
TITLES = {"resnet": "ResNet-50", "gpt": "GPT"}
ROWS = [
    row
    for model, title in TITLES.items()
    for row in (
        Row(f"{model}.reserved", f"{title}: peak reserved", unit="GiB"),
        Row(f"{model}.live", f"{title}: peak live", unit="GiB"),
        Row(f"{model}.median", f"{title}: a step, median", unit="ms"),
        Row(f"{model}.total", f"{title}: all steps", unit="s"),
        Row(f"{model}.losses", f"{title}: steps whose loss is torch's, bit for bit", unit="count"),
    )
]
TIMEOUT = 100.0  # seconds for one allocator's process


def compare(suite: Suite) -> None:
    """Turns the losses into how many of them are torch's; a difference is a failure, with its first place."""
    for model in MODELS:
        compare_model(suite, f"{model}.losses")


def compare_model(suite: Suite, row: str) -> None:
    """The same for the losses of one row."""
    cells = suite.cells.get(row, {})
    expected = cells.get(NATIVE)
    if expected is None:
        for column in cells:
            suite.fail(row, column, "there are none of torch's to compare with")
        cells.clear()
    for column, cell in cells.items():
        same = [ours == theirs for ours, theirs in zip(cell["losses"], expected["losses"], strict=True)]
        cell["value"] = float(sum(same))
        cell["weights_equal"] = cell["weights"] == expected["weights"]
        if not all(same):
            suite.fail(row, column, f"differs from step {same.index(False) + 1} on")
        elif not cell["weights_equal"]:
            suite.fail(row, column, "the losses are torch's, the weights in the end are not")


def main() -> None:
    """Every model, with every allocator in turn."""
    chosen = options()
    suite = Suite("training", ROWS, list(COLUMNS), chosen.quick, timeout=TIMEOUT)
    script = str(Path(__file__).with_name("training_process.py"))
    for model in MODELS:
        for column, environment in COLUMNS.items():
            suite.fill(column, [sys.executable, script, column, model], {**REPEATABLE, **environment})
    compare(suite)
    suite.print(chosen.json)


if __name__ == "__main__":
    main()
