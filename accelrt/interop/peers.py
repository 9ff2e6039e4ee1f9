"""What the modules for other libraries share: finding a library, and refusing what it cannot use."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from accelrt.devices.device import current_device, device_count
from accelrt.devices.device import device as device_type
from accelrt.errors import NotSupportedError
from accelrt.runtime import init

if TYPE_CHECKING:
    from typing import Any

    from accelrt.annotations import DeviceArgument

__all__ = ["load", "ordinal_of", "require_gpu", "stream_handle"]

LEGACY = 1  # CU_STREAM_LEGACY; accelrt's handle of that stream is 0


def load(name: str, package: str) -> Any:
    """A library's module.

    Arguments:
        name: str, the module to import.
        package: str, what brings it, as pip knows it.
    Raises:
        ImportError: it is not installed, or does not load; the text says how to install it.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(f"{name} cannot be imported ({error}); pip install {package} brings it") from error


def require_gpu(call: str) -> None:
    """Raises NotSupportedError where accelrt runs on the host device, whose memory is no device's of CUDA."""
    if init.chosen_driver() == "host":
        raise NotSupportedError(
            f"{call}: accelrt runs on the host device, whose memory no CUDA library can use; set "
            "ACCELRT_DRIVER=cuda",
            801,
            "NOT_SUPPORTED",
            call,
        )


def ordinal_of(device: DeviceArgument | None) -> int:
    """The ordinal that a device argument stands for, None being the current device.

    Raises:
        ValueError, TypeError: it stands for none.
    """
    ordinal = current_device() if device is None else device_type(device).index
    if not 0 <= ordinal < device_count():
        raise ValueError(f"device {device!r} does not exist; ordinals go from 0 to {device_count() - 1}")
    return ordinal


def stream_handle(stream: Any) -> int:
    """The driver's handle of a library's stream that has __cuda_stream__, 0 for the legacy default stream."""
    handle: int = stream.__cuda_stream__()[1]
    return 0 if handle == LEGACY else handle
