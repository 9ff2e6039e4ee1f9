"""Backends that can only be counted: Intel's GPUs ("xpu") and AMD's ("hip").  Unverified on hardware.

accelrt has no driver table for them, and was not tried on either.  Their interfaces count the devices by what
the kernel lists, and every other call says what is missing.  A package that has the rest registers a class of
its own under the same name, which takes the place of these.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from accelrt import visible
from accelrt.errors import not_supported
from accelrt.interface import check
from accelrt.interface.base import DeviceInterface, EventBase, StreamBase, Worker

if TYPE_CHECKING:
    from collections.abc import Iterable

NODES = Path("/sys/class/kfd/kfd/topology/nodes")  # the amdgpu driver's list, with processors among its nodes
CARDS = Path("/sys/class/drm")
INTEL = "0x8086"


def lacking(kind: str, call: str) -> Any:
    """A method that says that it is not there."""

    def refused(*arguments: Any, **named: Any) -> Any:
        raise not_supported(
            f"{call} of the interface {kind!r}: accelrt has no driver for these devices and only counts them "
            "(unverified on hardware); register an interface of your own with register_interface_for_device, "
            "or use 'cuda' or 'host'",
            call,
        )

    refused.__name__ = call.rpartition(".")[2]
    refused.__doc__ = "Raises NotSupportedError."
    return refused


COUNTED = ("device_count", "is_available")  # what a CountedInterface has
METHODS = (*(name for name in check.METHODS if name not in COUNTED), "is_bf16_supported", "memory_allocated")
CLASSES: dict[str, tuple[type, Iterable[str]]] = {
    "Stream": (StreamBase, StreamBase.__abstractmethods__),
    "Event": (EventBase, EventBase.__abstractmethods__),
    "Worker": (Worker, check.WORKER),
    "device": (object, check.GUARD),
}


def fill(interface: type[CountedInterface], kind: str) -> None:
    """Gives an interface all that it lacks, as methods and classes that say so."""
    for name in METHODS:
        setattr(interface, name, staticmethod(lacking(kind, name)))
    for name, (base, methods) in CLASSES.items():
        body: dict[str, Any] = {method: staticmethod(lacking(kind, f"{name}.{method}")) for method in methods}
        if name != "Worker":
            body["__init__"] = lacking(kind, name)
        body["__module__"] = __name__
        setattr(interface, name, type(f"{interface.__name__}.{name}", (base,), body))
    interface.lacks = (*METHODS, *CLASSES)


class CountedInterface(DeviceInterface):
    """Devices that are counted, and no more.

    Attributes:
        lacks: tuple of str, the names that raise NotSupportedError.
    """

    lacks: ClassVar[tuple[str, ...]]

    @staticmethod
    def is_available() -> bool:
        """False: accelrt cannot use them."""
        return False


class XpuInterface(CountedInterface):
    """Intel's GPUs.  Unverified on hardware."""

    @staticmethod
    def device_count() -> int:
        """Returns how many of Intel's GPUs the kernel lists to this process; ZE_AFFINITY_MASK is not looked
        at."""
        count = 0
        for node in CARDS.glob("renderD*"):
            try:
                count += (node / "device" / "vendor").read_text().strip() == INTEL
            except OSError:
                continue
        return count


class HipInterface(CountedInterface):
    """AMD's GPUs.  Unverified on hardware."""

    @staticmethod
    def device_count() -> int:
        """Returns how many of AMD's GPUs a HIP program would see: those that the kernel lists, less what
        ROCR_VISIBLE_DEVICES and HIP_VISIBLE_DEVICES hide.
        """
        uuids = []
        for node in sorted(NODES.glob("*"), key=lambda path: int(path.name) if path.name.isdigit() else -1):
            try:
                facts = dict(line.split() for line in (node / "properties").read_text().splitlines())
                if int(facts.get("simd_count", 0)):  # a processor has none
                    uuids.append(f"GPU-{int(facts.get('unique_id', 0)):016x}")
            except (OSError, ValueError):  # of a device that this process may not use
                continue
        named = (os.environ.get("ROCR_VISIBLE_DEVICES"), os.environ.get("HIP_VISIBLE_DEVICES"))
        return len(visible.resolve_amd(*named, uuids))


fill(XpuInterface, "xpu")
fill(HipInterface, "hip")
