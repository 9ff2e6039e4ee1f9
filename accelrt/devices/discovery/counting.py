"""How many devices there are, before the driver is opened.

The order in which the sources are asked:
1. the kernel's own list (/proc/driver/nvidia), which needs no library at all;
2. NVML, where that list is missing or incomplete, as in WSL;
3. the driver in a process of its own, where NVML cannot tell (MIG devices, a card that is lost) or is not
   there.

None of them makes a driver call in this process, so that it may fork afterwards.  Nothing is kept.
"""

import os
from collections.abc import Sequence

from accelrt import visible
from accelrt.core import procfs
from accelrt.devices.discovery import driver_probe
from accelrt.errors import ReadingError
from accelrt.nvml import Card, listing

__all__ = ["count", "physical"]

VISIBLE = "CUDA_VISIBLE_DEVICES"


def count() -> int:
    """How many devices a CUDA program in this environment has; 0 where there is no driver."""
    text = os.environ.get(VISIBLE)
    if visible.device_order(os.environ.get(visible.ORDER)) is None:
        return 0  # cuInit fails
    found = physical()
    if found is None:
        return len(driver_probe.devices())
    return len(
        visible.resolve(text, [card.uuid for card in found])
    )  # the same in every order: a list does not mix


def physical() -> Sequence[procfs.Listed | Card] | None:
    """The cards, sorted by PCI bus id; None where neither the kernel's list nor NVML can tell."""
    listed = procfs.listed()
    if listed is not None:
        return listed
    try:
        found, lost = listing()
    except ReadingError:
        return None
    return (
        None
        if lost or any(card.mig_mode for card in found)
        else sorted(found, key=lambda card: card.pci_bus_id)
    )
