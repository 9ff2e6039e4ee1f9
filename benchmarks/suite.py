"""A benchmark's table: who did its work, and what came out."""

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import peers
import rawc
import report
from rows import Row
from words import listen
from worker import Worker, work

RAW = "raw C"
TIMEOUT = 75  # seconds for one library's rows of one benchmark
TIMEOUT_ON_HOST = 900  # of machines that are slow or busy, and that have one library to measure
ROUNDS = 3  # of all libraries in turn


@dataclass
class Suite:
    """One benchmark and its cells."""

    name: str
    rows: list[Row]
    columns: list[str]
    quick: bool = False
    tree: str | None = None  # whose accelrt is a column too
    timeout: float = field(default_factory=lambda: TIMEOUT_ON_HOST if peers.on_host() else TIMEOUT)
    cells: dict[str, dict[str, dict]] = field(default_factory=dict)  # by row, then by column
    errors: list[dict[str, str]] = field(default_factory=list)
    absent: dict[str, str] = field(default_factory=dict)  # by column, why
    versions: dict[str, str] = field(default_factory=dict)

    def keep(self, key: str, column: str, cell: dict) -> None:
        """Fills a cell, unless an earlier round's is better."""
        cells = self.cells.setdefault(key, {})
        if column in cells:
            more = next(row.unit for row in self.rows if row.key == key) in report.MORE_IS_BETTER
            cell = (max if more else min)(cells[column], cell, key=lambda each: each["value"])
        cells[column] = cell

    def fail(self, key: str, column: str, error: str) -> None:
        """Notes why a cell stays empty."""
        said = {"row": key, "column": column, "error": error}
        if said not in self.errors:
            self.errors.append(said)

    def fill(self, column: str, command: list[str], environment: dict[str, str] | None = None) -> None:
        """Fills a column with what a process says (words.py)."""
        if peers.on_host() and column not in ("accelrt", self.tree):
            self.absent[column] = peers.ON_HOST
            return
        self.hear(
            column, *listen([*command, *(["--quick"] if self.quick else [])], self.timeout, environment)
        )

    def hear(self, column: str, words: list[dict], end: str) -> None:
        """Fills a column with what its process said, and notes how that ended."""
        for said in words:
            if "absent" in said:
                self.absent[column] = said["absent"]
            elif "version" in said:
                self.versions[column] = said["version"]
            elif "error" in said:
                self.fail(said["row"], column, said["error"])
            else:
                for key, cell in said["cells"].items():
                    self.keep(key, column, cell)
        if end:
            self.fail("those that were left", column, end)

    def fill_raw(self) -> None:
        """Fills the column of the raw driver with the C program of the benchmark's name."""
        if peers.on_host():
            self.absent[RAW] = peers.ON_HOST
            return
        with tempfile.TemporaryDirectory() as folder:
            try:
                program = rawc.build(self.name, Path(folder))
            except (OSError, RuntimeError) as error:
                self.absent[RAW] = f"{type(error).__name__}: {error}"
                return
            self.fill(RAW, [str(program)])

    def as_dict(self) -> dict:
        """The suite as JSON holds it.  On the host device goals, which are a GPU's, are not judged."""
        rows = []
        for row in self.rows:
            cells = self.cells.get(row.key, {})
            goal = row.goal.judged(cells) if row.goal and not peers.on_host() else None
            rows.append({"key": row.key, "title": row.title, "unit": row.unit, "cells": cells, "goal": goal})
        about = {"benchmark": self.name, "quick": self.quick, "columns": self.columns, "rows": rows}
        errors = [said for said in self.errors if said["column"] not in self.cells.get(said["row"], {})]
        return {**about, "errors": errors, "absent": self.absent, "versions": self.versions}

    def print(self, as_json: bool) -> None:
        """Prints the table, or JSON on one line."""
        print(json.dumps(self.as_dict()) if as_json else report.table(self.as_dict()))


def parser_of_all() -> argparse.ArgumentParser:
    """The command line that every benchmark has."""
    parser = argparse.ArgumentParser(description=sys.modules["__main__"].__doc__)
    parser.add_argument("--quick", action="store_true", help="a few batches only: shows that all runs")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--peer", help="be the process of one library, and say what its rows took")
    return parser


def options() -> argparse.Namespace:
    """What was asked for on it."""
    return parser_of_all().parse_args()


def run(
    name: str,
    rows: list[Row],
    others: list[str],
    more: Callable[[Worker], None] | None = None,
    rounds: int = ROUNDS,
) -> None:
    """A benchmark's main: each library does the rows in a process of its own, and raw/<name>.c on the driver.

    Where there is no such C program there is no such column.
    All take turns for some rounds, and a cell keeps its best median: a machine that others use too changes
    its pace for seconds at a time, by a factor of two, so a single round compares seconds, not libraries.

    Arguments:
        name: the benchmark's.
        rows: its rows.
        others: the columns beside accelrt's and the raw driver's.
        more: does the rows that are no plain calls, in the library's process.
        rounds: how often each library does its rows.
    """
    parser = parser_of_all()
    parser.add_argument("--tree", help="compare with the accelrt built in this folder alone")
    chosen = parser.parse_args()
    if chosen.peer:
        work(chosen.peer, rows, more, chosen.quick)
        return
    raw = [RAW] if (rawc.RAW / f"{name}.c").is_file() and chosen.tree is None else []
    others = others if chosen.tree is None else [chosen.tree]
    suite = Suite(name, rows, ["accelrt", *raw, *others], chosen.quick, chosen.tree)
    script = str(Path(sys.argv[0]).resolve())
    for _ in range(1 if chosen.quick else rounds):
        for column in ("accelrt", *others):
            peer = "accelrt" if column == chosen.tree else column
            elsewhere = {"PYTHONPATH": chosen.tree} if column == chosen.tree else None
            suite.fill(column, [sys.executable, script, "--peer", peer], elsewhere)
        if raw:
            suite.fill_raw()
    suite.print(chosen.json)
