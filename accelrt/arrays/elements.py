"""Elements as Python's numbers and in repr(), and what operators that Arrays do not have say.  It imports no
arrays, whose methods call it."""

from __future__ import annotations

from typing import Any, NoReturn

import numpy

from accelrt.core import instead
from accelrt.runtime.lifetimes import capture_of
from accelrt.streams.stream import current_stream

MOST_SHOWN = 1000  # elements that repr() reads; as many as NumPy shows in full


def only(array: Any) -> Any:
    """The only element, as a number of Python's."""
    if array.size != 1:
        raise ValueError(
            f"an Array of {array.size} elements is no single number; take one by an index, or tolist()"
        )
    return array.numpy().item()


def is_true(array: Any) -> bool:
    if array.size != 1:
        raise ValueError(
            f"whether an Array of {array.size} elements is true is ambiguous; ask its size, or an element"
        )
    return bool(only(array))


def text_of(array: Any, facts: str) -> str:
    """Writes repr(): the facts, and below them the values where they are few and can be read just now."""
    if not 0 < array.size <= MOST_SHOWN or not is_readable(array):
        return f"<accelrt.Array {facts}>"
    try:
        values = numpy.array2string(array.numpy(), separator=", ")
    except Exception:  # it sleeps, its device is lost, another thread freed it: repr() says what is left
        return f"<accelrt.Array {facts}>"
    return f"<accelrt.Array {facts}\n{values}>"


def is_readable(array: Any) -> bool:
    """Tells whether a copy to the host may go into the device's current stream: it would break a capture."""
    device = array.device_index
    return device < 0 or not capture_of(device, current_stream(device).handle)[0]


def refuse_operator(symbol: str, left: object, right: object) -> NoReturn:
    """Raises TypeError for an operator that Arrays do not have."""
    sides = (left,) if right is None else (left, right)
    kinds = " and ".join(type(side).__name__ for side in sides)
    raise TypeError(f"{symbol} of {kinds}: Arrays have no arithmetic and no comparison; {instead.COMPUTED}")


def text_of_missing(name: str) -> str:
    """Writes what an AttributeError says of a name that Arrays do not have."""
    return instead.explain(f"'accelrt.Array' object has no attribute {name!r}", instead.OF_ARRAYS.get(name))
