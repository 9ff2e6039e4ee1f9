"""Columns and cells: who did a benchmark's work, and what came out."""

import argparse
import gc
import json
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import peers
import rawc
import report
from rows import Row
from timing import FULL, QUICK, Budget, Work, measure

COLUMNS = ["accelrt", "raw C", "cuda.bindings", "torch", "CuPy", "cuda.core", "RMM async", "RMM pool"]
RAW = "raw C"


@dataclass
class Suite:
    """One benchmark and its cells."""

    name: str
    rows: list[Row]
    quick: bool = False
    columns: list[str] = field(default_factory=lambda: list(COLUMNS))
    cells: dict[str, dict[str, dict]] = field(default_factory=dict)
    errors: list[dict[str, str]] = field(default_factory=list)
    absent: dict[str, str] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)

    @property
    def budget(self) -> Budget:
        """How long a cell may take."""
        return QUICK if self.quick else FULL

    def keep(self, key: str, column: str, cell: dict) -> None:
        """Fills a cell."""
        self.cells.setdefault(key, {})[column] = cell

    def attempt(self, key: str, column: str, action: Callable[[], dict]) -> None:
        """Fills a cell with what the action answers; if it fails, the text goes among the errors."""
        try:
            self.keep(key, column, action())
        except Exception as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            text = f"{type(error).__name__}: {error} ({Path(place.filename).name}:{place.lineno})"
            self.errors.append({"row": key, "column": column, "error": text})

    def time(self, row: Row, peer: peers.Peer) -> None:
        """One cell: a peer's way to do a row's work.  A peer without a method of that name has none."""
        prepare = getattr(peer, row.key, None)
        if prepare is None:
            return

        def action() -> dict:
            made = prepare()
            work = made if isinstance(made, Work) else Work(made)
            return measure(work, row.batch, peer.settle, self.budget)

        self.attempt(row.key, peer.column, action)

    def time_raw(self, program: str) -> None:
        """The column of the raw driver: a C program whose rows have the keys of ours."""
        outcome = rawc.run(program, self.quick)
        if outcome.reason:
            self.absent[RAW] = outcome.reason
        for key, cell in outcome.cells.items():
            self.keep(key, RAW, cell)
        self.errors += [{"row": key, "column": RAW, "error": text} for key, text in outcome.errors.items()]

    def as_dict(self) -> dict:
        """The suite as JSON holds it."""
        rows = []
        for row in self.rows:
            cells = self.cells.get(row.key, {})
            goal = row.goal.judged(cells) if row.goal else None
            rows.append({"key": row.key, "title": row.title, "unit": row.unit, "cells": cells, "goal": goal})
        about = {"benchmark": self.name, "quick": self.quick, "columns": self.columns, "rows": rows}
        return {**about, "errors": self.errors, "absent": self.absent, "versions": self.versions}


def begin(name: str, rows: list[Row]) -> tuple[Suite, bool]:
    """Reads the command line.  Answers the suite to fill, and whether JSON is wanted."""
    parser = argparse.ArgumentParser(description=sys.modules["__main__"].__doc__)
    parser.add_argument("--quick", action="store_true", help="a few batches only: shows that all runs")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args()
    return Suite(name, rows, options.quick), options.json


def finish(suite: Suite, as_json: bool) -> None:
    """Prints the table, or JSON."""
    print(json.dumps(suite.as_dict()) if as_json else report.table(suite.as_dict()))


def run(name: str, rows: list[Row], more: Callable[[Suite, list], None] | None = None) -> None:
    """A benchmark's main: times every row on every peer and, in raw/<name>.c, on the raw driver."""
    suite, as_json = begin(name, rows)
    present = peers.open_all(suite.absent, suite.versions, suite.quick)
    gc.collect()
    gc.freeze()  # what the libraries brought is not walked again before each cell
    for row in rows:
        for peer in present:
            suite.time(row, peer)
    if more is not None:
        more(suite, present)
    suite.time_raw(name)
    finish(suite, as_json)
