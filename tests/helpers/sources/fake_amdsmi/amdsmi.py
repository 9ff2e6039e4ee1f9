"""A stand-in for AMD's package amdsmi: three cards, by the documented names, fields and units of its
functions.

The order of the handles is not that of the HIP ordinals.  The last card has no figure for most things,
which the real package says with "N/A" or an exception.
"""

import os
from enum import Enum

CARDS = {  # handle -> (HIP ordinal, UUID, number that its figures hold)
    "handle-0": (2, "GPU-000000000000000c", 3),
    "handle-1": (0, "GPU-000000000000000a", 1),
    "handle-2": (1, "GPU-00000000000000ab", 2),
}
NOT_SUPPORTED, BUSY = 2, 30
_session = None


class AmdSmiException(Exception):
    pass


class AmdSmiLibraryException(AmdSmiException):
    def __init__(self, code):
        super().__init__(f"status {code}")
        self.code = code

    def get_error_code(self):
        return self.code


class AmdSmiTemperatureType(Enum):
    EDGE, HOTSPOT, VRAM = range(3)
    JUNCTION = HOTSPOT


class AmdSmiTemperatureMetric(Enum):
    CURRENT = 0


class AmdSmiClkType(Enum):
    GFX, MEM, VCLK0 = range(3)


def amdsmi_init(flag=None):
    global _session
    _session = os.getpid()


def amdsmi_get_processor_handles():
    if _session != os.getpid():
        raise AmdSmiLibraryException(32)
    return list(CARDS)


def number(handle):
    if _session != os.getpid():
        raise AmdSmiLibraryException(32)
    return CARDS[handle][2]


def is_bare(handle):
    return number(handle) == 3


def figure(handle, value):
    return "N/A" if is_bare(handle) else value


def amdsmi_get_gpu_asic_info(handle):
    return {"market_name": f"Stand-in MI {number(handle)}", "asic_serial": f"0x{number(handle):016x}"}


def amdsmi_get_gpu_enumeration_info(handle):
    if os.environ.get("FAKE_AMDSMI_OLD"):
        return {"drm_render": 128}
    return {"hip_id": CARDS[handle][0], "hip_uuid": CARDS[handle][1]}


def amdsmi_get_gpu_device_bdf(handle):
    return f"0000:0{number(handle)}:00.0"


def amdsmi_get_temp_metric(handle, sensor, metric):
    if sensor is AmdSmiTemperatureType.VRAM and is_bare(handle):
        raise AmdSmiLibraryException(NOT_SUPPORTED)
    return 10 * sensor.value + 30 + number(handle)


def amdsmi_get_gpu_fan_speed_max(handle, sensor):
    if is_bare(handle):
        raise AmdSmiLibraryException(NOT_SUPPORTED)
    return 255


def amdsmi_get_gpu_fan_speed(handle, sensor):
    return 51 * number(handle)


def amdsmi_get_power_info(handle):
    return {"average_socket_power": "N/A", "current_socket_power": figure(handle, 140 + number(handle))}


def amdsmi_get_power_cap_info(handle):
    if is_bare(handle):
        raise AmdSmiLibraryException(BUSY)
    caps = {"power_cap": 750, "default_power_cap": 700, "min_power_cap": 0, "max_power_cap": 800}
    return {name: watts * 1000000 for name, watts in caps.items()}


def amdsmi_get_energy_count(handle):
    return {
        "energy_accumulator": figure(handle, 2000 * number(handle)),
        "counter_resolution": 15.3,
        "timestamp": 7,
    }


def amdsmi_get_clock_info(handle, kind):
    if kind is AmdSmiClkType.VCLK0:
        raise AmdSmiLibraryException(NOT_SUPPORTED)
    return {"clk": figure(handle, 1000 + 100 * kind.value + number(handle)), "max_clk": figure(handle, 2100)}


def amdsmi_get_gpu_activity(handle):
    return {
        "gfx_activity": figure(handle, 50 + number(handle)),
        "umc_activity": figure(handle, 20 + number(handle)),
    }


def amdsmi_get_gpu_vram_usage(handle):
    return {"vram_total": 196592, "vram_used": 283 + number(handle)}


def amdsmi_get_gpu_total_ecc_count(handle):
    return {
        "correctable_count": figure(handle, 4),
        "uncorrectable_count": figure(handle, 5),
        "deferred_count": 0,
    }


def amdsmi_get_pcie_info(handle):
    return {
        "pcie_static": {"max_pcie_width": 16, "max_pcie_speed": 32, "pcie_interface_version": 5},
        "pcie_metric": {"pcie_width": figure(handle, 8), "pcie_speed": 16, "pcie_replay_count": "N/A"},
    }


def amdsmi_get_gpu_process_list(handle):
    return [
        {
            "name": "N/A",
            "pid": 4711,
            "mem": 99,
            "memory_usage": {"gtt_mem": 0, "cpu_mem": 0, "vram_mem": 4096},
        }
    ]
