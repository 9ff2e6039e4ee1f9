"""What torch.empty of a block in the cache and its end take, on torch's allocator and on accelrt.

A batch is 20,000 pairs of torch.empty(128, device="cuda") and del; the figure is the least of 40 batches'
means, which what else the machine does moves least.  The processes of the allocators live side by side and
take turns of a batch.  "the plug-in" is torch's CUDAPluggableAllocator with accelrt behind it
(ACCELRT_TORCH_OBJECT=plugged).  Most of a pair is torch's own: dispatch, a tensor, a storage.
"""

import importlib
import sys
from collections.abc import Iterator
from time import perf_counter_ns

import peers
from rows import Goal, Row
from suite import Suite, parser_of_all
from training_process import PLUGGED, main
from turns import take_turns
from words import say

COLUMNS = {"torch": {}, PLUGGED: {}, "the plug-in": {"ACCELRT_TORCH_OBJECT": "plugged"}}
ROWS = [
    Row("pair", "torch.empty of 512 B and its end"),
    Row("over", "the same over torch's allocator", Goal(10)),
]
BATCHES, QUICK_BATCHES, PAIRS = 40, 2, 20_000
TIMEOUT = 120.0


def turns_of(column: str, batches: int) -> Iterator[str]:
    """The batches of one allocator, by turns; says the cell."""
    torch = importlib.import_module("torch")
    if column != "torch":
        importlib.import_module("accelrt").interop.torch.install(name="native")
    empty, device, means = torch.empty, torch.device("cuda", 0), []
    for _ in range(batches + 1):
        start = perf_counter_ns()
        for _ in range(PAIRS):
            tensor = empty(128, device=device)
            del tensor
        means.append((perf_counter_ns() - start) / PAIRS)
        yield "batch"
    say(cells={"pair": {"value": min(means[1:]), "means": means}})


def compare() -> None:
    """Every allocator, and what it takes over torch's."""
    chosen = parser_of_all().parse_args()
    suite = Suite("torch_pairs", ROWS, list(COLUMNS), chosen.quick)
    if peers.on_host():
        suite.absent = dict.fromkeys(COLUMNS, peers.ON_HOST)
    else:
        count = str(QUICK_BATCHES if chosen.quick else BATCHES)
        commands = {
            column: ([sys.executable, __file__, column, count], environment)
            for column, environment in COLUMNS.items()
        }
        for column, (words, end) in take_turns(commands, TIMEOUT).items():
            suite.hear(column, words, end)
        cells = suite.cells.get("pair", {})
        for column, cell in cells.items():
            if "torch" in cells:
                suite.keep("over", column, {"value": cell["value"] - cells["torch"]["value"]})
    suite.print(chosen.json)


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1] in COLUMNS:
        main("pair", turns_of(sys.argv[1], int(sys.argv[2])))
    else:
        compare()
