"""Limits how long ranks are waited for."""

from __future__ import annotations

from accelrt import env

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

POLL_SECONDS = 0.001


def seconds_of(timeout: Any, variable: str) -> float:
    """A limit in seconds; math.inf is none.

    Arguments:
        timeout: int or float, or None for what the environment says.
        variable: str, the ACCELRT_ variable for None.
    Raises:
        TypeError, ValueError: it is no number, or below 0; or the variable is malformed.
    """
    if timeout is None:
        seconds: float = env.value(variable)
        return seconds
    if isinstance(timeout, bool) or not hasattr(timeout, "__float__"):
        raise TypeError(f"timeout is {timeout!r} of type {type(timeout).__name__}; pass seconds, or None")
    seconds = float(timeout)
    if not seconds >= 0:
        raise ValueError(f"timeout is {timeout!r}; pass seconds from 0, or math.inf for no limit")
    return seconds
