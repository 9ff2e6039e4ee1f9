"""A compiler's messages, with the lines of the source that they are about."""

from __future__ import annotations

import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

SHOWN = 5  # errors; the log has all of them
AROUND = 2  # lines before and after the one that an error is about
# "name(3): error: text" of NVRTC, and "name:3:7: error: text" of compilers of C and C++.
ERROR = re.compile(
    r"^(?P<name>.+?)(?:\((?P<line>\d+)\)|:(?P<row>\d+)(?::(?P<column>\d+))?): (?P<text>(?:\w+ )?error\b.*)$",
    re.M,
)
UNPLACED = re.compile(r"^(?:\S+: )?(?:fatal )?error\b.*$", re.M)


def error_text(log: str, sources: Mapping[str, str]) -> str:
    """The errors of a log, each with the lines around its place; the whole log where none is found in it.

    Arguments:
        log: str, what the compiler wrote.
        sources: mapping from the names that the compiler knows texts by to the texts.
    """
    errors = list(ERROR.finditer(log))
    parts = []
    for error in errors[:SHOWN]:
        line = int(error["line"] or error["row"])
        column = f", column {error['column']}" if error["column"] else ""
        parts.append(f"{error['name']}, line {line}{column}: {error['text']}")
        if error["name"] in sources:
            parts.append(excerpt(sources[error["name"]], line))
    parts += [error[0] for error in UNPLACED.finditer(log)][:SHOWN] if not errors else []
    if len(errors) > SHOWN:
        parts.append(f"and {len(errors) - SHOWN} errors more; the exception's log has all of them")
    return "\n".join(parts) or log.strip()


def excerpt(text: str, line: int) -> str:
    """The lines around one, numbered, with a mark at that one."""
    lines = text.splitlines()
    first, last = max(line - 1 - AROUND, 0), min(line + AROUND, len(lines))
    return "\n".join(
        f"{'>' if number == line else ' '}{number:5d} | {lines[number - 1]}"
        for number in range(first + 1, last + 1)
    )


def no_kernel_text(on_gpu: bool, name: str) -> str:
    """Says what it means that a module has no kernel of a name.

    Arguments:
        on_gpu: bool, False on the host device.
        name: str, what the driver was asked for.
    """
    if on_gpu:
        return (
            'the module has no kernel of that name; C++ mangles names, so declare it extern "C", or compile '
            "it with the name as a name expression"
        )
    return (
        'the module has no kernel of that name; declare one in CUDA C extern "C", or compile it with the '
        f"name as a name expression; one in C is exported beside its {name}_parameters "
        "(docs/guide/kernels.md, the host ABI)"
    )


def refusal_text(meaning: str, log: str) -> str:
    """Says what the driver's compiler, or the loader of shared objects, said of an image that was refused.

    Arguments:
        meaning: str, of the status.
        log: str; where it is empty, so is the answer, for the status says all there is.
    """
    text = log.strip()
    if not text:
        return ""
    return f"{meaning}; the driver said:\n" + "\n".join(f"    {line}" for line in text.splitlines())
