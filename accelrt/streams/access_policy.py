"""Access policy windows: how a stream's later work uses the L2 cache for a range of addresses.

The source is CUDA's programming guide, "L2 Cache Access Management".
"""

from __future__ import annotations

from typing import NamedTuple

from accelrt.core.arguments import checked_number, checked_word
from accelrt.devices.device import get_device_properties
from accelrt.driver.registry import Rows
from accelrt.status import status_error

PROPERTIES = {"normal": 0, "streaming": 1, "persisting": 2}  # CUaccessProperty
NAMES = {number: name for name, number in PROPERTIES.items()}
NOT_SUPPORTED = 801
NO_CACHE = (
    "this device has no L2 cache of which a stream can say what to keep; GPUs have one from compute "
    "capability 8.0 on"
)


class AccessPolicyWindow(NamedTuple):
    """The window of a stream.

    Attributes:
        address: int, where the range begins.
        num_bytes: int.
        hit_ratio: float, the part of the range's lines that are used as hit says, 0 to 1.
        hit, miss: "normal", "streaming" or "persisting": how those lines and the others are kept.
    """

    address: int
    num_bytes: int
    hit_ratio: float
    hit: str
    miss: str


def read(ordinal: int, stream: int) -> AccessPolicyWindow | None:
    """The window of a stream, by its device and handle; None where it has none."""
    code, address, size, ratio, hit, miss = Rows().stream_window_get(ordinal, stream)
    if code:
        meaning = NO_CACHE if code == NOT_SUPPORTED else ""
        raise status_error(code, "stream_window_get", ("stream", stream), meaning)
    return AccessPolicyWindow(address, size, ratio, NAMES[hit], NAMES[miss]) if size else None


def write(ordinal: int, stream: int, window: AccessPolicyWindow) -> None:
    """Sets the window of a stream, by its device and handle, after checking it; num_bytes of 0 is none."""
    address = checked_number(window.address, "address", 0, (1 << 64) - 1)
    size = checked_number(window.num_bytes, "num_bytes", 0, (1 << 64) - 1)
    ratio = window.hit_ratio
    if isinstance(ratio, bool) or not isinstance(ratio, (int, float)) or not 0 <= ratio <= 1:
        raise ValueError(f"hit_ratio is {ratio!r}; it is a number from 0 to 1")
    hit = PROPERTIES[checked_word(window.hit, "hit", PROPERTIES)]
    miss = PROPERTIES[checked_word(window.miss, "miss", ("normal", "streaming"))]
    if size:
        check_size(ordinal, size)
    code = Rows().stream_window_set(ordinal, stream, address, size, ratio, hit, miss)
    if code:
        arguments = ("stream", stream, "address", address, "num_bytes", size)
        raise status_error(code, "stream_window_set", arguments, NO_CACHE if code == NOT_SUPPORTED else "")


def check_size(ordinal: int, size: int) -> None:
    most = get_device_properties(ordinal).attributes.get("max_access_policy_window_size", 0)
    if most == 0:
        raise status_error(NOT_SUPPORTED, "stream_window_set", ("device", ordinal), NO_CACHE)
    if size > most:
        raise ValueError(
            f"num_bytes is {size}; a window of device {ordinal} has at most {most} bytes "
            "(max_access_policy_window_size of its properties): choose the part that is used most"
        )
