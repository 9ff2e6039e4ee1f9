"""Reads what a function for host_kernel takes, and writes C++ that calls one that knows nothing of blocks."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Any

from accelrt.core.dtypes import DTYPES
from accelrt.kernels import host_compiler, signature
from accelrt.kernels.image import ModuleImage

if TYPE_CHECKING:
    from collections.abc import Iterable

BLOCK_FUNCTION = "void (*)(const accelrt_block *where, void **arguments)"
# The kernel of a text that may fail an assertion, which leaves the function; a setjmp for each block.
ASSERTING = """\
void accelrt_block_{name}(const accelrt_block* where, void** arguments) {{
    accelrt_host::run_whole(&{name}, where, arguments);
}}
"""
TARGET = "accelrt_target"  # the variable that holds the address of a plain function
NAME = re.compile(r"[A-Za-z_]\w*")
DEFINED = re.compile(r"\bvoid\s+(?P<name>[A-Za-z_]\w*)\s*\(\s*const\s+(?:struct\s+)?accelrt_block\b")
# Kind and bytes -> the type of C by which a plain function takes it.
WORDS = {
    (dtype.kind, dtype.itemsize): dtype.stored
    for dtype in DTYPES
    if dtype.stored and dtype.stored in dtype.words.split("|")
} | {("complex", 8): "float _Complex", ("complex", 16): "double _Complex", ("pointer", 8): "void*"}


def is_called_for_blocks(function: object, count: int) -> bool:
    """Tells whether a function takes a block and arguments, and not the `count` parameters of its signature.

    An address as int tells nothing, and is taken to be of a function that does.

    Raises:
        TypeError: what it takes is not known, or fits neither.
    """
    takes = parameters_of(function)
    if takes is None or (len(takes) == 2 and takes[0].count("*") >= 1 and takes[1].count("*") == 2):
        return True
    if len(takes) == count:
        return False
    raise TypeError(
        f"the function takes {len(takes)} arguments ({', '.join(takes)}), and its signature has {count}; it "
        f"may take those of the signature, or be {BLOCK_FUNCTION}"
    )


def parameters_of(function: object) -> list[str] | None:
    """The types of a function's parameters, in which a * is a pointer; None for an address."""
    ctypes, cffi = sys.modules.get("ctypes"), sys.modules.get("_cffi_backend")
    if ctypes is not None and isinstance(function, ctypes._CFuncPtr):
        return parameters_of_ctypes(ctypes, function)
    if cffi is not None and isinstance(function, cffi._CDataBase):
        kind = cffi.typeof(function)
        kind = kind.item if kind.kind == "pointer" else kind
        return [each.cname for each in kind.args] if kind.kind == "function" else None
    if type(function).__name__ == "PyCapsule":
        return parameters_of_text(repr(function))
    signature = getattr(function, "_sig", None)  # numba's
    if signature is not None and hasattr(signature, "args"):
        return [str(each) for each in signature.args]
    return None


def parameters_of_ctypes(ctypes: Any, function: Any) -> list[str]:
    takes = function.argtypes
    if takes is None:
        takes = getattr(type(function), "_argtypes_", None)
    if takes is None:
        raise TypeError(
            f"nothing tells what {function.__name__!r} takes; set its argtypes: (c_void_p, "
            f"POINTER(c_void_p)) where it is {BLOCK_FUNCTION}, else those of the signature, and it is called "
            "once for each block"
        )
    return [word_of_ctypes(ctypes, each) for each in takes]


def word_of_ctypes(ctypes: Any, kind: Any) -> str:
    target = getattr(kind, "_type_", None)
    if isinstance(target, type) and issubclass(kind, ctypes._Pointer):
        return f"{word_of_ctypes(ctypes, target)}*"
    if kind in (ctypes.c_void_p, ctypes.c_char_p, ctypes.py_object):
        return "void*"
    return str(getattr(kind, "__name__", kind))


def parameters_of_text(text: str) -> list[str] | None:
    """Splits the parameters of the name of a capsule of Cython's, such as "void (uint32_t *, uint32_t)"."""
    match = re.search(r"\w[\w \*]*\((?P<takes>[^()]*)\)", text)
    return match["takes"].split(",") if match else None


def compile_call(name: str, parameters: str | Iterable[str]) -> tuple[str, ModuleImage]:
    """A kernel that calls the function whose address is in TARGET, with the values of its arguments.

    Returns:
        (the kernel's name in the image, the image).
    Raises:
        TypeError: a parameter is of a type that C passes in a way not known here.
        CompileError, CompilerNotFoundError: as compile_cpp.
    """
    kinds = {number: kind for kind, number in signature.KINDS.items()}
    words = []
    for number, (kind, size, _) in enumerate(signature.parse_signature(parameters)):
        word = WORDS.get((kinds[kind], size))
        if word is None:
            raise TypeError(
                f"parameter {number} of the signature is passed by value, and how a plain function of C "
                f"takes it is not known here; pass a pointer, or a function that is {BLOCK_FUNCTION}"
            )
        words.append(word)
    called = name if NAME.fullmatch(name) else "accelrt_plain"
    values = ", ".join(f"*({word}*)arguments[{number}]" for number, word in enumerate(words))
    text = f"""\
#include "accelrt_functions.hpp"
extern "C" {{
void (*{TARGET})({", ".join(words)});
extern const size_t {called}_parameters[];
const size_t {called}_parameters[] = {{{"".join(f"sizeof({word}), " for word in words)}0}};
void accelrt_block_{called}(const accelrt_block*, void** arguments) {{ {TARGET}({values}); }}
}}
"""
    return called, host_compiler.compile_cpp(text, f"{called}.cpp", {})


def compile_text(text: str, parameters: str | Iterable[str], name: str | None) -> tuple[str, ModuleImage]:
    """The kernel of a text that defines a BLOCK_FUNCTION.

    Returns:
        (the kernel's name, the image).
    Raises:
        ValueError: the text defines no such function, or several, and no name is given.
        CompileError, CompilerNotFoundError: as compile_cpp.
    """
    defined = [match["name"] for match in DEFINED.finditer(text)]
    if name is None and len(defined) != 1:
        text_of_names = f"defines {', '.join(defined)}" if defined else "defines none"
        raise ValueError(
            f"the text {text_of_names}; it should define one function void NAME(const accelrt_block *where, "
            "void **arguments), or several of which name chooses one; accelrt.compile takes kernels in CUDA C"
        )
    chosen = defined[0] if name is None else name
    sizes = "".join(f"{size}, " for _, size, _ in signature.parse_signature(parameters))
    whole = (
        '#include "accelrt_blocks.hpp"\nextern "C" {\n'
        + host_compiler.line_directive(1, f"{chosen}.c")
        + text
        + f'\n#line 1 "accelrt"\nextern const size_t {chosen}_parameters[];\n'
        + f"const size_t {chosen}_parameters[] = {{{sizes}0}};\n"
        + (ASSERTING.format(name=chosen) if "assert" in text else "")
        + "}\n"
    )
    return chosen, host_compiler.compile_cpp(whole, f"{chosen}.cpp", {f"{chosen}.c": text})
