"""Two operations at once: the first stops at a call of the driver's, the second runs, the first goes on.

Whether two operations of several threads are as one after the other is then no matter of luck: each place at
which the first calls the driver is tried.
"""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import queue
import sys
import threading
import time
from dataclasses import dataclass

from accelrt.core.printable import printable
from accelrt.core.procfs import status_of
from accelrt.errors import InterleavingError, StuckError
from accelrt.testing.device import wrapped_table

TYPE_CHECKING = False  # typing's, which takes long to import
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from types import ModuleType
    from typing import Any, Literal

    Call = Callable[[], Any]
    Place = tuple[int, str, Literal["before", "after"]]

LONGEST = 900_000.0  # seconds that a thread can be stopped for
HAS_GIL = getattr(sys, "_is_gil_enabled", lambda: True)()
# The second operation has until its thread was asleep at so many looks, or has computed for so long.  Then it
# waits for the first, or is slow: both are fair.  That the machine does not let it run yet is neither.
LOOKS = 10
LOOK_SECONDS = 0.001
COMPUTING_SECONDS = 0.05


@dataclass(frozen=True)
class Outcome:
    """Tells how an operation ended.

    Attributes:
        result: what it returned; None where it raised.
        error: BaseException that it raised, without its frames; None where it returned.
    """

    result: Any = None
    error: BaseException | None = None

    @property
    def kind(self) -> str:
        """str: "done", or the error's type and, of a CudaError, its name."""
        if self.error is None:
            return "done"
        return " ".join([type(self.error).__name__, *filter(None, [getattr(self.error, "name", None)])])


class Worker:
    """A thread that does what it is told to, one thing at a time."""

    def __init__(self, name: str) -> None:
        self.jobs: queue.SimpleQueue[Call | None] = queue.SimpleQueue()
        self.ended: threading.Event = threading.Event()
        self.outcome: Outcome = Outcome()
        self.thread: threading.Thread = threading.Thread(target=self.run, name=name, daemon=True)
        self.thread.start()
        assert self.thread.ident is not None
        self.ident: int = self.thread.ident

    def run(self) -> None:
        while (call := self.jobs.get()) is not None:
            try:
                self.outcome = Outcome(result=call())
            except BaseException as error:
                self.outcome = Outcome(error=error.with_traceback(None))
            del call
            self.ended.set()

    def begin(self, call: Call) -> None:
        self.outcome = Outcome()
        self.ended.clear()
        self.jobs.put(call)

    def is_asleep(self) -> bool:
        """Tells whether the thread waits for something, and neither runs nor waits for a core."""
        status = status_of(self.thread.native_id or 0)
        return status is not None and status.state != "R"


class Interleaver:
    """Two threads, the first of which can be stopped at its calls of the driver.

    Arguments:
        limit: float, seconds after which an operation counts as one that does not end.
    Raises:
        RuntimeError: accelrt was initialised without accelrt.testing.use_device().
    """

    def __init__(self, limit: float = 120.0) -> None:
        self.limit: float = min(limit, threading.TIMEOUT_MAX)
        self.table: ModuleType = wrapped_table()
        self.workers: tuple[Worker, Worker] = Worker("first"), Worker("second")
        # Without a GIL an object dies on the thread that made it, which may then wait for the one that is
        # parked.
        self.parked: float = min(limit, LONGEST) if HAS_GIL else min(limit, 1.0)

    def run(self, call: Call, which: int = 0) -> Outcome:
        """Runs one operation on the first thread, or the second.

        Arguments:
            call: callable of no arguments, the operation.
            which: int, 0 for the first thread, 1 for the second.
        Returns:
            Outcome.
        Raises:
            StuckError: it does not end.
        """
        worker = self.workers[which]
        worker.begin(call)
        self.await_end(worker, "an operation alone")
        return worker.outcome

    def places(self, call: Call) -> list[tuple[int, str]]:
        """Runs an operation and lists the calls of the driver at which it can be stopped: (number, row) of
        each; those that are made with the GIL are left out, for nobody could tell it to go on.

        Arguments:
            call: callable of no arguments, the operation.
        Returns:
            list of (number, row).
        """
        self.table.begin_trace()
        try:
            self.run(call)
        finally:
            self.table.end_trace()
        calls = self.table.traced_calls(self.workers[0].ident)
        return [(number, row) for number, (row, holds_gil) in enumerate(calls, 1) if not holds_gil]

    def run_beside(
        self, first: Call, second: Call, number: int, when: Literal["before", "after"], where: str = ""
    ) -> tuple[Outcome, Outcome]:
        """Stops the first operation at one of its calls, runs the second, and has the first go on.

        Arguments:
            first, second: callables of no arguments.
            number: int, which call of the first's, as of places().  Where it makes fewer this time, it is
                over when the second begins.
            when: "before" the driver's call is made, or "after" it.
            where: str, what an error says of the trial.
        Returns:
            (Outcome, Outcome).
        Raises:
            StuckError: one does not end.
        """
        one, other = self.workers
        try:
            self.table.park(number=number, when=when, thread=one.ident, limit=self.parked)
            one.begin(first)
            self.await_place(one, where)
            other.begin(second)
            self.await_rest(other)
        except BaseException:  # Ctrl-C, say: nobody stands there any longer
            with contextlib.suppress(RuntimeError):
                self.table.go_on()
            raise
        try:
            self.table.go_on()
        except RuntimeError as error:
            if "holds the GIL" not in str(error) and (HAS_GIL or "at its limit" not in str(error)):
                raise
        self.await_end(one, where)
        self.await_end(other, where)
        return one.outcome, other.outcome

    def close(self) -> None:
        """Ends both threads, once what they do is over; again, it does nothing."""
        for worker in self.workers:
            worker.jobs.put(None)
        for worker in self.workers:
            if not HAS_GIL and worker.ended.is_set():
                worker.thread.join()  # what it made dies with it

    def settle(self) -> None:
        """Has what the threads made die where nobody holds it: without a GIL it waits until they run."""
        if not HAS_GIL:
            for which in range(len(self.workers)):
                self.run(lambda: None, which)

    def forget(self) -> None:
        """Drops what the last operations returned or raised, which holds what they made."""
        for worker in self.workers:
            worker.outcome = Outcome()

    def await_place(self, worker: Worker, where: str) -> None:
        """Waits until a thread stands at its call, or its operation has ended.

        Arguments:
            worker: Worker, one of the two.
            where: str, what an error says of the trial.
        Raises:
            StuckError: neither happens within the limit.
        """
        end = time.monotonic() + self.limit
        while time.monotonic() < end:
            try:
                if self.table.await_parked(0.0005) is not None or worker.ended.is_set():
                    return
            except RuntimeError:
                return  # it holds the GIL there, this time
        self.give_up(where)

    def await_rest(self, worker: Worker) -> None:
        """Waits until a thread's operation has ended, or the thread has had its time for it.

        Arguments:
            worker: Worker, one of the two.
        """
        clock = time.pthread_getcpuclockid(worker.ident)
        enough = time.clock_gettime(clock) + COMPUTING_SECONDS
        end = time.monotonic() + self.parked / 2
        asleep = 0
        while asleep < LOOKS and time.clock_gettime(clock) < enough and time.monotonic() < end:
            if worker.ended.wait(LOOK_SECONDS):
                return
            asleep += worker.is_asleep()

    def await_end(self, worker: Worker, where: str) -> None:
        """Waits until a thread's operation has ended.

        Arguments:
            worker: Worker, one of the two.
            where: str, what an error says of the trial.
        Raises:
            StuckError: it does not within the limit.
        """
        if not worker.ended.wait(self.limit):
            self.give_up(where)

    def give_up(self, where: str) -> None:
        """Writes the stacks of all threads to stderr, and raises that an operation does not end.

        Arguments:
            where: str, what an error says of the trial.
        Raises:
            StuckError: always.
        """
        print(printable(f"STUCK: {where}"), file=sys.stderr, flush=True)
        faulthandler.dump_traceback(all_threads=True)
        raise StuckError(
            f"{where} does not end within {self.limit:g} s; stderr has the stacks of all threads"
        )


def interleave(
    first: Callable[..., Any],
    second: Callable[..., Any],
    make: Callable[[], Any] | None = None,
    observe: Callable[[Any], Any] | None = None,
    *,
    allowed: Iterable[type[BaseException]] = (),
    limit: float = 120.0,
) -> int:
    """Tries two operations at once: the first stopped before and behind each of its calls of the driver, the
    second meanwhile.  What becomes of them has to be what one of the two orders makes.

        def make():
            return accelrt.zeros(1024), accelrt.Stream()

        accelrt.testing.interleave(
            lambda scene: upload(*scene), lambda scene: scene[0].fill_(1), make,
            observe=lambda scene: scene[0].tolist(),
        )

    Arguments:
        first, second: callables of what make returned, or of no arguments without make.
        make: callable of no arguments, which makes anew what both operate on, for each trial.
        observe: callable of the same, which returns what is compared with the two orders: numbers, lists,
            NumPy arrays. It is called after both have ended; work in streams is its own to wait for.
        allowed: classes of errors that either may raise beside those that it raises in one of the two orders.
        limit: float, seconds after which an operation counts as one that does not end.
    Returns:
        int: how many places were tried.
    Raises:
        InterleavingError: an operation raised what it raises in no order, or what was observed is of neither;
            the text names the place.
        StuckError: an operation does not end.
        RuntimeError: accelrt was initialised without accelrt.testing.use_device().
    """
    interleaver = Interleaver(limit)
    trials = Trials(first, second, make, observe, tuple(allowed), interleaver)
    tried = 0
    try:
        orders = [trials.in_order(False), trials.in_order(True)]
        for number, row, when in trials.all_places():
            where = f"{name_of(first)} stopped {when} {row} (its call {number}), beside {name_of(second)}"
            trials.judge(where, trials.at_once(number, when, where), orders)
            tried += 1
    finally:
        interleaver.close()
    return tried


@dataclass(frozen=True)
class Trials:
    """Makes the trials of one pair of operations.

    Attributes:
        first, second, make, observe, allowed: as of interleave().
        interleaver: Interleaver.
    """

    first: Callable[..., Any]
    second: Callable[..., Any]
    make: Callable[[], Any] | None
    observe: Callable[[Any], Any] | None
    allowed: tuple[type[BaseException], ...]
    interleaver: Interleaver

    def scene(self) -> tuple[list[Any], Call, Call]:
        """Makes what both operate on, in a list, and the two as callables of no arguments."""
        self.interleaver.settle()
        scene = [] if self.make is None else [self.make()]
        return scene, functools.partial(self.first, *scene), functools.partial(self.second, *scene)

    def finish(self, scene: list[Any], outcomes: tuple[Outcome, Outcome]) -> tuple[Outcome, Outcome, Any]:
        self.interleaver.forget()
        return *outcomes, None if self.observe is None else self.observe(*scene)

    def in_order(self, reverse: bool) -> tuple[Outcome, Outcome, Any]:
        scene, first, second = self.scene()
        run = self.interleaver.run
        if reverse:
            other = run(second, 1)
            return self.finish(scene, (run(first), other))
        one = run(first)
        return self.finish(scene, (one, run(second, 1)))

    def all_places(self) -> Iterator[Place]:
        for number, row in self.interleaver.places(self.scene()[1]):
            yield number, row, "before"
            yield number, row, "after"

    def at_once(
        self, number: int, when: Literal["before", "after"], where: str
    ) -> tuple[Outcome, Outcome, Any]:
        scene, first, second = self.scene()
        return self.finish(scene, self.interleaver.run_beside(first, second, number, when, where))

    def judge(
        self, where: str, ended: tuple[Outcome, Outcome, Any], orders: list[tuple[Outcome, Outcome, Any]]
    ) -> None:
        for place, operation in enumerate((self.first, self.second)):
            outcome: Outcome = ended[place]
            usual = {order[place].kind for order in orders}
            if outcome.kind not in usual and not isinstance(outcome.error, self.allowed):
                raise InterleavingError(
                    f"{where}: {name_of(operation)} ended with {outcome.error or outcome.kind!r}; in order "
                    f"it ends with {' or '.join(sorted(usual))}"
                ) from outcome.error
        if not any(is_equal(ended[2], order[2]) for order in orders):
            raise InterleavingError(
                f"{where}: {ended[2]!r} was observed; one after the other gives {orders[0][2]!r} or "
                f"{orders[1][2]!r}"
            )


def name_of(operation: object) -> str:
    return str(getattr(operation, "__name__", type(operation).__name__))


def is_equal(one: Any, other: Any) -> bool:
    """Compares what was observed, NumPy arrays as wholes."""
    import numpy as np

    if isinstance(one, np.ndarray) or isinstance(other, np.ndarray):
        return np.array_equal(one, other)
    if isinstance(one, tuple | list) and isinstance(other, tuple | list):
        return len(one) == len(other) and all(map(is_equal, one, other))
    return bool(one == other)
