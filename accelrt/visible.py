"""Which of the physical devices CUDA_VISIBLE_DEVICES names, read as the driver reads it.

Source: CUDA C++ Programming Guide, "CUDA Environment Variables", and what a driver of 2026 answered.
"""

import re

__all__ = ["resolve"]

NUMBER = re.compile(r"[ \t\n\v\f\r]*([+-]?)([0-9]+)")


def resolve(text: str | None, uuids: list[str]) -> list[int]:
    """The physical devices that a list of visible devices names.

    Arguments:
        text: the variable's value; None where it is not set, which means all devices.
        uuids: those of the physical devices in the driver's order, "GPU-..." or "MIG-...".
    Returns:
        Indices into uuids, in the order of the list.  Reading stops at the first element that names no
        device.  [] where the driver would fail: nothing named, or a device named twice.
    """
    if text is None:
        return list(range(len(uuids)))
    found: list[int] = []
    for element in text.split(","):
        index = index_of(element, uuids)
        if index is None:
            break
        found.append(index)
    return found if len(set(found)) == len(found) else []


def index_of(element: str, uuids: list[str]) -> int | None:
    """The device that one element names, or None."""
    if element.startswith(("GPU-", "MIG-")):
        word = element.strip()
        matches = [i for i, uuid in enumerate(uuids) if uuid.startswith(word)]
        return matches[0] if len(matches) == 1 else None
    number = read_number(element)
    return number if number is not None and 0 <= number < len(uuids) else None


def read_number(element: str) -> int | None:
    """What strtoul reads at the start of an element, in 32 bits as the driver keeps it."""
    match = NUMBER.match(element)
    if match is None:
        return None
    value = int(match[2])
    return (-value if match[1] == "-" else value) % (1 << 32)
