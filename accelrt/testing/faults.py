"""Calls of the driver that fail: to see that nothing is lost or left behind by it."""

from __future__ import annotations

import contextlib
import itertools

from accelrt.errors import CudaError
from accelrt.testing.device import wrapped_table

TYPE_CHECKING = False  # typing's, which takes long to import
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

UNKNOWN = 999  # a status code that says nothing of why


@contextlib.contextmanager
def failing(
    call: int = 1, code: int = UNKNOWN, mode: str = "once", rows: Iterable[str] | None = None
) -> Iterator[Callable[[], int]]:
    """Has a call of the driver fail inside a block, whichever thread makes it.

        with accelrt.testing.failing(code=2, rows=["memory_alloc", "physical_create"], mode="onward"):
            ...  # the device has no memory

    Arguments:
        call: int, which of the calls that count, 1 for the next.
        code: int, the status code that it answers (accelrt/status.pxd; those of CUresult); in mode "slow" the
            microseconds that calls take longer at most.
        mode: "once", that call alone; "onward", and every one after it; "late", it succeeds, and the next
            question about the work answers the code, as after a kernel that failed; "slow".
        rows: names of the calls that count and may fail, as calls_of() lists them; None is all.
    Yields:
        a function of no arguments: how many calls counted so far.
    Raises:
        ValueError: an unknown mode or row, a call below 1, or no time.
        RuntimeError: accelrt was initialised without use_device().
    """
    table = wrapped_table()
    table.arm(call=call, code=code, mode=mode, rows=rows)
    try:
        yield table.fired
    finally:
        table.disarm()


def failing_calls(
    step: Callable[[], object], code: int = UNKNOWN, mode: str = "once", rows: Iterable[str] | None = None
) -> Iterator[tuple[int, CudaError | None]]:
    """Runs a step again and again: first its first call of the driver fails, then the second, until all
    succeeds.

        for call, error in accelrt.testing.failing_calls(lambda: upload(array)):
            assert accelrt.memory_allocated() == before, call

    Arguments:
        step: callable of no arguments.  What it raises but CudaError ends the sweep.
        code, mode, rows: as of failing().
    Yields:
        (call, error) after each run: the number of the call that failed, and the CudaError that came of it,
        or None.  The last run is one that did not reach the call, so that what the caller looks at holds
        after a success too.
    Raises:
        AssertionError: the last run, in which nothing failed, raised a CudaError.
        ValueError, RuntimeError: as failing().
    """
    names = None if rows is None else list(rows)
    for call in itertools.count(1):
        raised = None
        with failing(call, code, mode, names) as count:
            try:
                step()
            except CudaError as error:
                raised = without_frames(error)
            reached = count() >= call
        yield call, raised
        if not reached:
            if raised is not None:
                raise AssertionError(f"no call failed, and the step raised: {raised}") from raised
            return


def without_frames(error: CudaError) -> CudaError:
    """Strips an error, so that of its frames none, nor those of what it came of, holds what the step had
    made."""
    chained: BaseException | None = error
    while chained is not None:
        chained.__traceback__ = None
        chained = chained.__cause__ or chained.__context__
    return error


def calls_of(step: Callable[[], object], warm: int = 3) -> dict[str, int]:
    """Counts how often a step calls each row of the driver once everything that it needs is there.

    Arguments:
        step: callable of no arguments.
        warm: int, how often it runs before its calls count.
    Returns:
        dict: name of a row -> calls, without those that it does not call.  Other threads' calls count too.
    Raises:
        RuntimeError: accelrt was initialised without use_device().
    """
    table = wrapped_table()
    for _ in range(warm):
        step()
    table.reset_call_counts()
    step()
    return {row: count for row, count in table.call_counts().items() if count}
