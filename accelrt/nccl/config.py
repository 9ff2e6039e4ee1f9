"""Settings of a communicator: NCCL's ncclConfig_t, by its names."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from accelrt.core.arguments import checked_number, checked_type, checked_word
from accelrt.errors import ArgumentError, not_supported

if TYPE_CHECKING:
    from typing import Any

__all__: list[str] = []

MOST_CTAS = 64
POLICIES = {"default": 0, "efficiency": 1, "zero": 2}  # NCCL_CTA_POLICY_
# Field -> the least and the most that it may be.
RANGES = {
    "cga_cluster_size": (0, 8),
    "min_ctas": (1, MOST_CTAS),
    "max_ctas": (1, MOST_CTAS),
    "traffic_class": (0, (1 << 31) - 1),
    "nvls_ctas": (1, MOST_CTAS),
    "n_channels_per_net_peer": (1, 1024),
}
SWITCHES = ("split_share", "shrink_share", "collnet_enable", "nvlink_centric_sched")
NAMES = ("net_name", "comm_name")
LONGEST_NAME = 127


@dataclass(frozen=True, kw_only=True)
class Config:
    """Settings of a communicator (ncclConfig_t); None leaves one to NCCL.

    Attributes:
        cga_cluster_size: int, 0 to 8, blocks in a cluster of NCCL's kernels.
        min_ctas, max_ctas: int, 1 to 64, the fewest and the most blocks of a kernel: multiprocessors that a
            collective takes.
        net_name: str, which network plugin: "IB", "Socket", ...
        split_share, shrink_share: bool, whether a communicator that is split off shares resources.
        traffic_class: int, of the network's packets.
        comm_name: str, as logs and profilers call it.
        collnet_enable: bool, whether the network's switches reduce (SHARP).
        cta_policy: "default", "efficiency" or "zero", how blocks are chosen.
        nvls_ctas: int, blocks of NVLink SHARP's kernels.
        n_channels_per_net_peer: int, channels to each peer over the network.
        nvlink_centric_sched: bool, whether NVLink traffic is spread rather than computation.
    Raises:
        ValueError, TypeError: a value is out of range or of the wrong kind; min_ctas is above max_ctas.

    What it blocks for is accelrt's: no call of NCCL waits for other ranks (blocking = 0).  The host backend
    for tests takes all of it, and nothing changes there.
    """

    cga_cluster_size: int | None = None
    min_ctas: int | None = None
    max_ctas: int | None = None
    net_name: str | None = None
    split_share: bool | None = None
    shrink_share: bool | None = None
    traffic_class: int | None = None
    comm_name: str | None = None
    collnet_enable: bool | None = None
    cta_policy: str | None = None
    nvls_ctas: int | None = None
    n_channels_per_net_peer: int | None = None
    nvlink_centric_sched: bool | None = None

    def __post_init__(self) -> None:
        for name, (least, most) in RANGES.items():
            value = getattr(self, name)
            if value is not None:
                checked_number(value, name, least, most)
        for name in SWITCHES:
            value = getattr(self, name)
            if value is not None:
                checked_type(value, name, bool, "a bool")
        for name in NAMES:
            value = getattr(self, name)
            if value is not None:
                checked_type(value, name, str, "a str")
            if value is not None and not (0 < len(value.encode()) <= LONGEST_NAME and value.isprintable()):
                raise ArgumentError(f"{name} is {value!r:.60}; pass 1 to {LONGEST_NAME} printable bytes")
        if self.cta_policy is not None:
            checked_word(self.cta_policy, "cta_policy", POLICIES)
        if self.min_ctas is not None and self.max_ctas is not None and self.min_ctas > self.max_ctas:
            raise ArgumentError(f"min_ctas is {self.min_ctas}, above max_ctas, {self.max_ctas}")


def checked(config: Any) -> Config | None:
    return None if config is None else checked_type(config, "config", Config, "an accelrt.nccl.Config")


def fill(settings: Any, config: Config | None) -> None:
    """Sets what a Config names in NCCL's own.

    Raises:
        NotSupportedError: the installed nccl4py has no such field.
    """
    for each in fields(config) if config is not None else ():
        value = getattr(config, each.name)
        if value is None:
            continue
        if not hasattr(settings, each.name):
            raise not_supported(
                f"the installed nccl4py has no {each.name} of ncclConfig_t; a later one has, or leave it out",
                "ncclCommInitRankConfig",
            )
        setattr(settings, each.name, POLICIES[value] if each.name == "cta_policy" else value)
