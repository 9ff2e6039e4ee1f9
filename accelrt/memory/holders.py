"""The objects that have memory, and who holds them: for reports of what leaked."""

from __future__ import annotations

import gc
import os
from types import CellType, FrameType, FunctionType, ModuleType

TYPE_CHECKING = False  # typing's, which takes long to import
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
STEPS = 4  # from an object to the variable that holds it, over containers and other objects


def owners() -> dict[int, Any]:
    """Finds the objects of accelrt's that have device or page-locked memory, by its address."""
    by_address: dict[int, Any] = {}
    for each in gc.get_objects():
        try:
            module = type(each).__module__
            is_ours = isinstance(module, str) and module.startswith("accelrt.")
            address = getattr(each, "ptr", 0) if is_ours else 0
        except Exception:  # a metaclass of others
            continue
        # An Array says more than the Buffer that it views.
        if address and type(by_address.get(address)).__name__ != "Array":
            by_address[address] = each
    return by_address


def holder_of(target: object, but: Iterable[object] = ()) -> str:
    """Says who holds an object, in words: "`cache` of app", "attribute `x` of a Model, `model` of __main__".

    Arguments:
        target: an object that Python's garbage collector tracks.
        but: the caller's own containers that hold it too.
    Returns:
        str; empty where no object of Python's holds it, as for a reference that an extension took.
    """
    seen = set(map(id, but))
    parts: list[str] = []
    step: object | None = target
    while step is not None and len(parts) < STEPS:
        seen.add(id(step))
        text, step = nearest_holder(step, seen)
        if text:
            parts.append(text)
    return ", ".join(parts)


def nearest_holder(target: object, seen: set[int]) -> tuple[str, object | None]:
    """Finds one that holds an object, a variable rather than another object, in words; and where to go on
    from it, None where that is the end."""
    nearest: tuple[str, object | None] = ("", None)
    for holder in gc.get_referrers(target):
        if id(holder) in seen or is_ours(holder):
            continue
        text, beyond = described(holder, target, seen)
        if text and beyond is None:
            return text, None
        if text and not nearest[0]:
            nearest = text, beyond
    return nearest


def is_ours(holder: object) -> bool:
    """Tells whether it is what looks for holders itself: a step of this package's code that is under way."""
    code = getattr(holder, "f_code", None) or getattr(holder, "gi_code", None)
    return code is not None and code.co_filename.startswith(PACKAGE)


def described(holder: object, target: object, seen: set[int]) -> tuple[str, object | None]:
    if isinstance(holder, dict):
        return described_dict(holder, target, seen)
    if isinstance(holder, FrameType):
        name = name_in(holder.f_locals, target)
        location = f"{holder.f_code.co_filename}:{holder.f_lineno}"
        return (f"`{name}` of {holder.f_code.co_name} ({location})", None) if name else ("", None)
    if isinstance(holder, CellType):
        return described_cell(holder)
    if isinstance(holder, ModuleType | type) or hasattr(holder, "__dict__"):
        name = name_in(vars(holder), target)
        return attribute_text(holder, name) if name else (f"a {type(holder).__name__}", holder)
    return f"a {type(holder).__name__}", holder


def name_in(variables: Mapping[Any, Any], target: object) -> Any:
    """Finds the key of a thing among variables; None where it is none of them."""
    for key, value in list(variables.items()):
        if value is target:
            return key
    return None


def described_cell(cell: CellType) -> tuple[str, object | None]:
    """Describes a variable of a function that a function inside it uses: through the tuple of those."""
    for cells in gc.get_referrers(cell):
        if isinstance(cells, tuple):
            for function in gc.get_referrers(cells):
                if isinstance(function, FunctionType):
                    return f"the closure of {function.__qualname__}", function
    return "", None


def described_dict(holder: dict[Any, Any], target: object, seen: set[int]) -> tuple[str, object | None]:
    """Does as described(), for what may be the variables of a module, a class or an object."""
    name = name_in(holder, target)
    if name is None:
        return "a dict", holder
    # CPython 3.13 without a GIL lists no class among referrers once there was a second thread.
    named = getattr(holder.get("__dict__"), "__objclass__", None)
    for other in (named, *gc.get_referrers(holder)):
        if isinstance(other, type) and other.__dict__.get(name) is target:
            return attribute_text(other, name)
        if not isinstance(other, type) and getattr(other, "__dict__", None) is holder:
            return ("", None) if id(other) in seen else attribute_text(other, name)
    return f"key {name!r} of a dict", holder


def attribute_text(holder: object, name: str) -> tuple[str, object | None]:
    if isinstance(holder, ModuleType):
        return f"`{name}` of {holder.__name__}", None
    if isinstance(holder, type):
        return f"`{name}` of class {holder.__qualname__}", None
    return f"attribute `{name}` of a {type(holder).__name__}", holder
