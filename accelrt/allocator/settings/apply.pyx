"""The settings string put into force: ACCELRT_ALLOC_CONF at first use, set_allocator_settings at any time."""
from libc.stdint cimport SIZE_MAX

from accelrt.core.integers cimport exact_int
from accelrt.core.process import call_at_exit
from accelrt.errors import SettingsError
from accelrt.allocator.pool cimport (
    MAX_DEVICES, pool_if_made, replace_settings, want_level, want_settings,
)
from accelrt.allocator.heaps cimport lock_all, unlock_all
from accelrt.allocator.pool_settings cimport PoolSettings, limit_of_fraction
from accelrt.allocator.types cimport Pool
from accelrt.allocator.external.external_pool cimport choose, chosen_backend, cuda_malloc_async_backend
from accelrt.allocator.external.external_types cimport Backend
from accelrt.allocator.pinned.block cimport PinnedSettings
from accelrt.allocator.pinned.cache cimport close_pinned, read_pinned_settings, set_pinned_settings

MAX_REGISTER_THREADS = 128
UNCHANGED = object()

# stub: MAX_REGISTER_THREADS: int
# stub: UNCHANGED: object

cdef object in_force = None  # Settings; None before the environment was read


cdef PoolSettings pool_settings_from(object settings) except *:
    # The settings count classes of divisions from 1 MiB up, the wanted powers of two from 1 byte up; what is below 0 is
    # no limit.
    from accelrt.allocator.settings.keys import KEYS

    cdef tuple divisions = settings.roundup_power2_divisions
    cdef dict values = {"rounds": max(divisions) > 1}
    values["divisions"] = [divisions[min(max(power - 20, 0), len(divisions) - 1)] for power in range(64)]
    for key in KEYS.values():
        if key.field:
            value = getattr(settings, key.attribute)
            values[key.field] = SIZE_MAX if type(value) is int and value < 0 else value
    return values


cdef void update_pool(Pool* pool, const PoolSettings* wanted, bint limits) noexcept nogil:
    cdef size_t total = 0
    lock_all(pool)
    replace_settings(pool, wanted)
    if limits and pool.table.device_memory(pool.device, &total) == 0:
        pool.limit = limit_of_fraction(wanted.fraction, total)
    unlock_all(pool, NULL)


cdef bint any_made() noexcept:
    cdef int device
    for device in range(MAX_DEVICES):
        if pool_if_made(device) != NULL:
            return True
    return False


cdef str backend_name():
    cdef const Backend* backend
    with nogil:
        backend = chosen_backend()
    return "native" if backend == NULL else backend.name.decode()


cdef int choose_backend(const Backend* backend, str call) except -1:
    cdef int code
    with nogil:
        code = choose(backend)
    if code:
        raise RuntimeError(
            f"{call}: memory of a device is in use already, from the backend {backend_name()!r}; call it before the "
            "first allocation, buffer, capture, or limit of the process, or set ACCELRT_ALLOC_CONF=backend:... "
            "in the environment"
        )
    return 0


cdef bint checked_switch(object value, str name) except -1:
    if not isinstance(value, bool):
        raise TypeError(f"{name} is {value!r} of type {type(value).__name__}; pass True or False")
    return value


cdef size_t checked_limit(object value, str name) except? 0:
    if value is None:
        return SIZE_MAX
    value = exact_int(value, name, "MiB as int, or None for no limit")
    if not 0 <= value < 1 << 40:
        raise ValueError(f"{name} is {value}; it goes from 0 to 2**40 - 1 MiB, or is None for no limit")
    return value << 20


cdef int checked_threads(object value) except -1:
    value = exact_int(value, "pinned_num_register_threads", "an int")
    if not 1 <= value <= MAX_REGISTER_THREADS or value & value - 1:
        raise ValueError(f"pinned_num_register_threads is {value}; it is a power of two from 1 to {MAX_REGISTER_THREADS}")
    return value


cdef int change_pinned(dict values) except -1:
    # All are checked before any takes effect.
    cdef PinnedSettings settings = read_pinned_settings()
    for name, value in values.items():
        if name == "pinned_use_cuda_host_register":
            settings.use_register = checked_switch(value, name)
        elif name == "pinned_num_register_threads":
            settings.register_threads = checked_threads(value)
        elif name == "pinned_max_round_threshold_mb":
            settings.round_limit = checked_limit(value, name)
        elif name == "pinned_max_cached_size_mb":
            settings.cache_limit = checked_limit(value, name)
        else:
            settings.background = checked_switch(value, name)
    with nogil:
        set_pinned_settings(settings)
    return 0


cdef int put_in_force(object settings, tuple keys, str source) except -1:
    # keys are those that this call names: what other calls set since stays, unless it is named again.
    global in_force
    cdef PoolSettings wanted
    cdef Pool* pool
    cdef int device
    cdef bint limits = "per_process_memory_fraction" in keys
    if settings.graph_capture_record_stream_reuse:
        raise SettingsError(
            f"{source}: graph_capture_record_stream_reuse is True; it may be False: memory that other streams used "
            "during a capture is not used again before the capture ends",
            ("graph_capture_record_stream_reuse",),
        )
    wanted = pool_settings_from(settings)
    if "backend" in keys:
        choose_backend(cuda_malloc_async_backend() if settings.backend == "cudaMallocAsync" else NULL, source)
    change_pinned({key: value for key, value in pinned_keys(settings).items() if key in keys})
    with nogil:
        want_settings(&wanted)
        for device in range(MAX_DEVICES):
            pool = pool_if_made(device)
            if pool != NULL:
                update_pool(pool, &wanted, limits)
    in_force = settings


cdef dict pinned_keys(object settings):
    cdef object round_limit = settings.pinned_max_round_threshold
    cdef object cached = settings.pinned_max_cached_size
    return {
        "pinned_use_cuda_host_register": settings.pinned_use_cuda_host_register,
        "pinned_num_register_threads": settings.pinned_num_register_threads,
        "pinned_use_background_threads": settings.pinned_use_background_threads,
        "pinned_max_round_threshold_mb": None if round_limit < 0 else round_limit >> 20,
        "pinned_max_cached_size_mb": None if cached < 0 else cached >> 20,
    }


def read_environment() -> None:
    """Puts ACCELRT_ALLOC_CONF and ACCELRT_DEBUG into force; for the first use of a device, before a pool is made.

    Raises:
        SettingsError, ValueError: a text is malformed; the message names it, and what is allowed.
    """
    from accelrt import env
    from accelrt.allocator.settings.settings import from_environment

    cdef int level = env.value("ACCELRT_DEBUG")
    cdef PoolSettings wanted
    with nogil:
        want_level(level)
    if in_force is None:
        settings = from_environment()
        if settings.named:
            put_in_force(settings, settings.named, "ACCELRT_ALLOC_CONF")
        else:
            wanted = pool_settings_from(settings)
            with nogil:
                want_settings(&wanted)


def backend_to_come() -> str | None:
    """The backend that ACCELRT_ALLOC_CONF will choose at first use; None where it chooses none, or did already."""
    from accelrt.driver.registry import driver_name
    from accelrt.allocator.settings.settings import from_environment

    if in_force is not None or driver_name() != "sentinel":
        return None
    settings = from_environment()
    return settings.backend if "backend" in settings.named else None


cdef object present():
    from accelrt.allocator.settings.settings import from_environment

    return from_environment() if in_force is None else in_force


def set_allocator_settings(settings: str) -> None:
    """Replaces the keys that a text names, "key:value,key:value", and leaves the others as they are.

    Arguments:
        settings: str, in the syntax of ACCELRT_ALLOC_CONF; the keys are in
            accelrt/allocator/settings/DESIGN.md, as in torch.cuda.memory's PYTORCH_CUDA_ALLOC_CONF.
    Raises:
        SettingsError: an unknown key, a bad value, two keys that contradict, or a key that is fixed once
            memory was allocated (backend, expandable_segments, piece_size_mb); nothing is changed then.
        TypeError: settings is no str.
    """
    from accelrt.allocator.settings.settings import keys_in, merge

    if not isinstance(settings, str):
        raise TypeError(f"settings is {settings!r} of type {type(settings).__name__}; pass 'key:value,key:value'")
    read_environment()
    merged = merge(present(), settings, used=any_made())
    put_in_force(merged, keys_in(settings, "set_allocator_settings"), "set_allocator_settings")


def allocator_settings() -> dict[str, object]:
    """The settings in force, with the keys that torch's snapshots give them ("allocator_settings").

    Returns:
        dict; sizes in bytes, and "text", the settings string that says the same.
    """
    settings = present()
    described = settings.describe()
    pinned = pinned_settings()  # configure_pinned may have set others since
    if in_force is not None:
        described |= {key: pinned[key] for key in described.keys() & pinned.keys()}
    return {**described, "text": settings.text}


def configure_pinned(
    *, pinned_use_cuda_host_register: bool = UNCHANGED, pinned_num_register_threads: int = UNCHANGED,
    pinned_max_round_threshold_mb: int | None = UNCHANGED, pinned_max_cached_size_mb: int | None = UNCHANGED,
    pinned_use_background_threads: bool = UNCHANGED,
) -> None:
    """Sets what is given and leaves the rest; the memory that is cached already stays as it is.

    Arguments:
        pinned_use_cuda_host_register: bool (False), take memory of the operating system's and register it
            (cuMemHostRegister) instead of the driver's own (cuMemHostAlloc).
        pinned_num_register_threads: int, a power of two from 1 to 128 (1), threads that touch the pages of memory to be
            registered.
        pinned_max_round_threshold_mb: int, MiB, or None for no limit (None): larger requests are rounded up to whole
            pages only.
        pinned_max_cached_size_mb: int, MiB, or None for no limit (None): larger requests are taken from the driver
            each time and go back at once when they are freed.
        pinned_use_background_threads: bool (False), a thread looks for memory that no stream uses any more, so that
            allocations need not.
    Raises:
        TypeError, ValueError: a value is of the wrong kind or out of range; then nothing is changed.
    """
    read_environment()  # first, so that it does not replace at first use what is set here
    change_pinned({name: value for name, value in (
        ("pinned_use_cuda_host_register", pinned_use_cuda_host_register),
        ("pinned_num_register_threads", pinned_num_register_threads),
        ("pinned_max_round_threshold_mb", pinned_max_round_threshold_mb),
        ("pinned_max_cached_size_mb", pinned_max_cached_size_mb),
        ("pinned_use_background_threads", pinned_use_background_threads),
    ) if value is not UNCHANGED})


cdef object in_mib(size_t limit):
    return None if limit == SIZE_MAX else limit >> 20


def pinned_settings() -> dict[str, int | None]:
    """What configure_pinned set, or the defaults: name -> value, as dict."""
    cdef PinnedSettings settings = read_pinned_settings()
    return {
        "pinned_use_cuda_host_register": bool(settings.use_register),
        "pinned_num_register_threads": settings.register_threads,
        "pinned_max_round_threshold_mb": in_mib(settings.round_limit),
        "pinned_max_cached_size_mb": in_mib(settings.cache_limit),
        "pinned_use_background_threads": bool(settings.background),
    }


def close() -> None:
    """Before the driver is closed: ends the thread that polls for page-locked memory; none is started any more."""
    with nogil:
        close_pinned()


call_at_exit("allocator.settings.apply", "pools", close)
