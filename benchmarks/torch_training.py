"""Training programs on torch's own allocator, with and without expandable segments, and on accelrt.

ResNet-50 in float32 by SGD with momentum, on 16 to 48 images with sides of 128 to 224, and a 12-layer GPT in
bfloat16 (autocast) by AdamW, on 2 to 8 sentences of 128 to 896 tokens: 200 steps each, others in each step.
The GPT's clipping and optimizer's step are captured in torch.cuda.graph and replayed.  The data come from
two workers through page-locked memory.  Every allocator has a process of its own for each; seeds, shapes and
kernels are the same, and only deterministic kernels are allowed, so the losses are the same bit for bit
unless memory was mixed up.  Reserved and live are the peaks of the whole program, as the allocator counts
them.  A step's time is wall time from its batch to its loss, which waits for the device; the medians leave
out the first ten.  The three processes live side by side and take turns of five steps, so that what else the
machine does meets all alike: processes that follow one another differ by more than their allocators do.  A
process that did not end well is named below.  With --quick there are few steps, whose times mean nothing.

With --compiled the models are compiled by torch.compile(mode="reduce-overhead") instead: 200 steps of
training on one shape, and 1,000 inferences of 8 shapes, each captured into a graph of its own; the number of
an inference is the sum of what comes out.  The turns are of ten steps; the first process compiles, the others
find it in the compiler's cache.  --steps, --inferences and --model make it shorter.

With --history the memory of each process is recorded by torch.cuda.memory._record_memory_history meanwhile,
with stacks of Python's frames, or of C++'s too ("all").
"""

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

import peers
from replay_subjects import EXPANDABLE
from rows import Row
from suite import Suite, parser_of_all
from training_process import MODELS, PLUGGED, WARM
from turns import take_turns

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
        Row(f"{model}.paired", f"{title}: a step over torch's of the same batch, median", unit="ratio"),
        Row(f"{model}.total", f"{title}: all steps", unit="s"),
        Row(f"{model}.losses", f"{title}: steps whose loss is torch's, bit for bit", unit="count"),
    )
]
HISTORY_ROWS = [
    Row(f"{model}.events", f"{title}: events in the history", unit="count") for model, title in TITLES.items()
]
COMPILED_ROWS = [
    row
    for model, title in TITLES.items()
    for part, what in (("train", "training"), ("infer", "inference"))
    for row in (
        Row(f"{model}.{part}.reserved", f"{title}, {what}: peak reserved", unit="GiB"),
        Row(f"{model}.{part}.median", f"{title}, {what}: a step, median", unit="ms"),
        Row(
            f"{model}.{part}.losses", f"{title}, {what}: numbers that are torch's, bit for bit", unit="count"
        ),
    )
] + [
    Row(f"{model}.skips", f"{title}: parts that were not captured", unit="count")
    for model, title in TITLES.items()
]
TIMEOUT = 280.0  # seconds for the three processes of a model
STEPS, QUICK_STEPS = 200, 12


def compare(suite: Suite) -> None:
    """Turns the losses into how many of them are torch's; a difference is a failure, with its first place."""
    for model in MODELS:
        compare_model(suite, f"{model}.losses")
        pair_steps(suite, model)


def pair_steps(suite: Suite, model: str) -> None:
    """Holds every step's time against torch's, whose batch was of the same shape."""
    cells = suite.cells.get(f"{model}.median", {})
    for column, cell in cells.items():
        if NATIVE in cells:
            pairs = list(zip(cell["times"], cells[NATIVE]["times"], strict=True))
            ratios = [ours / theirs for ours, theirs in pairs[min(WARM, len(pairs) - 1) :]]
            suite.keep(f"{model}.paired", column, {"value": statistics.median(ratios)})


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


def run(suite: Suite, model: str, script: str, counts: list[str], variables: dict[str, str]) -> None:
    """Fills the suite with one model, by turns on all allocators."""
    program = str(Path(__file__).with_name(script))
    commands = {
        column: (
            [sys.executable, program, column, model, *counts],
            {**REPEATABLE, **environment, **variables},
        )
        for column, environment in COLUMNS.items()
    }
    for column, (words, end) in take_turns(commands, TIMEOUT).items():
        suite.hear(column, words, end)


def run_compiled(suite: Suite, chosen: argparse.Namespace) -> None:
    """Every compiled model."""
    counts = ["6", "24"] if chosen.quick else [str(chosen.steps), str(chosen.inferences)]
    with tempfile.TemporaryDirectory() as cache:
        for model in chosen.model or MODELS:
            run(suite, model, "compiled_process.py", counts, {"TORCHINDUCTOR_CACHE_DIR": cache})
            for part in ("train", "infer"):
                compare_model(suite, f"{model}.{part}.losses")


def run_eager(suite: Suite, chosen: argparse.Namespace) -> None:
    """Every model as it is."""
    counts = [str(QUICK_STEPS if chosen.quick else chosen.steps), *filter(None, [chosen.history])]
    for model in chosen.model or MODELS:
        run(suite, model, "training_process.py", counts, {})
    compare(suite)


def main() -> None:
    """What was asked for."""
    parser = parser_of_all()
    parser.add_argument("--compiled", action="store_true", help="by torch.compile, with graphs")
    parser.add_argument("--history", choices=("python", "all"), help="recorded meanwhile, with these stacks")
    parser.add_argument("--model", choices=MODELS, action="append", help="this one alone")
    parser.add_argument("--steps", type=int, default=STEPS, help="of training")
    parser.add_argument("--inferences", type=int, default=1000, help="if compiled")
    chosen = parser.parse_args()
    name, rows, work = (
        ("compiled", COMPILED_ROWS, run_compiled) if chosen.compiled else ("training", ROWS, run_eager)
    )
    suite = Suite(name, rows + HISTORY_ROWS if chosen.history else rows, list(COLUMNS), chosen.quick)
    if peers.on_host():
        suite.absent = dict.fromkeys(COLUMNS, peers.ON_HOST)
    else:
        work(suite, chosen)
    suite.print(chosen.json)


if __name__ == "__main__":
    main()
