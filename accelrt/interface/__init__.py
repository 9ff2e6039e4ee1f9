"""The registry of device interfaces: one face for code that runs on whichever backend there is.

    interface = accelrt.get_interface_for_device("cuda:1")
    with interface.device(1):
        interface.current_stream().synchronize()

cuda and host are built in.  A package adds a backend by register_interface_for_device, or, without being
imported, by an entry point of the group accelrt.device_interfaces whose name is the device type:

    [project.entry-points."accelrt.device_interfaces"]
    xpu = "my_package.interface:XpuInterface"

Those of "xpu" and "hip" count Intel's and AMD's devices and have no more: unverified on hardware.

base        what a backend has to offer
builtin     the interfaces of accelrt's own devices
check       what keeps a class from being registered
generic     a stream and an event of any backend
registry    which interface answers for which device
unverified  the interfaces of Intel's and AMD's devices
worker      properties for processes that may not touch the driver
"""

from accelrt.interface import base, generic, registry, worker
from accelrt.interface.base import *
from accelrt.interface.generic import *
from accelrt.interface.registry import *
from accelrt.interface.worker import *

__all__ = [name for module in (base, generic, registry, worker) for name in module.__all__]
