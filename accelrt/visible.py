"""Finds the physical devices that a list of visible devices names, read as the driver reads it.

CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER follow the CUDA C++ Programming Guide, "CUDA Environment
Variables", the MIG User Guide, "CUDA Device Enumeration", and, where those are silent, what the driver
580.159.04 answered (tests/devices/visible_cases.json).  ROCR_VISIBLE_DEVICES follows the ROCm
documentation, "GPU isolation techniques", and the reading that ROCr's amd_filter_device.cpp gives it;
HIP_VISIBLE_DEVICES that page and "HIP environment variables".  The AMD half is unverified on hardware.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from itertools import chain, repeat

TYPE_CHECKING = False  # typing's, which takes long to import
if TYPE_CHECKING:
    from accelrt.nvml import Card

__all__ = ["device_order", "in_order", "resolve", "resolve_amd", "resolve_hip", "resolve_rocr"]

ORDER = "CUDA_DEVICE_ORDER"
LONGEST = 2624
ORDERS = ("FASTEST_FIRST", "PCI_BUS_ID")
NUMBER = re.compile(r"[ \t\n\v\f\r]*([+-]?)([0-9]+)")
OLD_MIG = re.compile(r"MIG-GPU-([0-9a-fA-F-]+)/([0-9]+)/([0-9]+)")
AMD_NUMBER = re.compile(r"([+-]?)(?:0[xX]([0-9a-fA-F]+)|(0[0-7]*)|([1-9][0-9]*))")
AMD_BLANKS = " \t\n\v\f\r"

Mig = tuple[str, int, int]  # UUID of the GPU, id of the GPU instance, id of the compute instance


def resolve(
    text: str | None, uuids: Sequence[str] | None = None, mig: Sequence[Mig | None] = ()
) -> list[int]:
    """Returns the physical devices that CUDA_VISIBLE_DEVICES names.

    A list of ordinals or a list of UUIDs, as its first element says.  An ordinal is what strtoul reads at the
    start of an element: blanks and a sign may come before, anything after.  A UUID is "GPU-" or "MIG-" and
    enough hexadecimal digits to be the only one, in either case, dashes wherever; after a whole one anything
    may come.  "MIG-GPU-<uuid>/<GPU instance>/<compute instance>" is the older name of a MIG device.
    Of MIG devices a process gets the first that is named, and then no other device.

    Arguments:
        text: the variable's value; None where it is not set, which means all devices.
        uuids: those of the physical devices in the driver's order, "GPU-..." or "MIG-..."; None is this
            machine's, by NVML.
        mig: for each of uuids the GPU and instances of a MIG device, or None; () where older names do not
            matter, or stand in uuids themselves.
    Returns:
        Indices into uuids, in the order of the list.  Reading stops at the first element that names no
        device.  [] where the driver would fail: nothing named, or a device named twice.
    Raises:
        ValueError: uuids is None, and NVML cannot tell the driver's order: unlike cards, MIG devices, or a
            lost card.
    """
    if uuids is None:
        uuids = uuids_here()
    if text is None or byte_length(text) > LONGEST:
        return only_one_mig(list(range(len(uuids))), uuids)
    index_of: Callable[[str], int | None]
    if text.startswith(("GPU-", "MIG-")):
        index_of = UuidReader(uuids, mig).index_of
    else:

        def index_of(element: str) -> int | None:
            number = read_number(element)
            return number if number is not None and number < len(uuids) else None

    indices: list[int] = []
    for element in text.split(","):
        index = index_of(element)
        if index is None:
            break
        if index in indices:
            return []
        indices.append(index)
    return only_one_mig(indices, uuids)


def uuids_here() -> list[str]:
    """The UUIDs of this machine's devices in the driver's order; [] where there is no NVIDIA driver."""
    from accelrt import nvml
    from accelrt.errors import ReadingError

    try:
        cards, lost = nvml.listing()
    except ReadingError:
        return []
    order = os.environ.get(ORDER)
    ordered = None if lost else in_order(cards, order)
    if ordered is None:
        raise ValueError(
            f"NVML cannot tell in which order the driver has this machine's devices "
            f"({ORDER}={order!r}); pass uuids, those of the physical devices in the driver's order"
        )
    return [card.uuid for card in ordered]


def byte_length(text: str) -> int:
    """The length of a value in the environment, where a byte that is no UTF-8 stands as one surrogate."""
    escaped = sum("\udc80" <= letter <= "\udcff" for letter in text)
    return len(text.encode(errors="surrogatepass")) - 2 * escaped


def only_one_mig(indices: list[int], uuids: Sequence[str]) -> list[int]:
    first = next((index for index in indices if uuids[index].startswith("MIG-")), None)
    return indices if first is None else [first]


def read_number(element: str) -> int | None:
    """Returns what strtoul reads at the start of an element, in 32 bits as the driver keeps it."""
    match = NUMBER.match(element)
    if match is None:
        return None
    digits = match[2].lstrip("0") or "0"
    if len(digits) > 20 or int(digits) >= 1 << 64:
        return (1 << 32) - 1  # strtoul answers its highest number, whatever the sign
    value = int(digits)
    return (-value if match[1] == "-" else value) % (1 << 32)


def digits_of(uuid: str) -> str:
    """A UUID without the letters before its first dash, and without dashes."""
    return uuid[4:].replace("-", "").lower()


class UuidReader:
    """The elements of a list of UUIDs."""

    def __init__(self, uuids: Sequence[str], mig: Sequence[Mig | None]) -> None:
        self.digits: list[str] = [digits_of(uuid) for uuid in uuids]
        rows = zip(uuids, chain(mig, repeat(None)), strict=False)
        self.places: list[Mig | None] = [instance or old_name(uuid) for uuid, instance in rows]

    def index_of(self, element: str) -> int | None:
        """The device that an element names alone, or None."""
        instance = old_name(element)
        if instance is not None:
            matches = [i for i, each in enumerate(self.places) if each is not None and is_at(instance, each)]
        elif element.startswith(("GPU-", "MIG-")):
            digits = digits_of(element)
            matches = [i for i, whole in enumerate(self.digits) if names(digits, whole)]
        else:
            return None
        return matches[0] if len(matches) == 1 else None


def old_name(text: str) -> Mig | None:
    """The GPU and the instances in the older name of a MIG device."""
    match = OLD_MIG.match(text)
    return (f"GPU-{match[1]}", int(match[2][:9]), int(match[3][:9])) if match else None


def is_at(wanted: Mig, place: Mig) -> bool:
    return wanted[1:] == place[1:] and names(digits_of(wanted[0]), digits_of(place[0]))


def names(given: str, whole: str) -> bool:
    """Tells whether the digits given are the start of a UUID's, or all of them with something after."""
    return bool(whole) and bool(given) and (whole.startswith(given) or given.startswith(whole))


def device_order(text: str | None) -> str | None:
    """Returns the order that CUDA_DEVICE_ORDER asks for.

    Arguments:
        text: the variable's value; None where it is not set.
    Returns:
        "FASTEST_FIRST", also where it is not set, or "PCI_BUS_ID"; None where cuInit fails with error 101,
        as it does with every other value, an empty one too.
    """
    if text is None:
        return ORDERS[0]
    return text if text in ORDERS else None


def in_order(cards: Sequence[Card], order: str | None) -> list[Card] | None:
    """Returns the cards in the driver's order, or None where only the driver knows it.

    Arguments:
        cards: as NVML lists them.
        order: the value of CUDA_DEVICE_ORDER.
    Returns:
        Sorted by PCI bus id if that is asked for or all are of one model, where FASTEST_FIRST comes to the
        same (seen with driver 580.159.04).  None for unlike cards, whose speed the driver judges, and for
        MIG devices.
    """
    alike = len({card.name for card in cards}) <= 1
    if any(card.mig_mode for card in cards) or (device_order(order) != "PCI_BUS_ID" and not alike):
        return None
    return sorted(cards, key=lambda card: card.pci_bus_id)


def resolve_rocr(text: str | None, uuids: Sequence[str]) -> list[int]:
    """Returns the physical AMD devices that ROCR_VISIBLE_DEVICES names.  Unverified on hardware.

    Elements are numbers as strtol reads them with base 0 (so 0x1 and 01 too), or the start of a UUID,
    "GPU-" and 16 digits, in either case; blanks around them do not count.  Reading stops at the first that
    is neither, that names no device or several, or that names one again.

    Arguments, Returns: as resolve; an empty text means no device.
    """
    if text is None:
        return list(range(len(uuids)))
    upper = [uuid.upper() for uuid in uuids]
    indices: list[int] = []
    for element in text.split(",")[: len(uuids)]:
        index = amd_index(element.strip(AMD_BLANKS).upper(), upper)
        if index is None or index in indices:
            break
        indices.append(index)
    return indices


def resolve_hip(text: str | None, uuids: Sequence[str]) -> list[int]:
    """Returns the AMD devices, of those that ROCr leaves, that HIP_VISIBLE_DEVICES names.  Unverified on
    hardware.

    "Device indices exposed to HIP applications", or UUIDs; only those before the first invalid one count.
    AMD's
    documents are silent about blanks, signs and repetitions: read here as ROCr reads its own list.

    Arguments, Returns: as resolve_rocr.
    """
    return resolve_rocr(text, uuids)


def resolve_amd(rocr: str | None, hip: str | None, uuids: Sequence[str]) -> list[int]:
    """Returns the physical AMD devices that a HIP program sees: ROCr's list first, HIP's among what that
    leaves.

    Arguments:
        rocr, hip: ROCR_VISIBLE_DEVICES and HIP_VISIBLE_DEVICES; None where not set.
        uuids: those of the physical devices in ROCr's order.
    Returns:
        Indices into uuids, in the order of HIP's ordinals.
    """
    left = resolve_rocr(rocr, uuids)
    return [left[index] for index in resolve_hip(hip, [uuids[index] for index in left])]


def amd_index(element: str, upper: list[str]) -> int | None:
    if element.startswith("G"):
        matches = [i for i, uuid in enumerate(upper) if len(element) > 4 and uuid.startswith(element)]
        return matches[0] if len(matches) == 1 else None
    match = AMD_NUMBER.fullmatch(element)
    if match is None or len(element) > 4000:  # int() takes no more digits; no device has such a number
        return None
    value = int(match[2], 16) if match[2] else int(match[3], 8) if match[3] else int(match[4])
    value = max(-(1 << 63), min((1 << 63) - 1, -value if match[1] == "-" else value))
    value = (value + (1 << 31)) % (1 << 32) - (1 << 31)  # a long that ROCr keeps in 32 bits
    return value if 0 <= value < len(upper) else None
