"""The current resource of a device, on one thread or on all."""

from __future__ import annotations

import threading

from accelrt.core.arguments import checked_type
from accelrt.core.process import EntryOf
from accelrt.errors import ArgumentError, refuse_copy
from accelrt.resources.resource import DeviceResource, Resource

TYPE_CHECKING = False  # typing's, which takes long to import
if TYPE_CHECKING:
    from typing import NoReturn

    from accelrt.annotations import DeviceArgument

entered: threading.local = threading.local()  # .stack: [Entry] of use_resource(), the outermost first
of_devices: dict[int, Resource] = {}  # ordinal -> Resource of all threads


class Entry:
    """One time that a thread is in use_resource()."""

    def __init__(self, resource: Resource) -> None:
        self.resource = resource

    def enter(self) -> Resource:
        entered_here().append(self)
        return self.resource

    def leave(self) -> None:
        stack = entered_here()
        if self in stack[:-1]:
            raise RuntimeError("use_resource() is left where it is not the innermost one of the thread")
        if stack and stack[-1] is self:
            stack.pop()


def entered_here() -> list[Entry]:
    stack: list[Entry] = entered.__dict__.setdefault("stack", [])
    return stack


def checked_resource(resource: object) -> Resource:
    return checked_type(resource, "resource", Resource, "a Resource")


def current_resource(device: DeviceArgument | None = None) -> Resource:
    """Returns the resource that is current for a device: DeviceBuffers come from it unless told of another.

    Arguments:
        device: int, "cuda:1", ...; None is the current device.
    Returns:
        Resource: the innermost use_resource() of the thread, else that of set_current_resource(), else a
            DeviceResource.
    """
    default = DeviceResource(device)
    for inside in reversed(entered_here()):
        if inside.resource.device_index == default.device_index:
            return inside.resource
    return of_devices.setdefault(default.device_index, default)


def set_current_resource(resource: Resource | None, device: DeviceArgument | None = None) -> None:
    """Makes a resource current for its device, on all threads.

    Arguments:
        resource: Resource; None is a DeviceResource again.
        device: int, "cuda:1", ...: where resource is None the device that is meant; else it has to be the
            resource's.  None is the resource's, or the current one.
    Raises:
        TypeError: resource is none.
        ValueError: it is of another device, or the thread is in use_resource() for that device, whose end
            would undo it.

    What is allocated keeps the resource that it came from.
    """
    chosen = DeviceResource(device) if resource is None else checked_resource(resource)
    ordinal = chosen.device_index
    if device is not None and DeviceResource(device).device_index != ordinal:
        raise ArgumentError(f"resource is {resource!r}; it is of device {ordinal}, not of {device!r}")
    if any(inner.resource.device_index == ordinal for inner in entered_here()):
        raise ArgumentError(
            f"the thread is in use_resource() for device {ordinal}; leave it, or enter another one inside"
        )
    of_devices[ordinal] = chosen


class use_resource(EntryOf[Resource]):
    """The context in which a resource is current for its device on the calling thread.

        with accelrt.resources.use_resource(resource):
            buffer = accelrt.resources.DeviceBuffer(4096)

    Arguments:
        resource: Resource.
    Raises:
        TypeError: resource is none.
        RuntimeError: it is left where it is not the innermost one.
    """

    def __init__(self, resource: Resource) -> None:
        self._resource = checked_resource(resource)

    def _entry(self) -> Entry:
        return Entry(self._resource)

    def __reduce__(self) -> NoReturn:
        refuse_copy(self, "it is of one thread; make another one of the same resource")
