"""Counts the devices before the driver is opened.

The order in which the sources are asked:
1. the kernel's own list (/proc/driver/nvidia), which needs no library at all;
2. NVML, where that list is missing or incomplete, as in WSL;
3. the driver in a process of its own, where NVML cannot tell (MIG devices, a card that is lost) or is not
   there.

None of them makes a driver call in this process, so that it may fork afterwards.  Nothing is kept, but that
there is no libcuda.

What NVML and the kernel do not say (in which order the driver has cards of different models, which MIG
device it chooses) only the driver knows, and a process that has asked it can fork no more: so another
process asks.
"""

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from accelrt import visible
from accelrt.core import procfs
from accelrt.errors import ReadingError
from accelrt.nvml import Card, listing

VISIBLE = "CUDA_VISIBLE_DEVICES"


def count() -> int:
    """Returns how many devices a CUDA program in this environment has; 0 where there is no driver."""
    text = os.environ.get(VISIBLE)
    if visible.device_order(os.environ.get(visible.ORDER)) is None:
        return 0  # cuInit fails
    cards = physical()
    if cards is None:
        return len(probe())
    # The same in every order: a list does not mix.
    return len(visible.resolve(text, [card.uuid for card in cards]))


def physical() -> Sequence[procfs.Listed | Card] | None:
    """The cards, sorted by PCI bus id; None where neither the kernel's list nor NVML can tell."""
    listed = procfs.listed()
    if listed is not None:
        return listed
    try:
        cards, lost = listing()
    except ReadingError:
        return None
    if lost or any(card.mig_mode for card in cards):
        return None
    return sorted(cards, key=lambda card: card.pci_bus_id)


# --- the driver, asked in a process of its own ------------------------------------------------------------

SECONDS = 60
NO_LIBRARY = "no library"

SCRIPT = """
import ctypes, sys
try:
    cuda = ctypes.CDLL("libcuda.so.1")
except OSError:
    sys.exit("no library")
count = ctypes.c_int(0)
code = cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count))
if code:
    print("code", code)
    sys.exit()
of_mig = getattr(cuda, "cuDeviceGetUuid_v2", cuda.cuDeviceGetUuid)
for ordinal in range(count.value):
    device, memory = ctypes.c_int(ordinal), ctypes.c_size_t(0)
    uuid, place, name = (ctypes.create_string_buffer(size) for size in (16, 64, 256))
    cuda.cuDeviceGet(ctypes.byref(device), ordinal)
    of_mig(uuid, device)
    cuda.cuDeviceGetPCIBusId(place, 64, device)
    cuda.cuDeviceGetName(name, 256, device)
    cuda.cuDeviceTotalMem_v2(ctypes.byref(memory), device)
    print("device", uuid.raw.hex(), place.value.decode(), memory.value, name.value.decode())
"""

_has_library = True


@dataclass(frozen=True)
class DriverDevice:
    """One device as the driver has it: UUID as 32 hexadecimal digits, PCI bus id, bytes of memory, name."""

    digits: str
    pci_bus_id: str
    memory: int
    name: str


def probe() -> list[DriverDevice]:
    """The devices that a process with this environment would have, in the driver's order.

    Takes some tenths of a second where there is a driver.  Nothing is kept, but that there is no libcuda.

    Returns:
        A list; [] where there is no libcuda, it refuses to initialise, or no Python can be started.
    """
    global _has_library
    if not _has_library or not sys.executable:
        return []
    command = [sys.executable, "-I", "-S", "-c", SCRIPT]
    try:
        done = subprocess.run(
            command, env=os.environ, capture_output=True, text=True, timeout=SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    if done.stderr.startswith(NO_LIBRARY):
        _has_library = False
    rows = [line.split(maxsplit=4) for line in done.stdout.splitlines() if line.startswith("device ")]
    return [DriverDevice(row[1], row[2].lower(), int(row[3]), row[4] if len(row) > 4 else "") for row in rows]
