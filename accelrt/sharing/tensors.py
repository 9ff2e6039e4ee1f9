"""torch's tensors between processes, where accelrt is torch's allocator: the handles that torch sends.

A handle names the pages of the block in which a tensor lies, or its plain segment, so tensors of the same
page have the same one, and a process that opens several maps the page once.  torch itself counts who has a
tensor (counters.py).  A handle is also what proves that a process may open it: unlike a Buffer's, it need not
come from multiprocessing.
"""

from __future__ import annotations

import os
import threading

from accelrt.allocator.external import torch_table
from accelrt.errors import not_supported
from accelrt.sharing import consumer, mapping, producer
from accelrt.streams.stream import default_stream

TYPE_CHECKING = False  # typing's, which takes long to import
if TYPE_CHECKING:
    from typing import Any

MARK = b"accelrt:1:"  # torch's own handles begin with the number of a version, below 10
PARTS = 9  # of a handle, after the mark

_thread = threading.local()


class TensorPlace(consumer.Place):
    """The place of the memory in which tensors lie, as a handle says it.

    Attributes:
        device: int, the owner's ordinal; base: int, the address there.
        serial: int, of the first page, or of the plain segment.
        claim: (str, int), the counter of the tensor that is opened; None where that is not known.
    """

    unseen = True

    def __init__(self, handle: bytes, claim: tuple[str, int] | None) -> None:
        parts = handle.removeprefix(MARK).decode().split(":")
        if not handle.startswith(MARK) or len(parts) != PARTS:
            raise ValueError(f"{handle[:40]!r} is no handle of memory that this accelrt can open")
        name, key, uuid = parts[:3]
        self.device: int
        self.base: int
        self.serial: int
        pid, self.device, self.base, size, self.serial, plain = map(int, parts[3:])
        segment = self.serial if plain else None
        super().__init__(name, pid, 0, False, bytes.fromhex(uuid), size, 0, size, segment, ())
        self.authkey: bytes | None = bytes.fromhex(key)
        self.claim = claim

    @property
    def key(self) -> tuple[object, ...]:
        return (self.name, self.uuid, self.segment, (self.device, self.base, self.size, self.serial))

    @property
    def request(self) -> dict[str, Any]:
        return {"tensor": [self.device, self.base, self.size, self.serial], "claim": self.claim}

    @property
    def gone(self) -> str:
        return "the tensor was freed there"


class Opened:
    """The context in which the calling thread opens a handle for torch, which asks for it inside, after its
    event: opened before that, it says what is wrong with the owner, and raises as accelrt does.

    Arguments:
        claim: (str, int), the counter of the tensor that it is opened for.
    """

    def __init__(self, handle: bytes, device: int, claim: tuple[str, int]) -> None:
        self.handle = handle
        self.memory: tuple[int, object] = open_handle(handle, device, claim)

    def __enter__(self) -> None:
        _thread.opened = self

    def __exit__(self, *_: object) -> None:
        _thread.opened = None


def open_for_torch(handle: bytes, device: int) -> tuple[int, object]:
    opened: Opened | None = getattr(_thread, "opened", None)
    return open_handle(handle, device) if opened is None or opened.handle != handle else opened.memory


def share(device: int, address: int) -> tuple[bytes, int]:
    """The handle of the memory in which a block of torch's lies, and how far into it."""
    base, size, serial, plain, refused = torch_table.begin_share(device, address)
    if refused:
        raise not_supported(
            f"{refused} of the pages below the tensor were made for this process alone, since they are "
            "older than accelrt.interop.torch.install(), or because the device cannot make others; install "
            "before accelrt's first allocation, or call torch.cuda.empty_cache() after it and allocate the "
            "tensor anew",
            "share",
        )
    name, key = producer.start_for_tensors()
    uuid = mapping.uuid_of(device).hex()
    parts = (name, key.hex(), uuid, os.getpid(), device, base, size, serial, int(plain))
    return MARK + ":".join(map(str, parts)).encode(), address - base


def open_handle(handle: bytes, device: int, claim: tuple[str, int] | None = None) -> tuple[int, object]:
    """The address at which the memory is mapped here, and what keeps it so.

    Raises:
        ValueError: it is no handle, or of another device than torch says.
        RuntimeError, PeerTimeoutError, PermissionError, CudaError: as of MemoryHandle.open().
    """
    place = TensorPlace(handle, claim)
    ordinal = mapping.find_device(place.uuid)
    if ordinal != device:
        own_name = "which it does not see" if ordinal < 0 else f"its device {ordinal}"
        raise ValueError(
            f"a tensor of process {place.pid} is on the device with UUID {place.uuid.hex()}, in this process "
            f"{own_name}, and torch was told cuda:{device}; let CUDA_VISIBLE_DEVICES of both processes agree"
        )
    buffer = consumer.open_memory(place, default_stream(ordinal))
    return buffer.ptr, buffer


torch_table.set_sharing(share, open_for_torch)
