"""The interface of torch_memory_saver over accelrt: memory that pauses and comes back at the same addresses.

    import accelrt.interop.torch
    from accelrt.interop import torch_memory_saver as package

    accelrt.interop.torch.install()
    package.install_as()  # for programs that import torch_memory_saver themselves
    from torch_memory_saver import torch_memory_saver

It takes no LD_PRELOAD.  What a region allocates lies in a MemPool of torch's for its tag, so it is cached,
split and captured as other memory; sleep() and wake() of accelrt.interop.torch reach it too.  While a tag is
paused, its regions refuse allocations.
"""

from __future__ import annotations

import contextlib
import importlib
import threading
from typing import TYPE_CHECKING

from accelrt.errors import not_supported, refuse_copy
from accelrt.interop.torch_regions import Regions, put_in_place, require_installed

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, NoReturn

__all__ = ["TorchMemorySaver", "configure_subprocess", "install_as", "torch_memory_saver"]

BACKENDS = (None, "pinned", "mmap")


class TorchMemorySaver:
    """Regions of memory that pause and resume by their tags.

    All objects share nothing but the device: each has regions of its own, as each original has.
    """

    def __init__(self) -> None:
        self._regions = Regions()
        self._inside = threading.local()

    def __reduce__(self) -> NoReturn:
        refuse_copy(self, "it owns pools of memory; make another one")

    @contextlib.contextmanager
    def region(
        self,
        tag: str = "default",
        enable_cpu_backup: bool = False,
        enable_disk_backup: bool = False,
        cpu_backup_backend: str | None = None,
    ) -> Iterator[None]:
        """Returns a context in which what the calling thread allocates by torch can be paused.

        Arguments:
            tag: str, by which pause and resume know it.
            enable_cpu_backup: bool, whether pause keeps the contents, in page-locked memory.
            enable_disk_backup: False; accelrt keeps nothing in files.
            cpu_backup_backend: "pinned", "mmap" or None, with enable_cpu_backup alone; the contents are in
                page-locked memory in any case.
        Raises:
            RuntimeError: accelrt is not torch's allocator.
            NotSupportedError: enable_disk_backup is True.
            ValueError: cpu_backup_backend is none of these, or goes without enable_cpu_backup.
        """
        check_backup(enable_cpu_backup, enable_disk_backup, cpu_backup_backend)
        with self._regions.use(tag, enable_cpu_backup), self._entered(1):
            yield

    @contextlib.contextmanager
    def cuda_graph(
        self,
        cuda_graph: Any,
        pool: Any = None,
        stream: Any = None,
        capture_error_mode: str = "global",
        tag: str = "default",
        enable_cpu_backup: bool = False,
        cpu_backup_backend: str | None = None,
    ) -> Iterator[None]:
        """Returns torch.cuda.graph's context, whose memory pauses and resumes with a tag.

        Arguments:
            cuda_graph, pool, stream, capture_error_mode: as torch.cuda.graph.
            tag, enable_cpu_backup, cpu_backup_backend: as region.  They hold for all of the graph's pool.
        Raises:
            as region and torch.cuda.graph.
        """
        check_backup(enable_cpu_backup, False, cpu_backup_backend)
        require_installed()
        torch = importlib.import_module("torch")
        capture = torch.cuda.graph(
            cuda_graph, pool=pool, stream=stream, capture_error_mode=capture_error_mode
        )
        with capture, self._entered(1):
            yield
        self._regions.adopt(tuple(cuda_graph.pool()), tag, enable_cpu_backup)

    @contextlib.contextmanager
    def disable(self) -> Iterator[None]:
        """Returns a context, for the inside of a region, in which what is allocated is not paused.

        Raises:
            RuntimeError: the calling thread is in no region.
        """
        if getattr(self._inside, "regions", 0) == 0:
            raise RuntimeError("disable() was called outside of region(), where nothing is paused")
        cuda = importlib.import_module("torch").cuda
        with cuda.use_mem_pool(cuda.MemPool()), self._entered(-self._inside.regions):
            yield

    @contextlib.contextmanager
    def _entered(self, more: int) -> Iterator[None]:
        before = getattr(self._inside, "regions", 0)
        self._inside.regions = before + more
        try:
            yield
        finally:
            self._inside.regions = before

    def pause(self, tag: str | None = None) -> None:
        """Gives the memory of a tag's regions and graphs back to the device.

        Arguments:
            tag: str; None is every tag.
        Raises:
            as accelrt.interop.torch.sleep; resume() then wakes what is paused.
        """
        self._regions.sleep(lambda name: tag in (None, name), lambda name, keeps: keeps)

    def resume(self, tag: str | None = None) -> None:
        """Takes the memory again, at the same addresses, with the contents that were to be kept.

        Arguments:
            tag: str; None is every tag.
        Raises:
            as accelrt.interop.torch.wake; what could not resume is still paused, and can be tried again.
        """
        self._regions.wake(lambda name: tag in (None, name))

    @property
    def enabled(self) -> bool:
        """True."""
        return True

    @property
    def hook_mode(self) -> str:
        """ "torch": memory is taken by torch's allocator.  Programs may set it; nothing changes.

        Raises:
            ValueError: what is assigned is neither "torch" nor "preload".
        """
        return "torch"

    @hook_mode.setter
    def hook_mode(self, hook_mode: str) -> None:
        if hook_mode not in ("preload", "torch"):
            raise ValueError(f"hook_mode is {hook_mode!r}; it may be 'preload' or 'torch'")

    @property
    def memory_margin_bytes(self) -> int:
        """0."""
        return 0

    @memory_margin_bytes.setter
    def memory_margin_bytes(self, value: int) -> None:
        if value:
            raise refuse(
                "memory_margin_bytes", "bound the pool by torch.cuda.set_per_process_memory_fraction()"
            )

    @property
    def retain_cpu_backup(self) -> bool:
        """False: the page-locked memory goes to the cache after resume()."""
        return False

    @retain_cpu_backup.setter
    def retain_cpu_backup(self, value: bool) -> None:
        if value:
            raise refuse("retain_cpu_backup", "the cache of page-locked memory serves the next pause()")

    def get_cpu_backup(self, x: Any, zero_copy: bool = False) -> Any:
        """Raises an error, for contents that are kept are no tensor.

        Arguments:
            x, zero_copy: anything.
        Returns:
            nothing.
        Raises:
            NotSupportedError: in any case.
        """
        raise refuse("get_cpu_backup()", "resume() the tag and copy the tensor")

    def set_disk_backup_dir(self, path: str) -> None:
        """Raises an error, for contents are kept in no file.

        Arguments:
            path: anything.
        Raises:
            NotSupportedError: in any case.
        """
        raise refuse("set_disk_backup_dir()", "enable_cpu_backup keeps contents in page-locked memory")


def check_backup(in_memory: bool, in_files: bool, backend: str | None) -> None:
    if in_files:
        raise refuse("enable_disk_backup", "enable_cpu_backup keeps contents in page-locked memory")
    if backend not in BACKENDS:
        raise ValueError(f"cpu_backup_backend is {backend!r}; it may be 'pinned', 'mmap' or None")
    if backend is not None and not in_memory:
        raise ValueError("cpu_backup_backend requires enable_cpu_backup=True")


def refuse(what: str, instead: str) -> Exception:
    return not_supported(
        f"accelrt, in torch_memory_saver's place, does not support {what}; {instead}",
        "accelrt.interop.torch_memory_saver",
    )


@contextlib.contextmanager
def configure_subprocess() -> Iterator[None]:
    """Returns a context in which processes may be started.  Nothing is preloaded: each calls install()."""
    yield


def install_as(name: str = "torch_memory_saver") -> None:
    """Has `import torch_memory_saver` give this module, in this process.

    Arguments:
        name: str, the module's name.
    Raises:
        RuntimeError: the original is imported already.
    """
    put_in_place(__name__, name)


torch_memory_saver: TorchMemorySaver = TorchMemorySaver()
