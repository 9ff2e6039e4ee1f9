"""Markdown from a benchmark's JSON."""

import ast
from pathlib import Path

RAW_COLUMNS = ("raw C", "cuda.bindings")  # the driver itself, no peer
MORE_IS_BETTER = ("GB/s", "x")
COUNT = "count"  # the unit of what is counted
READING = """Medians in nanoseconds per operation, called from Python unless the row says otherwise, over
batches of calls of which each begins with the device idle. The same loop around an empty call was timed in
the same run, and its median is subtracted from every figure, in the raw driver's column too. Everything was
called before it was timed, and garbage collection was off. Every library ran in a process of its own; where
calls are timed one by one, all libraries took turns three times, and the best of a cell's medians is shown,
for a machine that others use too changes its pace for seconds. "raw C" is the driver API from C,
"cuda.bindings" the driver API from Python; neither is a peer. "x best peer" is how many times as good as the
best other library accelrt is. "-" means that there is nothing of the kind, or that it is not installed.
RESULTS.json, which the run writes beside it, has the outer tenths and all errors."""


def number(value: float | None, unit: str = "ns") -> str:
    """A figure that reads well: three or more digits, thousands separated; "-" where there is none."""
    if value is None:
        return "-"
    if unit in ("s", "ratio", "GiB"):
        return f"{value:.3f}"
    if unit == COUNT:
        return f"{value:,.0f}"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.1f}"


def value_of(row: dict, column: str) -> float | None:
    """A cell's median."""
    return row["cells"].get(column, {}).get("value")


def versus_best(row: dict, columns: list[str]) -> str:
    """How many times as good as the best peer accelrt is."""
    ours = value_of(row, "accelrt")
    peers = [value_of(row, column) for column in columns if column != "accelrt" and column not in RAW_COLUMNS]
    others = [value for value in peers if value is not None and value > 0]
    if ours is None or ours <= 0 or not others:
        return "-"
    times = ours / max(others) if row["unit"] in MORE_IS_BETTER else min(others) / ours
    return f"{times:.2f}"


def goal_text(goal: dict | None, unit: str) -> str:
    """The goal, the number that it comes to where it depends on another column, and whether it is met."""
    if goal is None:
        return "-"
    text = goal["text"]
    if goal["depends"] and goal["limit"] is not None:
        text += f" = {number(goal['limit'], unit)}"
    return text + {True: ", met", False: ", missed", None: ""}[goal["met"]]


def title_of(row: dict) -> str:
    """The row's title, with the unit where it is not the table's usual one."""
    return row["title"] if row["unit"] in ("ns", COUNT) else f"{row['title']}, {row['unit']}"


def table(suite: dict) -> str:
    """One benchmark as a markdown table, and below it what is missing and why."""
    columns = suite["columns"]
    lines = [
        "| " + " | ".join(["work", *columns, "goal", "x best peer"]) + " |",
        "| " + " | ".join(["---"] + ["---:"] * len(columns) + ["---", "---:"]) + " |",
    ]
    for row in suite["rows"]:
        figures = [number(value_of(row, column), row["unit"]) for column in columns]
        ends = [goal_text(row["goal"], row["unit"]), versus_best(row, columns)]
        lines.append("| " + " | ".join([title_of(row), *figures, *ends]) + " |")
    for reason in dict.fromkeys(suite["absent"].values()):
        without = ", ".join(column for column, why in suite["absent"].items() if why == reason)
        lines.append(f"\nNo {without}: {one_line(reason)}")
    for each in suite["errors"]:
        lines.append(f"\nFailed: {each['row']}, {each['column']}: {one_line(each['error'])}")
    return "\n".join(lines)


def one_line(text: str) -> str:
    """Text that stays in its paragraph and in a reader's patience."""
    return " ".join(text.split())[:300]


def note_of(script: Path) -> str:
    """What a benchmark's docstring says below its first line: how its rows are meant."""
    text = ast.get_docstring(ast.parse(script.read_text())) or ""
    head, _, rest = text.partition("\n\n")
    paragraphs = [each for each in (rest or head).split("\n\n") if not each.startswith(" ")]  # else a command
    return " ".join(" ".join(paragraphs).split())
