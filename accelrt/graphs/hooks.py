"""Hooks: functions that others have called around what an object does."""

from accelrt.errors import refuse_copy

TYPE_CHECKING = False  # typing's, which takes long to import
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn


class RemovableHandle:
    """A hook's registration, made by CUDAGraph.register_replay_hook and its like: remove() ends it.  As a
    context, it ends with the context.

    It keeps the hook alive, and not the object that the hook is registered with.
    """

    __slots__ = {
        "__weakref__": None,
        "before": "bool, whether it is called before what it is registered with, not after.",
        "hook": "the function.",
        "place": "list of RemovableHandle, where it is registered.",
    }

    def __init__(self, place: "list[RemovableHandle]", hook: "Callable[..., object]", before: bool) -> None:
        self.place: list[RemovableHandle] = place
        self.hook: Callable[..., object] = hook
        self.before: bool = before

    def remove(self) -> None:
        """Ends the registration, so that the hook is called no more; doing it again does nothing."""
        if self in self.place:
            self.place.remove(self)

    def __reduce__(self) -> "NoReturn":
        refuse_copy(self, "it is one registration; register the hook again")

    def __enter__(self) -> "RemovableHandle":
        return self

    def __exit__(self, *error: object) -> None:
        self.remove()


def add_hook(place: list[RemovableHandle], hook: "Callable[..., object]", before: bool) -> RemovableHandle:
    """Appends a hook to a list of them; TypeError where it cannot be called."""
    if not callable(hook):
        raise TypeError(f"hook is {hook!r}, which cannot be called; pass a function that takes the CUDAGraph")
    handle = RemovableHandle(place, hook, before)
    place.append(handle)
    return handle


def run_last_hooks(place: list[RemovableHandle]) -> None:
    """Calls those of what is gone, without an argument."""
    for handle in tuple(place):
        handle.hook()


def run_hooks(place: list[RemovableHandle], subject: object, before: bool) -> None:
    """Calls those of one kind in the order of their registration; one that raises is the last one called."""
    for handle in tuple(place):  # a hook may remove itself, or others
        if handle.before == before:
            handle.hook(subject)
