"""memory_summary: the figures of memory_stats as torch's table shows them."""

from __future__ import annotations

from accelrt.memory.caching import memory_stats, ordinal_for_figures

TYPE_CHECKING = False  # typing's, which takes long to import
if TYPE_CHECKING:
    from accelrt.annotations import DeviceArgument

WIDTH = 75
# Key of the figure, the name that torch's table has for it, and whether it is bytes.
ROWS = (
    ("allocated_bytes", "Allocated memory", True),
    ("active_bytes", "Active memory", True),
    ("requested_bytes", "Requested memory", True),
    ("reserved_bytes", "GPU reserved memory", True),
    ("inactive_split_bytes", "Non-releasable memory", True),
    ("allocation", "Allocations", False),
    ("active", "Active allocs", False),
    ("segment", "GPU reserved segments", False),
    ("inactive_split", "Non-releasable allocs", False),
)
OVERSIZE = (("oversize_allocations", "Oversize allocations"), ("oversize_segments", "Oversize GPU segments"))
POOLS = (("all", ""), ("large_pool", "      from large pool"), ("small_pool", "      from small pool"))
FIELDS = ("current", "peak", "allocated", "freed")
BESIDE = (("cuda_array_bytes", "CUDA arrays"), ("driver_pool_bytes", "DriverPools"))
BYTE_UNITS = ("B  ", "KiB", "MiB", "GiB", "TiB", "PiB")
COUNT_UNITS = (" ", "K", "M")


def level(value: int, is_bytes: bool) -> int:
    """The number of the largest unit in which a figure is 768 (bytes) or 750 (counts) or more."""
    step, least, units = (1024, 768, BYTE_UNITS) if is_bytes else (1000, 750, COUNT_UNITS)
    number = 0
    while number < len(units) - 1 and value >= least * step ** (number + 1):
        number += 1
    return number


def cell(value: int, unit: int, is_bytes: bool) -> str:
    if is_bytes:
        return f"{value // 1024**unit:6d} {BYTE_UNITS[unit]}"
    return f"{value // 1000**unit:7d} {COUNT_UNITS[unit]} "


def line(name: str, figures: list[int], units: list[int], is_bytes: bool) -> str:
    cells = [cell(value, unit, is_bytes) for value, unit in zip(figures, units, strict=True)]
    return f" {name:<21} | {' | '.join(cells)} "


def memory_summary(device: DeviceArgument | None = None, abbreviated: bool = False) -> str:
    """Returns the allocator's figures for one device as a table, with the rows of torch.cuda.memory_summary.

    Arguments:
        device: int, "cuda:1", ...; None is the current device.
        abbreviated: bool, leave out the rows of the large and small pools.
    Returns:
        str, of several lines, the last of which tell of CUDA arrays and of what the driver's pools gave of
        device and managed memory, where there are any.  A table of zeros before the first use of a device,
        which this is not.
    """
    stats, ordinal = memory_stats(device), ordinal_for_figures(device)
    lines = [
        "=" * WIDTH,
        f" {'':16} accelrt memory summary, device ID {ordinal or 0:<22d} ",
        "-" * WIDTH,
        f"  {'':9} CUDA OOMs: {stats.get('num_ooms', 0):<12d} | {'':6} cudaMalloc retries: "
        f"{stats.get('num_alloc_retries', 0):<8d}  ",
        "=" * WIDTH,
        "        Metric         | Cur Usage  | Peak Usage | Tot Alloc  | Tot Freed  ",
    ]
    for key, name, is_bytes in ROWS:
        lines.append("-" * WIDTH)
        units: list[int] = []  # of the first row, for the two below it too
        for pool, label in POOLS[: 1 if abbreviated else None]:
            figures = [stats.get(f"{key}.{pool}.{field}", 0) for field in FIELDS]
            units = units or [level(value, is_bytes) for value in figures]
            lines.append(line(label or name, figures, units, is_bytes))
    for key, name in OVERSIZE:
        figures = [stats.get(f"{key}.{field}", 0) for field in FIELDS]
        lines += ["-" * WIDTH, line(name, figures, [level(value, False) for value in figures], False)]
    lines.append("=" * WIDTH)
    for key, name in BESIDE:
        held = stats.get(key, 0)
        if held:
            text = cell(held, level(held, True), True)
            lines += [f" {name:<21} | {text}   beside the reserved memory ".ljust(WIDTH), "=" * WIDTH]
    return "".join(f"|{each}|\n" for each in lines)
