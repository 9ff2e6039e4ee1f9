"""Sweeps: call 1 of the driver fails, then call 2, ..., until all of a step succeeds."""

import itertools

import accelrt


def failing_calls(faults, step, code=999, mode="once", rows=None):
    """After each try of the step: (the call that failed, the CudaError that came of it or None).

    The last try is one that did not reach the call, so what the caller looks at holds after a success too.
    """
    for call in itertools.count(1):
        raised = None
        faults.arm(call=call, code=code, mode=mode, rows=rows)
        try:
            step()
        except accelrt.CudaError as error:
            raised = without_frames(error)
        finally:
            reached = faults.fired() >= call
            faults.disarm()
        yield call, raised
        if not reached:
            assert raised is None, raised
            return


def without_frames(error):
    """The error, of whose frames none, nor those of what it came of, holds what the step had made."""
    chained = error
    while chained is not None:
        chained.__traceback__ = None
        chained = chained.__cause__ or chained.__context__
    return error
