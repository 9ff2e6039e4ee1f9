"""Explains why a driver refuses a launch: the device's limits, and a kernel's own."""

from __future__ import annotations

from accelrt.devices.attributes import ATTRIBUTES
from accelrt.driver.registry import Rows

Size = tuple[int, int, int]


def _limit(device: int, name: str) -> int:
    code, value = Rows().device_attribute(device, ATTRIBUTES[name])
    return int(value) if code == 0 else 0


def explain_refusal(device: int, most_threads: int, static: int, grid: Size, block: Size, shared: int) -> str:
    """Tells which limit a launch is beyond, and what to do; "" where it is within all of them.

    Arguments:
        device: int, the ordinal.
        most_threads: int, threads that a block of the kernel may have.
        static: int, bytes of its static shared memory.
        grid, block: (x, y, z), what the launch asked for.
        shared: int, bytes of dynamic shared memory.
    """
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
