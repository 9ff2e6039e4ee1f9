"""Flame graphs of a snapshot as SVG: torch.cuda.memory._save_segment_usage and _save_memory_usage.

Every box is a name, as wide as the bytes below it; what is inside it stands above it.  Hovering tells the
bytes.
"""

from __future__ import annotations

from html import escape
from operator import itemgetter
from typing import TYPE_CHECKING

from accelrt.core.printable import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any

WIDTH, HEIGHT = 1200.0, 16  # of the picture, and of a box
LEAST = 1 / 4000  # of the width; narrower boxes are left out
DEEPEST = 256  # names of a path
LETTER = 7.0  # width of one
COLOURS = ("#e5735f", "#e89b5a", "#e3bb54", "#c9b458", "#d98a7b", "#dfa878")

Path = tuple[str, ...]  # the outermost name first


def frame_name(frame: dict[str, Any]) -> str:
    return f"{frame['name']} ({frame['filename'].rpartition('/')[2]}:{frame['line']})"


def stack_of(record: dict[str, Any]) -> Path:
    """The names of a stack, the outermost first."""
    return tuple(frame_name(frame) for frame in (record.get("frames") or [])[:DEEPEST][::-1])


def of_segments(snapshot: dict[str, Any]) -> Iterator[tuple[Path, int]]:
    """All blocks of a snapshot by stream, by segment and by state, the live ones by stack too."""
    for segment in snapshot["segments"]:
        parents = f"stream {segment['stream']:#x}", f"segment {segment['address']:#x}"
        for block in segment["blocks"]:
            yield (*parents, block["state"], *stack_of(block)), block["size"]


def of_memory(snapshot: dict[str, Any]) -> Iterator[tuple[Path, int]]:
    """The live blocks of a snapshot by stream and by the stack that allocated them."""
    for (stream, _, state, *stack), size in of_segments(snapshot):
        if state != "inactive":
            yield (stream, *stack), size


class Box:
    """A name, and the boxes inside it by theirs."""

    __slots__ = ("inside", "size")

    def __init__(self) -> None:
        self.size: int = 0
        self.inside: dict[Any, Box] = {}


def boxes(
    paths: Iterable[tuple[tuple[Any, ...], int]],
    title: Any,
    least: float,
    order: Callable[[tuple[Any, Box]], Any] = itemgetter(0),
) -> Iterator[tuple[Any, int, int, int]]:
    """(name, bytes, depth, bytes to the left) of each box, the title's first.

    Arguments:
        paths: (names, bytes), the outermost name first.
        least: float, the part of all bytes below which a box is left out.
        order: the key by which boxes stand inside another one.
    """
    root = Box()
    for path, size in paths:
        box = root
        box.size += size
        for name in path:
            box = box.inside.setdefault(name, Box())
            box.size += size
    todo = [(title, root, 0, 0)]
    while todo:
        name, box, depth, left = todo.pop()
        if not box.size or box.size < least * root.size:
            continue
        yield name, box.size, depth, left
        for inner, inside in sorted(box.inside.items(), key=order):
            todo.append((inner, inside, depth + 1, left))
            left += inside.size


def flame_graph(paths: Iterable[tuple[Path, int]], title: str) -> str:
    """The picture, a text of SVG.

    Arguments:
        paths: (names, bytes), the outermost name first.
        title: str, the lowest box.
    """
    shown = list(boxes(paths, title, LEAST))
    height = (max((depth for _, _, depth, _ in shown), default=0) + 1) * HEIGHT
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH:.0f}" height="{height}" '
        f'font-family="monospace" font-size="11">'
    ]
    lines += [drawn(*box, WIDTH / shown[0][1], height) for box in shown]
    return "\n".join([*lines, "</svg>", ""])


def drawn(name: str, size: int, depth: int, offset: int, scale: float, height: int) -> str:
    top, left, width = height - (depth + 1) * HEIGHT, offset * scale, size * scale
    text = printable(name)
    shown = text[: int((width - 4) / LETTER)] if width > 3 * LETTER else ""
    return (
        f"<g><title>{escape(text)}: {size:,} bytes</title>"
        f'<rect x="{left:.2f}" y="{top}" width="{width:.2f}" height="{HEIGHT - 1}" '
        f'fill="{COLOURS[sum(name.encode(errors="replace")) % len(COLOURS)]}"/>'
        f'<text x="{left + 2:.2f}" y="{top + 11}">{escape(shown)}</text></g>'
    )
