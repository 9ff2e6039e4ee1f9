"""What a device says of its state: torch.cuda's readings by their names and units, and what else people ask
nvidia-smi for.

A reading changes nothing on the device.  It goes to NVML by the device's UUID, never by an index; on the host
device the few that have a meaning there answer; where HIP is the platform and the package amdsmi is
installed, that one answers (unverified on hardware).

nvml_calls     which device a reading is of, and NVML's calls by the shape of their arguments
other_vendors  devices that are not NVIDIA's, the host device among them
amd            AMD's, and which of all these answers for a device
usage          utilization, memory and its errors, clocks
power, thermal, links, processes
records        what readings of several figures answer
"""

from accelrt.readings.links import nvlink_links, nvlink_throughput, pcie_link, pcie_throughput
from accelrt.readings.power import energy, performance_state, power_draw, power_limits, throttle_reasons
from accelrt.readings.processes import gpu_processes, list_gpu_processes
from accelrt.readings.records import (
    EccErrors,
    GpuProcess,
    MemoryInfo,
    NvlinkTraffic,
    PcieLink,
    PcieTraffic,
    PowerLimits,
    RemappedRows,
    TemperatureLimits,
)
from accelrt.readings.thermal import (
    fan_speed,
    fan_speeds,
    memory_temperature,
    temperature,
    temperature_limits,
)
from accelrt.readings.usage import (
    application_clock_rates,
    clock_rate,
    clock_rates,
    decoder_utilization,
    device_memory_info,
    device_memory_used,
    ecc_errors,
    ecc_mode,
    encoder_utilization,
    max_clock_rates,
    memory_usage,
    remapped_rows,
    utilization,
)

__all__ = [
    "EccErrors",
    "GpuProcess",
    "MemoryInfo",
    "NvlinkTraffic",
    "PcieLink",
    "PcieTraffic",
    "PowerLimits",
    "RemappedRows",
    "TemperatureLimits",
    "application_clock_rates",
    "clock_rate",
    "clock_rates",
    "decoder_utilization",
    "device_memory_info",
    "device_memory_used",
    "ecc_errors",
    "ecc_mode",
    "encoder_utilization",
    "energy",
    "fan_speed",
    "fan_speeds",
    "gpu_processes",
    "list_gpu_processes",
    "max_clock_rates",
    "memory_temperature",
    "memory_usage",
    "nvlink_links",
    "nvlink_throughput",
    "pcie_link",
    "pcie_throughput",
    "performance_state",
    "power_draw",
    "power_limits",
    "remapped_rows",
    "temperature",
    "temperature_limits",
    "throttle_reasons",
    "utilization",
]
