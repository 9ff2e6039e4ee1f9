"""Who answers for the devices of this process."""

from accelrt import lazy
from accelrt.readings import amd, host
from accelrt.readings.elsewhere import Elsewhere

__all__ = ["places"]


def places() -> list[Elsewhere] | None:
    """What answers for each device, in the order of the ordinals; None where NVML does."""
    if lazy.chosen_driver() != "cuda":
        return list(host.places())
    return list(amd.places()) if amd.is_the_platform() else None
