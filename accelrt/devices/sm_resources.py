"""The multiprocessors and work queues of a device or a green context, as the driver's resources tell them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from typing import Any

# CUdevWorkqueueConfigScope, in the order of its numbers.
SCOPES = {"device_ctx": "CU_WORKQUEUE_SCOPE_DEVICE_CTX", "balanced": "CU_WORKQUEUE_SCOPE_GREEN_CTX_BALANCED"}
IN_LOCALITY = 2  # CUdevSmResourceGroup_flags


class ContextResources(NamedTuple):
    """The multiprocessors and work queues of a green context, or a device.

    Attributes:
        num_sms: int, multiprocessors.
        min_sm_partition: int, the fewest that a part of them can have; None where cuda-bindings do not tell.
        sm_alignment: int, how many of them are scheduled together; parts have multiples.  None likewise.
        locality_domain_id: int, the locality domain that they are of; None where they are of no certain one.
        workqueue_scope: "device_ctx", work queues are shared with all contexts, or "balanced", with no other
            balanced one; None where the driver does not tell (before CUDA 13.1).
        workqueue_concurrency_limit: int, streams whose work is expected to run at a time; None likewise.
    """

    num_sms: int
    min_sm_partition: int | None
    sm_alignment: int | None
    locality_domain_id: int | None
    workqueue_scope: str | None
    workqueue_concurrency_limit: int | None


class SplitPlan(NamedTuple):
    """The groups that a split would make.

    Attributes:
        groups: tuple of ContextResources, whose work queues are not told.
        remainder: int, multiprocessors that are left.
    """

    groups: tuple[ContextResources, ...]
    remainder: int


def told_number(of: Any, name: str) -> int | None:
    """A figure of the driver's; None where cuda-bindings before 13.1 do not have it."""
    value = getattr(of, name, None)
    return None if value is None else int(value)


def described(sms: Any, queues: Any) -> ContextResources:
    """Describes resources of the driver, the second being None where it does not tell."""
    sm = sms.sm
    located = int(getattr(sm, "flags", 0)) & IN_LOCALITY
    scope = limit = None
    if queues is not None:
        number = int(queues.wqConfig.sharingScope)
        scope = next((name for index, name in enumerate(SCOPES) if index == number), str(number))
        limit = int(queues.wqConfig.wqConcurrencyLimit)
    return ContextResources(
        int(sm.smCount),
        told_number(sm, "minSmPartitionSize"),
        told_number(sm, "smCoscheduledAlignment"),
        int(sm.localityDomainId) if located else None,
        scope,
        limit,
    )
