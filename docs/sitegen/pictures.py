"""Drawings of the allocator, of traces that are replayed on the host device while the site is built.

Each is one <svg> in the text's colour and the theme's accent, so that it reads in light and in dark.
"""

from __future__ import annotations

import functools
import html
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[1]
GIB = 1 << 30
MIB = 1 << 20
WIDTH = 600
ACCENT = "var(--color-brand-primary, #2757dd)"
VARIANTS = (  # a curve's name, the settings, how it is drawn
    ("reserved, as it comes", "", f'stroke="{ACCENT}" stroke-width="2"'),
    ("without stitching", "stitching:False", 'stroke="currentColor" stroke-dasharray="6 3"'),
    ("whole segments", "expandable_segments:False", 'stroke="currentColor" stroke-dasharray="1 3"'),
)


@functools.cache
def measured(what: tuple[str, ...], settings: str = "") -> dict[str, Any]:
    """What sitegen.measure prints, with some settings of the allocator."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith("ACCELRT_")}
    variables |= {"ACCELRT_DRIVER": "host", "ACCELRT_HOST_MEMORY": "256GiB", "ACCELRT_ALLOC_CONF": settings}
    variables["PYTHONPATH"] = os.pathsep.join([str(DOCS), str(DOCS.parent)])
    command = [sys.executable, "-m", "sitegen.measure", *what]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=True, timeout=300)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def svg(height: float, parts: list[str], label: str) -> str:
    head = f'<svg class="picture" viewBox="0 0 {WIDTH} {height:.0f}" xmlns="http://www.w3.org/2000/svg"'
    return "\n".join([f'{head} role="img" aria-label="{html.escape(label)}">', *parts, "</svg>", ""])


def text(x: float, y: float, words: str, more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" {more}>{html.escape(words)}</text>'


def curve(values: list[int], height: float, most: int) -> str:
    step = WIDTH / (len(values) - 1)
    return " ".join(
        f"{index * step:.1f},{height - value / most * height:.1f}" for index, value in enumerate(values)
    )


def over_time(trace: str) -> str:
    """What a trace has live, and what is reserved for it, by default and without what earns its keep."""
    height, top = 240.0, 26.0
    figures = [measured(("trace", trace), settings) for _, settings, _ in VARIANTS]
    live = figures[0]["live"]
    most = max(max(figure["reserved"]) for figure in figures)
    parts = [f'<g transform="translate(0 {top})">']
    for part in (1.0, 0.5):
        y = height * (1 - part)
        parts.append(f'<path d="M0 {y} H{WIDTH}" stroke="currentColor" opacity="0.2"/>')
        parts.append(text(2, y - 5, f"{most * part / GIB:.2f} GiB"))
    parts.append(f'<path d="M0 {height} H{WIDTH}" stroke="currentColor" opacity="0.5"/>')
    corners = f"0,{height} {curve(live, height, most)} {WIDTH},{height}"
    parts.append(f'<polygon points="{corners}" fill="currentColor" opacity="0.25"/>')
    for figure, (_, _, style) in zip(figures, VARIANTS, strict=True):
        parts.append(f'<polyline points="{curve(figure["reserved"], height, most)}" fill="none" {style}/>')
    end = f"{figures[0]['events']:,} events"
    parts.append(text(WIDTH, height + 20, end, 'text-anchor="end"'))
    legend = [("live", 'fill="currentColor" opacity="0.25"', max(live))]
    parts.append(f'<rect x="0" y="{height + 34}" width="30" height="12" {legend[0][1]}/>')
    parts.append(text(40, height + 45, f"live: {max(live) / GIB:.2f} GiB at most"))
    for row, (figure, (name, _, style)) in enumerate(zip(figures, VARIANTS, strict=True), 1):
        y = height + 40 + row * 22
        peak = max(figure["reserved"])
        parts.append(f'<path d="M0 {y} h30" fill="none" {style}/>')
        parts.append(text(40, y + 5, f"{name}: {peak / GIB:.2f} GiB, {peak / max(live):.3f} times that"))
    parts.append("</g>")
    label = f"{trace}: bytes live and reserved over {end}"
    return svg(top + height + 40 + 22 * len(VARIANTS) + 16, parts, label)


def heap(trace: str) -> str:
    """Every block of a device where a trace has most live: segments one behind the other, in rows."""
    segments = measured(("trace", trace))["blocks"]
    total = sum(size for segment in segments for size, _ in segment["blocks"])
    rows = 24
    unit = -(-total // rows)
    height, gap = 12.0, 4.0
    parts: list[str] = []
    position = 0
    for segment in sorted(segments, key=lambda segment: (segment["stitched"], segment["address"])):
        fill = ACCENT if segment["stitched"] else "currentColor"
        for size, is_live in segment["blocks"]:
            style = f'fill="{fill}" fill-opacity="0.55"' if is_live else 'fill="none"'
            parts += bars(position, size, unit, height, gap, f'{style} stroke="{fill}" stroke-width="0.6"')
            position += size
    y = rows * (height + gap) + 24
    for x, words, style in (
        (0, "live", 'fill="currentColor" fill-opacity="0.55" stroke="currentColor"'),
        (120, "live, of pages mapped twice", f'fill="{ACCENT}" fill-opacity="0.55" stroke="{ACCENT}"'),
        (400, "free", 'fill="none" stroke="currentColor"'),
    ):
        parts += [f'<rect x="{x}" y="{y - 11}" width="22" height="12" {style}/>', text(x + 30, y, words)]
    count = sum(len(segment["blocks"]) for segment in segments)
    parts.append(text(0, y + 26, f"{count} blocks in {total / GIB:.2f} GiB; a row is {unit / MIB:.0f} MiB"))
    return svg(y + 36, parts, f"the blocks of {trace} where most is live")


def bars(position: int, size: int, unit: int, height: float, gap: float, style: str) -> list[str]:
    """A stretch of memory as rectangles, one in each row that it goes through."""
    parts, end = [], position + size
    while position < end:
        row, start = divmod(position, unit)
        length = min(end - position, unit - start)
        x, width = start / unit * WIDTH, length / unit * WIDTH
        y = row * (height + gap) + 1
        if width >= 0.05:  # what is narrower is not seen
            parts.append(f'<rect x="{x:.2f}" y="{y:.1f}" width="{width:.2f}" height="{height}" {style}/>')
        position += length
    return parts


def stitching() -> str:
    """Three blocks are freed; a request larger than each of them takes their pages, mapped a second time."""
    states = measured(("stitching",))
    (segment,) = states["before"]
    start = segment["address"]
    total = sum(size for size, _ in segment["blocks"])
    scale = WIDTH / total
    parts, x = [text(0, 14, "Six blocks of 12 MiB, three of them freed")], 0.0
    for size, is_live in segment["blocks"]:
        parts.append(block_at(x, 24, size * scale, "live" if is_live else "free", is_live, "currentColor"))
        x += size * scale
    parts.append(text(0, 96, "A request of 30 MiB: no hole fits, and their pages do"))
    stitched = next(part for part in states["after"] if part["stitched"])
    stays = [part for part in states["after"] if not part["stitched"]]
    shown = {}
    for part in stays:
        at = (part["address"] - start) * scale
        for size, is_live in part["blocks"]:
            words = "live" if is_live else f"{size >> 20} MiB"
            parts.append(block_at(at, 106, size * scale, words, is_live, "currentColor"))
            shown[at] = size * scale
            at += size * scale
    width = stitched["blocks"][0][0] * scale
    target = (WIDTH - width) / 2
    for left, right in gaps(shown):
        parts.append(
            f'<rect x="{left:.1f}" y="106" width="{right - left:.1f}" height="40" fill="none" '
            f'stroke="{ACCENT}" stroke-dasharray="4 3"/>'
        )
        lines = f"M{left:.1f} 146 L{target:.1f} 206 M{right:.1f} 146 L{target + right - left:.1f} 206"
        parts.append(f'<path d="{lines}" stroke="{ACCENT}" opacity="0.6" fill="none"/>')
        target += right - left
    parts.append(block_at((WIDTH - width) / 2, 206, width, "30 MiB, one block", True, ACCENT))
    parts.append(text(0, 274, "The device gave nothing more: the same pages, at other addresses"))
    return svg(284, parts, "pages of three free blocks mapped a second time as one block")


def block_at(x: float, y: float, width: float, words: str, is_live: bool, colour: str) -> str:
    fill = f'fill="{colour}" fill-opacity="0.25"' if is_live else 'fill="none"'
    middle = text(x + width / 2, y + 25, words, 'text-anchor="middle"')
    return f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="40" {fill} stroke="{colour}"/>{middle}'


def gaps(shown: dict[float, float]) -> list[tuple[float, float]]:
    """The stretches from 0 on that no rectangle, by its left edge and width, covers."""
    found, end = [], 0.0
    for left, width in sorted(shown.items()):
        if left - end > 1:
            found.append((end, left))
        end = max(end, left + width)
    return found


def flowchart(source: str) -> str:
    """The floors of docs/floors.md, of Mermaid's lines f2["2: nvml"] and f2 --> f1: a box each, top down."""
    names = dict(re.findall(r'^\s*(f\d+)\["(.*)"\]$', source, re.M))
    arrows = re.findall(r"^\s*(f\d+) --> (f\d+)$", source, re.M)
    parts, middles, edges, y = [], {}, {}, 4.0
    for name, words in names.items():
        lines = wrapped(words, 52)
        height = 18.0 * len(lines) + 10
        parts.append(
            f'<rect x="1" y="{y}" width="460" height="{height}" rx="4" fill="none" stroke="currentColor"/>'
        )
        parts += [text(12, y + 19 + 18 * row, line) for row, line in enumerate(lines)]
        middles[name], edges[name] = y + height / 2, (y, y + height)
        y += height + 14
    order = list(names)
    for upper, lower in arrows:
        if order.index(lower) == order.index(upper) + 1:
            tip = edges[lower][0]
            path = f"M60 {edges[upper][1]} V{tip} m-4 -6 l4 6 l4 -6"
        else:
            reach = 470 + 12.0 * (order.index(lower) - order.index(upper))
            tip = middles[lower]
            path = f"M462 {middles[upper]} C{reach} {middles[upper]} {reach} {tip} 462 {tip} m7 -4 l-7 4 l7 4"
        parts.append(f'<path d="{path}" fill="none" stroke="{ACCENT}"/>')
    return svg(y, parts, "the floors, and which uses which")


def wrapped(words: str, most: int) -> list[str]:
    lines = [""]
    for word in words.split():
        if lines[-1] and len(lines[-1]) + len(word) > most:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return lines


DRAWN = {
    "gnn_over_time": lambda: over_time("gnn"),
    "gpt2_over_time": lambda: over_time("gpt2"),
    "gpt2_blocks": lambda: heap("gpt2"),
    "stitching": stitching,
}


def picture(name: str) -> str:
    return DRAWN[name]()
