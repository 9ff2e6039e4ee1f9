"""Finds what a device's readings are of: a device of NVML's by its UUID, or what answers for another kind.

An ordinal is looked up once in the table of identities and kept as a UUID, and NVML gives the handle for that
UUID; no index of NVML's takes part, so that a reading is never of the wrong card.  Before init the table goes
with the environment: a change of the list of visible devices makes a new one.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, NamedTuple

from accelrt import identity
from accelrt.core.process import NAMES, call_at_fork
from accelrt.devices.device import current_device, parse
from accelrt.nvml.library import Target, find_targets_by, ready
from accelrt.nvml.library import find_target as find_target  # which finds by what is here
from accelrt.runtime import init

if TYPE_CHECKING:
    from collections.abc import Sequence

    from accelrt.annotations import DeviceArgument

PREFIXES = ("GPU-", "MIG-")


class Table(NamedTuple):
    """The targets by ordinal, and what they go with.

    Attributes:
        targets: sequence of Target, or of OtherVendor on other platforms.
        is_of_driver: bool, whether it was made after init; it is good for the process's life then.
        variables: tuple, values of the environment's variables that say which devices are visible, else.
    """

    targets: Sequence[Any]
    is_of_driver: bool
    variables: tuple[str | None, ...]


_table: Table | None = None
_by_uuid: dict[str, Target] = {}  # every Target that was ever asked for


def forget_table() -> None:
    global _table
    _table = None
    ready.clear()


def target_for(device: DeviceArgument | Target | None = None) -> Any:
    """Returns the Target that a device's readings are of, or the OtherVendor that answers for it.

    Raises:
        ValueError, TypeError: it names no device.
    """
    table = _table
    is_current = table is not None and (
        table.is_of_driver or (not init.is_initialized() and table.variables == visible_variables())
    )
    if table is None or not is_current:
        table = make_table()
    if device is None:
        device = current_device() if table.is_of_driver and len(table.targets) > 1 else 0
    elif type(device) is not int:
        return named_target(table, device)
    if 0 <= device < len(table.targets):
        return table.targets[device]
    count = len(table.targets)
    allowed = f"ordinals 0 to {count - 1}" if count else "is one visible?"
    raise ValueError(f"device {device} does not exist; there are {count} devices, {allowed}")


def visible_variables() -> tuple[str | None, ...]:
    return tuple(os.environ.get(name) for name in NAMES["cuda"])


def named_target(table: Table, device: Any) -> Any:
    if isinstance(device, str) and device.startswith(PREFIXES):
        return target_with(table, device)
    if isinstance(device, Target):
        return device
    if isinstance(device, identity.Identity):
        if device.nvml_index is not None:
            return target_with(table, device.uuid)
        return target_for(device.ordinal)
    return target_for(parse(device))


def target_with(table: Table, uuid: str) -> Any:
    """Returns the target of a UUID: of any card that NVML lists, one too that this process does not see."""
    if uuid in _by_uuid:
        return _by_uuid[uuid]
    for row in identity.physical():
        if row.uuid == uuid:
            return target_of(row)
    for target in table.targets:
        if target.uuid == uuid:
            return target
    uuids = ", ".join(row.uuid for row in identity.physical()) or "none"
    raise ValueError(f"device {uuid!r} does not exist; those that can be read are {uuids}")


def target_of(row: identity.Identity) -> Target:
    return _by_uuid.setdefault(row.uuid, Target(row.uuid, row.name, row.mig_parent))


def make_table() -> Table:
    global _table
    is_of_driver, variables = init.is_initialized(), visible_variables()
    others = init.later("accelrt.readings.amd").other_targets()
    targets = [target_of(row) for row in identity.table()] if others is None else others
    table = Table(targets, is_of_driver, variables)
    # Before init other variables decide on other platforms, so that their table is made anew each time.
    _table = table if others is None or is_of_driver else None
    if is_of_driver and others is None:
        ready.update(enumerate(targets))
        if len(targets) == 1:
            ready[None] = targets[0]
    return table


find_targets_by(target_for)
call_at_fork("readings.targets", "readings", child=forget_table)
