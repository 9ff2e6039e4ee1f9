"""accelrt export-trace: turn a memory snapshot into a trace for Perfetto."""

import argparse

from accelrt.tools.cli import snapshots
from accelrt.tools.viewer.chrome_trace import write_trace


def add_arguments(parser: argparse.ArgumentParser) -> None:
    text = "allocations to show as slices; default: 2000"
    parser.add_argument("--largest", metavar="N", type=int, default=2000, help=text)
    snapshots.add_arguments(parser, ".trace.json")


def run(snapshot: str, output: str | None, suffix: str, largest: int) -> int:
    """The command; raises as of snapshots.convert and write_trace."""
    snapshots.convert(snapshot, output, suffix, lambda loaded, path: write_trace(loaded, path, largest))
    return 0
