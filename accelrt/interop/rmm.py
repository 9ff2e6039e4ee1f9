"""RMM: accelrt's memory as a resource of RMM's, and RMM's resources as accelrt's memory.

    accelrt.interop.rmm.install()                # RMM, and what stands on it, allocates from accelrt
    accelrt.memory.change_current_allocator(     # the other way round: accelrt allocates from RMM
        accelrt.interop.rmm.from_rmm(rmm.mr.PoolMemoryResource(rmm.mr.CudaMemoryResource()))
    )

RMM calls Python for each allocation and each free (rmm.mr.CallbackMemoryResource), and tells the stream.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import TYPE_CHECKING

from accelrt.allocator.external.external_pool import CallbackAllocator, report
from accelrt.core.process import Releaser, Taker
from accelrt.devices.device import device_ordinal
from accelrt.interop import peers
from accelrt.memory.caching import caching_allocator_alloc, free_on

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from accelrt.annotations import DeviceArgument

__all__ = ["from_rmm", "install", "is_installed", "resource", "uninstall"]

# Device -> RMM's resource, for good: copies of it in C++ hold its functions by their bare addresses.
_resources: dict[int, Any] = {}
_replaced: dict[int, Any] = {}  # device -> the resource that install() replaced


def _load() -> Any:
    peers.load("rmm", "rmm-cu13")
    return peers.load("rmm.mr", "rmm-cu13")


def _functions(ordinal: int) -> tuple[Callable[..., int], Callable[..., None]]:
    # What RMM calls: accelrt's pool, on the stream that RMM names.
    def for_allocation(nbytes: int, stream: Any) -> tuple[int, int, int]:
        return nbytes, ordinal, peers.stream_handle(stream)

    def for_free(address: int, nbytes: int, stream: Any) -> tuple[int, int, int]:
        return address, ordinal, peers.stream_handle(stream)

    # What a free raises is reported, for RMM would leave it behind for whatever call of Python's comes next.
    return Taker(for_allocation, caching_allocator_alloc), Releaser(for_free, free_on, report)


def resource(device: DeviceArgument | None = None) -> Any:
    """Returns a resource of RMM's whose memory comes from accelrt's pool of a device.

        rmm.DeviceBuffer(size=1 << 20, mr=accelrt.interop.rmm.resource())

    Arguments:
        device: int, "cuda:1", an object with an index; None is the current device.
    Returns:
        rmm.mr.CallbackMemoryResource, the same one for each call with that device.
    Raises:
        ImportError: RMM is not installed.
        NotSupportedError: accelrt runs on the host device.
        ValueError, TypeError: device names none.

    Memory belongs to the stream that RMM names when it allocates.  Another one that it names when it frees
    counts as one that used the memory, which is not reused before that stream is past the free.  Both have to
    live until then.  Out of memory is a MemoryError of RMM's, with accelrt's text.
    """
    peers.prepare_memory("accelrt.interop.rmm.resource")
    ordinal = device_ordinal(device)
    adaptor = _resources.get(ordinal)
    if adaptor is None:
        adaptor = _resources.setdefault(ordinal, _load().CallbackMemoryResource(*_functions(ordinal)))
    return adaptor


def install(device: DeviceArgument | None = None) -> None:
    """Has RMM allocate a device's memory from accelrt, where it is told of no other resource.

    Calling it again does nothing.

    Arguments:
        device: as of resource().
    Raises:
        As resource().

    What RMM allocated before goes back to where it came from.
    """
    mine = resource(device)
    ordinal, mr = device_ordinal(device), _load()
    before = mr.get_per_device_resource(ordinal)
    if before is not mine:
        _replaced[ordinal] = before
        mr.set_per_device_resource(ordinal, mine)


def uninstall(device: DeviceArgument | None = None) -> None:
    """Gives a device the resource that install() replaced; where that was not called, it does nothing.

    Arguments: as resource.
    Raises:
        RuntimeError: another resource was set since, which would be lost.
    """
    ordinal = device_ordinal(device)
    if ordinal not in _replaced:
        return
    current = _load().get_per_device_resource(ordinal)
    if not is_installed(ordinal) and current is not _replaced[ordinal]:
        raise RuntimeError(
            f"RMM's resource of device {ordinal} is {current!r}, set after install(); set the one that you "
            "want with rmm.mr.set_per_device_resource"
        )
    _load().set_per_device_resource(ordinal, _replaced[ordinal])
    del _replaced[ordinal]


def is_installed(device: DeviceArgument | None = None) -> bool:
    """Tells whether RMM allocates a device's memory from accelrt, by itself.

    Arguments: as resource.
    """
    ordinal = device_ordinal(device)
    return ordinal in _resources and _load().get_per_device_resource(ordinal) is _resources[ordinal]


# --- RMM's memory under accelrt ----------------------------------------------------------------------------


class _Handle:
    """A stream's handle, as RMM takes it."""

    def __init__(self, handle: int) -> None:
        self.handle = handle

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.handle


def _checked(found: Any, mr: Any) -> Any:
    if not isinstance(found, mr.DeviceMemoryResource):
        raise TypeError(
            f"resource is {found!r} of type {type(found).__name__}; pass an rmm.mr.DeviceMemoryResource, a "
            "dict of them by the device's ordinal, or None"
        )
    upstream = found
    while upstream is not None:
        if any(upstream is mine for mine in _resources.values()):
            raise ValueError(
                f"{found!r} takes its memory from accelrt (accelrt.interop.rmm.resource); pass one that "
                "does not"
            )
        upstream = getattr(upstream, "upstream_mr", None)
    return found


def from_rmm(resource: Any = None) -> CallbackAllocator:
    """Returns an allocator for accelrt.memory.change_current_allocator that takes its memory from RMM.

    Arguments:
        resource: rmm.mr.DeviceMemoryResource, of the current device; a dict of them by ordinal; or None for
            the one that RMM has for a device when accelrt first asks for its memory
            (get_per_device_resource).
    Returns:
        CallbackAllocator, named "rmm".
    Raises:
        ImportError: RMM is not installed.
        TypeError: resource is none.
        ValueError: the resource takes its memory from accelrt.

    Asking for memory of a device without a resource raises a RuntimeError.  Memory is freed on the stream
    that it was allocated on, which has to be alive then, once all other streams that were recorded on it are
    done.
    """
    mr = _load()
    make_stream = peers.load("rmm.pylibrmm.stream", "rmm-cu13").Stream
    if resource is None:
        chosen: dict[int, Any] = {}
    elif isinstance(resource, Mapping):
        chosen = {device_ordinal(device): _checked(found, mr) for device, found in resource.items()}
    else:
        chosen = {device_ordinal(None): _checked(resource, mr)}
    streams = peers.StreamsByHandle(lambda handle: make_stream(_Handle(handle)))

    def resource_of(device: int) -> Any:
        upstream = chosen.get(device)
        if upstream is None:
            if resource is not None:
                raise ValueError(
                    f"from_rmm was given resources of the devices {sorted(chosen)}, and none of device "
                    f"{device}; pass a dict with one for each device that is used"
                )
            upstream = chosen[device] = _checked(mr.get_per_device_resource(device), mr)
        return upstream

    def for_allocation(size: int, device: int, stream: int) -> tuple[Any, int, Any]:
        return resource_of(device).allocate, size, streams.of(stream)

    def for_free(address: int, size: int, device: int, stream: int) -> tuple[Any, int, int, Any]:
        return chosen[device].deallocate, address, size, streams.of(stream)

    allocate: Taker[int] = Taker(for_allocation, operator.call)
    return CallbackAllocator(allocate, Releaser(for_free, operator.call), "rmm")
