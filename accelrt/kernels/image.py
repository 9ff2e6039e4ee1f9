"""The results of a compiler: a module's image, and the architectures that one is made for."""

from __future__ import annotations

import os
from hashlib import blake2b

from accelrt.core import files
from accelrt.driver.registry import driver_name
from accelrt.kernels import elf_image

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

MOST_BYTES = 1 << 32  # of a file of code that is read
KINDS = ("cubin", "ptx", "ltoir")


SEAL = b"accelrt shared object 1\n"  # behind a shared object, and before the digest of what is before it
DIGEST_BYTES = 32
ELF_HEADER = 64  # bytes


def sealed(data: bytes) -> bytes:
    """A shared object with a digest of it behind; the dynamic linker reads no further than the object."""
    return data + SEAL + blake2b(data, digest_size=DIGEST_BYTES).digest()


def unsealed(data: bytes) -> bytes:
    """Returns what sealed() was given; others' objects as they are.

    Raises:
        ValueError: it is not what was sealed.
    """
    start = len(data) - len(SEAL) - DIGEST_BYTES
    if start < 0 or data[start : start + len(SEAL)] != SEAL:
        return data
    whole = data[:start]
    if blake2b(whole, digest_size=DIGEST_BYTES).digest() != data[start + len(SEAL) :]:
        raise ValueError("the image is not what accelrt compiled; it is damaged: compile it again")
    return whole


def check_elf(data: bytes, is_for_host: bool) -> None:
    """Raises ValueError where a cubin or a shared object is damaged.

    Such a one is shorter than it says, is not what accelrt compiled any more, or, for the host device, has
    tables that the dynamic linker would follow out of it.
    """
    text = "too few for its header"
    if len(data) >= ELF_HEADER:
        headers, each = int.from_bytes(data[40:48], "little"), int.from_bytes(data[58:60], "little")
        whole = headers + each * int.from_bytes(data[60:62], "little")
        if headers and whole <= len(data):
            if unsealed(data) is data and is_for_host:
                elf_image.check_shared_object(data)
            return
        text = f"of which {whole} should be there"
        if not headers:
            text = "without section headers, which tell its length"
    title = f"the image is an ELF file of {len(data)} bytes, {text}"
    raise ValueError(f"{title}; it is damaged: compile it again")


def check_image(data: bytes) -> None:
    """Raises ValueError where an image is empty, or damaged."""
    if not data:
        raise ValueError("the image is empty")
    if data[:4] == b"\x7fELF":
        check_elf(data, driver_name() != "cuda")


def read_image(image: Any) -> tuple[bytes, str]:
    """Reads what Module takes: a path, bytes, or an object whose bytes() are the image.

    Returns:
        (what the driver takes, what an error calls it).
    """
    if isinstance(image, (str, os.PathLike)):
        path = os.path.abspath(os.fspath(image))
        title = f"file {os.fsdecode(path)}"
        data = files.read(path, MOST_BYTES)
        check_image(data)
        if driver_name() != "cuda" and data[:4] == b"\x7fELF":
            return os.fsencode(path), title  # so that libraries beside it, and debuggers, find it
        return data, title
    if not isinstance(image, (bytes, bytearray, memoryview)) and not hasattr(image, "__bytes__"):
        raise TypeError(
            f"image is of type {type(image).__name__}; pass a path, bytes, or what compile_image returns"
        )
    data = bytes(image)
    check_image(data)
    return data, f"{len(data)} bytes"


class ModuleImage:
    """Code that a compiler or linker made, before a device loads it.

    Attributes:
        data: bytes, as cuModuleLoadData takes them; LTO-IR only after link_images.
        kind: str, "cubin", "ptx" or "ltoir"; "so" for a shared object of the host device.
        arch: str, what it was made for, such as "sm_90" or "compute_90".
        names: dict from each name expression to the mangled name that the driver knows it by.
        log: str, what the compiler wrote though it succeeded, such as warnings.
        compiler: str, such as "NVRTC 13.0".
    """

    __slots__ = ("__weakref__", "arch", "compiler", "data", "kind", "log", "names")

    def __init__(
        self,
        data: bytes,
        kind: str,
        arch: str,
        names: Mapping[str, str] | None = None,
        log: str = "",
        compiler: str = "",
    ) -> None:
        self.data: bytes = data
        self.kind: str = kind
        self.arch: str = arch
        self.names: dict[str, str] = dict(names or {})
        self.log: str = log
        self.compiler: str = compiler

    def __repr__(self) -> str:
        return f"<accelrt.ModuleImage {self.kind} for {self.arch}, {len(self.data)} bytes>"

    def __bytes__(self) -> bytes:
        return self.data

    def __len__(self) -> int:
        return len(self.data)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the data to a file, which Module.load and link_images take; the names are not in it.

        Arguments:
            path: str or os.PathLike.
        Raises:
            OSError: it cannot be written; a file that was there stays as it was.
        """
        files.write(path, [self.data])


def arch_name(arch: object) -> str:
    """An architecture as NVRTC calls it: "sm_90" of "sm_90", 90, (9, 0) and "9.0"; "compute_90" as it is.

    Raises:
        TypeError: it is none of these types.
        ValueError: it names no architecture.
    """
    text = arch
    if isinstance(arch, tuple) and len(arch) == 2 and all(type(part) is int for part in arch):
        text = f"sm_{arch[0]}{arch[1]}"
    elif type(arch) is int:
        text = f"sm_{arch}"
    elif isinstance(arch, str):
        text = f"sm_{arch.replace('.', '', 1)}" if arch[:1].isdigit() else arch
    else:
        raise TypeError(f"arch is a str, an int or a pair of ints, not {type(arch).__name__}")
    assert isinstance(text, str)
    prefix, _, number = text.partition("_")
    digits = number.rstrip("af")  # of the architecture-specific and the family-specific features
    is_name = prefix in ("sm", "compute") and digits.isascii() and digits.isdigit() and 2 <= len(digits) <= 3
    if not is_name or len(number) - len(digits) > 1:
        raise ValueError(
            f"arch={arch!r} is no architecture; it may be such as 'sm_90', 'sm_90a', 90 or (9, 0) for "
            "machine code, or 'compute_90' for PTX"
        )
    return text


def arch_number(arch: str) -> int:
    """90 of "sm_90", "sm_90a" and "compute_90"."""
    return int(arch.partition("_")[2].rstrip("af"))
