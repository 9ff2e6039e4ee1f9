"""Finds the interface that answers for a device.

There is no lock: a fork could leave it held in the child while another thread imports a package.  Two threads
that ask first may both import; both get the class that came to stand in the table first.
"""

from __future__ import annotations

import importlib
import re
import warnings
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any

from accelrt.errors import InterfaceError
from accelrt.interface.check import check
from accelrt.runtime import init

if TYPE_CHECKING:
    from collections.abc import Callable

    from accelrt.interface.base import DeviceInterface

__all__ = ["get_interface_for_device", "get_registered_device_interfaces", "register_interface_for_device"]

GROUP = "accelrt.device_interfaces"
NAME = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(:(?:0|[1-9][0-9]*))?")
BUILT_IN = {
    "cuda": "accelrt.interface.builtin:CudaInterface",
    "host": "accelrt.interface.builtin:HostInterface",
}
# Used where no other one is registered, and no entry point of another package names one.
UNVERIFIED = {
    "hip": "accelrt.interface.unverified:HipInterface",
    "xpu": "accelrt.interface.unverified:XpuInterface",
}

_registered: dict[str, Any] = dict(BUILT_IN)  # name -> class, or what will be asked for it
_points: dict[str, EntryPoint] | None = None


def register_interface_for_device(
    device: Any, device_interface: type[DeviceInterface] | str | Callable[[], type[DeviceInterface]]
) -> None:
    """Registers a backend.  An earlier registration for the same name is replaced.

    Arguments:
        device: str, a device type "xpu" or one device of it "xpu:1"; or an object with a type, such as
            accelrt.device.
        device_interface: a class that derives from accelrt.interface.DeviceInterface.  Or, to have it
            imported when it is first asked for: "package.module:Class", or a function of no arguments that
            returns the class.
    Raises:
        InterfaceError: the class lacks something, which the text lists.  One that is to be imported later is
            checked then.
        ValueError, TypeError: the device is not a name.
    """
    name = "".join(names_of(device))
    if isinstance(device_interface, str):
        if not re.fullmatch(r"[\w.]+:[\w.]+", device_interface):
            raise ValueError(
                f"interface {device_interface!r} is not understood; write 'package.module:Class'"
            )
        _registered[name] = device_interface
    elif callable(device_interface) and not isinstance(device_interface, type):
        _registered[name] = device_interface
    else:
        _registered[name] = check(name, device_interface)


def get_interface_for_device(device: Any) -> type[DeviceInterface]:
    """Returns the backend of a device.  Touches no driver, and does not look whether the device exists.

    What is registered for the very device goes before what is for its type, and that before entry points.

    Arguments:
        device: str, "cuda" or "cuda:1"; or an object with a type and an index, such as accelrt.device.
    Returns:
        The class.
    Raises:
        NotImplementedError: no backend is registered; the text names those that are.
        InterfaceError: one is, to be imported now, but lacks something.
        ImportError: its module cannot be imported.
        ValueError, TypeError: the device is not a name.
    """
    kind, index = names_of(device)
    for name in (kind + index, kind):
        source = _registered.get(name)
        if source is not None:
            return resolved(name, source)
    source = points().get(kind) or UNVERIFIED.get(kind)
    if source is not None:
        return resolved(kind, source)
    there = ", ".join(sorted({*_registered, *points()}))
    raise NotImplementedError(
        f"there is no interface for device {device!r}; there are: {there}.  A package adds one with "
        f"accelrt.register_interface_for_device, or with an entry point of the group {GROUP}"
    )


def get_registered_device_interfaces() -> list[tuple[str, type[DeviceInterface]]]:
    """Returns every name that has a backend, and the backend: the built-in ones first.  Each device of a
    built-in one that is there has a name too: "cuda", "cuda:0", "cuda:1".  They are counted without
    initialising.

    One that cannot be imported, or lacks something, is left out, and a RuntimeWarning says why.
    """
    interfaces = []
    for name, source in (UNVERIFIED | points() | _registered).items():
        try:
            interfaces.append((name, resolved(name, source)))
        except Exception as error:  # what another package's import raises is its own affair
            warnings.warn(f"the interface for {name!r} cannot be used: {error}", RuntimeWarning, stacklevel=2)
    names = {name for name, _ in interfaces}
    for name, interface in [*interfaces]:
        count = interface.device_count() if name in BUILT_IN and interface.is_available() else 0
        devices = [f"{name}:{ordinal}" for ordinal in range(count)]
        interfaces += [(each, interface) for each in devices if each not in names]
    return sorted(interfaces, key=order_of)


def order_of(pair: tuple[str, Any]) -> tuple[bool, str, int]:
    kind, _, ordinal = pair[0].partition(":")
    return kind not in BUILT_IN, kind, int(ordinal or -1)


def names_of(device: Any) -> tuple[str, str]:
    """("cuda", ":1"); the second is empty where there is no ordinal."""
    if not isinstance(device, str):
        kind, index = getattr(device, "type", None), getattr(device, "index", None)
        if not isinstance(kind, str):
            raise TypeError(
                f"device is {device!r}; pass a name such as 'cuda' or 'cuda:1', or a device object"
            )
        device = kind if index is None or index < 0 else f"{kind}:{index}"
    match = NAME.fullmatch(device)
    if match is None:
        raise ValueError(f"device {device!r} is not understood; write a type, 'cuda', or a device, 'cuda:1'")
    return match[1], match[2] or ""


def resolved(name: str, source: Any) -> type[DeviceInterface]:
    """The class, imported and checked now where it was not yet.

    The unverified are not kept: what is registered or installed later goes before them.
    """
    if isinstance(source, type):
        return source
    interface = check(name, loaded(name, source))
    is_kept = not isinstance(source, str) or source != UNVERIFIED.get(name)
    if is_kept and _registered.get(name) in (None, source):  # nobody registered another one meanwhile
        _registered[name] = interface
    return interface


def loaded(name: str, source: Any) -> Any:
    if isinstance(source, EntryPoint):
        target = source.load()
        return target() if callable(target) and not isinstance(target, type) else target
    if not isinstance(source, str):
        return source()
    module, _, attribute = source.partition(":")
    is_ours = source in (BUILT_IN.get(name), UNVERIFIED.get(name))
    target = init.later(module) if is_ours else importlib.import_module(module)
    for part in attribute.split("."):
        if not hasattr(target, part):
            wrong = (f"{module} has no {attribute}",)
            raise InterfaceError(f"{source!r}, registered for {name!r}: {wrong[0]}", name, (), wrong)
        target = getattr(target, part)
    return target


def points() -> dict[str, EntryPoint]:
    """The entry points of installed packages by device type, looked for once.  The built-in types cannot be
    had by one.
    """
    global _points
    if _points is None:
        by_type: dict[str, EntryPoint] = {}
        for point in entry_points(group=GROUP):
            other = by_type.setdefault(point.name, point)
            if point.name in BUILT_IN or other.value != point.value:
                warnings.warn(
                    f"entry point {point.name!r} = {point.value!r} of the group {GROUP} has no effect: "
                    f"{BUILT_IN.get(point.name, other.value)!r} is there already",
                    RuntimeWarning,
                    stacklevel=3,
                )
        _points = {name: point for name, point in by_type.items() if name not in BUILT_IN}
    return _points
