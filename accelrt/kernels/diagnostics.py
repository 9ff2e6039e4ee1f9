"""A compiler's messages, with the lines of the source that they are about; and which kernels a module has."""

from __future__ import annotations

import os
import re
from typing import NoReturn

from accelrt.core import files, instead
from accelrt.kernels.elf_image import exported_names
from accelrt.kernels.image import MOST_BYTES, unsealed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

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


PARAMETERS = "_parameters"  # behind a kernel's name, what is exported beside it (the host ABI)
# What an image names its kernels by: PTX, and a cubin, which has a bank of constants for each, its arguments.
ENTRY = re.compile(rb"\.entry\s+([\w$]+)|\0\.nv\.constant0\.([\w$.]+)(?=\0)")


def kernels_in(image: Any, expressions: Mapping[str, str]) -> list[str]:
    """Lists the kernels of an image by the names that Module.function takes; none where it does not tell.

    Arguments:
        image: as Module takes it; a file is read again.
        expressions: the name expressions that it was compiled with, and what the driver knows them by.
    """
    if image is None:  # of a Module that was unloaded
        return []
    is_path = isinstance(image, (str, os.PathLike))
    try:
        data = unsealed(files.read(image, MOST_BYTES) if is_path else bytes(image))
        exported = exported_names(data)
    except (OSError, ValueError):
        return []
    names = {name.removesuffix(PARAMETERS) for name in exported if name.endswith(PARAMETERS)}
    names |= {(found[1] or found[2]).decode() for found in ENTRY.finditer(data)}
    return sorted({*names.difference(expressions.values()), *expressions})


def refuse_attribute(module: object, name: str, image: Any, expressions: Mapping[str, str]) -> NoReturn:
    """Raises the AttributeError of a name that a Module does not have, which may be a kernel's.

    Arguments:
        image, expressions: as of kernels_in.
    """
    text = f"'accelrt.Module' object has no attribute {name!r}"
    kernels = [] if name.startswith("_") else kernels_in(image, expressions)
    advice = None
    if name in kernels:
        advice = f"module.function({name!r}) returns the kernel"
    elif kernels:
        advice = f"module.function(name) returns a kernel, of {instead.among(name, kernels)}"
    raise AttributeError(instead.explain(text, advice), name=name, obj=module)


def no_kernel_text(on_gpu: bool, name: str, image: Any, expressions: Mapping[str, str]) -> str:
    """Says what it means that a module has no kernel of a name.

    Arguments:
        on_gpu: bool, False on the host device.
        name: str, what the driver was asked for.
        image, expressions: as of kernels_in.
    """
    kernels = kernels_in(image, expressions)
    those = f"; it has {instead.among(name, kernels)}" if kernels else ""
    if on_gpu:
        return (
            f'the module has no kernel of that name{those}; C++ mangles names, so declare it extern "C", or '
            "compile it with the name as a name expression"
        )
    return (
        f'the module has no kernel of that name{those}; declare one in CUDA C extern "C", or compile it with '
        f"the name as a name expression; one in C is exported beside its {name}_parameters "
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
