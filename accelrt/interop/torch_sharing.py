"""CUDA tensors through torch.multiprocessing, where accelrt is torch's allocator: what stands in place of
torch's functions.  The compiled allocator makes and opens the handles (accelrt/sharing/tensors.py); here they
are pickled, torch's counters noted, and errors raised as accelrt raises them.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

_is_on = False


class Handle(bytes):
    """A handle of accelrt's memory, whose unpickling fails where accelrt is not torch's allocator."""

    def __reduce__(self) -> tuple[object, ...]:
        return (received, (bytes(self),))


def received(handle: bytes) -> bytes:
    """Unpickles a Handle."""
    if not _is_on:
        raise RuntimeError(
            "a CUDA tensor came that lies in accelrt's memory, which torch's own allocator cannot open; call "
            "accelrt.interop.torch.install() in this process too, before it receives tensors"
        )
    return handle


def functions(torch: ModuleType) -> list[tuple[Any, str, Any]]:
    """Lists what is replaced: (class of torch's, name, function)."""
    from accelrt.sharing import counters, tensors

    share, open_shared = torch.UntypedStorage._share_cuda_, torch.UntypedStorage._new_shared_cuda
    counters.collect = torch._C._cuda_ipc_collect

    def _share_cuda_(storage: Any) -> tuple[Any, ...]:
        answer: tuple[Any, ...] = share(storage)
        handle, counter, offset = answer[1], answer[4], answer[5]
        if handle is None or not handle.startswith(tensors.MARK):
            return answer
        counters.note(counter.decode(), offset)
        return (answer[0], Handle(handle), *answer[2:])

    def _new_shared_cuda(*arguments: Any) -> Any:
        device, handle, _, _, counter, offset, *_ = arguments
        if not handle.startswith(tensors.MARK):
            return open_shared(*arguments)
        with tensors.Opened(handle, device, (counter.decode(), offset)):
            return open_shared(*arguments)

    return [
        (torch.UntypedStorage, "_share_cuda_", _share_cuda_),
        (torch.UntypedStorage, "_new_shared_cuda", staticmethod(_new_shared_cuda)),
    ]


def turn(on: bool) -> None:
    """accelrt's compiled object has become torch's allocator, or is it no more."""
    global _is_on
    _is_on = on
