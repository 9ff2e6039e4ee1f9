"""Switches: what is on, and how candidates are timed.

A variable of the environment that is set decides, as in torch: the functions then change nothing.  The
variables are read once, when this module is imported.
"""

from __future__ import annotations

import operator
from typing import Any, NamedTuple

from accelrt import env
from accelrt.core import printable
from accelrt.core.arguments import checked_number
from accelrt.devices.device import get_device_properties

__all__ = [
    "enable",
    "get_max_tuning_duration",
    "get_max_tuning_iterations",
    "get_max_warmup_duration",
    "get_max_warmup_iterations",
    "get_rotating_buffer_size",
    "is_enabled",
    "l2_flush_enable",
    "l2_flush_is_enabled",
    "record_untuned_enable",
    "record_untuned_is_enabled",
    "set_max_tuning_duration",
    "set_max_tuning_iterations",
    "set_max_warmup_duration",
    "set_max_warmup_iterations",
    "set_numerical_check_tolerances",
    "set_rotating_buffer_size",
    "tuning_enable",
    "tuning_is_enabled",
]

MIB = 1 << 20


class Tolerances(NamedTuple):
    """The bounds of a candidate's results: |default - candidate| <= atol + rtol * |default|."""

    atol: float
    rtol: float


PREFIX = f"{env.PREFIX}TUNABLE_"
NAMES = [name for name in env.VARIABLES if name.startswith(PREFIX) and not name.endswith("FILENAME")]
values: dict[str, Any] = {name.removeprefix(PREFIX): env.value(name) for name in NAMES}
if values["NUMERICAL_CHECK"] is not None:
    values["NUMERICAL_CHECK"] = Tolerances(*values["NUMERICAL_CHECK"])
fixed: set[str] = {name.removeprefix(PREFIX) for name in NAMES if env.text(name)}


def change(name: str, value: object) -> None:
    if name not in fixed:
        values[name] = value


def count(value: int, name: str) -> int:
    return checked_number(value, name, 0, (1 << 31) - 1)


def say(level: int, text: str) -> None:
    """Tells standard error what is done, where ACCELRT_TUNABLE_VERBOSE is at least level."""
    if values["VERBOSE"] >= level:
        printable.say(f"accelrt.tunable: {text}")


def enable(val: bool = True) -> None:
    """Has operations run the fastest of their candidates; off, which is how it starts, the default.

    Arguments:
        val: bool.
    """
    change("ENABLED", bool(val))


def is_enabled() -> bool:
    """Tells whether operations look for the fastest of their candidates."""
    return bool(values["ENABLED"])


def tuning_enable(val: bool = True) -> None:
    """Has candidates timed for arguments of which no result is known; on at first.

    Arguments:
        val: bool.
    """
    change("TUNING", bool(val))


def tuning_is_enabled() -> bool:
    """Tells whether candidates are timed for arguments of which no result is known."""
    return bool(values["TUNING"])


def record_untuned_enable(val: bool = True) -> None:
    """Has arguments of which no result is known written to a file, where tuning is off
    (ACCELRT_TUNABLE_RECORD_UNTUNED); tune_in_file reads it.

    Arguments:
        val: bool.
    """
    change("RECORD_UNTUNED", bool(val))


def record_untuned_is_enabled() -> bool:
    """Tells whether arguments of which no result is known are written to a file."""
    return bool(values["RECORD_UNTUNED"])


def set_max_tuning_duration(duration: int) -> None:
    """Limits for how long a candidate is timed, but for one call.

    Arguments:
        duration: int, milliseconds; 0 is without limit.
    Raises:
        TypeError, ValueError: it is no int from 0 to 2**31 - 1.
    """
    change("MAX_TUNING_DURATION_MS", count(duration, "duration"))


def get_max_tuning_duration() -> int:
    """Returns the most milliseconds for which one candidate is timed; 0 is without limit."""
    return int(values["MAX_TUNING_DURATION_MS"])


def set_max_tuning_iterations(iterations: int) -> None:
    """Limits how often one candidate is timed.

    Arguments:
        iterations: int, 0 leaves it to the duration, and without one is 100.
    Raises:
        TypeError, ValueError: it is no int from 0 to 2**31 - 1.
    """
    change("MAX_TUNING_ITERATIONS", count(iterations, "iterations"))


def get_max_tuning_iterations() -> int:
    """Returns how often one candidate is timed at most."""
    return int(values["MAX_TUNING_ITERATIONS"])


def set_max_warmup_duration(duration: int) -> None:
    """Limits for how long a candidate runs before it is timed.

    Arguments:
        duration: int, milliseconds; 0 leaves it to the iterations.
    Raises:
        TypeError, ValueError: it is no int from 0 to 2**31 - 1.
    """
    change("MAX_WARMUP_DURATION_MS", count(duration, "duration"))


def get_max_warmup_duration() -> int:
    """Returns the most milliseconds for which a candidate runs before it is timed."""
    return int(values["MAX_WARMUP_DURATION_MS"])


def set_max_warmup_iterations(iterations: int) -> None:
    """Limits how often a candidate runs before it is timed.

    Arguments:
        iterations: int, 0 leaves it to the duration.
    Raises:
        TypeError, ValueError: it is no int from 0 to 2**31 - 1.
    """
    change("MAX_WARMUP_ITERATIONS", count(iterations, "iterations"))


def get_max_warmup_iterations() -> int:
    """Returns how often a candidate runs at most before it is timed."""
    return int(values["MAX_WARMUP_ITERATIONS"])


def set_rotating_buffer_size(buffer_size: int) -> None:
    """Sets how much the copies of the arguments fill together, which a candidate gets in turn as it is timed.

    Arguments:
        buffer_size: int, MiB; below 0 as many as the device's L2 cache, so that no call finds its arguments
            there; 0 is a single copy.
    Raises:
        TypeError, ValueError: it is no int below 2**31.
    """
    change(
        "ROTATING_BUFFER_SIZE", -1 if operator.index(buffer_size) < 0 else count(buffer_size, "buffer_size")
    )


def get_rotating_buffer_size() -> int:
    """Returns how many bytes the copies of the arguments fill together, on the current device."""
    size = int(values["ROTATING_BUFFER_SIZE"])
    return get_device_properties().L2_cache_size if size < 0 else size * MIB


def l2_flush_enable(val: bool = True) -> None:
    """Has the L2 cache overwritten before each call that is timed; off at first.

    Arguments:
        val: bool.
    """
    change("CACHE_FLUSH", bool(val))


def l2_flush_is_enabled() -> bool:
    """Tells whether the L2 cache is overwritten before each call that is timed."""
    return bool(values["CACHE_FLUSH"])


def set_numerical_check_tolerances(enable: bool, atol: float = 1e-5, rtol: float = 1e-5) -> None:
    """Has a candidate's results compared with the default's, and sets how near they have to be.

    Arguments:
        enable: bool; off at first (ACCELRT_TUNABLE_NUMERICAL_CHECK).
        atol, rtol: float, from 0 on: |default - candidate| <= atol + rtol * |default|.
    Raises:
        ValueError: a tolerance is below 0 or no number.
    """
    for name, value in (("atol", atol), ("rtol", rtol)):
        if not 0 <= value < float("inf"):
            raise ValueError(f"{name} is {value!r}; it is a number from 0 on")
    change("NUMERICAL_CHECK", Tolerances(float(atol), float(rtol)) if enable else None)


def get_numerical_check_tolerances() -> Tolerances | None:
    """Returns the tolerances of the numerical check; None where it is off."""
    tolerances: Tolerances | None = values["NUMERICAL_CHECK"]
    return tolerances
