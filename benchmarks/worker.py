"""The process of one library: does every row's work and says what it took."""

import gc
import traceback
from collections.abc import Callable
from pathlib import Path

import peers
from rows import Row
from timing import FULL, QUICK, Work, measure
from words import say


class Worker:
    """One library at work.  What fails costs its own cell and no other."""

    def __init__(self, peer: peers.Peer, quick: bool):
        self.peer = peer
        self.quick = quick
        self.values: dict[str, float] = {}  # by row, what was found so far

    def attempt(self, key: str, action: Callable[[], dict]) -> None:
        """Says the cell that an action answers, or how it failed."""
        try:
            cell = action()
            self.peer.settle()
        except Exception as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{Path(place.filename).name}:{place.lineno}"
            say(row=key, error=f"{type(error).__name__}: {error} ({where})")
            return
        self.values[key] = cell["value"]
        say(cells={key: cell})

    def time(self, row: Row) -> None:
        """A row's work, which the peer's method of the same name prepares; without one there is no cell."""
        prepare = getattr(self.peer, row.key, None)
        if prepare is None:
            return

        def action() -> dict:
            made = prepare()
            work = made if isinstance(made, Work) else Work(made)
            return measure(work, row.batch, self.peer.settle, QUICK if self.quick else FULL)

        self.attempt(row.key, action)


def work(column: str, rows: list[Row], more: Callable[[Worker], None] | None, quick: bool) -> None:
    """The process's main.

    Arguments:
        column: the library.
        rows: what to do.
        more: does the rows that are no plain calls.
        quick: bool, a few batches only.
    """
    try:
        peer = peers.open_peer(column, quick)
    except Exception as error:
        say(absent=f"{type(error).__name__}: {error}")
        return
    say(version=peer.version)
    gc.collect()
    gc.freeze()  # what the library brought is not walked again before each cell
    worker = Worker(peer, quick)
    for row in rows:
        worker.time(row)
    if more is not None:
        more(worker)
