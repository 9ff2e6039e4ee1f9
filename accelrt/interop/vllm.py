"""The interface of vLLM's allocator for its sleep mode, CuMemAllocator, over accelrt.

    import accelrt.interop.torch
    import accelrt.interop.vllm

    accelrt.interop.torch.install()
    accelrt.interop.vllm.install_as()  # before vllm's worker imports vllm.device_allocator.cumem

Each tag has a MemPool of torch's on each device; sleep() and wake() of accelrt.interop.torch reach it too.
While a tag sleeps, its use_memory_pool() refuses allocations.
"""

from __future__ import annotations

import contextlib
import importlib
from typing import TYPE_CHECKING, ClassVar, NoReturn

from accelrt.core.process import ForkSafeLock
from accelrt.errors import refuse_copy
from accelrt.interop.torch_regions import Regions, put_in_place, require_installed

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["CuMemAllocator", "cumem_available", "install_as"]

cumem_available = True
DEFERRABLE = ("weights", "kv_cache")  # the tags that a wake_up of others leaves asleep
_lock = ForkSafeLock()


class CuMemAllocator:
    """The pools that vLLM puts to sleep, by tag.  get_instance() gives the only one.

    Attributes:
        instance: the only one, or None before get_instance().
        default_tag, cudagraph_tag: str, the tags of use_memory_pool() without one, and of graphs.
    """

    instance: ClassVar[CuMemAllocator | None] = None
    default_tag: ClassVar[str] = "default"
    cudagraph_tag: ClassVar[str] = "cudagraph"

    def __init__(self) -> None:
        self._regions = Regions()
        self.current_tag: str = self.default_tag

    def __reduce__(self) -> NoReturn:
        refuse_copy(self, "it owns the process's pools of memory")

    @staticmethod
    def get_instance() -> CuMemAllocator:
        """Returns the allocator of the process, made at the first call.

        Raises:
            RuntimeError: accelrt is not torch's allocator.
        """
        require_installed()
        with _lock:
            if CuMemAllocator.instance is None:
                CuMemAllocator.instance = CuMemAllocator()
            return CuMemAllocator.instance

    @contextlib.contextmanager
    def use_memory_pool(self, tag: str | None = None) -> Iterator[None]:
        """Returns a context in which what the calling thread allocates by torch has a tag, and sleeps by it.

        Arguments:
            tag: str; None is default_tag.  What is idle at the end goes back to the device.
        """
        name = self.default_tag if tag is None else tag
        with self._tagged(name), self._regions.use(name, False):
            yield
            importlib.import_module("accelrt").empty_cache()  # of the tag's pool alone, inside of its context

    @contextlib.contextmanager
    def use_cudagraph_pool(self, pool: tuple[int, int] | None = None) -> Iterator[tuple[int, int]]:
        """Returns a context in which graphs are captured into a pool that keeps its contents, and wakes with
        any.

        Arguments:
            pool: (int, int), of torch.cuda.graph_pool_handle(); None is a pool of the allocator's own.
        Returns:
            (int, int): what torch.cuda.graph takes as its pool.
        """
        if pool is None:
            chosen = self._regions.pool(self.cudagraph_tag, True).id
        else:
            chosen = pool
            self._regions.adopt(pool, self.cudagraph_tag, True)
        with self._tagged(self.cudagraph_tag):
            yield chosen

    def release_cudagraph_pool(self) -> None:
        """Gives what is idle of the pools back, for graphs that are gone."""
        importlib.import_module("torch").cuda.empty_cache()

    @contextlib.contextmanager
    def _tagged(self, tag: str) -> Iterator[None]:
        before, self.current_tag = self.current_tag, tag
        try:
            yield
        finally:
            self.current_tag = before

    def sleep(self, offload_tags: tuple[str, ...] | str | None = None) -> None:
        """Gives the memory of all tags back to the devices.

        Arguments:
            offload_tags: str or tuple of str, the tags whose contents are kept, in page-locked memory; None
                is default_tag.  The others' go, but for those of pools of graphs.
        Raises:
            as accelrt.interop.torch.sleep; wake_up() then wakes what sleeps.
        """
        offloaded = tags_of((self.default_tag,) if offload_tags is None else offload_tags)
        self._regions.sleep(lambda tag: True, lambda tag, kept: kept or tag in offloaded)

    def discard(self, tags: tuple[str, ...] | str) -> None:
        """Gives the memory of some tags back to the devices, without their contents.

        Arguments:
            tags: str or tuple of str.
        Raises:
            as accelrt.interop.torch.sleep.
        """
        names = tags_of(tags)
        self._regions.sleep(names.__contains__, lambda tag, kept: False)

    def wake_up(self, tags: list[str] | None = None) -> None:
        """Takes the memory again, at the same addresses, with the contents that were kept.

        Arguments:
            tags: list of str; None is every tag.  Tags other than "weights" and "kv_cache" wake in any case.
        Raises:
            as accelrt.interop.torch.wake; what did not wake sleeps on, and can be tried again.
        """
        self._regions.wake(lambda tag: tags is None or tag in tags or tag not in DEFERRABLE)

    def get_current_usage(self) -> int:
        """Returns the bytes of the tags' pools, asleep or not."""
        pools = list(self._regions.pools.values())
        return sum(segment["total_size"] for pool in pools for segment in pool.snapshot())


def tags_of(tags: str | Iterable[str]) -> frozenset[str]:
    return frozenset((tags,) if isinstance(tags, str) else tags)


def install_as(name: str = "vllm.device_allocator.cumem") -> None:
    """Has vLLM import this module in place of its own, in this process.

    Arguments:
        name: str, the module's name.
    Raises:
        RuntimeError: the original is imported already.
    """
    put_in_place(__name__, name)
