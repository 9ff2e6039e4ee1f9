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
TOO_MANY_BLOCKS, WRONG_CLUSTERS = 720, 912  # COOPERATIVE_LAUNCH_TOO_LARGE, INVALID_CLUSTER_SIZE


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


def require_launchable(
    kernel: Any, grid: Size, block: Size, shared: int, cluster: Size | None, cooperative: bool | None
) -> None:
    """Raises what a launch of these blocks in clusters, or of all of them at once, is refused for."""
    facts: tuple[object, ...] = ("kernel", kernel.name, "grid", grid, "block", block, "shared", shared)
    if cluster is not None:
        if any(length % blocks_of for length, blocks_of in zip(grid, cluster, strict=True)):
            meaning = "the sides of the grid are no multiples of the cluster's; change the one or the other"
            raise status_error(WRONG_CLUSTERS, "graph_node_add", (*facts, "cluster", cluster), meaning)
        if clusters(kernel, *grid, *block, shared, *cluster) == 0:
            meaning = "nowhere on the device is room for a cluster of such blocks; make one of them smaller"
            raise status_error(WRONG_CLUSTERS, "graph_node_add", (*facts, "cluster", cluster), meaning)
    if cooperative:
        properties = get_device_properties(kernel.device_index)
        most = blocks(kernel, block, shared) * properties.multi_processor_count
        if prod(grid) > most:
            meaning = f"the device runs {most} blocks of such a launch at once; make the grid smaller"
            raise status_error(TOO_MANY_BLOCKS, "graph_node_add", facts, meaning)
