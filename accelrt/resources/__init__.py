"""Resources: memory from wherever you say, with limits, figures, lists, logs and functions around it.

    resource = accelrt.resources.StatisticsAdaptor(accelrt.resources.LimitingAdaptor(
        accelrt.resources.PoolResource(accelrt.resources.ManagedResource()), limit=1 << 30
    ))
    buffer = resource.buffer(4096)                    # a Buffer
    accelrt.resources.set_current_resource(resource)  # what DeviceBuffers come from
    growing = accelrt.resources.DeviceBuffer(4096)

resource        Resource and its kinds: memory of the device, managed, page-locked, of a MemPool; adaptors on
                them; pools, blocks of one size, resources by size
callback        CallbackResource: memory of two functions
system          SystemResource: memory of the system's own allocator
figures         what adaptors tell: AllocationCounts, OutstandingAllocation
checks          what several kinds ask of arguments, and marks of errors
current         which resource is current
device_buffer   DeviceBuffer: bytes that can be resized
profiles        AllocationProfile, by parts of a program; LineProfile, by the lines that allocate

accelrt's own allocator needs none of it; MemPools, limits, figures, hooks and recordings are there without.
"""

from accelrt.resources.callback import CallbackResource
from accelrt.resources.current import current_resource, set_current_resource, use_resource
from accelrt.resources.device_buffer import DeviceBuffer
from accelrt.resources.figures import AllocationCounts, OutstandingAllocation
from accelrt.resources.profiles import AllocationProfile, LineProfile, ProfileEntry
from accelrt.resources.resource import (
    Adaptor,
    BinningResource,
    DeviceResource,
    DriverPoolResource,
    FailureCallbackAdaptor,
    FixedSizeResource,
    HooksAdaptor,
    LimitingAdaptor,
    LoggingAdaptor,
    ManagedResource,
    MemPoolResource,
    PinnedResource,
    PoolResource,
    PrefetchAdaptor,
    Resource,
    StatisticsAdaptor,
    TrackingAdaptor,
)
from accelrt.resources.system import SystemResource

__all__ = [
    "Adaptor",
    "AllocationCounts",
    "AllocationProfile",
    "BinningResource",
    "CallbackResource",
    "DeviceBuffer",
    "DeviceResource",
    "DriverPoolResource",
    "FailureCallbackAdaptor",
    "FixedSizeResource",
    "HooksAdaptor",
    "LimitingAdaptor",
    "LineProfile",
    "LoggingAdaptor",
    "ManagedResource",
    "MemPoolResource",
    "OutstandingAllocation",
    "PinnedResource",
    "PoolResource",
    "PrefetchAdaptor",
    "ProfileEntry",
    "Resource",
    "StatisticsAdaptor",
    "SystemResource",
    "TrackingAdaptor",
    "current_resource",
    "set_current_resource",
    "use_resource",
]
