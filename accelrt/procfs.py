"""The cards that NVIDIA's kernel driver lists in /proc: no library is opened to read it.

NVML's own library maps libcuda when it is initialised (seen with driver 580.159.04; it does not call
cuInit), so that counting through it would open the driver's library.  The kernel's list holds what counting
needs.
"""

from dataclasses import dataclass
from pathlib import Path

__all__ = ["Listed", "listed", "pci_bus_id"]

ROOT = Path("/proc/driver/nvidia")


@dataclass(frozen=True)
class Listed:
    """One card: its UUID "GPU-...", its PCI bus id as the driver writes it, and its model's name."""

    uuid: str
    pci_bus_id: str
    name: str


def listed() -> list[Listed] | None:
    """The cards in the order of their PCI bus ids.

    Returns:
        A list, or None where the kernel's list is not there or not enough: a card that nobody has used yet
        has no UUID in it, and of MIG devices it says nothing.
    """
    try:
        texts = [(folder / "information").read_text() for folder in sorted((ROOT / "gpus").iterdir())]
    except (OSError, UnicodeDecodeError):
        return None
    if not texts or any((ROOT / "capabilities").glob("gpu*/mig/gi*")):
        return None
    cards = []
    for text in texts:
        facts = {
            key.strip(): value.strip()
            for key, _, value in (line.partition(":") for line in text.splitlines())
        }
        if facts.get("GPU Excluded", "No") != "No":
            continue
        uuid, place = facts.get("GPU UUID", ""), facts.get("Bus Location", "")
        if not uuid.startswith("GPU-") or "?" in uuid or not place:
            return None
        cards.append(Listed(uuid, pci_bus_id(place), facts.get("Model", "")))
    return sorted(cards, key=lambda card: card.pci_bus_id)


def pci_bus_id(text: str) -> str:
    """A PCI bus id as cuDeviceGetPCIBusId writes it, "0000:00:06.0"; NVML writes "00000000:00:06.0"."""
    domain, bus, rest = text.strip().rsplit(":", 2)
    return f"{int(domain, 16):04x}:{bus.lower()}:{rest.lower()}"
