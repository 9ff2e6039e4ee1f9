"""What stands in accelrt for each public name of torch.cuda: prints torch_names.toml as a table.

With --write it writes torch_names.md, which people read.
"""

import argparse
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

DATA = Path(__file__).with_suffix(".toml")
PAGE = Path(__file__).with_suffix(".md")
INTRODUCTION = """# torch.cuda's names

Every public name of torch.cuda and of its modules, of torch 2.11, and what stands for it in accelrt: *same*,
it behaves as torch's; *differs*, and how; *left out*, and why. Where torch raises a RuntimeError, an
AssertionError or a ValueError, accelrt's error is an instance of that too. Made of `torch_names.toml` by
`python docs/torch_names.py --write`.
"""


class Row(NamedTuple):
    """One name of one module of torch's."""

    module: str  # "torch.cuda.memory"
    name: str
    here: str  # where it is found: "accelrt.memory.MemPool"; empty where it is left out
    kind: str  # "same", "differs" or "left out"
    note: str  # how, or why


def rows(data: dict[str, Any]) -> list[Row]:
    """Of what torch_names.toml holds, by module and name."""
    found = []
    for module, table in data.items():
        if not isinstance(table, dict):
            continue
        for name in table.get("same", "").split():
            found.append(Row(module, name, f"{table['here']}.{name}", "same", ""))
        for name, how in table.get("differs", {}).items():
            place, colon, rest = how.partition(": ")
            elsewhere = place if colon and place.split(".")[0] == "accelrt" and " " not in place else ""
            note = rest if elsewhere else how
            found.append(Row(module, name, elsewhere or f"{table['here']}.{name}", "differs", note))
        for name, why in table.get("left_out", {}).items():
            found.append(Row(module, name, "", "left out", why))
    order = list(data)
    return sorted(found, key=lambda row: (order.index(row.module), row.name.lower(), row.name))


def page(found: list[Row]) -> str:
    """The table as Markdown."""
    lines, module = [INTRODUCTION], ""
    for row in found:
        if row.module != module:
            module = row.module
            lines += [f"\n## {module}\n", "| name | in accelrt | | |", "| --- | --- | --- | --- |"]
        place = f"`{row.here}`" if row.here else ""
        lines.append(f"| `{row.name}` | {place} | {row.kind} | {row.note} |")
    counts = {
        kind: sum(row.kind == kind for row in found) for kind in dict.fromkeys(row.kind for row in found)
    }
    told = ", ".join(f"{counts[kind]} {kind}" for kind in ("same", "differs", "left out"))
    return "\n".join([*lines, f"\n{len(found)} names: {told}.\n"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write torch_names.md instead of printing")
    text = page(rows(tomllib.loads(DATA.read_text())))
    if parser.parse_args().write:
        PAGE.write_text(text)
    else:
        print(text, end="")


if __name__ == "__main__":
    main()
