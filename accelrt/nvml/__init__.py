"""NVIDIA's management library (NVML): the session with it, and the cards that it lists.

It needs no driver call and no context.  Initialising it maps libcuda into the process (its own library
does; seen with driver 580.159.04) but calls nothing there, and a fork after it is safe: the child has a
session of its own.  library holds the session, the calls and the list of cards.
"""

from accelrt.errors import ReadingError
from accelrt.nvml.library import Card, cards, listing

__all__ = ["Card", "cards", "listing", "physical_uuids"]


def physical_uuids() -> list[str]:
    """Returns the UUIDs of the physical devices, "GPU-...", in NVML's order, which is that of the PCI bus.

    Returns:
        A list; [] where there is no NVIDIA driver, or it answers that it found no device.
    """
    try:
        return [card.uuid for card in cards() if card.parent is None]
    except ReadingError:
        return []
