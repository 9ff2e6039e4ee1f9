"""Who uses a device.  Source: NVML API Reference Guide, "Device Queries"."""

from functools import partial
from typing import Any

from accelrt.annotations import DeviceArgument
from accelrt.nvml.library import Target, function_number, read_processes
from accelrt.readings.reading import reading, refusal
from accelrt.readings.records import GpuProcess, supported
from accelrt.readings.targets import target_for

__all__ = ["gpu_processes", "list_gpu_processes"]

KINDS = {
    "compute": function_number("nvmlDeviceGetComputeRunningProcesses_v3"),
    "graphics": function_number("nvmlDeviceGetGraphicsRunningProcesses_v3"),
}


@reading
def gpu_processes(target: Target) -> list[GpuProcess]:
    """Returns the processes that have a context on a device (nvmlDeviceGetComputeRunningProcesses and its
    neighbour).

    Arguments, Raises: as temperature.
    Returns:
        A list of GpuProcess; a process that computes and draws is in it once, as "compute".  In a container
        the driver may list processes by numbers that mean nothing inside, or list none.
    """
    listed = {
        kind: supported(partial(read_processes, "gpu_processes", number, target))
        for kind, number in KINDS.items()
    }
    if all(rows is None for rows in listed.values()):
        raise refusal("gpu_processes", target)
    processes: dict[tuple[int, int | None, int | None], GpuProcess] = {}
    for kind, rows in listed.items():
        for pid, memory, instance, compute in rows or ():
            processes.setdefault((pid, instance, compute), GpuProcess(pid, memory, kind, instance, compute))
    return list(processes.values())


def list_gpu_processes(device: DeviceArgument | None = None) -> str:
    """Returns the same as a text for people: a line for each process with the memory that it holds, in MB
    (2**20 bytes).

    Arguments, Raises: as temperature.
    """
    target = target_for(device)
    lines = [f"GPU:{target.uuid}" if isinstance(device, str) else f"GPU:{number_of(device)}"]
    processes = gpu_processes(target if isinstance(target, Target) else device)
    if not processes:
        lines.append("no processes are running")
    for process in processes:
        held = "    unknown" if process.memory is None else f"{process.memory / (1 << 20):>12.3f} MB"
        lines.append(f"process {process.pid:>10d} uses {held} GPU memory")
    return "\n".join(lines)


def number_of(device: Any) -> int:
    if device is None:
        from accelrt.devices.device import current_device
        from accelrt.runtime import init

        return current_device() if init.is_initialized() else 0
    return int(getattr(device, "ordinal", getattr(device, "index", device)))
