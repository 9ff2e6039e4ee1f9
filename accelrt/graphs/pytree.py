"""Memory in tuples, lists and dicts: taken apart, compared and put together again.

Tuples, named ones too, lists, dicts and None are the structure; everything else is a leaf.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

LEAF = object()

# The layout of a structure is None, LEAF, or (type, keys of a dict or None, layouts of the parts).
Layout = Any


def is_named(kind: type) -> bool:
    return issubclass(kind, tuple) and hasattr(kind, "_fields")


def take_apart(value: object, leaves: list[Any]) -> Layout:
    """The layout of a structure; its leaves are appended in their order."""
    kind = type(value)
    if value is None:
        return None
    if isinstance(value, tuple | list) and (kind in (tuple, list) or is_named(kind)):
        return kind, None, tuple(take_apart(part, leaves) for part in value)
    if isinstance(value, dict) and kind is dict:
        return kind, tuple(value), tuple(take_apart(part, leaves) for part in value.values())
    leaves.append(value)
    return LEAF


def put_together(layout: Layout, leaves: Iterator[Any]) -> Any:
    """A new structure of that layout around the leaves."""
    if layout is None:
        return None
    if layout is LEAF:
        return next(leaves)
    kind, keys, parts = layout
    values = [put_together(part, leaves) for part in parts]
    if keys is not None:
        return dict(zip(keys, values, strict=True))
    return kind(*values) if is_named(kind) else kind(values)


def names_of(layout: Layout, name: str) -> Iterator[str]:
    """Returns what to call each leaf: name[0]['key'] and the like."""
    if layout is LEAF:
        yield name
    elif layout is not None:
        _, keys, parts = layout
        for key, part in zip(range(len(parts)) if keys is None else keys, parts, strict=True):
            yield from names_of(part, f"{name}[{key!r}]")


def describe(layout: Layout) -> str:
    """Returns what a layout looks like, for an error's text."""
    if layout is None:
        return "None"
    if layout is LEAF:
        return "memory"
    kind, keys, parts = layout
    return f"a {kind.__name__} of {len(parts)}" if keys is None else f"a dict with the keys {list(keys)}"


def gather(layout: Layout, value: Any, name: str, leaves: list[Any]) -> None:
    """Appends the leaves of a value that has this layout, a dict's in the layout's order.

    Raises:
        TypeError: it has another layout; the text names the part.
    """
    if layout is LEAF:
        leaves.append(value)
        return
    alike = value is None if layout is None else type(value) is layout[0] and len(value) == len(layout[2])
    if alike and layout is not None and layout[1] is not None:
        alike = all(key in value for key in layout[1])
    if not alike:
        actual = describe(take_apart(value, []))
        raise TypeError(f"{name} is {actual}; in sample_args it was {describe(layout)}, and stays that")
    if layout is None:
        return
    _, keys, parts = layout
    for key, part in zip(range(len(parts)) if keys is None else keys, parts, strict=True):
        gather(part, value[key], f"{name}[{key!r}]", leaves)
