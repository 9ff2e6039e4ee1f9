"""Who answers for the devices of this process."""

from accelrt.readings import amd, host
from accelrt.readings.other_vendors import Elsewhere
from accelrt.runtime import init

__all__ = ["places"]


def places() -> list[Elsewhere] | None:
    """What answers for each device, in the order of the ordinals; None where NVML does."""
    if init.chosen_driver() != "cuda":
        return list(host.places())
    return list(amd.places()) if amd.is_the_platform() else None
