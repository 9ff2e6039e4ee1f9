"""torch's settings of its allocator, put into force on accelrt's as long as that is torch's allocator: the
keys that mean the same in both, and limits.  Keys that ACCELRT_ALLOC_CONF names are accelrt's alone."""

from __future__ import annotations

import warnings

from accelrt.allocator.settings.apply import set_allocator_settings
from accelrt.core.process import ForkSafeLock
from accelrt.errors import SettingsError
from accelrt.memory import caching

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

FRACTION = "per_process_memory_fraction"  # torch reads it once, as it initialises CUDA
KEYS = ("roundup_power2_divisions", "garbage_collection_threshold")
SETTERS = ("_accelerator_setAllocatorSettings", "_cuda_cudaCachingAllocator_set_allocator_settings")
# No pool of torch's has this id, so that a snapshot of it lists no memory.  torch drops a reference too many
# of both numbers, so they are some that Python keeps.
NO_POOL = (1, 1)

_turn = ForkSafeLock()
_followed: set[str] = set()  # keys that are in force on accelrt because torch's settings name them
_share = 1.0  # of each device's memory, to be reserved at most once torch has initialised CUDA


def text_in_force(torch: ModuleType) -> str:
    """Returns torch's settings string; "" where torch refuses it, which it says at its first use of CUDA."""
    try:
        return str(torch._C._cuda_memorySnapshot(NO_POOL)["allocator_settings"]["PYTORCH_CUDA_ALLOC_CONF"])
    except (RuntimeError, ValueError, AttributeError, KeyError):
        return ""  # a plugged allocator, or a build without it, tells nothing


def limits(torch: ModuleType) -> dict[int, float]:
    """Returns the part of each device's memory that torch's present allocator may reserve, where it is less
    than all; {} before torch initialised CUDA."""
    if not torch.cuda.is_initialized():
        return {}
    shares = {}
    for device in range(torch.cuda.device_count()):
        try:
            shares[device] = torch.cuda.get_per_process_memory_fraction(device)
        except RuntimeError:  # a plugged allocator tells nothing
            return {}
    return {device: share for device, share in shares.items() if share < 1}


def begin(torch: ModuleType, text: str, shares: dict[int, float]) -> None:
    """Puts into force what torch's settings string says and its limits, as accelrt becomes its allocator."""
    global _share
    follow(text)
    for device, share in shares.items():
        caching.set_per_process_memory_fraction(share, device)
    if not torch.cuda.is_initialized():
        _share = float(named_in(text).get(FRACTION, 1))


def named_in(text: str) -> dict[str, str]:
    """Returns the values of the keys that a settings string of torch's names, without those of
    ACCELRT_ALLOC_CONF."""
    from accelrt.allocator.settings.settings import from_environment, items

    own = from_environment().named
    pairs = (item.partition(":") for item in items(text))
    return {name.strip(): value.strip() for name, _, value in pairs if name.strip() not in own}


def follow(text: str) -> None:
    """Has accelrt's settings follow torch's: KEYS that the text names, and no longer those that an earlier
    text named."""
    named = named_in(text)
    with _turn:
        followed = {key: named[key] for key in KEYS if key in named}
        gone = dict.fromkeys(_followed - followed.keys(), "default")
        if not followed and not gone:
            return
        try:
            set_allocator_settings(",".join(f"{key}:{value}" for key, value in (followed | gone).items()))
        except SettingsError as error:
            warnings.warn(
                f"accelrt, torch's allocator here, does not follow torch's settings {text!r}: {error}",
                RuntimeWarning,
                stacklevel=3,
            )
            return
        _followed.difference_update(gone)
        _followed.update(followed)


def end() -> None:
    """Takes back what torch's settings put into force, as accelrt is torch's allocator no longer."""
    global _share
    follow("")
    _share = 1.0


def functions(torch: ModuleType) -> list[tuple[Any, str, Any]]:
    """Returns what sets torch's settings, so that accelrt's follow: (module, name, function) each."""

    def followed(theirs: Callable[[str], None]) -> Callable[[str], None]:
        def set_settings(text: str) -> None:
            theirs(text)
            follow(text)

        return set_settings

    return [
        (torch._C, name, followed(getattr(torch._C, name))) for name in SETTERS if hasattr(torch._C, name)
    ]


def limit_devices(count: int) -> None:
    """Sets the limits that hold from the first use on, as torch initialises CUDA; what torch reads is the
    limit of a pool that is made."""
    from accelrt.allocator.settings.apply import present

    for device in range(count):
        if _share < 1:
            caching.set_per_process_memory_fraction(_share, device)
        elif present().per_process_memory_fraction < 1:
            caching.get_per_process_memory_fraction(device)
