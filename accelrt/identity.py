"""Tells which device is which: one row for every device, with all its names.

Before init the rows come from NVML and the environment, without a context.  After init they are the
driver's own devices, each found again in NVML by its UUID and checked against it.  The driver's ordinal is
not NVML's index: the list of visible devices, CUDA_DEVICE_ORDER and MIG part the two.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from uuid import UUID

from accelrt import nvml, visible
from accelrt.core import process, procfs
from accelrt.devices import discovery
from accelrt.driver.registry import Rows
from accelrt.errors import IdentityError, ReadingError
from accelrt.runtime import init
from accelrt.status import status_error

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Identity", "physical", "table"]


@dataclass(frozen=True)
class Identity:
    """One device.

    Attributes:
        ordinal: int, the driver's, as device_count() counts; None for a device that this process does not
            see.
        uuid: str, "GPU-..." or "MIG-..."; of a host device the digits alone.
        pci_bus_id: str, such as "0000:00:06.0", of a MIG device its card's; "host:0" for a host device.
        nvml_index: int, NVML's index of the card; None where NVML is not there or has no such device.
        mig_parent: str, UUID of the card that a MIG device is part of; None for a whole card.
        mig_instance: (int, int), ids of a MIG device's GPU instance and compute instance; None for a whole
            card.
        name: str, the model.
        memory: int, bytes: the driver's figure after init, NVML's before, which counts some MiB more that the
            driver keeps.
    """

    ordinal: int | None
    uuid: str
    pci_bus_id: str
    nvml_index: int | None
    mig_parent: str | None
    mig_instance: tuple[int, int] | None
    name: str
    memory: int


def table() -> list[Identity]:
    """Returns the devices that this process sees, in the order of their ordinals.

    Before init it makes no driver call, and a process that asked may fork.  After init it is checked: the
    driver and NVML must name the same devices, at the same places, in the order that was to be expected.

    Returns:
        A list of Identity; its length is device_count().
    Raises:
        IdentityError: after init, the driver and NVML disagree; the text shows both.
        ForkedError: this process was forked from one that had initialised, and asks after use.
    """
    if init.chosen_driver() != "cuda":
        return opened_rows() if init.is_initialized() else host_rows()
    cards, lost = listed()
    if init.is_initialized():
        rows = opened_rows()
        if cards:
            check(rows, cards, lost, *process.at_init())
        return joined(rows, cards)
    return expected(cards, lost, os.environ.get(discovery.VISIBLE), os.environ.get(visible.ORDER))


def physical() -> list[Identity]:
    """Returns every card and MIG device that NVML lists, whether this process sees it or not, in the order of
    NVML's indices.

    Returns:
        A list of Identity; [] where there is no NVML.  On the host device, its devices.
    Raises:
        IdentityError: as table().
    """
    if init.chosen_driver() != "cuda":
        return table()
    ordinals = {digits(row.uuid): row.ordinal for row in table()}
    return [identity_of(card, ordinals.get(digits(card.uuid))) for card in listed()[0]]


def listed() -> tuple[list[nvml.Card], int]:
    try:
        return nvml.listing()
    except ReadingError:
        return [], 0


def digits(uuid: str) -> str:
    return uuid.removeprefix("GPU-").removeprefix("MIG-").replace("-", "").lower()


def identity_of(card: nvml.Card, ordinal: int | None) -> Identity:
    return Identity(
        ordinal, card.uuid, card.pci_bus_id, card.index, card.parent, card.instance, card.name, card.memory
    )


def expected(
    listed_cards: Sequence[nvml.Card], lost: int, text: str | None, order: str | None
) -> list[Identity]:
    """Returns what the driver will answer, by NVML; by the driver in a process of its own where NVML cannot
    tell."""
    if visible.device_order(order) is None:
        return []
    ordered = visible.in_order(listed_cards, order) if listed_cards and not lost else None
    if ordered is None:
        return joined(
            [outside_row(ordinal, one) for ordinal, one in enumerate(discovery.probe())], listed_cards
        )
    chosen = visible.resolve(text, [card.uuid for card in ordered])
    return [identity_of(ordered[index], ordinal) for ordinal, index in enumerate(chosen)]


def outside_row(ordinal: int, one: discovery.DriverDevice) -> Identity:
    uuid, bus_id = f"GPU-{UUID(one.digits)}", procfs.pci_bus_id(one.pci_bus_id)
    return Identity(ordinal, uuid, bus_id, None, None, None, one.name, one.memory)


def joined(rows: Sequence[Identity], listed_cards: Sequence[nvml.Card]) -> list[Identity]:
    """The driver's rows with what NVML alone knows."""
    cards = {digits(card.uuid): card for card in listed_cards}
    identities = []
    for row in rows:
        card = cards.get(digits(row.uuid))
        if card is not None:
            row = replace(
                row, uuid=card.uuid, nvml_index=card.index, mig_parent=card.parent, mig_instance=card.instance
            )
        identities.append(row)
    return identities


def check(
    rows: Sequence[Identity],
    listed_cards: Sequence[nvml.Card],
    lost: int,
    text: str | None,
    order: str | None,
) -> None:
    """Raises IdentityError where the driver's devices are not those that NVML leads to expect.

    Arguments:
        rows, listed_cards: what each says.
        lost: how many cards NVML could not read, so that the driver may know more.
        text, order: CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER when the driver read them.
    """
    cards = {digits(card.uuid): card for card in listed_cards}
    for row in rows:
        card = cards.get(digits(row.uuid))
        if card is None and not lost:
            raise IdentityError(
                mismatch(rows, listed_cards, f"NVML knows no device with the UUID of device {row.ordinal}")
            )
        if card is not None and card.pci_bus_id != row.pci_bus_id:
            raise IdentityError(
                mismatch(rows, listed_cards, f"they put device {row.ordinal} at different PCI bus ids")
            )
    ordered = visible.in_order(listed_cards, order)
    if ordered is None or lost:
        return
    chosen = [ordered[index] for index in visible.resolve(text, [card.uuid for card in ordered])]
    if [digits(card.uuid) for card in chosen] != [digits(row.uuid) for row in rows]:
        raise IdentityError(mismatch(rows, chosen, f"with {discovery.VISIBLE}={text!r} their orders differ"))


def mismatch(rows: Sequence[Identity], listed_cards: Sequence[nvml.Card], reason: str) -> str:
    driver = "; ".join(f"{row.ordinal}: {row.uuid} at {row.pci_bus_id}" for row in rows) or "none"
    management = (
        "; ".join(f"{card.uuid} at {card.pci_bus_id} (index {card.index})" for card in listed_cards) or "none"
    )
    return f"the driver and NVML disagree, {reason}. Driver: {driver}. NVML: {management}"


def opened_rows() -> list[Identity]:
    """Returns what the driver that is in use says of its devices."""
    rows = Rows()
    identities = []
    for ordinal in range(answered("device_count", rows.device_count())):
        uuid = str(UUID(bytes=answered("device_uuid", rows.device_uuid(ordinal))))
        bus_id = answered("device_pci_bus_id", rows.device_pci_bus_id(ordinal))
        name = answered("device_name", rows.device_name(ordinal))
        memory = answered("device_memory", rows.device_memory(ordinal))
        if init.chosen_driver() == "cuda":
            uuid, bus_id = f"GPU-{uuid}", procfs.pci_bus_id(bus_id)
        identities.append(Identity(ordinal, uuid, bus_id, None, None, None, name, memory))
    return identities


def answered(call: str, answer: tuple[int, Any]) -> Any:
    if answer[0]:
        raise status_error(answer[0], call)
    return answer[1]


def host_rows() -> list[Identity]:
    """Returns what the host device will say of itself, by its settings."""
    settings = init.later("accelrt.driver.host.driver").read_settings()
    rows = []
    for ordinal in range(settings["devices"]):
        uuid = str(UUID(bytes=f"accelrt-host-{ordinal:02d}".encode().ljust(16, b"\0")))
        name, memory = "accelrt host device", settings["memory"]
        rows.append(Identity(ordinal, uuid, f"host:{ordinal}", None, None, None, name, memory))
    return rows
