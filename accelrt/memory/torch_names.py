"""Names of torch.cuda.memory that give other functions' answers in another form, are deprecated there, or
begin with an underscore and are used all the same."""

from __future__ import annotations

import warnings

from accelrt.allocator.settings.apply import set_allocator_settings
from accelrt.core import files
from accelrt.memory.caching import max_memory_reserved, memory_reserved, memory_stats, reset_peak_memory_stats
from accelrt.memory.history.recording import record_history
from accelrt.memory.history.snapshot_file import dump_snapshot
from accelrt.memory.history.snapshots import snapshot
from accelrt.memory.mempool import host_memory_stats

TYPE_CHECKING = False  # typing's, which takes long to import
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, Literal

    from accelrt.annotations import DeviceArgument

MOST_ENTRIES = 1 << 24  # that record_history keeps; torch's default is sys.maxsize


def nested(figures: dict[str, Any]) -> dict[str, Any]:
    """{"a.b": 1, "a.c": 2} as {"a": {"b": 1, "c": 2}}.  A tag stays one key, whatever its name."""
    answer: dict[str, Any] = {}
    for key, figure in figures.items():
        parts = key.split(".")
        if parts[0] == "tag":
            parts = ["tag", ".".join(parts[1:-2]), *parts[-2:]]
        level = answer
        for part in parts[:-1]:
            level = level.setdefault(part, {})
        level[parts[-1]] = figure
    return answer


def memory_stats_as_nested_dict(device: DeviceArgument | None = None) -> dict[str, Any]:
    """Returns memory_stats, each part of a key a dict of its own: ["allocated_bytes"]["all"]["current"].

    Arguments: as memory_stats.
    """
    return nested(memory_stats(device))


def host_memory_stats_as_nested_dict() -> dict[str, Any]:
    """Returns host_memory_stats, each part of a key a dict of its own: ["active_bytes"]["peak"]."""
    return nested(host_memory_stats())


def memory_cached(device: DeviceArgument | None = None) -> int:
    """Returns memory_reserved(device); deprecated, as in torch, with a FutureWarning.

    Arguments: as memory_reserved.
    """
    warn_of_old_name("memory_cached", "memory_reserved")
    return memory_reserved(device)


def max_memory_cached(device: DeviceArgument | None = None) -> int:
    """Returns max_memory_reserved(device); deprecated, as in torch, with a FutureWarning.

    Arguments: as max_memory_reserved.
    """
    warn_of_old_name("max_memory_cached", "max_memory_reserved")
    return max_memory_reserved(device)


def reset_max_memory_allocated(device: DeviceArgument | None = None) -> None:
    """Calls reset_peak_memory_stats, which resets every peak, not this one alone; deprecated, as in torch.

    Arguments: as reset_peak_memory_stats.
    """
    warn_of_all_peaks("reset_max_memory_allocated")
    reset_peak_memory_stats(device)


def reset_max_memory_cached(device: DeviceArgument | None = None) -> None:
    """Calls reset_peak_memory_stats, which resets every peak, not this one alone; deprecated, as in torch.

    Arguments: as reset_peak_memory_stats.
    """
    warn_of_all_peaks("reset_max_memory_cached")
    reset_peak_memory_stats(device)


def warn_of_old_name(name: str, new: str) -> None:
    warnings.warn(
        f"`accelrt.{name}` is torch.cuda's old name; call `accelrt.{new}`", FutureWarning, stacklevel=3
    )


def warn_of_all_peaks(name: str) -> None:
    warnings.warn(
        f"`accelrt.{name}` resets every peak; call `accelrt.reset_peak_memory_stats`, which says so",
        FutureWarning,
        stacklevel=3,
    )


def _record_memory_history(
    enabled: Literal["state", "all"] | bool | None = "all", *args: Any, **named: Any
) -> None:
    """record_history with torch's defaults and arguments.

    Arguments:
        enabled: "all", "state", or None, which ends the recording and clears it, as in torch.
        context, stacks: as of record_history; "all" by default.
        max_entries: int; torch's default is sys.maxsize.
        device, clear_history, skip_actions: as of record_history.
        compile_context, global_record_annotations: of torch's compiler and profiler; they do nothing.
        record_pinned_host_memory: bool, whether page-locked memory is recorded too.
        record_cuda: bool, whether device memory is.

    A bool for enabled is torch's older form: (enabled, record_context=True, trace_alloc_max_entries=1,
    trace_alloc_record_context=False, device=None, record_context_cpp=False, clear_history=False, ...).

    Raises:
        ValueError, TypeError: as record_history; an argument is not known.
    """
    if isinstance(enabled, bool):
        _record_as_before(enabled, *args, **named)
    else:
        _record(enabled, *args, **named)


def _record(
    enabled: Any = "all",
    context: Any = "all",
    stacks: Any = "all",
    max_entries: int = MOST_ENTRIES,
    device: DeviceArgument | None = None,
    clear_history: bool = False,
    compile_context: bool = False,
    global_record_annotations: bool = False,
    skip_actions: Sequence[str] | None = None,
    record_pinned_host_memory: bool = False,
    record_cuda: bool = True,
) -> None:
    if not record_cuda and not record_pinned_host_memory:
        enabled = None
    clear = clear_history or enabled is None
    record_history(
        enabled, context, stacks, max_entries, device, clear, skip_actions,
        record_pinned_host_memory=record_pinned_host_memory, record_cuda=record_cuda,
    )  # fmt: skip


def _record_as_before(
    enabled: bool,
    record_context: bool = True,
    trace_alloc_max_entries: int = 1,
    trace_alloc_record_context: bool = False,
    device: DeviceArgument | None = None,
    record_context_cpp: bool = False,
    clear_history: bool = False,
    compile_context: bool = False,
    global_record_annotations: bool = False,
    skip_actions: Sequence[str] | None = None,
    record_pinned_host_memory: bool = False,
    record_cuda: bool = True,
) -> None:
    context = "alloc" if trace_alloc_record_context else "state" if record_context else None
    _record(
        "all" if enabled else None,
        context,
        "all" if record_context_cpp else "python",
        trace_alloc_max_entries,
        device,
        clear_history,
        skip_actions=skip_actions,
        record_pinned_host_memory=record_pinned_host_memory,
        record_cuda=record_cuda,
    )


def _snapshot(device: DeviceArgument | None = None, augment_with_fx_traces: bool = False) -> dict[str, Any]:
    """snapshot() of all devices, whatever device is, as in torch; there are no traces of FX here."""
    return snapshot()


def _dump_snapshot(filename: str = "dump_snapshot.pickle", augment_with_fx_traces: bool = False) -> None:
    """dump_snapshot(filename, "torch"): a pickle that pytorch.org/memory_viz opens."""
    dump_snapshot(filename, "torch")


def _save_segment_usage(filename: str = "output.svg", snapshot: dict[str, Any] | None = None) -> None:
    """Writes a flame graph of all segments, with their blocks and the stacks of live ones, as SVG.

    Arguments:
        filename: str or path.
        snapshot: dict, of _snapshot() or load_snapshot(); None is the state now.
    Raises:
        OSError: the file cannot be written.
    """
    write_flame_graph(filename, snapshot, "of_segments", "segments")


def _save_memory_usage(filename: str = "output.svg", snapshot: dict[str, Any] | None = None) -> None:
    """Draws live memory alone, by stream and stack."""
    write_flame_graph(filename, snapshot, "of_memory", "live memory")


def write_flame_graph(filename: str, taken_before: dict[str, Any] | None, kind: str, title: str) -> None:
    from accelrt.memory.history import flame_svg  # which few programs need

    paths = getattr(flame_svg, kind)(snapshot() if taken_before is None else taken_before)
    files.write(filename, [flame_svg.flame_graph(paths, title).encode("utf-8", "replace")])


def _set_allocator_settings(env: str) -> None:
    """Deprecated; see set_allocator_settings."""
    warnings.warn(
        "`accelrt.memory._set_allocator_settings` is torch's old name; call `set_allocator_settings`",
        FutureWarning,
        stacklevel=2,
    )
    set_allocator_settings(env)
