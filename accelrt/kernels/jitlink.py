"""nvJitLink, through cuda.bindings: several modules' images made into one."""

from __future__ import annotations

from accelrt.errors import CompileError, CompilerNotFoundError
from accelrt.kernels.apart import call_apart
from accelrt.kernels.image import ModuleImage
from accelrt.kernels.nvrtc import ADVICE, reason_of
from accelrt.runtime import init

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

INPUTS = {"cubin": "CUBIN", "ptx": "PTX", "ltoir": "LTOIR", "fatbin": "FATBIN", "object": "OBJECT"}
FATBIN = 0xBA55ED50.to_bytes(4, "little")  # FATBIN_MAGIC of fatbinary_section.h's container
LTOIR = 0x7F4E43ED.to_bytes(4, "little")
ELF = b"\x7fELF"
CUDA_MACHINE = 190  # EM_CUDA of elf.h, e_machine


def library() -> Any:
    try:
        module = init.later("cuda.bindings.nvjitlink")
        module.version()
    except (ImportError, RuntimeError) as error:
        raise CompilerNotFoundError(
            f"nvJitLink, which links kernels, was not found ({reason_of(error)}): {ADVICE}"
        ) from error
    return module


def version() -> tuple[int, int]:
    """nvJitLink's version.

    Raises:
        CompilerNotFoundError: it is not installed.
    """
    major, minor = library().version()
    return int(major), int(minor)


def input_kind(data: bytes) -> str:
    """Returns what an image is, by its first bytes.

    Raises:
        ValueError: it is none that nvJitLink takes.
    """
    if data[:4] == ELF:
        return "cubin" if int.from_bytes(data[18:20], "little") == CUDA_MACHINE else "object"
    if data[:4] == FATBIN:
        return "fatbin"
    if data[:4] == LTOIR:
        return "ltoir"
    if b".version" in data[:4096] and b"\0" not in data.rstrip(b"\0"):
        return "ptx"
    raise ValueError(f"an image that begins with {data[:8]!r} is no cubin, PTX, LTO-IR, fatbin or object")


def link(images: Sequence[ModuleImage], kind: str, options: Sequence[str]) -> ModuleImage:
    """Links images into one of the kind "cubin" or "ptx".

    Raises:
        CompileError: the linker refused them.
        CompilerNotFoundError: nvJitLink is not installed.
    """
    nvjitlink = library()
    return call_apart(lambda _: link_with(nvjitlink, images, kind, options))


def link_with(
    nvjitlink: Any, images: Sequence[ModuleImage], kind: str, options: Sequence[str]
) -> ModuleImage:
    name = "nvJitLink {}.{}".format(*nvjitlink.version())
    names = {expression: lowered for image in images for expression, lowered in image.names.items()}
    flags = list(options)
    handle = None
    try:
        handle = nvjitlink.create(len(flags), flags)
        for number, image in enumerate(images, 1):
            content = image.data + b"\0" if image.kind == "ptx" else image.data
            input_kind = getattr(nvjitlink.InputType, INPUTS[image.kind])
            nvjitlink.add_data(handle, input_kind, content, len(content), f"image {number}")
        nvjitlink.complete(handle)
        get = nvjitlink.get_linked_cubin if kind == "cubin" else nvjitlink.get_linked_ptx
        size = nvjitlink.get_linked_cubin_size if kind == "cubin" else nvjitlink.get_linked_ptx_size
        data = bytearray(size(handle))
        get(handle, data)
        log = text_of(handle, nvjitlink.get_info_log_size, nvjitlink.get_info_log)
    except nvjitlink.nvJitLinkError as error:
        log = text_of(handle, nvjitlink.get_error_log_size, nvjitlink.get_error_log)
        text = f"{name} refused {len(images)} images, options {', '.join(flags)}:\n{log or error}"
        raise CompileError(text, log, "", name) from None
    finally:
        if handle is not None:
            nvjitlink.destroy(handle)
    return ModuleImage(bytes(data), kind, images[0].arch, names, log, name)


def text_of(handle: Any, size_of: Callable[[Any], int], fill: Callable[[Any, bytearray], None]) -> str:
    size = size_of(handle) if handle is not None else 0
    if size <= 1:
        return ""
    text = bytearray(size)
    fill(handle, text)
    return text.rstrip(b"\0").decode(errors="replace").strip("\n")
