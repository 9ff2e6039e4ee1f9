"""Signatures: a kernel's parameters in the words of C."""

from __future__ import annotations

import re

from accelrt.core.dtypes import DTYPES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

# Numbers that kernel.pxd has names for.
KINDS = {"any": 0, "pointer": 1, "signed": 2, "unsigned": 3, "float": 4, "bool": 5, "complex": 6, "bytes": 7}
POINTER_SIZE = 8

Parsed = tuple[int, int, bool]  # kind, bytes, whether the kernel may write through it

# What of C has no arithmetic for it passes as bytes.
TYPES: dict[str, tuple[str, int]] = {
    word: ("bytes" if dtype.of_ml_dtypes else dtype.kind, dtype.itemsize)
    for dtype in DTYPES
    for word in dtype.words.split("|")
    if word
} | {
    **{"CUtensorMap": ("bytes", 128)},
    **dict.fromkeys(
        ("cudaTextureObject_t", "CUtexObject", "cudaSurfaceObject_t", "CUsurfObject"), ("unsigned", 8)
    ),
}
STRUCT = re.compile(r"struct\[(\d+)\]")
QUALIFIERS = re.compile(
    r"\b(?:__grid_constant__|__restrict__|__restrict|restrict|volatile|std::|thrust::|cuda::)"
)


def parse_signature(signature: str | Iterable[str]) -> Sequence[Parsed]:
    """Returns what each parameter is.

    Arguments:
        signature: the parameters as in C, with or without names, "const float* x, float* y, int n";
            or an iterable of one text for each.  A parameter with a * is a pointer, one that the kernel only
            reads where what it points at is const.  Types are those of C, of stdint.h, of CUDA ("half",
            "__nv_bfloat16", "CUtensorMap") and of numpy ("float32"); "struct[24]" is a struct of 24 bytes,
            passed by value.
    Returns:
        list of (kind, bytes, writes).
    Raises:
        TypeError: it is no text.
        ValueError: a parameter's type is not known; the text names it.
    """
    return [_parse(part, index) for index, part in enumerate(_parts(signature))]


def parse_pointees(signature: str | Iterable[str]) -> Sequence[tuple[int, int]]:
    """Returns what each parameter of a signature that parse_signature reads points at.

    Returns:
        list of (kind, bytes); (0, 0) for what is no pointer, or one to a type that is not known here.
    """
    pointees = []
    for part in _parts(signature):
        pointee, star, rest = " ".join(QUALIFIERS.sub(" ", part).split()).partition("*")
        words = " ".join(re.sub(r"\bconst\b", " ", pointee).split())
        kind, size = TYPES.get(words if star and "*" not in rest else "", ("any", 0))
        pointees.append((KINDS[kind], size))
    return pointees


def _parts(signature: str | Iterable[str]) -> list[str]:
    if not isinstance(signature, str):
        return list(signature)
    text = signature.strip()
    return [] if text in ("", "void") else text.split(",")


def _parse(text: str, index: int) -> Parsed:
    if not isinstance(text, str):
        raise TypeError(f"parameter {index} of the signature is {text!r}; pass a text such as 'const float*'")
    words = " ".join(QUALIFIERS.sub(" ", text).split())
    pointee, star, rest = words.partition("*")
    if star:
        constant = re.search(r"\bconst\b", pointee) is not None and "*" not in rest
        return KINDS["pointer"], POINTER_SIZE, not constant
    words = " ".join(re.sub(r"\bconst\b", " ", words).split())
    for candidate in (words, words.rpartition(" ")[0]):
        if candidate in TYPES:
            kind, size = TYPES[candidate]
            return KINDS[kind], size, False
        if match := STRUCT.fullmatch(candidate):
            return KINDS["bytes"], int(match[1]), False
    raise ValueError(
        f"parameter {index} of the signature, {text.strip()!r}, has a type that is not known here; pass a "
        "pointer, a type of C, stdint.h or numpy, or 'struct[N]' for a struct of N bytes"
    )
