"""address_info: what an address is, and of which memory."""

from __future__ import annotations

from typing import NamedTuple

from accelrt.allocator.readers import segments
from accelrt.devices.device import current_device
from accelrt.driver.registry import Rows
from accelrt.memory.caching import find_memory
from accelrt.memory.history.recording import name_all
from accelrt.status import status_error

TYPE_CHECKING = False  # typing's, which takes long to import
if TYPE_CHECKING:
    from typing import Any

KINDS = ("none", "pinned", "device", "managed")  # the driver's KIND_ numbers (driver/table.pxd)


class AddressInfo(NamedTuple):
    """An address and the memory that it is in, as address_info() found them.

    Attributes:
        address: int, that was asked about.
        kind: str, "device", "pinned", "managed", "imported", or "none": the driver knows nothing of it.
        device: int, the ordinal of the device that has it; None of host memory.
        start: int, where the memory that it is in begins: a block, or what the driver made in one call; None
            where that is not known.
        nbytes: int, the bytes of that memory; None where they are not known.
        state: str, of accelrt's memory: "active_allocated", "active_pending_free" or "inactive"; else None.
        block: dict, as in memory_snapshot(), with "frames" and "tag"; None of others' memory.
        segment: dict, likewise, without its blocks.
    """

    address: int
    kind: str
    device: int | None
    start: int | None
    nbytes: int | None
    state: str | None
    block: dict[str, Any] | None
    segment: dict[str, Any] | None


def address_info(address: int) -> AddressInfo:
    """Tells what an address is: device memory, page-locked, managed, another process's, or nothing known.

    Arguments:
        address: int.
    Returns:
        AddressInfo: kind, device, start, nbytes; of memory of the caching allocator its block as
        memory_snapshot() gives it, with its tag and the stack of its allocation where record_history() took
        one, and the segment, with the stream and the pool's id.
    Raises:
        TypeError, ValueError: address is no int from 0 to 2**64 - 1.
        CudaError: the driver refused to say.
    """
    memory = find_memory(address)
    current_device()  # initialises
    address = int(address)
    if memory is not None and memory[0] in ("device", "idle"):
        pair = block_at(memory[1], address)
        if pair is not None:
            block, segment = pair
            kind = "managed" if segment["managed"] else "device"
            start, nbytes = block["address"], block["size"]
            return AddressInfo(address, kind, memory[1], start, nbytes, block["state"], block, segment)
    if memory is not None and memory[0] in ("pinned", "imported"):
        kind, device, start, nbytes = memory
        return AddressInfo(address, kind, device if device >= 0 else None, start, nbytes, None, None, None)
    return driver_info(address)


def driver_info(address: int) -> AddressInfo:
    code, number, device, start, nbytes = Rows().pointer_range(address)
    if code:
        raise status_error(code, "pointer_range", ("address", address))
    kind = KINDS[number]
    ordinal = device if number and device >= 0 else None
    return AddressInfo(address, kind, ordinal, start or None, nbytes or None, None, None, None)


def block_at(device: int, address: int) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """The block of a device's pool that contains an address, and its segment; None where it has gone."""
    for segment in segments(device)[0]:
        if not segment["address"] <= address < segment["address"] + segment["total_size"]:
            continue
        for block in segment["blocks"]:
            if block["address"] <= address < block["address"] + block["size"]:
                segment["blocks"] = [block]
                (segment,) = name_all([segment])
                return block, {name: value for name, value in segment.items() if name != "blocks"}
    return None
