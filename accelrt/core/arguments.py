"""Checks what callers give to modules in Python; integers.pxd checks numbers for compiled ones."""

import operator

from accelrt.errors import ArgumentError, ArgumentTypeError

TYPE_CHECKING = False  # typing's, which takes long to import
if TYPE_CHECKING:
    from collections.abc import Collection
    from typing import TypeVar

    T = TypeVar("T")


def checked_type(value: object, name: str, kind: "type[T]", wanted: str) -> "T":
    """Returns what a caller gave, which is of that type; ArgumentTypeError says what is wanted instead."""
    if not isinstance(value, kind):
        raise ArgumentTypeError(f"{name} is {value!r:.80} of type {type(value).__name__}; pass {wanted}")
    return value


def checked_number(
    value: object, name: str, least: int, most: int | None = None, wanted: str = "an int"
) -> int:
    """Returns a number that a caller gave, which has __index__ and is no bool.

    Raises:
        ArgumentTypeError, ArgumentError: it is none, or outside the limits; None is no upper one.
    """
    if isinstance(value, bool) or not hasattr(type(value), "__index__"):
        raise ArgumentTypeError(f"{name} is {value!r} of type {type(value).__name__}; pass {wanted}")
    number = operator.index(value)  # type: ignore[arg-type]
    if number < least or (most is not None and number > most):
        limits = f"pass {least} or more" if most is None else f"it goes from {least} to {most}"
        raise ArgumentError(f"{name} is {number}; {limits}")
    return number


def checked_word(value: object, name: str, allowed: "Collection[str]") -> str:
    """Returns a word that a caller gave, which is one of those that are allowed.

    Raises:
        ArgumentTypeError, ArgumentError: it is no str, or another one.
    """
    words = ", ".join(allowed)
    if not isinstance(value, str):
        raise ArgumentTypeError(f"{name} is {value!r} of type {type(value).__name__}; pass one of {words}")
    if value not in allowed:
        raise ArgumentError(f"{name} is {value!r}; it may be {words}")
    return value
