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

from accelrt import outside, procfs, visible
from accelrt.errors import ReadingError
from accelrt.nvml import Card, listing

__all__ = ["count", "in_order", "physical"]

VISIBLE, ORDER = "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"


def count() -> int:
    """How many devices a CUDA program in this environment has; 0 where there is no driver."""
    text = os.environ.get(VISIBLE)
    if visible.device_order(os.environ.get(ORDER)) is None:
        return 0  # cuInit fails
    found = physical()
    if found is None:
        return len(outside.devices())
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


def in_order(found: Sequence[Card], order: str | None) -> list[Card] | None:
    """The cards in the driver's order, or None where only the driver knows it.

    Arguments:
        found: as NVML lists them.
        order: the value of CUDA_DEVICE_ORDER.
    Returns:
        Sorted by PCI bus id if that is asked for or all are of one model, where FASTEST_FIRST comes to the
        same (seen with driver 580.159.04).  None for unlike cards, whose speed the driver judges, and for
        MIG devices.
    """
    alike = len({card.name for card in found}) <= 1
    if any(card.mig_mode for card in found) or (visible.device_order(order) != "PCI_BUS_ID" and not alike):
        return None
    return sorted(found, key=lambda card: card.pci_bus_id)
