"""Explains why a driver refuses a launch: the device's limits, and a kernel's own."""

from __future__ import annotations

from accelrt.devices.attributes import ATTRIBUTES
from accelrt.driver.registry import Rows

TYPE_CHECKING = False  # typing's, which takes long to import
if TYPE_CHECKING:
    from typing import Any

Size = tuple[int, int, int]

# CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK and _SHARED_SIZE_BYTES
THREADS, STATIC = 0, 1


def _limit(device: int, name: str) -> int:
    code, value = Rows().device_attribute(device, ATTRIBUTES[name])
    return int(value) if code == 0 else 0


def explain_refusal(kernel: Any, grid: Size, block: Size, shared: int) -> str:
    """Tells which limit a launch is beyond, and what to do; "" where it is within all of them.

    Arguments:
        kernel: Kernel.
        grid, block: (x, y, z), what the launch asked for.
        shared: int, bytes of dynamic shared memory.
    """
    device = kernel.device_index
    most_threads, static = (
        Rows().function_attribute(kernel.handle, number)[1] for number in (THREADS, STATIC)
    )
    for name, lengths, prefix in (("grid", grid, "max_grid_dim"), ("block", block, "max_block_dim")):
        for axis, length in zip("xyz", lengths, strict=True):
            most = _limit(device, f"{prefix}_{axis}")
            if length > most > 0:
                return f"{name} has {length} in {axis}, the device takes {most}; make the {name} smaller"
    threads = block[0] * block[1] * block[2]
    if threads > most_threads > 0:
        return (
            f"a block has {threads} threads, this kernel takes {most_threads}; make the block smaller, "
            "kernel.max_potential_block_size() says how large it may be"
        )
    most = _limit(device, "max_shared_memory_per_block_optin") - static
    if shared > most > 0:
        own = f" beside its {static} static ones" if static else ""
        name = f"{shared} bytes of dynamic shared memory{own}"
        return f"a block asks for {name}, the device has {most}; ask for less"
    return ""
