"""Readings of what goes over PCIe and NVLink.  Source: NVML API Reference Guide, "Device Queries" and "NvLink
Methods".
"""

from functools import partial

from accelrt.errors import NotSupportedError, ReadingError
from accelrt.nvml.library import Target, function_number, read_fields, read_number
from accelrt.readings.reading import figures, reading, refusal
from accelrt.readings.records import NvlinkTraffic, PcieLink, PcieTraffic

__all__ = ["nvlink_links", "nvlink_throughput", "pcie_link", "pcie_throughput"]

THROUGHPUT = function_number("nvmlDeviceGetPcieThroughput")
LINK = (  # in the order of PcieLink
    function_number("nvmlDeviceGetCurrPcieLinkGeneration"),
    function_number("nvmlDeviceGetCurrPcieLinkWidth"),
    function_number("nvmlDeviceGetMaxPcieLinkGeneration"),
    function_number("nvmlDeviceGetMaxPcieLinkWidth"),
    function_number("nvmlDeviceGetPcieReplayCounter"),
)
NVLINK = function_number("nvmlDeviceGetNvLinkState")

SENT, RECEIVED = 0, 1  # nvmlPcieUtilCounter_t
LINKS = 18  # NVML_NVLINK_MAX_LINKS
ALL_LINKS = 0xFFFFFFFF  # the scope that sums over a device's links
DATA_SENT, DATA_RECEIVED = 138, 139  # NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX and _RX, KiB
KIB = 1024


@reading
def pcie_throughput(target: Target) -> PcieTraffic:
    """Returns how much a device sends and receives over PCIe, in bytes a second, measured over 20 ms each,
    which the call takes (nvmlDeviceGetPcieThroughput, which counts in KB of 1024 bytes).

    Arguments, Raises: as temperature.
    """
    sent, received = (
        read_number("pcie_throughput", THROUGHPUT, target, counter) for counter in (SENT, RECEIVED)
    )
    return PcieTraffic(sent * KIB, received * KIB)


@reading
def pcie_link(target: Target) -> PcieLink:
    """Returns the generation and the lanes of a device's PCIe link, now and at most, and its replays.

    Arguments, Raises: as temperature.
    """
    calls = (partial(read_number, "pcie_link", number, target) for number in LINK)
    return PcieLink(*figures("pcie_link", target, calls, zeros=True))


@reading
def nvlink_links(target: Target) -> list[bool]:
    """Tells whether each of a device's NVLinks is up (nvmlDeviceGetNvLinkState).

    Arguments, Raises: as temperature.
    """
    states = []
    for link in range(LINKS):
        try:
            states.append(read_number("nvlink_links", NVLINK, target, link) == 1)
        except NotSupportedError:
            break
        except ReadingError as error:
            if error.name != "INVALID_ARGUMENT":  # the device has fewer links
                raise
            break
    if not states:
        raise refusal("nvlink_links", target)
    return states


@reading
def nvlink_throughput(target: Target) -> NvlinkTraffic:
    """Returns the bytes that a device has sent and received over all of its NVLinks since the driver was
    loaded: the payload (fields NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX and _RX).  The rate is the difference of
    two readings.

    Arguments, Raises: as temperature.
    """
    sent, received = read_fields(
        "nvlink_throughput", target, [(DATA_SENT, ALL_LINKS), (DATA_RECEIVED, ALL_LINKS)]
    )
    if sent is None or received is None:
        raise refusal("nvlink_throughput", target)
    return NvlinkTraffic(int(sent) * KIB, int(received) * KIB)
