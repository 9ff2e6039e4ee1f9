"""SleepResult, which a sleep or a wake of a pool answers; imported at the first of them."""

from typing import NamedTuple


class SleepResult(NamedTuple):
    """The bytes that a sleep or a wake moved, and the time it took.

    Attributes:
        bytes: int, physical memory that the device has back (sleep), or that was taken from it (wake).
        copied: int, bytes of contents that went to the host, or came from there; 0 with keep="discard".
        seconds: float, of the whole call, with the wait for the device's work.
        copy_seconds: float, from the first copy to the end of the last: copied / copy_seconds is the link's
            rate.
        host_seconds: float, to get page-locked memory; near 0 where the cache had it, as from the second
            sleep on.
    """

    bytes: int
    copied: int
    seconds: float
    copy_seconds: float
    host_seconds: float
