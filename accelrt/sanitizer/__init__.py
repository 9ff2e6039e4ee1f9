"""The race detector: finds work on two streams that uses the same bytes and that nothing orders.

    ACCELRT_SANITIZE=1 python program.py        # or accelrt.sanitizer.enable() before the first use

It watches the copies, fills and replays that accelrt puts into streams, what use() reports of other work,
events, waits, synchronisation, and what the caches hand out and have back.  Off, it costs a branch in each.
"""

from accelrt import env
from accelrt.arrays.copy import use
from accelrt.runtime.access import capture_of, fingerprint, is_blocking, is_watching, start, stop, watching

TYPE_CHECKING = False  # typing's, which takes long to import
if TYPE_CHECKING:
    from accelrt.sanitizer.report import Report

__all__ = ["clear", "disable", "enable", "forget", "is_enabled", "reports", "use"]


def enable(raises: bool = True) -> None:
    """Turns the race detector on; it knows nothing of what was done before.

    Arguments:
        raises: bool, a race raises RaceError and the second access is not put into its stream, as with
            ACCELRT_SANITIZE=1; False warns (RaceWarning) and goes on, as with ACCELRT_SANITIZE=warn.

    What a free is found to race with is told by the next call that uses memory or synchronises.
    """
    from accelrt.sanitizer.detector import Detector, Driver

    start(Detector(Driver(capture_of, is_blocking, fingerprint), raises))


def disable() -> None:
    """Turns the race detector off; its reports stay."""
    stop()


def is_enabled() -> bool:
    """Tells whether the race detector is on."""
    return is_watching()


def reports() -> "list[Report]":
    """Returns the races found so far, in the order of their second accesses; when it warns, each once a line.

    Returns:
        list of Report: first and second, each with timeline, mode, call and line; address, nbytes,
        allocation and missing; str() of it is the text of the error.
    """
    detector = watching()
    return list(detector.reports) if detector is not None else []


def clear() -> None:
    """Forgets the reports, and all that was done with any memory; what waited for what stays."""
    detector = watching()
    if detector is not None:
        detector.clear()


def forget(address: int, nbytes: int) -> None:
    """Forgets what was done with a range of bytes: their owner has given them to another holder.

    Arguments:
        address, nbytes: int.
    """
    detector = watching()
    if detector is not None:
        detector.forget(address, address + nbytes)


def read_environment() -> None:
    """Turns the race detector on as ACCELRT_SANITIZE says: 1 or raise, warn, or 0, which is the default."""
    mode = env.value("ACCELRT_SANITIZE")
    if mode:
        enable(mode == "raise")


read_environment()
