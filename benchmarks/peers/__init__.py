"""The libraries that are measured, one module each.

A peer is a class whose methods are named after the keys of the benchmarks' rows; a method prepares that work
and returns the call to time.  What a library has no equal of, its class has no method for.
"""

import importlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

# An installed accelrt comes first; without one, the tree that this file is in.
sys.path.append(str(Path(__file__).resolve().parents[2]))

ON_HOST = "not run: accelrt was asked to run on its host device"
PEERS = {
    "accelrt": ("peers.with_accelrt", "Accelrt"),
    "cuda.bindings": ("peers.with_bindings", "Bindings"),
    "torch": ("peers.with_torch", "Torch"),
    "CuPy": ("peers.with_cupy", "CuPy"),
    "cuda.core": ("peers.with_cuda_core", "CudaCore"),
    "RMM async": ("peers.with_rmm", "RmmAsync"),
    "RMM pool": ("peers.with_rmm", "RmmPool"),
}


class Peer(Protocol):
    """What every peer has beside its rows."""

    column: str  # the heading of its column
    version: str
    settle: Callable[[], object]  # waits until the device is idle

    def enter_thread(self) -> None:
        """Makes the device usable on a new thread."""


def on_host() -> bool:
    """Whether accelrt was asked to run on its host device, where no other library can do the same work."""
    return os.environ.get("ACCELRT_DRIVER") == "host"


def open_peer(column: str, quick: bool) -> Peer:
    """Imports one library and readies the device for it.

    Arguments:
        column: the heading of its column.
        quick: bool, whether it should keep its work small.
    """
    module, name = PEERS[column]
    peer = getattr(importlib.import_module(module), name)(quick)
    peer.column = column
    return peer
