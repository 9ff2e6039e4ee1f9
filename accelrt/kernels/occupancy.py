"""Answers how much of a kernel a device runs at a time, for the methods of Kernel."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

from accelrt.core.arguments import checked_number
from accelrt.devices.device import get_device_properties
from accelrt.driver.registry import Rows
from accelrt.kernels.attributes import ask
from accelrt.kernels.limits import THREADS
from accelrt.status import status_error

if TYPE_CHECKING:
    from collections.abc import Callable

    from accelrt.kernels.limits import Size

MOST = 0x7FFFFFFF  # of a C int


def answered(row: str, kernel: Any, facts: tuple[object, ...], *arguments: int) -> Any:
    """Calls a row; an error names the kernel and facts."""
    code, *values = getattr(Rows(), row)(*arguments)
    if code:
        raise status_error(code, row, ("kernel", kernel.name, *facts))
    return values[0] if len(values) == 1 else tuple(values)


def blocks(kernel: Any, block: Size, shared: int) -> int:
    threads, facts = min(prod(block), MOST), ("block", block, "shared", shared)
    return int(answered("occupancy_blocks", kernel, facts, kernel.handle, threads, shared))


def available_shared(kernel: Any, count: int, block: Size) -> int:
    count = checked_number(count, "blocks", 1, MOST, "blocks of a multiprocessor as int")
    threads, facts = min(prod(block), MOST), ("blocks", count, "block", block)
    return int(answered("occupancy_shared", kernel, facts, kernel.handle, count, threads))


def best_block(kernel: Any, shared: int | Callable[[int], int], limit: int) -> tuple[int, int]:
    limit = checked_number(limit, "limit", 0, MOST, "threads as int")
    if callable(shared):
        return best_of(kernel, shared, limit)
    facts = ("shared", shared, "limit", limit)
    grid, threads = answered("occupancy_block_size", kernel, facts, kernel.handle, shared, limit)
    return grid, threads


def best_of(kernel: Any, shared: Callable[[int], int], limit: int) -> tuple[int, int]:
    """The block with which most threads run at a time, and of these the largest: each one is asked for."""
    properties = get_device_properties(kernel.device_index)
    most = min(limit or MOST, ask(kernel, THREADS))
    warp = properties.warp_size
    best = (0, 0, 0)  # threads at a time, threads of a block, blocks at a time
    for threads in sorted({most, *range(warp, most + 1, warp)}):
        nbytes = checked_number(shared(threads), f"shared({threads})", 0, 0xFFFFFFFF, "bytes as int")
        count = blocks(kernel, (threads, 1, 1), nbytes)
        best = max(best, (count * threads, threads, count))
    return best[2] * properties.multi_processor_count, best[1]


def clusters(kernel: Any, *sizes: int) -> int:
    """sizes: of the grid, of a block, the shared memory, of a cluster; those of a row."""
    return int(
        answered(
            "occupancy_clusters", kernel, ("cluster", sizes[7:]), kernel.device_index, kernel.handle, *sizes
        )
    )


def cluster_size(kernel: Any, *sizes: int) -> int:
    """sizes: of the grid, of a block, the shared memory."""
    facts = ("grid", sizes[:3], "block", sizes[3:6], "shared", sizes[6])
    return int(answered("occupancy_cluster_size", kernel, facts, kernel.device_index, kernel.handle, *sizes))
