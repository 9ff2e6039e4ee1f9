"""The settings string put into force: ACCELRT_ALLOC_CONF at first use, set_allocator_settings at any time."""
from libc.stdint cimport SIZE_MAX
from libc.string cimport memset

from accelrt.errors import SettingsError
from accelrt.memory.policy cimport replace_policy
from accelrt.memory.pool cimport MAX_DEVICES, pool_if_made, want_level, want_policy
from accelrt.memory.state cimport Pool
from accelrt.memory.terms cimport Policy
from accelrt.memory.world cimport enter, leave

cdef object in_force = None  # Settings; None before the environment was read
cdef bint is_putting = False  # select_backend and configure_pinned are called from here, by no user


cdef size_t limit_from(object value):
    return SIZE_MAX if value < 0 else value


cdef void set_divisions(Policy* policy, tuple divisions) except *:
    # The settings count classes from 1 MiB up, the policy powers of two from 1 byte up.
    cdef int power
    for power in range(64):
        policy.divisions[power] = divisions[min(max(power - 20, 0), len(divisions) - 1)]
    policy.rounds = max(divisions) > 1


cdef Policy policy_from(object settings) except *:
    cdef Policy policy
    memset(&policy, 0, sizeof(policy))
    policy.virtual_memory = settings.expandable_segments
    policy.stitching = settings.stitching
    policy.slack = settings.growth_slack
    policy.piece = settings.piece_size
    policy.max_split = limit_from(settings.max_split_size)
    policy.large_segment = settings.large_segment_size
    policy.max_rounding = settings.max_non_split_rounding_size
    policy.collect = settings.garbage_collection_threshold
    policy.fraction = settings.per_process_memory_fraction
    set_divisions(&policy, settings.roundup_power2_divisions)
    return policy


cdef void update_pool(Pool* pool, const Policy* policy, bint limits) noexcept nogil:
    cdef size_t total = 0
    enter(pool)
    replace_policy(pool, policy)
    if limits and pool.table.device_memory(pool.device, &total) == 0:
        pool.limit = SIZE_MAX if policy.fraction == 1 else <size_t>(policy.fraction * total)
    leave(pool, NULL)


cdef bint any_made() noexcept:
    cdef int device
    for device in range(MAX_DEVICES):
        if pool_if_made(device) != NULL:
            return True
    return False


cdef int put_in_force(object settings, tuple keys, str source) except -1:
    # keys are those that this call names: what other calls set since stays, unless it is named again.
    global in_force, is_putting
    cdef Policy policy
    cdef int device
    cdef bint limits = "per_process_memory_fraction" in keys
    if settings.graph_capture_record_stream_reuse:
        raise SettingsError(
            f"{source}: graph_capture_record_stream_reuse is True; it may be False: memory that other streams used "
            "during a capture is not used again before the capture ends",
            ("graph_capture_record_stream_reuse",),
        )
    from accelrt.memory.backend import select_backend
    from accelrt.pinned import configure_pinned

    policy = policy_from(settings)
    is_putting = True
    try:
        if "backend" in keys:
            select_backend(settings.backend)
        configure_pinned(**{key: value for key, value in pinned_keys(settings).items() if key in keys})
    finally:
        is_putting = False
    with nogil:
        want_policy(&policy)
    for device in range(MAX_DEVICES):
        if pool_if_made(device) != NULL:
            update_pool(pool_if_made(device), &policy, limits)
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


def read_environment():
    """Puts ACCELRT_ALLOC_CONF and ACCELRT_DEBUG into force; for the first use of a device, before a pool is made.

    Raises:
        SettingsError, ValueError: a text is malformed; the message names it, and what is allowed.
    """
    from accelrt import env
    from accelrt.memory.settings import from_environment

    cdef int level = env.value("ACCELRT_DEBUG")
    with nogil:
        want_level(level)
    if in_force is None and not is_putting:
        settings = from_environment()
        if settings.named:
            put_in_force(settings, settings.named, "ACCELRT_ALLOC_CONF")


def backend_to_come():
    """The backend that ACCELRT_ALLOC_CONF will choose at first use; None where it chooses none, or did already."""
    from accelrt.driver.registry import driver_name
    from accelrt.memory.settings import from_environment

    if in_force is not None or driver_name() != "sentinel":
        return None
    settings = from_environment()
    return settings.backend if "backend" in settings.named else None


cdef object present():
    from accelrt.memory.settings import from_environment

    return from_environment() if in_force is None else in_force


def set_allocator_settings(settings):
    """Replaces the keys that a text names, "key:value,key:value", and leaves the others as they are.

    Arguments:
        settings: str, in the syntax of ACCELRT_ALLOC_CONF; the keys are in accelrt/memory/DESIGN.md, as in
            torch.cuda.memory's PYTORCH_CUDA_ALLOC_CONF.
    Raises:
        SettingsError: an unknown key, a bad value, two keys that contradict, or a key that is fixed once
            memory was allocated (backend, expandable_segments, piece_size_mb); nothing is changed then.
        TypeError: settings is no str.
    """
    from accelrt.memory.settings import keys_in, merge

    if not isinstance(settings, str):
        raise TypeError(f"settings is {settings!r} of type {type(settings).__name__}; pass 'key:value,key:value'")
    read_environment()
    merged = merge(present(), settings, used=any_made())
    put_in_force(merged, keys_in(settings, "set_allocator_settings"), "set_allocator_settings")


def allocator_settings():
    """The settings in force, with the keys that torch's snapshots give them ("allocator_settings").

    Returns:
        dict; sizes in bytes, and "text", the settings string that says the same.
    """
    from accelrt.pinned import pinned_settings

    settings = present()
    described = settings.describe()
    pinned = pinned_settings()  # configure_pinned may have set others since
    if in_force is not None:
        described |= {key: pinned[key] for key in described.keys() & pinned.keys()}
    return {**described, "text": settings.text}
