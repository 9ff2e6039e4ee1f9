"""Attributes of a stream beside its access policy window: priority, domains of memory synchronisation, and
how a thread waits for it.

The sources are CUDA's driver API, CUlaunchAttributeID, and its programming guide, "Memory Synchronization
Domains".
"""

from __future__ import annotations

import operator
from typing import NamedTuple

from accelrt.core.arguments import checked_word
from accelrt.devices.device import get_device_properties
from accelrt.driver.registry import Rows
from accelrt.errors import ArgumentError, ArgumentTypeError, NotSupportedError
from accelrt.status import status_error
from accelrt.streams import access_policy

SYNC_POLICY, PRIORITY, DOMAIN_MAP, DOMAIN = 3, 8, 9, 10  # CUlaunchAttributeID
POLICIES = {"auto": 1, "spin": 2, "yield": 3, "blocking": 4}  # CUsynchronizationPolicy
DOMAINS = {"default": 0, "remote": 1}  # CUlaunchMemSyncDomain
NAMES = {
    SYNC_POLICY: "synchronization_policy",
    PRIORITY: "priority",
    DOMAIN_MAP: "memory_sync_domain_map",
    DOMAIN: "memory_sync_domain",
}
Setting = tuple[int, int, int]  # an attribute and its one or two numbers


class StreamAttributes(NamedTuple):
    """The attributes of a stream; Stream.attributes says what each is."""

    access_policy_window: access_policy.AccessPolicyWindow | None
    priority: int
    synchronization_policy: str
    memory_sync_domain: str
    memory_sync_domain_map: tuple[int, int]


def ask(ordinal: int, stream: int, attribute: int) -> Setting:
    """An attribute of a stream, by its device and handle."""
    code, first, second = Rows().stream_attribute_get(ordinal, stream, attribute)
    if code:
        raise status_error(code, "stream_attribute_get", ("stream", stream, "attribute", NAMES[attribute]))
    return attribute, first, second


def read(ordinal: int, stream: int) -> StreamAttributes:
    """The attributes of a stream, by its device and handle."""
    try:
        window = access_policy.read(ordinal, stream)
    except NotSupportedError:
        window = None
    numbers = {attribute: ask(ordinal, stream, attribute)[1:] for attribute in NAMES}
    policy = {number: name for name, number in POLICIES.items()}.get(numbers[SYNC_POLICY][0], "auto")
    domain = "remote" if numbers[DOMAIN][0] == DOMAINS["remote"] else "default"
    return StreamAttributes(window, numbers[PRIORITY][0], policy, domain, numbers[DOMAIN_MAP])


def checked_map(ordinal: int, pair: tuple[int, int]) -> tuple[int, int]:
    try:
        first, second = map(operator.index, pair)
    except (TypeError, ValueError):
        raise ArgumentTypeError(
            f"memory_sync_domain_map is {pair!r}; pass two ints, what default and remote stand for"
        ) from None
    count = get_device_properties(ordinal).attributes.get("mem_sync_domain_count", 1)
    if not (0 <= first < count and 0 <= second < count):
        raise ArgumentError(
            f"memory_sync_domain_map is {(first, second)}; device {ordinal} has domains 0 to {count - 1} "
            "(mem_sync_domain_count of its attributes)"
        )
    return first, second


def checked(
    ordinal: int,
    priority: int | None,
    synchronization_policy: str | None,
    memory_sync_domain: str | None,
    memory_sync_domain_map: tuple[int, int] | None,
) -> list[Setting]:
    """Checks what set_attributes was given; answers it as the driver takes it.  The priority is clamped."""
    settings: list[Setting] = []
    if priority is not None:
        settings.append((PRIORITY, priority, 0))
    if synchronization_policy is not None:
        policy = checked_word(synchronization_policy, "synchronization_policy", POLICIES)
        settings.append((SYNC_POLICY, POLICIES[policy], 0))
    if memory_sync_domain is not None:
        domain = checked_word(memory_sync_domain, "memory_sync_domain", DOMAINS)
        settings.append((DOMAIN, DOMAINS[domain], 0))
    if memory_sync_domain_map is not None:
        settings.append((DOMAIN_MAP, *checked_map(ordinal, memory_sync_domain_map)))
    return settings


def write(ordinal: int, stream: int, settings: list[Setting], before: list[Setting]) -> None:
    """Sets attributes of a stream, by its device and handle; where one is refused, all are as before."""
    for done, setting in enumerate(settings):
        code = Rows().stream_attribute_set(ordinal, stream, *setting)
        if code:
            for earlier in before[:done]:
                Rows().stream_attribute_set(ordinal, stream, *earlier)
            value = setting[1:] if setting[0] == DOMAIN_MAP else setting[1]
            raise status_error(code, "stream_attribute_set", ("stream", stream, NAMES[setting[0]], value))
