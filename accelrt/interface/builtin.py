"""The interfaces of accelrt's own devices.

"cuda" is whichever driver this process runs on, as "cuda:1" is everywhere in accelrt, so that torch.cuda's
code runs on the host device.  "host" is the embedded host device alone.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from accelrt.devices.device import (
    current_device,
    device,
    device_count,
    get_device_capability,
    get_device_properties,
    set_device,
    synchronize,
)
from accelrt.interface.base import DeviceInterface
from accelrt.interface.worker import CachingWorker
from accelrt.memory.caching import memory_allocated
from accelrt.runtime import init
from accelrt.streams.stream import Event, Stream, current_stream, set_stream, stream

if TYPE_CHECKING:
    from collections.abc import Callable


def exchange_device(device: int) -> int:
    """Makes a device the current one of this thread; returns the ordinal of the one before."""
    if device < 0:
        return -1
    before = current_device()
    if before != device:
        set_device(device)
    return before


def get_raw_stream(device_idx: int) -> int:
    """The handle (CUstream) of a device's current stream."""
    return current_stream(device_idx).cuda_stream


def get_compute_capability(device: Any = None) -> int:
    """Major and minor in one number: 90 for 9.0; 0 for the host device."""
    major, minor = get_device_capability(device)
    return major * 10 + minor


def is_bf16_supported(including_emulation: bool = False) -> bool:
    """As accelrt.is_bf16_supported, but without the emulation unless it is asked for."""
    return bool(init.later("accelrt.kernels.arch").is_bf16_supported(including_emulation))


class CudaInterface(DeviceInterface):
    """The devices of the driver in use, by torch.cuda's names."""

    device = device
    Event = Event
    Stream = Stream

    class Worker(CachingWorker):
        """Properties of cuda devices, for processes that may not touch the driver."""

        kind = "cuda"
        count: staticmethod[[], int] = staticmethod(device_count)
        read: staticmethod[..., Any] = staticmethod(get_device_properties)
        current: staticmethod[[], int] = staticmethod(current_device)

    current_device: staticmethod[[], int] = staticmethod(current_device)
    set_device: staticmethod[..., None] = staticmethod(set_device)
    exchange_device: staticmethod[..., int] = staticmethod(exchange_device)
    maybe_exchange_device: staticmethod[..., int] = staticmethod(exchange_device)
    device_count: staticmethod[[], int] = staticmethod(device_count)
    is_available: staticmethod[[], bool] = staticmethod(init.is_available)
    stream: staticmethod[..., Any] = staticmethod(stream)
    current_stream: staticmethod[..., Any] = staticmethod(current_stream)
    set_stream: staticmethod[..., None] = staticmethod(set_stream)
    get_raw_stream: staticmethod[..., int] = staticmethod(get_raw_stream)
    synchronize: staticmethod[..., None] = staticmethod(synchronize)
    get_device_properties: staticmethod[..., Any] = staticmethod(get_device_properties)
    get_compute_capability: staticmethod[..., int] = staticmethod(get_compute_capability)
    is_bf16_supported: staticmethod[..., bool] = staticmethod(is_bf16_supported)
    memory_allocated: staticmethod[..., int] = staticmethod(memory_allocated)


def on_host(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function where this process runs on the host device, an error where it runs on a GPU."""

    @functools.wraps(function)
    def checked(*arguments: Any, **named: Any) -> Any:
        if init.chosen_driver() == "cuda":
            raise RuntimeError(
                f"{function.__name__} of the interface 'host': this process runs on cuda; choose the host "
                "device with ACCELRT_DRIVER=host or accelrt.init(driver='host'), or use the interface 'cuda'"
            )
        return function(*arguments, **named)

    return checked


def host_is_available() -> bool:
    """Tells whether this process runs on the host device, or will."""
    return init.chosen_driver() != "cuda" and init.is_available()


def host_device_count() -> int:
    """Returns how many host devices this process has; 0 where it runs on cuda."""
    return device_count() if host_is_available() else 0


class HostInterface(DeviceInterface):
    """The embedded host device: what CudaInterface has, where this process runs on it."""

    device = device
    Event = Event
    Stream = Stream

    class Worker(CachingWorker):
        """Properties of host devices, for processes that may not touch the driver."""

        kind = "host"

    device_count: staticmethod[[], int] = staticmethod(host_device_count)
    is_available: staticmethod[[], bool] = staticmethod(host_is_available)
    is_bf16_supported: staticmethod[..., bool] = staticmethod(is_bf16_supported)


for _host, _cuda in ((HostInterface, CudaInterface), (HostInterface.Worker, CudaInterface.Worker)):
    for _name, _method in vars(_cuda).items():
        if isinstance(_method, staticmethod) and _name not in vars(_host):
            setattr(_host, _name, staticmethod(on_host(_method.__func__)))
