"""CUDA tensors handed to other processes by torch.multiprocessing: torch's own allocator, and accelrt.

    python benchmarks/torch_handover.py [--gib 30] [--processes 8] [--quick] [--json]

Tensors of 512 MiB, 30 GiB in all, go through pipes to 8 processes, one after the other.  A hand-over lasts
from the call that sends the tensor until the other process has it open and says so; the first process is the
one for which the sender makes its handles.  The addresses are what a receiver's address space grew by, as
the system counts it.  Then all receivers are killed by SIGKILL, the sender lets go of the tensors, and what
is still allocated after ten seconds is left.  Last a process sends a quarter as much and is killed: the
contents have to be right until they are dropped, and what the device then lacks is left.
"""

import argparse
import sys
from pathlib import Path

from rows import Row
from suite import Suite
from training_process import PLUGGED

NATIVE = "torch"
COLUMNS = (NATIVE, PLUGGED)
ROWS = [
    Row("first", "A hand-over to the first process, median", unit="ms"),
    Row("later", "A hand-over to the others, median", unit="ms"),
    Row("most", "The longest hand-over", unit="ms"),
    Row("addresses", "Addresses that a receiver reserved", unit="GiB"),
    Row("receivers", "Left when all receivers were killed", unit="GiB"),
    Row("sender", "Left when a sender was killed", unit="GiB"),
]
TIMEOUT = 90.0  # seconds for one allocator's processes


def main() -> None:
    """Both allocators in turn."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="little memory: shows that all runs")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--gib", type=float, help="how much is handed over; it has to fit twice")
    parser.add_argument("--processes", type=int, help="that receive it")
    chosen = parser.parse_args()
    suite = Suite("handover", ROWS, list(COLUMNS), chosen.quick, timeout=TIMEOUT)
    script = str(Path(__file__).with_name("handover_process.py"))
    sizes = [f"--gib={chosen.gib}"] if chosen.gib is not None else []
    sizes += [f"--processes={chosen.processes}"] if chosen.processes is not None else []
    for column in COLUMNS:
        suite.fill(column, [sys.executable, script, column, *sizes])
    suite.print(chosen.json)


if __name__ == "__main__":
    main()
