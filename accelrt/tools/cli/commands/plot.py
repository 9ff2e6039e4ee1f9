"""accelrt plot: draw a memory snapshot as a picture: .png, .svg or .pdf."""

import argparse

from accelrt.tools.cli import options, snapshots
from accelrt.tools.viewer.plots import KINDS, write_plot


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--kind", choices=KINDS, default="timeline", help="default: timeline")
    options.add_device(parser, "ordinal; default: the first in the snapshot")
    snapshots.add_arguments(parser, ".png")


def run(snapshot: str, output: str | None, suffix: str, kind: str, device: int | None) -> int:
    """The command; raises as of snapshots.convert and write_plot."""
    snapshots.convert(snapshot, output, suffix, lambda loaded, path: write_plot(loaded, path, kind, device))
    return 0
