"""The common parts of readings: who answers for a device, and figures of which a device may lack some."""

from __future__ import annotations

from functools import update_wrapper
from typing import TYPE_CHECKING, Protocol, TypeVar

from accelrt.nvml.library import Target, reading_error
from accelrt.readings.records import supported
from accelrt.readings.targets import find_target

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from accelrt.annotations import DeviceArgument

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

UNSUPPORTED = 3  # NVML_ERROR_NOT_SUPPORTED


class Reading(Protocol[T_co]):
    """A reading of any device."""

    def __call__(self, device: DeviceArgument | Target | None = None) -> T_co:
        """The reading of a device; None is the current one."""


def reading(function: Callable[[Target], T]) -> Reading[T]:
    """The reading that a function has of NVML's devices; others answer by their method of its name."""

    def read(device: DeviceArgument | Target | None = None) -> T:
        target = find_target(device)
        if isinstance(target, Target):
            return function(target)
        answer: T = getattr(target, function.__name__)()
        return answer

    annotations = read.__annotations__ | {"return": function.__annotations__["return"]}
    update_wrapper(read, function)
    read.__annotations__ = annotations
    del read.__wrapped__  # type: ignore[attr-defined]  # whose parameter is the target
    return read


def refusal(name: str, target: Target) -> Exception:
    """The error of a reading that a device lacks."""
    return reading_error(name, target, UNSUPPORTED)


def figures(name: str, target: Target, calls: Iterable[Callable[[], int]], zeros: bool) -> list[int | None]:
    """Returns what each call answers, None for what the device lacks.

    Arguments:
        zeros: bool, whether figures that are all 0 are an answer.
    Raises:
        NotSupportedError: the device lacks all of them.
    """
    values = [supported(ask) for ask in calls]
    if all(value is None or (value == 0 and not zeros) for value in values):
        raise refusal(name, target)
    return values
