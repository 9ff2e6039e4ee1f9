"""Reads what the kernel tells in /proc: the cards that NVIDIA's driver lists, and processes.

No library is opened to read it.  NVML's own maps libcuda when it is initialised (seen with driver 580.159.04;
it does not call cuInit), so that counting through it would open the driver's library.  The kernel's list of
cards holds what counting needs.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from accelrt.core.process import open_descriptor

ROOT = Path("/proc/driver/nvidia")
NODES = Path("/dev")


@dataclass(frozen=True)
class Listed:
    """One card: its UUID "GPU-...", its PCI bus id as the driver writes it, and its model's name."""

    uuid: str
    pci_bus_id: str
    name: str


def listed() -> list[Listed] | None:
    """The cards that this process may open, in the order of their PCI bus ids.

    The kernel lists every card of the machine, in a container or a batch job too; whose they are, the
    device nodes say.  So each is opened and closed: microseconds, but a second or more for a card that
    sleeps because nobody uses it and persistence mode is off.

    Returns:
        A list, or None where the kernel's list is not there or not enough: a card that nobody has used yet
        has no UUID in it, of MIG devices it says nothing, and there may be no device nodes yet.
    """
    try:
        texts = [(folder / "information").read_text() for folder in sorted((ROOT / "gpus").iterdir())]
    except (OSError, UnicodeDecodeError):
        return None
    if not texts or any((ROOT / "capabilities").glob("gpu*/mig/gi*")):
        return None
    cards = []
    for text in texts:
        lines = (line.partition(":") for line in text.splitlines())
        facts = {key.strip(): value.strip() for key, _, value in lines}
        if facts.get("GPU Excluded", "No") != "No":
            continue
        uuid, location, minor = (facts.get(key, "") for key in ("GPU UUID", "Bus Location", "Device Minor"))
        if not uuid.startswith("GPU-") or "?" in uuid or not location or not minor:
            return None
        try:
            is_ours = may_open(NODES / f"nvidia{minor}")
        except OSError:
            return None  # a card that is lost, say: NVML and the driver know better
        if is_ours:
            cards.append(Listed(uuid, pci_bus_id(location), facts.get("Model", "")))
    return sorted(cards, key=lambda card: card.pci_bus_id) or None


def may_open(node: Path) -> bool:
    """Tells whether this process may use a card; raises OSError where that cannot be told."""
    try:
        open_descriptor(node, os.O_RDWR).close()
    except (FileNotFoundError, PermissionError):
        return False
    return True


def pci_bus_id(text: str) -> str:
    """A PCI bus id as cuDeviceGetPCIBusId writes it, "0000:00:06.0"; NVML writes "00000000:00:06.0"."""
    domain, bus, rest = text.strip().rsplit(":", 2)
    return f"{int(domain, 16):04x}:{bus.lower()}:{rest.lower()}"


class Status(NamedTuple):
    """A process (proc_pid_stat(5)): its name, the letter of its state, and when it started.

    That is in clock ticks since the machine did.
    """

    name: str
    state: str
    started: int


def status_of(pid: int) -> Status | None:
    """Returns what the kernel says of a process; None where there is none of that number."""
    try:
        content = Path(f"/proc/{pid}/stat").read_bytes()  # the name in it is any bytes
    except (FileNotFoundError, ProcessLookupError):
        return None
    name, _, rest = content.decode(errors="replace").partition("(")[2].rpartition(")")
    state, *fields = rest.split()
    return Status(name, state, int(fields[18]))


def started(pid: int) -> int | None:
    """Tells when a process that runs started, as of Status; numbers of processes are given anew."""
    status = status_of(pid)
    return None if status is None or status.state in "ZX" else status.started
