"""Checks of arguments, and marks of errors, that several kinds of resources share."""

from __future__ import annotations

from accelrt.errors import OutOfMemoryError

TYPE_CHECKING = False  # typing's, which takes long to import
if TYPE_CHECKING:
    from typing import Any, NoReturn

OUT_OF_MEMORY = 2  # CUDA_ERROR_OUT_OF_MEMORY


def refuse(resource: Any, nbytes: int, why: str) -> NoReturn:
    """Raises that a resource has no room."""
    error = OutOfMemoryError(
        f"out of memory. Tried to allocate {nbytes} bytes from {resource!r}: {why}",
        OUT_OF_MEMORY, "OUT_OF_MEMORY", "allocate",
    )  # fmt: skip
    error.device, error.requested, error.refused_by = resource.device_index, nbytes, "resource"
    raise error


def check_callable(name: str, function: object, optional: bool = False) -> None:
    """Refuses what cannot be called; None may be optional."""
    if not callable(function) and not (optional and function is None):
        wanted = "a callable, or None" if optional else "a callable"
        raise TypeError(f"{name} is {function!r} of type {type(function).__name__}; pass {wanted}")


def mark_back(error: BaseException, address: int) -> None:
    """Tells the adaptors above that what give_back() raises was raised once the memory was back."""
    if hasattr(error, "__dict__"):
        error.__dict__["_accelrt_back"] = address


def is_back(error: BaseException, address: int) -> bool:
    """Tells whether the memory was back before give_back() raised."""
    return getattr(error, "_accelrt_back", None) == address
