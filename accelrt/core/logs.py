"""Tells operators through Python's logging: the loggers "accelrt.memory", "accelrt.device" and
"accelrt.interop" (docs/guide/logging.md).

Nothing imports this module, nor makes a text, where the program has not imported logging itself.  Callers
hold no lock, for handlers are the program's code.
"""

from __future__ import annotations

import logging
import threading

TYPE_CHECKING = False  # typing's, which takes long to import
if TYPE_CHECKING:
    from accelrt.errors import CudaError

_inside = threading.local()
_lost: set[str] = set()
logging.getLogger("accelrt").addHandler(logging.NullHandler())  # else warnings go to stderr unasked


def is_wanted(name: str, level: int) -> bool:
    """Tells whether a logger takes events of a level now; on a thread inside a handler of one, none does."""
    return not getattr(_inside, "telling", False) and logging.getLogger(f"accelrt.{name}").isEnabledFor(level)


def tell(name: str, level: int, event: str, text: str, **facts: object) -> None:
    """Logs one event, unless its logger does not want it.

    Arguments:
        name: str, the logger's below "accelrt".
        level: int, of logging.
        event: str, what happened, in one word for programs that read logs.
        text: str, the same as a sentence.
        facts: the figures of it, in bytes and the like.  The record has them, and the event, as its attribute
            accelrt, a dict.
    """
    if not is_wanted(name, level):
        return
    _inside.telling = True
    try:
        logging.getLogger(f"accelrt.{name}").log(
            level, "%s", text, extra={"accelrt": {"event": event, **facts}}, stacklevel=2
        )
    finally:
        _inside.telling = False


def tell_loss(error: CudaError) -> None:
    """Logs that the device is lost, once for each error that it can be lost by."""
    if error.name not in _lost:
        _lost.add(error.name)
        tell("device", logging.CRITICAL, "device_lost", str(error), code=error.code, status=error.name)
