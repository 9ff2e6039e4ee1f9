"""Pools of torch's by tag, which the adapters of engines' interfaces put to sleep."""

from __future__ import annotations

import contextlib
import importlib
import sys
from typing import TYPE_CHECKING

from accelrt.core.process import ForkSafeLock
from accelrt.interop import torch as installed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from accelrt.interop.torch_sleep import SleepReport

    Key = tuple[str, bool, int]  # a tag, whether its contents are kept, a device

__all__ = ["Regions", "put_in_place"]


class Regions:
    """The pools of an engine: a torch.cuda.MemPool for each tag and device, and pools of graphs.

    A tag has two where parts of it are kept and others are not.  MemPools live as long as this does.
    """

    def __init__(self) -> None:
        self.lock: ForkSafeLock = ForkSafeLock()
        self.pools: dict[Key, Any] = {}
        self.adopted: dict[tuple[int, int], Key] = {}  # by torch's id

    def pool(self, tag: str, keeps: bool) -> Any:
        """The torch.cuda.MemPool of a tag on torch's current device, made when it is first asked for."""
        torch = importlib.import_module("torch")
        require_installed()
        torch.cuda.init()
        key = (tag, keeps, torch.cuda.current_device())
        with self.lock:
            if key in self.pools:
                return self.pools[key]
        pool = torch.cuda.MemPool()  # outside the lock: a garbage collection may run engines' destructors
        with self.lock:
            return self.pools.setdefault(key, pool)

    def adopt(self, pool: tuple[int, int], tag: str, keeps: bool) -> None:
        """Has a pool of graphs sleep with a tag, as long as a graph uses it."""
        torch = importlib.import_module("torch")
        with self.lock:
            self.adopted[pool] = (tag, keeps, torch.cuda.current_device())

    @contextlib.contextmanager
    def use(self, tag: str, keeps: bool) -> Iterator[None]:
        """Has the calling thread allocate from a tag's pool, on torch's current device."""
        with importlib.import_module("torch").cuda.use_mem_pool(self.pool(tag, keeps)):
            yield

    def ids(self, wants: Callable[[str, bool], bool]) -> list[tuple[int, int]]:
        """torch's ids of the pools whose tag is wanted."""
        with self.lock:
            keys = [(key, pool.id) for key, pool in self.pools.items()]
            keys += [(key, id) for id, key in self.adopted.items()]
        return [id for (tag, keeps, _), id in keys if wants(tag, keeps)]

    def sleep(self, wants: Callable[[str], bool], keeps: Callable[[str, bool], bool]) -> SleepReport:
        """Puts the pools of tags to sleep that are awake, and keeps what is to be kept."""
        return installed.sleep(
            self.ids(keeps), pools=self.ids(lambda tag, kept: wants(tag)), exports="ignore"
        )

    def wake(self, wants: Callable[[str], bool]) -> SleepReport:
        """Wakes the pools of tags that sleep."""
        return installed.wake(self.ids(lambda tag, kept: wants(tag)))


def require_installed() -> None:
    if not installed.is_installed():
        raise RuntimeError("accelrt is not torch's allocator; call accelrt.interop.torch.install() before")


def put_in_place(module: str, name: str) -> None:
    """Has `import name` give a module of accelrt's, for programs that know the original's name alone."""
    mine = sys.modules[module]
    present = sys.modules.get(name)
    if present is mine:
        return
    if present is not None:
        raise RuntimeError(
            f"{name} is imported already, and programs hold what is in it; call install_as() before that"
        )
    sys.modules[name] = mine
    package, _, last = name.rpartition(".")
    if package in sys.modules:
        setattr(sys.modules[package], last, mine)
