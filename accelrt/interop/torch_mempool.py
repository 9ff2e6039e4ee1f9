"""torch.cuda.MemPool where accelrt is torch's allocator: a subclass of torch's for the compiled object, and a
class of its own where accelrt is plugged in.
"""

from __future__ import annotations

from accelrt.allocator.external import torch_table
from accelrt.errors import not_supported
from accelrt.memory import mempool
from accelrt.memory.mempool import MemPool

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

    from accelrt.memory.sleep_result import SleepResult


def own_class(torch: ModuleType, snapshot: Callable[[Any], dict[str, Any]]) -> type:
    """torch.cuda.MemPool with sleep() and wake(), which also says when it dies: its graphs may outlive it."""
    base: Any = torch.cuda.MemPool
    tell_holder = torch_table.tell_holder  # at exit the module's names are gone

    class OwnMemPool(base):  # type: ignore[misc]
        __doc__ = base.__doc__

        def __init__(self, *arguments: Any, **named: Any) -> None:
            torch.cuda.init()
            super().__init__(*arguments, **named)
            self._device = torch.cuda.current_device()
            tell_holder(self._device, self.id, True)

        def __del__(self) -> None:
            if hasattr(self, "_device"):
                tell_holder(self._device, self.id, False)

        def sleep(self, keep: str = "host", *, exports: str = "refuse") -> SleepResult:
            """Gives the pool's memory back to its device, until wake(); see accelrt.MemPool.sleep.

            torch's tensors of the pool are no exports: they own their memory, and accelrt sees nothing of
            what torch does with it.  Until wake() nothing may touch them but their deletion.
            """
            return mempool.sleep(self, keep, self._device, exports=exports)

        def wake(self) -> SleepResult:
            """Takes memory for a pool that sleeps, at the same addresses; see accelrt.MemPool.wake."""
            return mempool.wake(self, self._device)

        def is_asleep(self) -> bool:
            """Tells whether the pool sleeps."""
            return any(segment["asleep"] for segment in snapshot(self.id)["segments"])

    OwnMemPool.__name__ = OwnMemPool.__qualname__ = "MemPool"
    return OwnMemPool


def class_of_its_own(
    torch: ModuleType,
    snapshot: Callable[[Any], dict[str, Any]],
    torchs_id: Callable[[tuple[int, int]], tuple[int, int]],
) -> type:
    """torch.cuda.MemPool over a pool of accelrt's.  torch's own class needs an allocator of torch's."""

    class TorchMemPool:
        """A pool of device memory, for torch.cuda.use_mem_pool and torch.cuda.graph.

        Arguments:
            allocator: None; torch's objects do not tell their functions (accelrt.MemPool takes accelrt's).
            use_on_oom, no_split: bool, as accelrt.MemPool has them.
        Raises:
            NotSupportedError: allocator is given.
        """

        def __init__(
            self, allocator: object = None, use_on_oom: bool = False, no_split: bool = False
        ) -> None:
            if allocator is not None:
                raise not_supported(
                    "torch.cuda.MemPool(allocator=...) is not supported while accelrt is torch's allocator: "
                    "torch's objects do not tell their functions; leave allocator out",
                    "accelrt.interop.torch.MemPool",
                )
            torch.cuda.init()
            self._pool = MemPool(None, use_on_oom, no_split, device=torch.cuda.current_device())

        @property
        def id(self) -> tuple[int, int]:
            """(int, int), what torch.cuda.graph and memory_snapshot take."""
            return torchs_id(self._pool.id)

        @property
        def allocator(self) -> None:
            """None: the pool has no allocator of its own."""
            return

        def use_count(self) -> int:
            """Returns how many hold the pool: this object, contexts and graphs."""
            return self._pool.use_count()

        def sleep(self, keep: str = "host", *, exports: str = "refuse") -> SleepResult:
            """Gives the pool's memory back to its device, until wake(); see accelrt.MemPool.sleep.

            torch's tensors of the pool are no exports: they own their memory, and accelrt sees nothing of
            what torch does with it.  Until wake() nothing may touch them but their deletion.
            """
            return self._pool.sleep(keep, exports=exports)

        def wake(self) -> SleepResult:
            """Takes memory for a pool that sleeps, at the same addresses; see accelrt.MemPool.wake."""
            return self._pool.wake()

        def is_asleep(self) -> bool:
            """Tells whether the pool sleeps."""
            return self._pool.is_asleep()

        def snapshot(self, include_traces: bool = True) -> list[dict[str, Any]]:
            """The pool's segments, as torch.cuda.memory_snapshot gives them."""
            found: list[dict[str, Any]] = snapshot(self.id)["segments"]
            return found

    TorchMemPool.__name__ = TorchMemPool.__qualname__ = "MemPool"
    return TorchMemPool
