"""What goes over PCIe and NVLink.  Source: NVML API Reference Guide, "Device Queries" and "NvLink
Methods".
"""

from accelrt.annotations import DeviceArgument
from accelrt.errors import NotSupportedError, ReadingError
from accelrt.nvml.library import function_number
from accelrt.readings.nvml_calls import Target, read_fields, read_number, reading_error, target_for
from accelrt.readings.records import NvlinkTraffic, PcieLink, PcieTraffic

__all__ = ["nvlink_links", "nvlink_throughput", "pcie_link", "pcie_throughput"]

THROUGHPUT = function_number("nvmlDeviceGetPcieThroughput")
LINK = {
    "generation": function_number("nvmlDeviceGetCurrPcieLinkGeneration"),
    "width": function_number("nvmlDeviceGetCurrPcieLinkWidth"),
    "max_generation": function_number("nvmlDeviceGetMaxPcieLinkGeneration"),
    "max_width": function_number("nvmlDeviceGetMaxPcieLinkWidth"),
    "replays": function_number("nvmlDeviceGetPcieReplayCounter"),
}
NVLINK = function_number("nvmlDeviceGetNvLinkState")

SENT, RECEIVED = 0, 1  # nvmlPcieUtilCounter_t
LINKS = 18  # NVML_NVLINK_MAX_LINKS
ALL_LINKS = 0xFFFFFFFF  # the scope that sums over a device's links
DATA_SENT, DATA_RECEIVED = 138, 139  # NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX and _RX, KiB
KIB = 1024
UNSUPPORTED = 3


def pcie_throughput(device: DeviceArgument | None = None) -> PcieTraffic:
    """What a device sends and receives over PCIe, in bytes a second, measured over 20 ms each, which the
    call takes (nvmlDeviceGetPcieThroughput, which counts in KB of 1024 bytes).

    Arguments, Raises: as temperature.
    """
    target = target_for(device)
    if not isinstance(target, Target):
        traffic: PcieTraffic = target.pcie_throughput()
        return traffic
    sent, received = (
        read_number("pcie_throughput", THROUGHPUT, target, counter) for counter in (SENT, RECEIVED)
    )
    return PcieTraffic(sent * KIB, received * KIB)


def pcie_link(device: DeviceArgument | None = None) -> PcieLink:
    """The generation and the lanes of a device's PCIe link, now and at most, and its replays."""
    target = target_for(device)
    if not isinstance(target, Target):
        link: PcieLink = target.pcie_link()
        return link
    found: dict[str, int | None] = {}
    for name, number in LINK.items():
        try:
            found[name] = read_number("pcie_link", number, target)
        except NotSupportedError:
            found[name] = None
    if all(figure is None for figure in found.values()):
        raise reading_error("pcie_link", target, UNSUPPORTED)
    return PcieLink(**found)


def nvlink_links(device: DeviceArgument | None = None) -> list[bool]:
    """Whether each of a device's NVLinks is up (nvmlDeviceGetNvLinkState)."""
    target = target_for(device)
    if not isinstance(target, Target):
        return list(target.nvlink_links())
    found = []
    for link in range(LINKS):
        try:
            found.append(read_number("nvlink_links", NVLINK, target, link) == 1)
        except NotSupportedError:
            break
        except ReadingError as error:
            if error.name != "INVALID_ARGUMENT":  # the device has fewer links
                raise
            break
    if not found:
        raise reading_error("nvlink_links", target, UNSUPPORTED)
    return found


def nvlink_throughput(device: DeviceArgument | None = None) -> NvlinkTraffic:
    """What a device has sent and received over all of its NVLinks, in bytes since the driver was loaded:
    the payload (fields NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX and _RX).  The rate is the difference of two
    readings.
    """
    target = target_for(device)
    if not isinstance(target, Target):
        traffic: NvlinkTraffic = target.nvlink_throughput()
        return traffic
    sent, received = read_fields(
        "nvlink_throughput", target, [(DATA_SENT, ALL_LINKS), (DATA_RECEIVED, ALL_LINKS)]
    )
    if sent is None or received is None:
        raise reading_error("nvlink_throughput", target, UNSUPPORTED)
    return NvlinkTraffic(int(sent) * KIB, int(received) * KIB)
