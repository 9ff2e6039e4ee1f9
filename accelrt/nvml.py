"""The few NVML readings that need no driver: which physical devices there are.

NVML may be asked before a fork; the driver may not.  Every call opens and closes its own session, so
that a child inherits none.
"""

import importlib

__all__ = ["physical_uuids"]


def physical_uuids() -> list[str]:
    """The UUIDs of the physical devices, "GPU-...", in NVML's order, which is that of the PCI bus.

    Returns:
        A list; [] where there is no NVIDIA driver, or it answers that it found no device.
    """
    nvml = importlib.import_module("cuda.bindings.nvml")
    try:
        nvml.init_v2()
    except (nvml.NvmlError, RuntimeError):  # no library, or no device: there is nothing to list
        return []
    try:
        handles = map(nvml.device_get_handle_by_index_v2, range(nvml.device_get_count_v2()))
        return [nvml.device_get_uuid(handle) for handle in handles]
    finally:
        nvml.shutdown()
