"""The figures of a kernel, and what the driver is told of it before a launch."""

from __future__ import annotations

from collections import namedtuple

from accelrt.core.arguments import checked_number
from accelrt.driver.registry import Rows
from accelrt.kernels.limits import explain_refusal
from accelrt.status import status_error

__all__ = ["KernelAttributes"]

TYPE_CHECKING = False  # typing's, which takes long to import
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    _Figures = tuple[int, ...]  # type checkers find no types in a namedtuple
else:
    # CUfunction_attribute, by number from 0 (CUDA driver API, "Data types used by CUDA driver").
    _Figures = namedtuple(
        "_Figures",
        "max_threads_per_block shared_size_bytes const_size_bytes local_size_bytes num_regs ptx_version "
        "binary_version cache_mode_ca max_dynamic_shared_size_bytes preferred_shared_memory_carveout "
        "cluster_size_must_be_set required_cluster_width required_cluster_height required_cluster_depth "
        "non_portable_cluster_size_allowed cluster_scheduling_policy_preference",
    )

DYNAMIC_SHARED, CARVEOUT, WIDE_CLUSTERS, SCHEDULING, ATTRIBUTES = 8, 9, 14, 15, 16
# What may be set: number, name, least, most, what it is.
SETTABLE = (
    (DYNAMIC_SHARED, "max_dynamic_shared_size_bytes", 0, 0x7FFFFFFF, "bytes"),
    (CARVEOUT, "preferred_shared_memory_carveout", -1, 100, "percent, or -1"),
    (WIDE_CLUSTERS, "non_portable_cluster_size_allowed", 0, 1, "a bool"),
    (SCHEDULING, "cluster_scheduling_policy_preference", 0, 2, "0, 1 or 2"),
)


class KernelAttributes(_Figures):
    """The figures of a kernel that Kernel.attributes reads.

    Attributes:
        max_threads_per_block, num_regs: int, the threads that a block may have, and registers of a thread.
        shared_size_bytes, const_size_bytes, local_size_bytes: int, static shared, constant, and a thread's
            local memory.
        ptx_version, binary_version: int, 90 for 9.0.
        cache_mode_ca: int, 1 where it was compiled to cache global loads in L1, else 0.
        max_dynamic_shared_size_bytes: int, the dynamic shared memory that a launch may ask for.
        preferred_shared_memory_carveout: int, percent of a multiprocessor's memory that is to be shared; -1
            where the driver chooses.
        cluster_size_must_be_set: int, 1 where it is launched in clusters alone, else 0.
        required_cluster_width, required_cluster_height, required_cluster_depth: int, blocks of the clusters
            that it was compiled for; 0 where it was for none.
        non_portable_cluster_size_allowed: int, 1 where clusters may have more than 8 blocks, else 0.
        cluster_scheduling_policy_preference: int, as Kernel.set_attributes takes it.
    """

    __slots__ = ()

    max_threads_per_block: int
    shared_size_bytes: int
    const_size_bytes: int
    local_size_bytes: int
    num_regs: int
    ptx_version: int
    binary_version: int
    cache_mode_ca: int
    max_dynamic_shared_size_bytes: int
    preferred_shared_memory_carveout: int
    cluster_size_must_be_set: int
    required_cluster_width: int
    required_cluster_height: int
    required_cluster_depth: int
    non_portable_cluster_size_allowed: int
    cluster_scheduling_policy_preference: int


def ask(kernel: Any, number: int) -> int:
    code, value = Rows().function_attribute(kernel.handle, number)
    if code:
        raise status_error(code, "function_attribute", ("kernel", kernel.name, "attribute", number))
    return int(value)


def put(kernel: Any, number: int, name: str, value: int, meaning: str = "") -> None:
    code = Rows().function_attribute_set(kernel.handle, number, value)
    if code:
        raise status_error(code, "function_attribute_set", ("kernel", kernel.name, name, value), meaning)


def read(kernel: Any) -> KernelAttributes:
    """Reads all of a kernel's attributes."""
    make: Callable[..., KernelAttributes] = KernelAttributes
    return make(*[ask(kernel, number) for number in range(ATTRIBUTES)])


def write(kernel: Any, *values: int | None) -> int | None:
    """Sets the attributes of SETTABLE that are not None.

    Returns:
        The dynamic shared memory that launches may ask for from now on, or None where that stays as it is.
    """
    chosen = []
    for (number, name, least, most, wanted), value in zip(SETTABLE, values, strict=True):
        if number == WIDE_CLUSTERS and isinstance(value, bool):
            value = int(value)
        if value is not None:
            chosen.append((number, name, checked_number(value, name, least, most, wanted)))
    for number, name, value in chosen:
        put(kernel, number, name, value)
    return next((value for number, _, value in chosen if number == DYNAMIC_SHARED), None)


def permit_shared(kernel: Any, shared: int) -> None:
    """Has the driver take launches with so much dynamic shared memory; it may take more already, for another
    Kernel of the same function."""
    if ask(kernel, DYNAMIC_SHARED) < shared:
        meaning = explain_refusal(kernel, (1, 1, 1), (1, 1, 1), shared)
        put(kernel, DYNAMIC_SHARED, "shared", min(shared, 0x7FFFFFFF), meaning)


def permit_wide_clusters(kernel: Any) -> None:
    """Has the driver take launches with clusters of more than 8 blocks, where the device has such."""
    if not ask(kernel, WIDE_CLUSTERS):
        put(kernel, WIDE_CLUSTERS, "non_portable_cluster_size_allowed", 1)
