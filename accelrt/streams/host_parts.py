"""Green contexts of the host device, by the functions of NVIDIA's driver that make them.

Its multiprocessors are the processors of the CPU.  Parts of them are counted and refused as a GPU's are; a
stream's kernels run in one thread, which the system puts on any processor.
"""

from __future__ import annotations

import enum
import threading
from itertools import count
from types import SimpleNamespace
from typing import TYPE_CHECKING

from accelrt.devices.device import get_device_properties
from accelrt.streams.stream import Stream

if TYPE_CHECKING:
    from typing import Any

QUEUES = 32  # streams whose work is expected to run at a time
INVALID_CONFIGURATION = 915
FIRST_HANDLE, CONTEXT = 1 << 20, 1 << 32  # of green contexts; a context's is its green context's and CONTEXT


class Kind(enum.IntEnum):
    CU_DEV_RESOURCE_TYPE_SM = 1
    CU_DEV_RESOURCE_TYPE_WORKQUEUE_CONFIG = 1000


class Scope(enum.IntEnum):
    CU_WORKQUEUE_SCOPE_DEVICE_CTX = 0
    CU_WORKQUEUE_SCOPE_GREEN_CTX_BALANCED = 1


class Flag(enum.IntEnum):
    CU_GREEN_CTX_DEFAULT_STREAM = 1
    CU_STREAM_NON_BLOCKING = 1


class Group:
    """A group of a split, as it is asked for."""

    def __init__(self) -> None:
        self.smCount = self.coscheduledSmCount = self.preferredCoscheduledSmCount = 0
        self.flags = self.localityDomainId = 0


def processors(first: int, number: int, flags: int = 0, domain: int = 0) -> Any:
    """The driver's resource of some processors, from the first on."""
    sm = SimpleNamespace(
        smCount=number, minSmPartitionSize=1, smCoscheduledAlignment=1, flags=flags, localityDomainId=domain
    )
    return SimpleNamespace(first=first, sm=sm)


class HostParts:
    """The functions, each of which returns a status and what it answers."""

    CUdevResourceType = Kind
    CUgreenCtxCreate_flags = CUstream_flags = Flag
    CUdevWorkqueueConfigScope = Scope
    CU_DEV_SM_RESOURCE_GROUP_PARAMS = Group

    def __init__(self) -> None:
        self.parts: dict[int, tuple[int, list[Any]]] = {}  # handle -> device, resources
        self.streams: dict[int, tuple[Stream, Any]] = {}  # handle -> the stream, its processors
        self.handles: count[int] = count(FIRST_HANDLE)
        self.current: threading.local = threading.local()

    def contexts(self) -> list[int]:
        """The contexts that this thread has made current and not left."""
        stack: list[int] = self.current.__dict__.setdefault("contexts", [])
        return stack

    def cuDeviceGet(self, ordinal: int) -> tuple[int, int]:
        return 0, ordinal

    def cuDeviceGetDevResource(self, device: int, kind: Kind) -> tuple[int, Any]:
        if kind == Kind.CU_DEV_RESOURCE_TYPE_SM:
            return 0, processors(0, get_device_properties(device).multi_processor_count)
        return 0, SimpleNamespace(wqConfig=SimpleNamespace(wqConcurrencyLimit=QUEUES, sharingScope=0))

    def cuDevSmResourceSplitByCount(
        self, number: int, whole: Any, flags: int, least: int
    ) -> tuple[int, list[Any], int, Any]:
        fitting = min(number, whole.sm.smCount // least)
        groups = [processors(whole.first + index * least, least) for index in range(fitting)]
        taken = fitting * least
        return 0, groups, fitting, processors(whole.first + taken, whole.sm.smCount - taken)

    def cuDevSmResourceSplit(
        self, number: int, whole: Any, flags: int, wishes: list[Group]
    ) -> tuple[int, list[Any], Any]:
        groups, first, end = [], whole.first, whole.first + whole.sm.smCount
        for wish in wishes:
            size = wish.smCount or end - first
            if size == 0 or first + size > end:
                return INVALID_CONFIGURATION, [], None
            groups.append(processors(first, size, wish.flags, wish.localityDomainId))
            first += size
        return 0, groups, processors(first, end - first)

    def cuDevResourceGenerateDesc(self, resources: list[Any], number: int) -> tuple[int, list[Any]]:
        return 0, list(resources)

    def cuGreenCtxCreate(self, description: list[Any], device: int, flags: int) -> tuple[int, int]:
        handle = next(self.handles)
        queues = description[1] if len(description) > 1 else None
        if queues is None:
            queues = self.cuDeviceGetDevResource(device, Kind.CU_DEV_RESOURCE_TYPE_WORKQUEUE_CONFIG)[1]
        self.parts[handle] = device, [description[0], queues]
        return 0, handle

    def cuCtxFromGreenCtx(self, handle: int) -> tuple[int, int]:
        return 0, handle | CONTEXT

    def cuGreenCtxGetId(self, handle: int) -> tuple[int, int]:
        return 0, handle

    def cuGreenCtxGetDevResource(self, handle: int, kind: Kind) -> tuple[int, Any]:
        return 0, self.parts[handle][1][kind != Kind.CU_DEV_RESOURCE_TYPE_SM]

    def cuGreenCtxStreamCreate(self, handle: int, flags: int, priority: int) -> tuple[int, int]:
        device, resources = self.parts[handle]
        stream = Stream(device)
        self.streams[stream.handle] = stream, resources[0]
        return 0, stream.handle

    def cuStreamGetDevResource(self, stream: int, kind: Kind) -> tuple[int, Any]:
        if stream in self.streams:
            return 0, self.streams[stream][1]
        return self.cuDeviceGetDevResource(0, kind)

    def cuCtxPushCurrent(self, context: int) -> tuple[int]:
        self.contexts().append(context)
        return (0,)

    def cuCtxPopCurrent(self) -> tuple[int, int]:
        return 0, self.contexts().pop()

    def cuCtxGetCurrent(self) -> tuple[int, int]:
        return 0, (self.contexts() or [0])[-1]
