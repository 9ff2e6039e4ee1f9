"""Green contexts: a part of a device's multiprocessors, and streams whose kernels run on that part alone.

    context = accelrt.green_contexts.GreenContext.create(num_sms=16)
    with context:                  # what is launched on the current stream stays on these multiprocessors
        kernel[blocks, threads](x)
    stream = context.Stream()      # or on a stream of it, wherever it is used
    small, other = accelrt.green_contexts.partition(16, 2)  # two that have none in common
    decode, prefill = accelrt.green_contexts.split([16, None])  # of different sizes: the second has the rest

They are NVIDIA's (CUDA driver API, section "Green Contexts"; driver 555 or later), by the names of
torch.cuda.green_contexts.  The driver's green contexts are made once for each part of a device and kept while
the process lives: two GreenContexts that were asked for alike are on the same multiprocessors, as in torch,
and memory that was used on their streams may be freed at any time.

On the host device a multiprocessor is a processor of the CPU: parts are counted and refused as a GPU's,
though nothing binds a stream's thread to its part.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from accelrt.core import process
from accelrt.core.arguments import checked_number, checked_type, checked_word
from accelrt.devices.device import device_ordinal, get_device_properties, mem_get_info
from accelrt.devices.sm_resources import IN_LOCALITY, SCOPES, ContextResources, SplitPlan, described
from accelrt.errors import (
    ArgumentError,
    ArgumentTypeError,
    CudaError,
    NotSupportedError,
    not_supported,
    refuse_copy,
)
from accelrt.runtime import cuda_bindings
from accelrt.runtime.init import init, runs_on_host
from accelrt.streams.host_parts import HostParts
from accelrt.streams.stream import ExternalStream, Stream, StreamContext, current_stream

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any, NoReturn

    from accelrt.annotations import DeviceArgument
    from accelrt.memory.mempool import MemPool

__all__ = [
    "ContextResources",
    "GreenContext",
    "SplitPlan",
    "device_resources",
    "partition",
    "plan",
    "split",
    "stream_resources",
]

MOST_STREAMS = 32  # of one part of a device; more requests share them in turn
SM, WORKQUEUE_CONFIG = "CU_DEV_RESOURCE_TYPE_SM", "CU_DEV_RESOURCE_TYPE_WORKQUEUE_CONFIG"
BACKFILL = 1  # CUdevSmResourceGroup_flags
INVALID_VALUE, INVALID_TYPE, INVALID_CONFIGURATION = 1, 914, 915
NO_QUEUES = "this driver knows no such resource; work queues need CUDA 13.1 or later"
REFUSED_SPLIT = (
    "the device has no such groups: ask in multiples of the alignment that device_resources() shows, "
    "in groups of at least its minimum, or pass backfill=True"
)


class Group(NamedTuple):
    """Multiprocessors, as a split is asked for them."""

    num_sms: int  # 0: as many as there are
    coscheduled: int = 0  # how many are scheduled together; 0: the driver chooses, as for the next
    preferred: int = 0
    backfill: bool = False
    locality: int | None = None


class Queue(NamedTuple):
    """Work queues, as a context is asked for them; None: as they are."""

    scope: str | None
    limit: int | None


class Key(NamedTuple):
    """A part of a device, as it is asked for."""

    device: int
    groups: tuple[Group, ...]  # that one split makes; none: all of the device
    number: int = 0  # which of them it is
    even: bool = False  # split by count alone, as every driver of green contexts can
    queue: Queue | None = None
    within: Key | None = None  # a part that is split further


class Part:
    """The driver's green context of a part of a device, and its streams."""

    def __init__(self, handle: Any, context: Any, num_sms: int) -> None:
        self.handle = handle
        self.context = context  # the same as a CUcontext
        self.num_sms = num_sms
        self.streams: list[int] = []
        self.handed_out = 0


_parts: dict[Key, Part] = {}
_making = threading.RLock()  # a signal's handler may come in between
_host_parts = HostParts()


def forget_in_child() -> None:
    global _making, _host_parts
    _parts.clear()
    _making, _host_parts = threading.RLock(), HostParts()


process.call_at_fork("green_contexts", "tools", child=forget_in_child)


# --- the driver -------------------------------------------------------------------------------------------


def driver() -> Any:
    """cuda.bindings.driver, or what stands for it on the host device."""
    init()
    if runs_on_host():
        return _host_parts
    return cuda_bindings.open_bindings(
        "this driver has no green contexts; they are of NVIDIA's driver, and of the host device",
        "cuGreenCtxCreate",
    )


def ask(name: str, *arguments: Any, **details: Any) -> Any:
    """Returns what a function of the driver answers beside its status.

    Arguments:
        details: what an error says it was asked for.
    """
    needs = "green contexts need a driver of branch 555 or later"
    if name == "cuStreamGetDevResource":
        needs = "what a stream has is told by CUDA 13.1 and later"
    if name == "cuDevSmResourceSplit":
        needs = "groups of several sizes, of locality domains or with backfill need CUDA 13.1 or later"
    meanings = {INVALID_CONFIGURATION: REFUSED_SPLIT, INVALID_TYPE: NO_QUEUES}
    return cuda_bindings.ask(driver(), needs, name, arguments, details, meanings)


def type_of(name: str) -> Any:
    kind = getattr(driver().CUdevResourceType, name, None)
    if kind is None:
        raise not_supported(
            f"the installed cuda-bindings have no {name}; work queues need CUDA 13.1 or later"
        )
    return kind


def whole_of(device: int) -> Any:
    """The driver's resource of all multiprocessors of a device."""
    mem_get_info(device)  # a green context stands on the device's primary context, which this makes
    return ask("cuDeviceGetDevResource", ask("cuDeviceGet", device), type_of(SM), device=device)


def split_evenly(device: int, whole: Any, num_sms: int, count: int) -> list[Any]:
    """The driver's resources of so many parts of a device, of so many multiprocessors each or a few more."""
    total = whole.sm.smCount
    if num_sms > total or num_sms * count > total:
        raise ArgumentError(
            f"num_sms is {num_sms}, {count} times; device {device} has {total} multiprocessors, of which "
            "a green context takes some"
        )
    details = {"device": device, "num_sms": num_sms, "count": count}
    groups, parts, _ = ask("cuDevSmResourceSplitByCount", count, whole, 0, num_sms, **details)
    if parts < count:
        raise ArgumentError(
            f"the {total} multiprocessors of device {device} make {parts} parts of {num_sms}, not {count}: "
            "the driver rounds up to what its hardware can separate; ask for fewer, or smaller ones"
        )
    return list(groups)


def parameters_of(group: Group) -> Any:
    """A group as the driver's split takes it."""
    kind = getattr(driver(), "CU_DEV_SM_RESOURCE_GROUP_PARAMS", None)
    if kind is None:
        raise not_supported(
            "the installed cuda-bindings have no cuDevSmResourceSplit; groups of several sizes need "
            "CUDA 13.1 or later",
            "cuDevSmResourceSplit",
        )
    parameters = kind()
    parameters.smCount, parameters.coscheduledSmCount = group.num_sms, group.coscheduled
    parameters.preferredCoscheduledSmCount = group.preferred
    parameters.flags = BACKFILL * group.backfill
    if group.locality is not None:
        if not hasattr(parameters, "localityDomainId"):
            raise not_supported(
                "the installed cuda-bindings know no locality domains; they need CUDA 13.4 or later",
                "cuDevSmResourceSplit",
            )
        parameters.flags |= IN_LOCALITY
        parameters.localityDomainId = group.locality
    return parameters


def split_unevenly(device: int, whole: Any, groups: tuple[Group, ...]) -> list[Any]:
    """The driver's resources of the groups, which have no multiprocessor in common."""
    total = sum(group.num_sms for group in groups)
    if total > whole.sm.smCount:
        raise ArgumentError(
            f"counts are {[group.num_sms or None for group in groups]}, {total} in all; there are "
            f"{whole.sm.smCount} multiprocessors to split of device {device}"
        )
    parameters = [parameters_of(group) for group in groups]
    details = {"device": device, "counts": [group.num_sms or None for group in groups]}
    parts, _ = ask("cuDevSmResourceSplit", len(groups), whole, 0, parameters, **details)
    return list(parts)


def source_of(key: Key) -> Any:
    """The driver's resource that the split of a key begins with.  A part that is split further is there."""
    if key.within is None:
        return whole_of(key.device)
    return ask("cuGreenCtxGetDevResource", _parts[key.within].handle, type_of(SM), device=key.device)


def resources_of(key: Key) -> list[Any]:
    """The driver's resources of all that the split of a key makes."""
    whole = source_of(key)
    if not key.groups:
        return [whole]
    if key.even:
        return split_evenly(key.device, whole, key.groups[0].num_sms, len(key.groups))
    return split_unevenly(key.device, whole, key.groups)


def queues_of(key: Key, queue: Queue) -> Any:
    """The driver's resource of work queues."""
    device = ask("cuDeviceGet", key.device)
    resource = ask("cuDeviceGetDevResource", device, type_of(WORKQUEUE_CONFIG), device=key.device)
    most = int(resource.wqConfig.wqConcurrencyLimit)
    if queue.limit is not None:
        if queue.limit > most:
            raise ArgumentError(
                f"workqueue_concurrency_limit is {queue.limit}; device {key.device} has {most} at most"
            )
        resource.wqConfig.wqConcurrencyLimit = queue.limit
    if queue.scope is not None:
        resource.wqConfig.sharingScope = getattr(driver().CUdevWorkqueueConfigScope, SCOPES[queue.scope])
    return resource


def part_of(key: Key) -> Part:
    """The part, made with those beside it when one of them is first asked for."""
    with _making:
        if key not in _parts:
            for number, resource in enumerate(resources_of(key)):
                one = key._replace(number=number)
                if one not in _parts:  # a part that was made before another failed
                    _parts[one] = make_part(resource, one)
        return _parts[key]


def make_part(resource: Any, key: Key) -> Part:
    total = int(resource.sm.smCount)
    resources = [resource] if key.queue is None else [resource, queues_of(key, key.queue)]
    description = ask("cuDevResourceGenerateDesc", resources, len(resources), device=key.device)
    flag = driver().CUgreenCtxCreate_flags.CU_GREEN_CTX_DEFAULT_STREAM
    device = ask("cuDeviceGet", key.device)
    handle = ask("cuGreenCtxCreate", description, device, int(flag), device=key.device, num_sms=total)
    return Part(handle, ask("cuCtxFromGreenCtx", handle), total)


def stream_of(part: Part, device: int) -> int:
    """A stream of the part by its handle: a new one, or one that was handed out before."""
    with _making:
        number = part.handed_out % MOST_STREAMS
        if number == len(part.streams):
            flag = driver().CUstream_flags.CU_STREAM_NON_BLOCKING
            part.streams.append(int(ask("cuGreenCtxStreamCreate", part.handle, int(flag), 0, device=device)))
        part.handed_out += 1
        return part.streams[number]


def queues_or_none(name: str, of: Any, device: int) -> Any:
    """The work queues of a device or a context; None where the driver does not tell."""
    try:
        return ask(name, of, type_of(WORKQUEUE_CONFIG), device=device)
    except CudaError as error:
        if isinstance(error, NotSupportedError) or error.code in (INVALID_VALUE, INVALID_TYPE):
            return None
        raise


# --- what is asked for ------------------------------------------------------------------------------------


def checked_queue(scope: str | None, limit: int | None) -> Queue | None:
    if scope is None and limit is None:
        return None
    if scope is not None:
        checked_word(scope, "workqueue_scope", SCOPES)
    return Queue(scope, None if limit is None else checked_number(limit, "workqueue_concurrency_limit", 1))


def spread(value: Any, name: str, count: int) -> list[Any]:
    """Returns a value for each group, of one for all or of one for each."""
    if not isinstance(value, (list, tuple)):
        return [value] * count
    if len(value) != count:
        raise ArgumentError(
            f"{name} has {len(value)} items for {count} groups; pass one for each, or one for all"
        )
    return list(value)


def domains_of(device: int) -> int:
    """Returns the number of locality domains of a device."""
    return max(1, get_device_properties(device).attributes.get("locality_domain_count", 0))


def checked_locality(device: int, value: int | None) -> int | None:
    if value is None:
        return None
    number = checked_number(value, "locality_domain_id", 0)
    count = domains_of(device)
    if number >= count:
        raise ArgumentError(
            f"locality_domain_id is {number}; device {device} has {count} "
            "(locality_domain_count of its attributes)"
        )
    return number


class Entry:
    """One time that a thread is in a green context, whose stream and pool are current instead of others."""

    before: Stream
    stream: Stream
    outer: int
    inner: list[Any]

    def __init__(self, context: GreenContext) -> None:
        self.context = context
        self.state: str = "new"
        self.is_pushed: bool = False

    def enter(self) -> GreenContext:
        context, device = self.context, self.context.device_index
        self.before, self.stream = current_stream(device), context.Stream()
        self.stream.wait_stream(self.before)
        self.outer = int(ask("cuCtxGetCurrent"))
        self.inner = [StreamContext(self.stream)]
        if context.mem_pool is not None:
            self.inner.append(use_pool(context.mem_pool, device))
        self.state = "half way"
        ask("cuCtxPushCurrent", context._part.context, device=device)
        self.is_pushed = True
        for each in self.inner:
            each.__enter__()
        self.state = "inside"
        return context

    def leave(self) -> None:
        own = self.context.raw_context
        if self.state in ("new", "left"):
            return
        if self.state == "inside":
            if int(ask("cuCtxGetCurrent")) != own:
                raise RuntimeError(
                    f"{self.context!r} is not this thread's current context; pop those first that were set "
                    "after it, each on the thread that set it"
                )
            self.before.wait_stream(self.stream)  # where that is refused, nothing is changed
        not_entered = (RuntimeError,) if self.state == "half way" else ()
        self.state = "half way"
        for inner in reversed(self.inner):
            with suppress(*not_entered):
                inner.__exit__(None, None, None)
        if int(ask("cuCtxGetCurrent")) == own and (self.outer != own or self.is_pushed):
            self.is_pushed = False
            ask("cuCtxPopCurrent")
        self.state = "left"


class GreenContext(process.EntryOf["GreenContext"]):
    """A part of a device's multiprocessors; made by GreenContext.create, partition or split.

    Attributes:
        num_sms: int, how many multiprocessors it has: what was asked for, or a few more, as the hardware has
            them in groups (8 on compute capability 9.0).
        device_index: int, the ordinal of its device.
        mem_pool: MemPool of its own; None where it was asked for none.
    """

    num_sms: int
    device_index: int
    mem_pool: MemPool | None

    def __init__(self, key: Key, own_pool: bool = False) -> None:
        if not isinstance(key, Key):
            raise ArgumentTypeError(
                "make a green context by GreenContext.create(num_sms), partition() or split()"
            )
        checked_type(own_pool, "own_pool", bool, "a bool")
        self._key = key
        self._part = part_of(key)
        self.num_sms = self._part.num_sms
        self.device_index = key.device
        self.mem_pool = new_pool(key.device) if own_pool else None

    @staticmethod
    def create(
        num_sms: int | None = None,
        device_id: DeviceArgument | None = 0,
        *,
        workqueue_scope: str | None = None,
        workqueue_concurrency_limit: int | None = None,
        locality_domain_id: int | None = None,
        own_pool: bool = False,
    ) -> GreenContext:
        """Makes a green context of the first multiprocessors of a device.

        Arguments:
            num_sms: int, how many at least; None is all of the device, or of the locality domain.
            device_id: int, "cuda:1", ...; None is the current device.
            workqueue_scope: "device_ctx" shares the work queues with all contexts, "balanced" with no other
                balanced one; None leaves it to the driver.
            workqueue_concurrency_limit: int, streams whose work is expected to run at a time.
            locality_domain_id: int, the domain whose multiprocessors it has, 0 to below the device's
                locality_domain_count; None is any.
            own_pool: bool, whether memory allocated inside of the context comes from a pool of its own.
        Raises:
            ValueError, TypeError: num_sms is no int from 1 to what the device has, device_id names none, all
                three of num_sms, work queues and locality_domain_id are None, or one is none of these.
            NotSupportedError: the driver is too old.
            CudaError: the driver refused.
        """
        queue = checked_queue(workqueue_scope, workqueue_concurrency_limit)
        if num_sms is None and queue is None and locality_domain_id is None:
            raise ArgumentError("num_sms is None; pass it, a workqueue_scope or a locality_domain_id")
        count = 0 if num_sms is None else checked_number(num_sms, "num_sms", 1)
        driver()
        ordinal = device_ordinal(device_id)
        domain = checked_locality(ordinal, locality_domain_id)
        groups = () if num_sms is None and domain is None else (Group(count, locality=domain),)
        return GreenContext(Key(ordinal, groups, 0, domain is None, queue), own_pool)

    @staticmethod
    def max_workqueue_concurrency(device_id: DeviceArgument | None = None) -> int:
        """Returns the most that workqueue_concurrency_limit may be on a device.

        Arguments:
            device_id: int, "cuda:1", ...; None is the current device.
        Raises:
            NotSupportedError: the driver does not tell (before CUDA 13.1).
        """
        driver()
        limit = device_resources(device_id).workqueue_concurrency_limit
        if limit is None:
            raise not_supported("this driver has no work queues to configure; they need CUDA 13.1 or later")
        return limit

    @property
    def resources(self) -> ContextResources:
        """The multiprocessors and work queues of the context, as the driver says."""
        handle, device = self._part.handle, self.device_index
        sms = ask("cuGreenCtxGetDevResource", handle, type_of(SM), device=device)
        return described(sms, queues_or_none("cuGreenCtxGetDevResource", handle, device))

    @property
    def handle(self) -> int:
        """The driver's green context (CUgreenCtx) as int; it stays while the process lives."""
        return int(self._part.handle)

    @property
    def raw_context(self) -> int:
        """The same as a CUcontext, by which other libraries make it current."""
        return int(self._part.context)

    @property
    def context_id(self) -> int:
        """int, unique in the process (cuGreenCtxGetId), for profilers that show it.

        Raises:
            NotSupportedError: the driver has no such function (before CUDA 13.0).
        """
        return int(ask("cuGreenCtxGetId", self._part.handle, device=self.device_index))

    def Stream(self) -> Stream:
        """Makes a stream of the context, whose kernels run on its multiprocessors in any current context.

        Raises:
            CudaError: the driver refused.

        There are 32 of each context; more requests are answered with those in turn.
        """
        return ExternalStream(stream_of(self._part, self.device_index), self.device_index, self._part)

    def set_context(self) -> None:
        """Makes the green context the calling thread's current context, for every user of CUDA on the thread,
        and one of its streams the current stream of its device, behind the work of the one before.

        Raises:
            CudaError: the driver refused; nothing is changed.

        torch makes the default stream current; accelrt's work on a default stream is in the primary context,
        whichever is current, so here it is a stream of the context.  What the thread allocates on the device
        comes from mem_pool, where there is one.
        """
        self.__enter__()

    def pop_context(self) -> None:
        """Makes current again what was so before set_context, the stream behind the work of the context's.

        Raises:
            RuntimeError: this green context is not the calling thread's current one; nothing is changed.
        """
        self.__exit__(None, None, None)

    def _entry(self) -> Entry:
        return Entry(self)

    def __reduce__(self) -> NoReturn:
        refuse_copy(self, "it is of this process; create another there")

    def __repr__(self) -> str:
        part = f"{self.num_sms} multiprocessors of device {self.device_index}"
        return f"<accelrt.green_contexts.GreenContext of {part}>"


def new_pool(device: int) -> MemPool:
    from accelrt.memory import mempool

    return mempool.MemPool(device=device)


def use_pool(pool: MemPool, device: int) -> Any:
    from accelrt.memory import mempool

    return mempool.use_mem_pool(pool, device)


def partition(num_sms: int, count: int, device: DeviceArgument | None = None) -> tuple[GreenContext, ...]:
    """Makes green contexts that have no multiprocessor in common.

    Arguments:
        num_sms: int, how many each has at least.
        count: int, how many contexts.
        device: int, "cuda:1", ...; None is the current device.
    Raises:
        ValueError, TypeError: the device does not have as many, or it names none.
        NotSupportedError, CudaError: as GreenContext.create.
    """
    size, parts = checked_number(num_sms, "num_sms", 1), checked_number(count, "count", 1)
    driver()
    key = Key(device_ordinal(device), (Group(size),) * parts, 0, True)
    return tuple(GreenContext(key._replace(number=index)) for index in range(parts))


def key_of(
    counts: Any,
    device: DeviceArgument | None,
    within: GreenContext | None,
    queue: Queue | None,
    each: Mapping[str, Any],
) -> Key:
    """Checks the wishes of a split; each: by name, one for all groups or one for each."""
    if not isinstance(counts, (list, tuple)) or not counts:
        raise ArgumentTypeError(f"counts is {counts!r}; pass a list of ints, None for what is left")
    if within is not None and not isinstance(within, GreenContext):
        kind = type(within).__name__
        raise ArgumentTypeError(f"within is {within!r} of type {kind}; pass a GreenContext")
    sizes = [0 if count is None else checked_number(count, "counts", 1) for count in counts]
    number = len(counts)
    together, preferred = (
        [checked_number(value, name, 0) for value in spread(each[name], name, number)]
        for name in ("coscheduled_sm_count", "preferred_coscheduled_sm_count")
    )
    filled = [bool(value) for value in spread(each["backfill"], "backfill", number)]
    domains = spread(each["locality_domain_id"], "locality_domain_id", number)
    driver()
    ordinal = within.device_index if within is not None and device is None else device_ordinal(device)
    if within is not None and within.device_index != ordinal:
        raise ArgumentError(f"device is {ordinal}, but within is {within!r}")
    domains = [checked_locality(ordinal, domain) for domain in domains]
    groups = tuple(map(Group, sizes, together, preferred, filled, domains))
    return Key(ordinal, groups, 0, False, queue, None if within is None else within._key)


def split(
    counts: Sequence[int | None],
    device: DeviceArgument | None = None,
    *,
    coscheduled_sm_count: int | Sequence[int] = 0,
    preferred_coscheduled_sm_count: int | Sequence[int] = 0,
    backfill: bool | Sequence[bool] = False,
    locality_domain_id: int | Sequence[int | None] | None = None,
    workqueue_scope: str | None = None,
    workqueue_concurrency_limit: int | None = None,
    within: GreenContext | None = None,
    own_pool: bool = False,
) -> tuple[GreenContext, ...]:
    """Makes green contexts of several sizes that have no multiprocessor in common (cuDevSmResourceSplit).

    Arguments:
        counts: how many multiprocessors each has, ints; None is as many as are left when its turn comes.
        device: int, "cuda:1", ...; None is the current device, or that of within.
        coscheduled_sm_count, preferred_coscheduled_sm_count: ints, how many of a group run together, as
            clusters need it, and how many if that can be; 0 leaves it to the driver.
        backfill: bool, whether a group may have some that are not scheduled with the others.
        locality_domain_id: int, the domain whose multiprocessors a group has; None is any.
            These four are for all groups, or a list or tuple with one for each.
        workqueue_scope, workqueue_concurrency_limit: of each, as for GreenContext.create.
        within: GreenContext, whose multiprocessors are split; None is all of the device's.
        own_pool: bool, whether each has a pool of memory of its own.
    Raises:
        ValueError, TypeError: counts are too many, or an argument is none of these.
        NotSupportedError: the driver is older than CUDA 13.1.
        CudaError: the driver refused; groups that it made before stay for the next time.
    """
    queue = checked_queue(workqueue_scope, workqueue_concurrency_limit)
    each = {
        "coscheduled_sm_count": coscheduled_sm_count,
        "preferred_coscheduled_sm_count": preferred_coscheduled_sm_count,
        "backfill": backfill,
        "locality_domain_id": locality_domain_id,
    }
    key = key_of(counts, device, within, queue, each)
    return tuple(GreenContext(key._replace(number=index), own_pool) for index in range(len(counts)))


def plan(
    counts: Sequence[int | None],
    device: DeviceArgument | None = None,
    *,
    coscheduled_sm_count: int | Sequence[int] = 0,
    preferred_coscheduled_sm_count: int | Sequence[int] = 0,
    backfill: bool | Sequence[bool] = False,
    locality_domain_id: int | Sequence[int | None] | None = None,
    within: GreenContext | None = None,
) -> SplitPlan:
    """Plans a split, without making a context.

    Arguments:
        as of split.
    Returns:
        SplitPlan: groups, a tuple of ContextResources, and remainder, how many multiprocessors are left.
    Raises:
        as split.
    """
    each = {
        "coscheduled_sm_count": coscheduled_sm_count,
        "preferred_coscheduled_sm_count": preferred_coscheduled_sm_count,
        "backfill": backfill,
        "locality_domain_id": locality_domain_id,
    }
    key = key_of(counts, device, within, None, each)
    with _making:
        groups = resources_of(key)
        whole = source_of(key)
    parts = tuple(described(group, None) for group in groups)
    return SplitPlan(parts, int(whole.sm.smCount) - sum(group.num_sms for group in parts))


def stream_resources(stream: Stream) -> ContextResources:
    """Returns the multiprocessors that a stream's kernels may run on (cuStreamGetDevResource).

    Arguments:
        stream: Stream, of a green context or of none.
    Raises:
        TypeError: it is none.
        NotSupportedError: the driver is older than CUDA 13.1.
    """
    checked_type(stream, "stream", Stream, "a Stream")
    return described(ask("cuStreamGetDevResource", stream.handle, type_of(SM), stream=stream.handle), None)


def device_resources(device: DeviceArgument | None = None) -> ContextResources:
    """Returns the multiprocessors and work queues of a device, which green contexts share.

    Arguments:
        device: int, "cuda:1", ...; None is the current device.
    Raises:
        NotSupportedError: the driver is too old.
    """
    driver()
    ordinal = device_ordinal(device)
    sms = whole_of(ordinal)
    return described(sms, queues_or_none("cuDeviceGetDevResource", ask("cuDeviceGet", ordinal), ordinal))
