"""numba-cuda on accelrt's memory: its External Memory Management plug-in.

    import accelrt.interop.numba

    accelrt.interop.numba.install()

or, without a change to the program, NUMBA_CUDA_MEMORY_MANAGER=accelrt.interop.numba in the environment.
"""

from __future__ import annotations

import contextlib
import ctypes
import weakref

from accelrt import errors, memory
from accelrt.core.process import Owned, Releaser
from accelrt.devices.device import mem_get_info
from accelrt.interop import peers
from accelrt.runtime import init
from accelrt.streams.stream import Stream, default_stream

TYPE_CHECKING = False  # typing's, which takes long to import
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

__all__ = ["install", "is_installed", "uninstall"]

PACKAGE = "'numba-cuda[cu13]'"  # as pip knows it, in a shell

_manager: Any = None  # the class, once it was asked for
_owners: dict[int, Stream] = {}  # device -> the stream whose order numba's memory follows: nothing runs on it
_before: Any = None  # numba's own class, while installed
_replaced: list[tuple[Any, Any]] = []  # contexts that had a memory manager already, and that one


def install() -> None:
    """Lets numba allocate device memory and page-locked memory from accelrt, in contexts that it has and
    those to come.

    numba does not say which stream an array is for.  So what it drops serves others once the work is done
    that is then on the default streams and on all of numba.cuda.stream(), for which an event on the legacy
    default stream stands, and on those of numba.cuda.external_stream() that were made since and are alive; so
    the driver's stream has to live as long as numba's object.  What other streams do has to be named by
    accelrt.record_stream(address, stream), or waited for.

    Mapped, write-combined and managed memory, and memory of the user's that is page-locked, stay numba's own.
    So do host arrays passed to a kernel, for whose copies newer versions take memory of cuda.core's.
    numba.cuda.close() resets the device's context, under accelrt and every other library too.  Doing it again
    does nothing.

    Raises:
        ModuleNotFoundError: numba-cuda is not installed.
        NotSupportedError: accelrt runs on the host device.
    """
    global _before
    if is_installed():
        return
    peers.prepare_memory("accelrt.interop.numba.install")
    cuda, driver = _import()
    manager = _manager_class()
    _before = driver._memory_manager
    try:
        cuda.set_memory_manager(manager)
        for context in _contexts(driver):
            if not isinstance(context.memory_manager, manager):
                _replaced.append((context, context.memory_manager))
                context.memory_manager = manager(context=context)
    except BaseException:
        uninstall()
        raise


def uninstall() -> None:
    """Gives numba back the memory manager that it had.  Arrays from accelrt stay valid, and their memory goes
    back to accelrt.  Doing it again does nothing."""
    global _before
    if not is_installed():
        return
    _, driver = _import()
    theirs = _before or driver.NumbaCUDAMemoryManager
    for context in _contexts(driver):
        if isinstance(context.memory_manager, _manager):
            own = [manager for known, manager in _replaced if known is context]
            context.memory_manager = own[0] if own else theirs(context=context)
    driver._memory_manager = theirs  # last: from here on it counts as uninstalled
    _before = None
    _replaced.clear()


def is_installed() -> bool:
    """Tells whether numba's contexts to come allocate from accelrt, by install() or by the environment."""
    return _manager is not None and _import()[1]._memory_manager is _manager


def __getattr__(name: str) -> Any:
    if name == "_numba_memory_manager":  # what numba asks a module of NUMBA_CUDA_MEMORY_MANAGER for
        peers.prepare_memory("NUMBA_CUDA_MEMORY_MANAGER=accelrt.interop.numba")
        return _manager_class()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _import() -> tuple[Any, Any]:
    """numba.cuda, and its module of the driver."""
    return peers.load("numba.cuda", PACKAGE), peers.load("numba.cuda.cudadrv.driver", PACKAGE)


def _contexts(driver: Any) -> list[Any]:
    """The contexts that numba has made."""
    contexts = [device.primary_context for device in driver.driver.list_devices()]
    return [context for context in contexts if context is not None]


def _owner_of(device: int) -> Stream:
    if device not in _owners:
        _owners.setdefault(device, Stream(device))
    return _owners[device]


def _manager_class() -> Any:
    global _manager
    if _manager is None:
        _manager = _define(*_import())
    return _manager


def _define(cuda: Any, driver: Any) -> Any:
    """The class of memory managers, which derives from numba's."""

    refusal = peers.out_of_memory_class(driver.CudaAPIError, lambda error: {"msg": str(error)})

    class MemoryManager(cuda.GetIpcHandleMixin, cuda.HostOnlyCUDAMemoryManager):  # type: ignore[misc]
        """numba's memory of one device's context, from accelrt."""

        def __init__(self, context: Any) -> None:
            super().__init__(context=context)
            self.streams: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()  # by id
            # What views of an array share, until the last of them is dropped.
            self.blocks: dict[int, Any] = {}
            if context is not None:
                _note_streams(context, self.streams)

        @property
        def interface_version(self) -> int:
            return 1

        def initialize(self) -> None:
            if not init.is_initialized():
                init.init("cuda")
            if not self.deallocations.memory_capacity:
                self.deallocations.memory_capacity = self.get_memory_info().total

        @property
        def device(self) -> int:
            return int(self.context.device.id)

        def memalloc(self, size: int) -> Any:
            device = self.device
            release = _releaser(memory.record_stream, memory.caching_allocator_delete, self)
            request = (max(size, 1), device, _owner_of(device))
            try:
                owned = Owned(memory.caching_allocator_alloc, request, release)
            except errors.OutOfMemoryError as error:
                raise refusal(error) from None
            address: int = owned.value  # type: ignore[assignment]  # which is not given back yet
            pointer, context = ctypes.c_void_p(address), weakref.proxy(self.context)
            block = driver.AutoFreePointer(context, pointer, size, finalizer=owned.close)
            try:
                self.blocks[address] = block
                return block.own()
            except BaseException:
                self.blocks.pop(address, None)
                raise

        def memhostalloc(
            self, size: int, mapped: bool = False, portable: bool = False, wc: bool = False
        ) -> Any:
            if mapped or wc:
                return super().memhostalloc(size, mapped, portable, wc)
            release = _releaser(memory.record_host_stream, memory.caching_host_allocator_delete, self)
            try:
                owned = Owned(memory.caching_host_allocator_alloc, (max(size, 1),), release)
            except errors.OutOfMemoryError as error:
                raise refusal(error) from None
            address = owned.value
            pointer = address if getattr(driver, "USE_NV_BINDING", True) else ctypes.c_void_p(address)
            return cuda.PinnedMemory(weakref.proxy(self.context), pointer, size, finalizer=owned.close)

        def get_memory_info(self) -> Any:
            """Free is what the driver has, and what accelrt's cache holds idle."""
            free, total = mem_get_info(self.device)
            idle = memory.memory_reserved(self.device) - memory.memory_allocated(self.device)
            return cuda.MemoryInfo(free=min(free + max(idle, 0), total), total=total)

        def get_ipc_handle(self, allocation: Any) -> Any:
            try:
                return super().get_ipc_handle(allocation)
            except driver.CudaAPIError as error:
                raise errors.not_supported(
                    f"the driver shares no memory at {int(allocation.handle):#x} with other processes: "
                    f"{error}; accelrt's expandable segments cannot be shared by handle: set "
                    "ACCELRT_ALLOC_CONF=expandable_segments:False for plain ones, which can",
                    "get_ipc_handle",
                ) from error

    return MemoryManager


def _note_streams(context: Any, streams: weakref.WeakValueDictionary[int, Any]) -> None:
    make = context.create_external_stream

    def create_external_stream(handle: int) -> Any:
        stream = make(handle)
        streams[id(stream)] = stream
        return stream

    context.create_external_stream = create_external_stream


def _releaser(record: Callable[[int, Any], None], free: Callable[[int], None], manager: Any) -> Releaser:
    """Returns what frees memory of a manager, behind the work that may use it.  numba's own streams and those
    of threads are blocking, so that an event on the legacy default stream is behind their work too."""
    device, external, blocks = manager.device, manager.streams, manager.blocks

    def record_all(address: int) -> tuple[int]:
        blocks.pop(address, None)
        alive = [stream() for stream in external.valuerefs()]  # a copy: others may make streams meanwhile
        for stream in (default_stream(device), *[int(each) for each in alive if each is not None]):
            with contextlib.suppress(errors.CudaError, ValueError):  # no work of a stream that is gone
                record(address, stream)
        return (address,)

    return Releaser(record_all, free)
