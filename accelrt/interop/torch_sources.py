"""The makings of torch's allocator object: its sources, and a compiler's arguments for them.

It imports nothing of accelrt's, for .ci/torch_objects makes objects where accelrt is not built.
"""

from __future__ import annotations

from hashlib import blake2b
from pathlib import Path

__all__ = ["LIBRARIES", "MINORS", "SOURCE", "arguments", "digest_of_all", "files"]

HERE = Path(__file__).parent
SOURCE = HERE / "torch_allocator.cpp"
STUB = HERE / "cuda_stub"
TABLE = HERE.parent / "allocator" / "external"
MINORS = range(8, 16)  # of torch 2, whose functions the source has
FIRST_OF_CXX20 = 14
LIBRARIES = ("c10", "c10_cuda", "torch_cpu")  # of torch's, that the object needs


def files() -> list[Path]:
    return [SOURCE, *sorted(HERE.glob("torch_*.h")), TABLE / "torch_table.h", *sorted(STUB.iterdir())]


def digest_of_all() -> str:
    return blake2b(b"\0".join(file.read_bytes() for file in files()), digest_size=16).hexdigest()


def arguments(minor: int, headers: Path, abi: int) -> list[str]:
    """A compiler's arguments, but for what it writes and links.

    Arguments:
        minor: int, of torch 2.
        headers: Path, torch's folder "include".
        abi: int, torch's _GLIBCXX_USE_CXX11_ABI.
    """
    return [
        f"-std=c++{20 if minor >= FIRST_OF_CXX20 else 17}",
        *("-O2", "-w", "-fPIC", "-shared", "-fvisibility=hidden", "-pthread"),
        f"-DTORCH_MINOR={minor}",
        f"-D_GLIBCXX_USE_CXX11_ABI={abi}",
        f"-I{headers}",
        f"-I{STUB}",
        f"-I{TABLE}",
    ]
