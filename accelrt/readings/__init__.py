"""Readings of a device's state: torch.cuda's readings by their names and units, and what else people ask
nvidia-smi for.

A reading changes nothing on the device.  It goes to NVML by the device's UUID, never by an index; on the host
device the few that have a meaning there answer; where HIP is the platform and the package amdsmi is
installed, that one answers (unverified on hardware).

targets        which device a reading is of
other_vendors  devices that are not NVIDIA's, the host device among them
amd            AMD's, and which of all these answers for a device
usage          utilization, memory and its errors, clocks
power, thermal, links, processes  what their names say
records        what readings of several figures answer
reading        what readings share
"""

from accelrt.readings import links, power, processes, records, thermal, usage
from accelrt.readings.links import *
from accelrt.readings.power import *
from accelrt.readings.processes import *
from accelrt.readings.records import *
from accelrt.readings.thermal import *
from accelrt.readings.usage import *

__all__ = [name for module in (links, power, processes, records, thermal, usage) for name in module.__all__]
