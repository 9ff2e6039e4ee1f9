"""Draws the floors of the package, and what uses what, from the test that holds them: docs/floors.md.

python docs/floors.py prints the page, with --write it is written; needs accelrt and pytest.
"""

from __future__ import annotations

import argparse
import runpy
from pathlib import Path

PAGE = Path(__file__).with_suffix(".md")
ARROWS = Path(__file__).parents[1] / "tests" / "project" / "test_arrows.py"
INTRODUCTION = """\
# Floors

Made by `docs/floors.py` from `tests/project/test_arrows.py`. A module uses its own floor and those
below. The picture leaves out arrows that follow from others; the table has all of them."""


def used_floors(arrows: dict) -> list[set[int]]:
    """The floors that each floor uses, of all below it."""
    used: list[set[int]] = [set() for _ in arrows["FLOORS"]]
    for module, others in arrows["uses_without_names"]().items():
        number = arrows["floor"](module)
        used[number] |= {arrows["floor"](other) for other in others} - {number}
    return used


def needed(used: list[set[int]]) -> list[set[int]]:
    """The same without what follows from the rest: floors that are reached by another one too."""
    reached: list[set[int]] = []
    for lower in used:  # from the ground up, so that those below are known
        reached.append(lower.union(*(reached[number] for number in lower)))
    return [lower - set().union(*(reached[number] for number in lower)) for lower in used]


def page(arrows: dict) -> str:
    """The picture and the table as Markdown."""
    used = used_floors(arrows)
    names = [", ".join(name or "accelrt" for name in floor) for floor in arrows["FLOORS"]]
    lines = [INTRODUCTION, "", "```mermaid", "flowchart TD"]
    lines += [f'    f{number + 1}["{number + 1}: {text}"]' for number, text in reversed([*enumerate(names)])]
    for number, lower in reversed([*enumerate(needed(used))]):
        lines += [f"    f{number + 1} --> f{other + 1}" for other in sorted(lower, reverse=True)]
    lines += ["```", "", "| floor | packages and modules | uses floors |", "| --- | --- | --- |"]
    for number, (text, lower) in enumerate(zip(names, used, strict=True), 1):
        lines.append(f"| {number} | {text} | {', '.join(str(other + 1) for other in sorted(lower))} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write floors.md instead of printing")
    text = page(runpy.run_path(str(ARROWS)))
    if parser.parse_args().write:
        PAGE.write_text(text)
    else:
        print(text, end="")
