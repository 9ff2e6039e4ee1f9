"""Pictures of a snapshot, by Matplotlib: the timeline, the segments at the end, and a flame graph of what is
live.

The suffix of the file chooses the format: PNG, SVG or PDF.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from accelrt.core import files
from accelrt.memory.history.flame_svg import boxes
from accelrt.tools.viewer.memory_ranges import joined
from accelrt.tools.viewer.snapshot_columns import Column, DeviceRecording, Recording

FORMATS = (".png", ".svg", ".pdf")
COLOURS = (
    "#4269d0",
    "#efb118",
    "#3ca951",
    "#ff725c",
    "#a463f2",
    "#6cc5b0",
    "#ff8ab7",
    "#9c6b4e",
    "#97bbf5",
    "#b5bd4c",
)
GREY, HOLE = "#9aa1ac", "#e9ebef"
LAYERS = 10  # of the timeline that have a colour and a name; the rest is one layer
POINTS = 1500  # of the timeline, at most
LINES = 48  # of the segments
LEAST = 1 / 1500  # of the width: what is narrower is not drawn
DEEPEST = 60  # frames of the flame graph


def need_matplotlib() -> Any:
    """Matplotlib's Figure, for a picture without a window.

    Raises:
        ImportError: it is not installed; the text says how to install it.
    """
    try:
        return import_module("matplotlib.figure").Figure
    except ModuleNotFoundError as error:
        if not str(error.name).startswith("matplotlib"):
            raise
        raise ImportError(
            "'accelrt plot' needs the package matplotlib, which is not installed: "
            "python -m pip install 'accelrt[plot]'"
        ) from None


def amount(size: float, _place: object = None) -> str:
    """Bytes with a unit, for an axis."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(size) < 1024 or unit == "TiB":
            break
        size /= 1024
    return f"{size:.3g} {unit}"


def plain(text: str) -> str:
    """A text of a snapshot as Matplotlib shows it: $ would begin a formula, and _ hide a name from the
    legend."""
    shown = "".join(each if each.isprintable() else "?" for each in text).replace("$", r"\$")
    return f" {shown}" if shown.startswith("_") else shown


def label_of(log: DeviceRecording, frame: int) -> str:
    if frame < 0:
        return "no stack"
    file, line, name = log.recording.frames[frame]
    return f"{log.recording.strings[name]}  {log.recording.strings[file].rpartition('/')[2]}:{line}"


def innermost(log: DeviceRecording) -> Column:
    """Returns the innermost frame of each allocation's stack; -1 where there is none."""
    first = np.array([stack[0] if stack else -1 for stack in log.recording.stacks])
    return first[log.alloc_stack]


def set_ticks(axis: Any, most: float, parts: int) -> None:
    """Bytes on an axis, at multiples of a power of two."""
    step = 2.0 ** np.floor(np.log2(max(most / parts, 1)))
    axis.set_major_locator(import_module("matplotlib.ticker").MultipleLocator(step))
    axis.set_major_formatter(amount)


def figure(log: DeviceRecording, title: str, height: float, hidden: tuple[str, ...]) -> tuple[Any, Any]:
    """A picture, and its axes; those of the hidden sides have no line."""
    drawn = need_matplotlib()(figsize=(12, height), layout="constrained")
    axes = drawn.subplots()
    axes.set_title(plain(f"{log.title}: {title}"), loc="left", fontsize=11)
    for side in hidden:
        axes.spines[side].set_visible(False)
    if "left" in hidden:
        axes.set_yticks([])
    return drawn, axes


# --- the timeline ---


def shown_events(log: DeviceRecording) -> Column:
    """At most POINTS events, -1 being before the first: of each part of the recording the one with most
    live."""
    live = log.live()
    if len(live) <= POINTS:
        return np.arange(len(live)) - 1
    parts = np.linspace(0, len(live), POINTS + 1).astype(int)
    most = [first + int(live[first:last].argmax()) for first, last in pairwise(parts)]
    return np.array(most) - 1


def draw_timeline(log: DeviceRecording) -> Any:
    """Live bytes over the events, in layers by the frame that allocated, or by tag where no stack was
    recorded; and reserved bytes as a line."""
    events = shown_events(log)
    by_stack = bool(log.alloc_stack.any())
    keys = innermost(log) if by_stack else log.alloc_tag
    area = log.alloc_size * (log.alloc_end.astype(float) - log.alloc_begin)
    distinct, group = np.unique(keys, return_inverse=True)
    largest = distinct[np.argsort(-np.bincount(group, area), kind="stable")[:LAYERS]].tolist()
    names = [label_of(log, key) if by_stack else log.recording.strings[key] or "no tag" for key in largest]
    chosen = [keys == key for key in largest] + [~np.isin(keys, largest)]
    layers = [log.live(each)[events + 1] for each in chosen if each.any()]
    title = f"live memory by {'the frame that allocated it' if by_stack else 'tag'}"
    drawn, axes = figure(log, title, 6.0, ("top", "right"))
    if layers:
        axes.stackplot(
            events,
            *layers,
            labels=[plain(name) for name in [*names, "all others"][: len(layers)]],
            colors=[*COLOURS[: len(largest)], GREY],
            linewidth=0,
            step="post",
        )
    reserved = np.concatenate([[log.reserved_before], log.reserved])
    axes.plot(
        events, reserved[events + 1], color="#1b1f27", linewidth=1.3, drawstyle="steps-post", label="reserved"
    )
    ooms = log.events_of("oom")
    if len(ooms):
        axes.plot(ooms, np.full(len(ooms), reserved.max()), "v", color="#c42b2b", label="out of memory")
    axes.set_xlabel("event")
    axes.set_ylim(bottom=0)
    axes.margins(x=0)
    set_ticks(axes.yaxis, reserved.max(), 5)
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=8, frameon=False, reverse=True)
    return drawn


# --- the segments ---


def draw_segments(log: DeviceRecording) -> Any:
    """The segments at the end, one strip behind the other, with the blocks that are live in them."""
    mapped = joined(each for each in log.ranges if each.end == log.count)
    mapped.sort(key=lambda each: (each.pool, each.stream, each.address))
    total = sum(each.size for each in mapped)
    title = f"{len(mapped)} segments at the end, {amount(total)}"
    drawn, axes = figure(log, title, 7.0, ("top", "right", "left"))
    live = log.live_at(log.count - 1)
    live = live[np.argsort(log.alloc_address[live], kind="stable")]
    addresses, frames = log.alloc_address[live], innermost(log)[live]
    extents = np.where(log.alloc_block[live] > 0, log.alloc_block[live], log.alloc_size[live])
    per_line = max(total / LINES, 1)
    bars: dict[tuple[int, str], list[tuple[float, float]]] = {}
    at = 0.0
    for each in mapped:
        put(bars, HOLE, at, each.size, per_line)
        first, last = np.searchsorted(addresses, [each.address, each.address + each.size])
        for index in range(first, last):
            pending = log.alloc_freed[live[index]] < log.count
            hue = GREY if pending else COLOURS[int(frames[index]) % len(COLOURS)]
            put(bars, hue, at + float(addresses[index]) - each.address, extents[index], per_line)
        at += each.size + per_line * 0.004
    for (line, colour), pieces in bars.items():
        axes.broken_barh(
            pieces, (line, 0.82), facecolor=colour, linewidth=0.3 if colour != HOLE else 0, edgecolor="white"
        )
    axes.set_xlim(0, per_line)
    axes.set_ylim(max((line for line, _ in bars), default=0) + 1, 0)
    set_ticks(axes.xaxis, per_line, 5)
    axes.set_xlabel("live blocks by the frame that allocated them; light: free; grey: pending")
    return drawn


def put(
    bars: dict[tuple[int, str], list[tuple[float, float]]], colour: str, at: float, size: float, width: float
) -> None:
    """Adds a bar, cut where a line ends."""
    first, left = divmod(at, width)
    line = int(first)
    while size > 0:
        part = min(size, width - left)
        bars.setdefault((line, colour), []).append((left, part))
        line, left, size = line + 1, 0.0, size - part


# --- the flame graph ---


def draw_flame(log: DeviceRecording) -> Any:
    """Returns what is live at the moment with most live bytes, by stack, the outermost frame at the
    bottom."""
    live, recording = log.live(), log.recording
    peak, total = int(live.argmax()) - 1, max(live.max(), 1.0)
    title = f"{amount(live.max())} live at the peak (event {peak}), by stack"
    drawn, axes = figure(log, title, 7.0, ("top", "right", "left"))
    stacks = [stack[::-1][: DEEPEST + 1] or (-1,) for stack in recording.stacks]
    rows = log.live_at(peak)
    paths = zip(map(stacks.__getitem__, log.alloc_stack[rows]), log.alloc_size[rows].tolist(), strict=True)
    shown = [each for each in boxes(paths, None, LEAST, lambda inner: -inner[1].size) if each[2]]
    for frame, wide, depth, left in shown:
        name = recording.strings[recording.frames[frame][2]] if frame >= 0 else "no stack"
        hue = COLOURS[sum(map(ord, name)) % len(COLOURS)] if frame >= 0 else GREY
        axes.broken_barh([(left, wide)], (depth - 1, 0.94), facecolor=hue, edgecolor="white", linewidth=0.5)
        letters = int(wide / total * 150)
        if letters > 3:
            text = plain(name if len(name) <= letters else name[: letters - 1] + "…")
            axes.text(left + total * 0.003, depth - 0.53, text, va="center", fontsize=8, clip_on=True)
    axes.set_xlim(0, total)
    axes.set_ylim(0, max([8, *(depth for _, _, depth, _ in shown)]))
    set_ticks(axes.xaxis, total, 6)
    return drawn


KINDS: dict[str, Callable[[DeviceRecording], Any]] = {
    "timeline": draw_timeline,
    "segments": draw_segments,
    "flame": draw_flame,
}


def write_plot(
    snapshot: Mapping[str, Any], path: str | Path, kind: str = "timeline", device: int | None = None
) -> None:
    """Writes a picture of a snapshot.

    Arguments:
        snapshot: dict, torch's or accelrt's.
        path: str or Path, which ends in .png, .svg or .pdf.
        kind: "timeline", "segments" or "flame".
        device: int, an ordinal; None is the first device that the snapshot says something of.
    Raises:
        ValueError: path, kind or device is none of these, or the snapshot is not what torch's format says.
        ImportError: Matplotlib is not installed.
    """
    if Path(path).suffix.lower() not in FORMATS:
        raise ValueError(f"the plot's file is {path}; its name has to end in {', '.join(FORMATS)}")
    if kind not in KINDS:
        raise ValueError(f"the plot's kind is {kind!r}; it may be {', '.join(KINDS)}")
    need_matplotlib()
    recording = Recording(snapshot)
    logs = [each for each in recording.devices if device is None or each.device == device]
    if not logs:
        devices = ", ".join(str(each.device) for each in recording.devices)
        raise ValueError(f"device {device} is not in the snapshot, which has {devices}")
    picture = io.BytesIO()
    KINDS[kind](logs[0]).savefig(picture, dpi=110, format=Path(path).suffix[1:].lower())
    files.write(path, [picture.getvalue()])
