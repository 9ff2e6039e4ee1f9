"""What keeps a class from being registered."""

from __future__ import annotations

import inspect
from typing import Any

from accelrt.errors import InterfaceError
from accelrt.interface.base import DeviceInterface, EventBase, StreamBase, Worker

__all__ = ["check"]

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
WORKER: dict[str, tuple[Any, ...]] = {
    "set_device": (0,),
    "current_device": (),
    "get_device_properties": (0,),
}
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
        given = bases(interface) if isinstance(interface, type) else f"it is {interface!r}"
        wrong = (f"it must be a class that derives from {OURS}.DeviceInterface, but {given}",)
        raise InterfaceError(refusal(device, interface, (), wrong), device, (), wrong)
    missing, wrong_ones = methods(interface, DeviceInterface, METHODS, "")
    more = [guard(interface), worker(interface)]
    more += [
        part(interface, "Event", EventBase),
        part(interface, "Stream", StreamBase),
    ]
    for lacks, faults in more:
        missing += lacks
        wrong_ones += faults
    if missing or wrong_ones:
        given_up = refusal(device, interface, missing, wrong_ones)
        raise InterfaceError(given_up, device, tuple(missing), tuple(wrong_ones))
    return interface


def refusal(device: str, interface: object, missing: Any, wrong: Any) -> str:
    name = interface.__qualname__ if isinstance(interface, type) else repr(interface)
    parts = [f"it lacks {', '.join(missing)}"] if missing else []
    return f"{name} cannot be registered for {device!r}: " + "; ".join([*parts, *wrong])


def bases(found: type) -> str:
    names = ", ".join(base.__qualname__ for base in found.__mro__[1:])
    return f"the bases of {found.__qualname__} are {names}"


def methods(
    found: type, base: type, names: dict[str, tuple[Any, ...]], prefix: str
) -> tuple[list[str], list[str]]:
    """Names of methods that are not there, or still the base's, and complaints of those that are no good."""
    missing, wrong = [], []
    for name, arguments in names.items():
        there = inspect.getattr_static(found, name, None)
        inherited = there is inspect.getattr_static(base, name, None) and name not in GIVEN.get(base, ())
        if there is None or inherited:
            missing.append(prefix + name)
        elif not callable(getattr(found, name)):
            wrong.append(f"{prefix}{name} is {there!r}, which cannot be called")
        elif not takes(getattr(found, name), arguments):
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


def guard(interface: type) -> tuple[list[str], list[str]]:
    found = getattr(interface, "device", None)
    if found is None or found is DeviceInterface.device:
        return ["device"], []
    if not isinstance(found, type):
        return [], [f"device is {found!r}, not a class of contexts"]
    return [f"device.{name}" for name in GUARD if not hasattr(found, name)], []


def worker(interface: type) -> tuple[list[str], list[str]]:
    found = getattr(interface, "Worker", None)
    if found is None or found is DeviceInterface.Worker:
        return ["Worker"], []
    if not isinstance(found, type):
        return [], [f"Worker is {found!r}, not a class"]
    return methods(found, Worker, WORKER, "Worker.")


def part(interface: type, name: str, base: type) -> tuple[list[str], list[str]]:
    found = getattr(interface, name, None)
    if found is None:
        return [name], []
    if not isinstance(found, type):
        return [], [f"{name} is {found!r}, not a class"]
    if not issubclass(found, base):
        advice = f"derive from it, or call {base.__name__}.register"
        return [], [f"{name} must derive from {OURS}.{base.__name__}, but {bases(found)} ({advice})"]
    wanted = sorted(getattr(base, "__abstractmethods__", ()))
    lacks = [one for one in wanted if getattr(found, one, None) in (None, getattr(base, one))]
    return [f"{name}.{one}" for one in lacks], []
