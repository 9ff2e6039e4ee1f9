"""The devices that this process has contexts on, and those of them that it was not meant to use."""

from __future__ import annotations

from accelrt.devices.device import current_device, device_count
from accelrt.devices.device import device as device_type
from accelrt.driver.registry import Rows
from accelrt.errors import ArgumentError, ArgumentTypeError
from accelrt.status import status_error

TYPE_CHECKING = False  # typing's, which takes long to import
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from accelrt.annotations import DeviceArgument


def active_contexts() -> tuple[int, ...]:
    """Lists the devices on which this process has a primary context, whichever library made it.

    Returns:
        tuple of int, ordinals, ascending.  None is made by asking.
    Raises:
        CudaError: the driver refused.

    A context takes some hundred MiB of a GPU, from the first call on that needs one.  On the host device it
    is there from the first call on that would make one on a GPU, and takes nothing.
    """
    rows = Rows()
    ordinals = []
    for ordinal in range(device_count()):
        code, active = rows.context_active(ordinal)
        if code:
            raise status_error(code, "context_active", ("device", ordinal))
        if active:
            ordinals.append(ordinal)
    return tuple(ordinals)


def stray_contexts(allowed: DeviceArgument | Iterable[DeviceArgument] | None = None) -> tuple[int, ...]:
    """Lists the devices on which this process has a context although it was not meant to use them.

        assert not accelrt.stray_contexts(local_rank)  # a library's call went to device 0, say

    Arguments:
        allowed: the device that it is meant to use, or several of them; None is the current one.
    Returns:
        tuple of int, ordinals, ascending; empty where all is as it should be.
    Raises:
        ValueError, TypeError: allowed names no device.
        CudaError: the driver refused.

    What makes them are calls before set_device(), on threads that chose no device, and libraries that take
    device 0 where they are told none.  CUDA_VISIBLE_DEVICES hides what a process is not meant to use.
    """
    expected = {current_device()} if allowed is None else set(ordinals_of(allowed))
    return tuple(ordinal for ordinal in active_contexts() if ordinal not in expected)


def ordinals_of(devices: DeviceArgument | Iterable[DeviceArgument]) -> list[int]:
    listed: list[Any] = [devices]
    if isinstance(devices, (list, tuple, set, frozenset, range)):
        listed = list(devices)
    ordinals = []
    for each in listed:
        if each is None:
            raise ArgumentTypeError(f"allowed is {devices!r}; pass devices, or None for the current one")
        ordinal = device_type(each).index
        if not 0 <= ordinal < device_count():
            raise ArgumentError(f"allowed has {each!r}; devices go from 0 to {device_count() - 1}")
        ordinals.append(ordinal)
    return ordinals
