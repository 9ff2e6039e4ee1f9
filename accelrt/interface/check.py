"""Checks whether a class can be registered."""

from __future__ import annotations

import inspect
from typing import Any

from accelrt.errors import InterfaceError
from accelrt.interface.base import DeviceInterface, EventBase, StreamBase, Worker

# name -> arguments that it is called with
METHODS: dict[str, tuple[Any, ...]] = {
    "current_device": (),
    "set_device": (0,),
    "exchange_device": (0,),
    "maybe_exchange_device": (0,),
    "device_count": (),
    "is_available": (),
    "stream": (None,),
    "current_stream": (),
    "set_stream": (None,),
    "get_raw_stream": (0,),
    "synchronize": (),
    "get_device_properties": (0,),
    "get_compute_capability": (),
}
WORKER: dict[str, tuple[Any, ...]] = {"set_device": (0,), "current_device": (), "get_device_properties": (0,)}
GUARD = ("__enter__", "__exit__")
OURS = "accelrt.interface"


def check(device: str, interface: object) -> type[DeviceInterface]:
    """The class itself, where it can be registered.

    Arguments:
        device: str, what it is to be registered for, for the error.
        interface: what was given.
    Raises:
        InterfaceError: it is no class, has the wrong base, lacks something, or something of it has the wrong
            base or cannot be called as an interface is.
    """
    if not (isinstance(interface, type) and issubclass(interface, DeviceInterface)):
        bases_text = bases(interface) if isinstance(interface, type) else f"it is {interface!r}"
        reason = f"it must be a class that derives from {OURS}.DeviceInterface, but {bases_text}"
        raise InterfaceError(refusal(device, interface, (), [reason]), device, (), (reason,))
    looks = [methods(interface, DeviceInterface, METHODS, "")]
    looks += [part(interface, name) for name in ("device", "Worker", "Event", "Stream")]
    missing = tuple(name for lacks, _ in looks for name in lacks)
    wrong = tuple(complaint for _, complaints in looks for complaint in complaints)
    if missing or wrong:
        raise InterfaceError(refusal(device, interface, missing, wrong), device, missing, wrong)
    return interface


def refusal(device: str, interface: object, missing: Any, wrong: Any) -> str:
    name = interface.__qualname__ if isinstance(interface, type) else repr(interface)
    parts = [f"it lacks {', '.join(missing)}"] if missing else []
    return f"{name} cannot be registered for {device!r}: " + "; ".join([*parts, *wrong])


def bases(interface: type) -> str:
    names = ", ".join(base.__qualname__ for base in interface.__mro__[1:])
    return f"the bases of {interface.__qualname__} are {names}"


def methods(
    interface: type, base: type, names: dict[str, tuple[Any, ...]], prefix: str
) -> tuple[list[str], list[str]]:
    """Names of methods that are not there, or still the base's, and complaints of those that are no good."""
    missing, wrong = [], []
    for name, arguments in names.items():
        there = inspect.getattr_static(interface, name, None)
        inherited = there is inspect.getattr_static(base, name, None) and name not in GIVEN.get(base, ())
        if there is None or inherited:
            missing.append(prefix + name)
        elif not callable(getattr(interface, name)):
            wrong.append(f"{prefix}{name} is {there!r}, which cannot be called")
        elif not takes(getattr(interface, name), arguments):
            shown = ", ".join(map(repr, arguments))
            wrong.append(f"{prefix}{name}({shown}) cannot be called on the class: is it a static method?")
    return missing, wrong


GIVEN: dict[type, tuple[str, ...]] = {DeviceInterface: ("get_device_properties",)}


def takes(function: Any, arguments: tuple[Any, ...]) -> bool:
    try:
        inspect.signature(function).bind(*arguments)
    except TypeError:
        return False
    except ValueError:  # a compiled function that does not tell
        return True
    return True


def part(interface: type, name: str) -> tuple[list[str], list[str]]:
    """Finds what one of the classes of an interface lacks, and what is wrong with it."""
    kind = getattr(interface, name, None)
    if kind is None or kind is getattr(DeviceInterface, name, None):
        return [name], []
    if not isinstance(kind, type):
        return [], [f"{name} is {kind!r}, not a class{' of contexts' if name == 'device' else ''}"]
    if name == "device":
        return [f"device.{each}" for each in GUARD if not hasattr(kind, each)], []
    if name == "Worker":
        return methods(kind, Worker, WORKER, "Worker.")
    base = {"Event": EventBase, "Stream": StreamBase}[name]
    if not issubclass(kind, base):
        advice = f"derive from it, or call {base.__name__}.register"
        return [], [f"{name} must derive from {OURS}.{base.__name__}, but {bases(kind)} ({advice})"]
    abstract = sorted(base.__abstractmethods__)
    return [
        f"{name}.{each}" for each in abstract if getattr(kind, each, None) in (None, getattr(base, each))
    ], []
