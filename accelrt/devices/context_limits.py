"""Limits of a device's context: stacks, printf, the heap of kernels, the persisting L2 cache."""

from __future__ import annotations

from accelrt.core.arguments import checked_number, checked_word
from accelrt.devices.attributes import ATTRIBUTES
from accelrt.devices.device import device_ordinal
from accelrt.driver.registry import Rows
from accelrt.status import status_error

TYPE_CHECKING = False  # typing's, which takes long to import
if TYPE_CHECKING:
    from accelrt.annotations import DeviceArgument

# CUlimit (CUDA driver API, "Data types used by CUDA driver"): the names without their prefix, in lower case.
NAMES = """
    stack_size printf_fifo_size malloc_heap_size dev_runtime_sync_depth dev_runtime_pending_launch_count
    max_l2_fetch_granularity persisting_l2_cache_size shmem_size cig_enabled cig_shmem_fallback_enabled
"""
LIMITS = {name: number for number, name in enumerate(NAMES.split())}
USUAL_STACK = 1024  # bytes of a thread's stack in a new context
NOT_SUPPORTED, UNSUPPORTED_LIMIT, INVALID_VALUE = 801, 215, 1
NO_LIMITS = "this device's driver has no such limit"


def get_limit(limit: str, device: DeviceArgument | None = None) -> int:
    """Returns a limit of a device's context (cuCtxGetLimit).

    Arguments:
        limit: "stack_size", bytes of each GPU thread's stack, of which the context has one for every thread
            that its device can run at once; "printf_fifo_size", bytes of the buffer that
            kernels print into; "malloc_heap_size", bytes that kernels may allocate; "dev_runtime_sync_depth"
            and "dev_runtime_pending_launch_count", of launches by kernels; "max_l2_fetch_granularity", bytes
            that the L2 cache fetches at once, 0 to 128; "persisting_l2_cache_size", bytes of it that access
            policy windows may use; "shmem_size", "cig_enabled", "cig_shmem_fallback_enabled", of contexts
            shared with graphics.
        device: int, "cuda:1", ...; None is the current one.
    Returns:
        int.
    Raises:
        ValueError, TypeError: no such limit.
        NotSupportedError: the device has no such limit.

    The host device keeps those of stacks, printf, the heap, pending launches and fetches as a GPU does, and
    counts the memory of stacks beyond a new context's; its kernels have the host's own.
    """
    number, ordinal = LIMITS[checked_word(limit, "limit", LIMITS)], device_ordinal(device)
    code, value = Rows().limit_get(ordinal, number)
    if code:
        raise refusal(code, "limit_get", ("device", ordinal, "limit", limit))
    return int(value)


def set_limit(limit: str, value: int, device: DeviceArgument | None = None) -> int:
    """Sets a limit of a device's context, for all of the process that uses the device (cuCtxSetLimit).

    Arguments:
        limit, device: as of get_limit.
        value: int, from 0 on.  A smaller "stack_size" gives the device memory back; the driver raises it
            again when a kernel is launched that is known to need more, which recursion and calls by pointer
            hide.  Set it back before graphs are replayed that were instantiated before: where the device has
            no memory for their stacks, they fail, and the context is lost.  "malloc_heap_size" and
            "printf_fifo_size" cannot be set any more once a kernel that allocates or prints was launched.
    Returns:
        int, the limit that holds now: the driver rounds, and keeps within what the device has.
    Raises:
        ValueError, TypeError: no such limit, or no such value.
        NotSupportedError: the device has no such limit.
        CudaError: the driver refused.
    """
    number, ordinal = LIMITS[checked_word(limit, "limit", LIMITS)], device_ordinal(device)
    number_of_units = checked_number(value, "value", 0, (1 << 64) - 1)
    code = Rows().limit_set(ordinal, number, number_of_units)
    if code:
        raise refusal(code, "limit_set", ("device", ordinal, "limit", limit, "value", number_of_units))
    return get_limit(limit, ordinal)


def reset_persisting_l2_cache(device: DeviceArgument | None = None) -> None:
    """Makes the lines that a device's L2 cache keeps as persisting normal ones (cuCtxResetPersistingL2Cache).

    Arguments:
        device: int, "cuda:1", ...; None is the current one.
    Raises:
        NotSupportedError: the device has no persisting L2 cache, as the host device has none.
    """
    ordinal = device_ordinal(device)
    code = Rows().l2_reset(ordinal)
    if code:
        meaning = "this device keeps no persisting lines in an L2 cache" if code == NOT_SUPPORTED else ""
        raise status_error(code, "l2_reset", ("device", ordinal), meaning)


def thread_stacks(ordinal: int) -> tuple[int, int]:
    """Returns (bytes of a GPU thread's stack, how many a device's context has): one for each thread that it
    can run at once.
    """
    rows = Rows()
    _, each = rows.limit_get(ordinal, LIMITS["stack_size"])
    _, processors = rows.device_attribute(ordinal, ATTRIBUTES["multiprocessor_count"])
    _, threads = rows.device_attribute(ordinal, ATTRIBUTES["max_threads_per_multiprocessor"])
    return each, processors * threads


def refusal(code: int, row: str, arguments: tuple[object, ...]) -> Exception:
    if code in (NOT_SUPPORTED, UNSUPPORTED_LIMIT):
        return status_error(NOT_SUPPORTED, row, arguments, NO_LIMITS)
    return status_error(code, row, arguments)
