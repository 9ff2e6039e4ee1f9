"""The settings string put into force: ACCELRT_ALLOC_CONF at first use, set_allocator_settings at any time."""

from accelrt import env
from accelrt.allocator.external.external_pool import choose_by_name
from accelrt.allocator.pinned.cache import change_pinned, pinned_settings
from accelrt.allocator.pool import any_made, want_level, want_settings
from accelrt.driver.registry import driver_name
from accelrt.errors import SettingsError

TYPE_CHECKING = False  # typing's, which takes long to import
if TYPE_CHECKING:
    from typing import Any

    from accelrt.allocator.settings.settings import Settings
    from accelrt.allocator.settings.typed import AllocatorSettings

NO_LIMIT = (1 << 64) - 1  # SIZE_MAX
UNCHANGED: "Any" = object()

_in_force: "Settings | None" = None  # None before the environment was read


def pool_values(settings: "Settings") -> "dict[str, Any]":
    """The fields of PoolSettings: the settings count classes of divisions from 1 MiB up, the pools' powers of
    two from 1 byte up; what is below 0 is no limit."""
    from accelrt.allocator.settings.keys import KEYS

    divisions = settings.roundup_power2_divisions
    classes = [divisions[min(max(power - 20, 0), len(divisions) - 1)] for power in range(64)]
    values = {"rounds": max(divisions) > 1, "divisions": classes}
    for key in KEYS.values():
        if key.field:
            value = getattr(settings, key.attribute)
            values[key.field] = NO_LIMIT if type(value) is int and value < 0 else value
    return values


def pinned_values(settings: "Settings") -> dict[str, object]:
    round_limit, cache_limit = settings.pinned_max_round_threshold, settings.pinned_max_cached_size
    return {
        "pinned_use_cuda_host_register": settings.pinned_use_cuda_host_register,
        "pinned_num_register_threads": settings.pinned_num_register_threads,
        "pinned_use_background_threads": settings.pinned_use_background_threads,
        "pinned_max_round_threshold_mb": None if round_limit < 0 else round_limit >> 20,
        "pinned_max_cached_size_mb": None if cache_limit < 0 else cache_limit >> 20,
        "pinned_reserve_segment_size_mb": settings.pinned_reserve_segment_size >> 20,
    }


def put_in_force(settings: "Settings", keys: tuple[str, ...], source: str) -> None:
    """Puts settings into force of which a call names the keys: what other calls set since stays."""
    global _in_force
    if settings.graph_capture_record_stream_reuse:
        raise SettingsError(
            f"{source}: graph_capture_record_stream_reuse is True; it may be False: memory that other "
            "streams used during a capture is not used again before the capture ends",
            ("graph_capture_record_stream_reuse",),
        )
    values = pool_values(settings)
    if "backend" in keys:
        choose_by_name(settings.backend, source)
    change_pinned({key: value for key, value in pinned_values(settings).items() if key in keys})
    want_settings(values, True, "per_process_memory_fraction" in keys)
    _in_force = settings


def read_environment() -> None:
    """Puts ACCELRT_ALLOC_CONF and ACCELRT_DEBUG into force; for the first use of a device, before a pool is
    made.

    Raises:
        SettingsError, ValueError: a text is malformed; the message names it, and what is allowed.
    """
    from accelrt.allocator.settings.settings import VARIABLE, from_environment

    want_level(env.value("ACCELRT_DEBUG"))
    if _in_force is None:
        settings = from_environment()
        if settings.named:
            put_in_force(settings, settings.named, VARIABLE)
        else:
            want_settings(pool_values(settings))


def backend_to_come() -> str | None:
    """The backend that ACCELRT_ALLOC_CONF will choose at first use; None where it chooses none, or did
    already."""
    from accelrt.allocator.settings.settings import from_environment

    if _in_force is not None or driver_name() != "sentinel":
        return None
    settings = from_environment()
    return str(settings.backend) if "backend" in settings.named else None


def present() -> "Settings":
    from accelrt.allocator.settings.settings import from_environment

    return from_environment() if _in_force is None else _in_force


def set_allocator_settings(settings: "str | AllocatorSettings") -> None:
    """Replaces the keys that settings name, "key:value,key:value", and leaves the others as they are.

    Arguments:
        settings: AllocatorSettings, or str in the syntax of ACCELRT_ALLOC_CONF; the keys are in
            docs/reference/settings.md, as in torch's PYTORCH_ALLOC_CONF.
    Raises:
        SettingsError: an unknown key, a bad value, two keys that contradict, or a key that is fixed once
            memory was allocated (backend, expandable_segments, piece_size_mb); nothing is changed then.
        TypeError: settings is neither.
    """
    from accelrt.allocator.settings.settings import keys_in, merge

    text = settings if isinstance(settings, str) else text_of_settings(settings)
    read_environment()
    merged = merge(present(), text, used=any_made())
    put_in_force(merged, keys_in(text, "set_allocator_settings"), "set_allocator_settings")


def text_of_settings(settings: object) -> str:
    from accelrt.allocator.settings.typed import AllocatorSettings

    if isinstance(settings, AllocatorSettings):
        return settings.text
    raise TypeError(
        f"settings is {settings!r} of type {type(settings).__name__}; pass 'key:value,key:value' or "
        "AllocatorSettings"
    )


def settings_in_force() -> "AllocatorSettings":
    """Reads back the settings in force, each key as an attribute; before the first use those of
    ACCELRT_ALLOC_CONF.

    Returns:
        AllocatorSettings, of what set_allocator_settings and configure_pinned set since too.  What
        set_per_process_memory_fraction set is of its device, and not among them.
    Raises:
        SettingsError: ACCELRT_ALLOC_CONF, which is not in force yet, is malformed.
    """
    from accelrt.allocator.settings.typed import AllocatorSettings, with_values

    settings = AllocatorSettings.parse(present().text)
    return settings if _in_force is None else with_values(settings, pinned_settings())


def allocator_settings() -> dict[str, object]:
    """Returns the settings in force, with the keys that torch's snapshots give them ("allocator_settings").

    Returns:
        dict; sizes in bytes, and "text", the settings string that says the same.
    """
    settings = present()
    described: dict[str, object] = settings.describe()
    pinned = pinned_settings()  # configure_pinned may have set others since
    if _in_force is not None:
        described |= {key: pinned[key] for key in described.keys() & pinned.keys()}
    return {**described, "text": settings.text}


def configure_pinned(
    *,
    pinned_use_cuda_host_register: bool = UNCHANGED,
    pinned_num_register_threads: int = UNCHANGED,
    pinned_max_round_threshold_mb: int | None = UNCHANGED,
    pinned_max_cached_size_mb: int | None = UNCHANGED,
    pinned_use_background_threads: bool = UNCHANGED,
    pinned_reserve_segment_size_mb: int = UNCHANGED,
) -> None:
    """Sets what is given and leaves the rest; the memory that is cached already stays as it is.

    Arguments:
        pinned_use_cuda_host_register: bool (False), take memory of the operating system's and register it
            (cuMemHostRegister) instead of the driver's own (cuMemHostAlloc): it comes several times as fast,
            in huge pages where the system has them, but a fork copies it for the child.
        pinned_num_register_threads: int, a power of two from 1 to 128 (1), threads that touch the pages of
            memory to be registered; 1 is as many as help, one for 4 MiB and one a processor, 16 at most.
        pinned_max_round_threshold_mb: int, MiB, or None for no limit (None): larger requests are rounded up
            to whole pages only.
        pinned_max_cached_size_mb: int, MiB, or None for no limit (None): larger requests are taken from the
            driver each time and go back at once when they are freed.
        pinned_use_background_threads: bool (False), a thread looks for memory that no stream uses any more,
            so that allocations need not.
        pinned_reserve_segment_size_mb: int, MiB (0): so much is taken from the driver at once, at the next
            miss, and what is cached comes from it until it is used up; it is kept as long as the process.
            A reserve that is there stays as it is.
    Raises:
        TypeError, ValueError: a value is of the wrong kind or out of range; then nothing is changed.
    """
    named = {
        "pinned_use_cuda_host_register": pinned_use_cuda_host_register,
        "pinned_num_register_threads": pinned_num_register_threads,
        "pinned_max_round_threshold_mb": pinned_max_round_threshold_mb,
        "pinned_max_cached_size_mb": pinned_max_cached_size_mb,
        "pinned_use_background_threads": pinned_use_background_threads,
        "pinned_reserve_segment_size_mb": pinned_reserve_segment_size_mb,
    }
    read_environment()  # first, so that it does not replace at first use what is set here
    change_pinned({name: value for name, value in named.items() if value is not UNCHANGED})
