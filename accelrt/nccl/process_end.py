"""The interpreter's exit with communicators open, and forks."""

from __future__ import annotations

import atexit
import contextlib
import os
import time
import weakref
from typing import TYPE_CHECKING

from accelrt.devices.device import device

if TYPE_CHECKING:
    from typing import Any

    from accelrt.streams.stream import Stream

__all__ = ["abandoned", "add", "come_first", "live"]

EXIT_SECONDS = 5  # that the exit waits for operations under way
POLL_SECONDS = 0.001

live: weakref.WeakSet[Any] = weakref.WeakSet()
abandoned: list[tuple[Any, object, int, Stream | None]] = []  # of communicators dropped without close()
_registered = _comes_first = False


def add(comm: Any) -> None:
    """Notes a communicator, so that the exit ends it."""
    global _registered
    if not _registered:
        _registered = True
        atexit.register(_end_all)
    live.add(comm)


def come_first() -> None:
    """After the first operation: what that registered waits for operations under way, and comes later so."""
    global _comes_first
    if not _comes_first:
        _comes_first = True
        atexit.unregister(_end_all)
        atexit.register(_end_all)


def _end_all() -> None:
    """Gives operations under way a while, and aborts the communicators that were not closed.  Those that
    graphs use are left to the process's end."""
    left = []
    for each in list(live):
        if each._pid == os.getpid() and not each._in_graphs:
            left.append((each._backend, each._handle, each.device_index, each._last_stream))
        each._take("the interpreter ends")
    end = time.monotonic() + EXIT_SECONDS
    for module, handle, _, stream in [*left, *abandoned]:
        with contextlib.suppress(Exception):
            while stream is not None and not stream.query() and time.monotonic() < end:
                if module.async_error(handle) is not None:
                    break
                time.sleep(POLL_SECONDS)
    for module, handle, ordinal, _ in [*left, *abandoned]:
        with contextlib.suppress(Exception), device(ordinal):
            module.abort(handle)
    abandoned.clear()


def _forget_in_child() -> None:
    live.clear()
    abandoned.clear()


os.register_at_fork(after_in_child=_forget_in_child)
