"""Tables and listings that are made of data: what a line <!-- made: NAME [ARGUMENT] --> in a page becomes."""

from __future__ import annotations

import builtins
import importlib
import re
import runpy
import tomllib
from pathlib import Path

from accelrt import env, errors, status
from accelrt.allocator.settings import keys
from accelrt.tools.cli import main as command_line

from . import docstrings, pictures

DOCS = Path(__file__).parents[1]
TOP = DOCS.parent
PACKAGE = TOP / "accelrt"


def cell(text: object) -> str:
    """A text as one cell of a table."""
    return " ".join(str(text).split()).replace("|", "\\|")


def table(heads: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [heads, tuple("---" for _ in heads), *rows]
    return "\n".join(f"| {' | '.join(map(cell, line))} |" for line in lines) + "\n"


def code(text: str) -> str:
    return f"`{text}`" if text else ""


def environment() -> str:
    """The variables of accelrt/env.py."""
    rows = [
        (code(name), code(variable.default), docstrings.inline(variable.meaning))
        for name, variable in env.VARIABLES.items()
    ]
    built = [(code(name), "", docstrings.inline(meaning)) for name, meaning in env.BUILD_VARIABLES.items()]
    heads = ("variable", "default", "meaning")
    return f"{table(heads, rows)}\n## When the package is built\n\n{table(heads, built)}"


def settings() -> str:
    """The keys of ACCELRT_ALLOC_CONF: from keys.py, and what each does from the table of its page."""
    page = (PACKAGE / "allocator" / "settings" / "DESIGN.md").read_text()
    lines = [re.split(r"(?<!\\)\|", line) for line in page.splitlines() if line.startswith("| `")]
    does = {parts[1].strip(" `"): (parts[3].strip(), parts[4].strip()) for parts in lines}
    parts = []
    for key in keys.KEYS.values():
        default, text = does[key.name]
        fixed = f"No: {key.fixed}." if key.fixed else "Yes."
        default = "" if default == "default" else f"- **Default:** {docstrings.inline(default)}.\n"
        parts.append(
            f"## `{key.name}`\n\n{text[0].upper()}{text[1:]}.\n\n"
            f"- **May be** {docstrings.inline(key.allowed)}.\n"
            f"{default}- **Changes after the first use:** {fixed}\n"
        )
    return "\n".join(parts)


def contradictions() -> str:
    """Which keys cannot stand together, and why."""
    rows = [(code(pair.first), code(pair.second), pair.why) for pair in keys.CONTRADICTIONS]
    rows += [(code(need.key), f"needs {code(need.needed)}", need.why) for need in keys.NEEDS]
    return table(("key", "and", "why"), rows)


def error_index() -> str:
    """Every exception: what it means, what catches it, whether the call may be tried again, what to do."""
    advice = tomllib.loads((DOCS / "errors.toml").read_text())
    parts = []
    for name in errors.__all__:
        kind = getattr(errors, name)
        if kind.__name__ != name:
            continue  # another name of the same class
        caught = [base.__name__ for base in kind.__mro__[1:] if base.__name__ not in ("Plain", "object")]
        caught = [base for base in caught if base not in ("Exception", "BaseException", "Warning")]
        parts.append(
            f"## {name}\n\n{docstrings.first_sentence(kind.__doc__)} "
            f"All of it: `{shown_name(name)}`.\n\n"
            f"- **Caught as:** {', '.join(code(base) for base in (name, *caught))}.\n"
            f"- **The same call again:** {advice[name]['again']}.\n"
            f"- **What to do:** {advice[name]['what']}\n"
        )
    return "\n".join(parts)


def shown_name(name: str) -> str:
    import accelrt

    return f"accelrt.{name}" if name in accelrt.__all__ else f"accelrt.errors.{name}"


def codes() -> str:
    """The status codes of accelrt/status.pxd, and what each raises in Python."""
    text = (PACKAGE / "status.pxd").read_text()
    rows = []
    for name, number in re.findall(r"^    ([A-Z_]+) = (-?\d+)", text, re.M):
        value = int(number)
        raised = ""
        if value and name != "INIT_FAILED":  # which raises what was kept
            raised = type(status.status_error(value)).__name__
        raised = raised if raised in vars(builtins) or not raised else shown_name(raised)
        rows.append((code(name), number, docstrings.inline(status.text_of(value)), code(raised)))
    return table(("name", "number", "meaning", "raises"), rows)


def peer(name: str) -> str:
    """What stands in accelrt for the names of another library: docs/NAME_names.toml."""
    names = runpy.run_path(str(DOCS / "torch_names.py"))
    lines, module = [], ""
    for row in names["rows"](tomllib.loads((DOCS / f"{name}_names.toml").read_text())):
        if row.module != module:
            module = row.module
            lines += [f"\n## {module}\n", "| name | in accelrt | |", "| --- | --- | --- |"]
        here = code(row.here) if row.here else "nothing"
        lines.append(f"| `{row.name}` | {here} | {cell(docstrings.inline(row.note.strip()))} |")
    return "\n".join(lines) + "\n"


KINDS = ("passed", "differs", "missing", "internal", "needs_gpu")


def peer_tests(name: str) -> str:
    """How the tests of another library fare: docs/NAME_tests.toml."""
    data = tomllib.loads((DOCS / f"{name}_tests.toml").read_text())
    counts = [(file, *(each.get(kind, 0) for kind in KINDS)) for file, each in data["files"].items()]
    total = [sum(row[1 + number] for row in counts) for number in range(len(KINDS))]
    rows = [(code(file), *(str(number or "") for number in numbers)) for file, *numbers in counts]
    heads = ("tests", "passed", "differ", "missing", "of internals", "need a GPU")
    counted = table(heads, [*rows, ("all", *map(str, total))])
    reasons = [
        (code(each["file"]), str(each["count"]), each["what"], docstrings.inline(each["why"]), each["kind"])
        for each in data["reasons"]
    ]
    told = table(("tests", "how many", "what they ask for", "in accelrt", ""), reasons)
    return f"{counted}\n## What differs, and what is missing\n\n{told}"


def sections(text: str, pattern: str, language: str, first: str) -> str:
    """A source as code, with a heading wherever a pattern's first group names a section."""
    parts = re.split(pattern, text, flags=re.M)
    titles = [first, *(title[0].upper() + title[1:] for title in parts[1::2])]
    return "\n".join(
        f"## {docstrings.inline(title.partition(';')[0])}\n\n```{language}\n{body.strip()}\n```\n"
        for title, body in zip(titles, parts[::2], strict=True)
    )


def cython_api() -> str:
    text = (PACKAGE / "api.pxd").read_text()
    return sections(text, r"^# --- (.+) ---\n", "cython", "How it is used")


def c_api() -> str:
    text = (PACKAGE / "include" / "accelrt.h").read_text()
    return sections(text, r"^/\* --- (.+?)(?:: .*?)? --- \*/\n", "c", "How it is used")


def cpp_api() -> str:
    return f"```cpp\n{(PACKAGE / 'include' / 'accelrt.hpp').read_text().strip()}\n```\n"


def commands() -> str:
    """What each command does, and its help."""
    parser = command_line.parser([])
    (choices,) = (action.choices for action in parser._actions if isinstance(action.choices, dict))
    parts = []
    for name, command in choices.items():
        words = name.replace("tune-offline", "tune offline")
        module = importlib.import_module(command.get_default("run").__module__)
        parts.append(f"## accelrt {words}\n\n{command_text(module.__doc__ or '')}\n")
        command.description = None  # which is that text
        parts.append(f"```text\n{command.format_help().strip().replace(name, words)}\n```\n")
    return "\n".join(parts)


def command_text(doc: str) -> str:
    """A command's docstring without its name, as a sentence."""
    text = docstrings.markdown(doc.partition(": ")[2])
    return text[:1].upper() + text[1:]


MADE = {
    "environment": environment,
    "settings": settings,
    "contradictions": contradictions,
    "errors": error_index,
    "codes": codes,
    "peer": peer,
    "peer_tests": peer_tests,
    "cython_api": cython_api,
    "c_api": c_api,
    "cpp_api": cpp_api,
    "commands": commands,
    "picture": pictures.picture,
}
