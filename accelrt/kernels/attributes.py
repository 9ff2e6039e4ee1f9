"""The figures of a kernel."""

from __future__ import annotations

from collections import namedtuple

__all__ = ["KernelAttributes"]

TYPE_CHECKING = False  # typing's, which takes long to import
if TYPE_CHECKING:
    _Figures = tuple[int, ...]  # type checkers find no types in a namedtuple
else:
    # CUfunction_attribute, by number from 0 (CUDA driver API, "Data types used by CUDA driver").
    _Figures = namedtuple(
        "_Figures",
        "max_threads_per_block shared_size_bytes const_size_bytes local_size_bytes num_regs ptx_version "
        "binary_version cache_mode_ca max_dynamic_shared_size_bytes",
    )


class KernelAttributes(_Figures):
    """The figures of a kernel that Kernel.attributes reads.

    Attributes:
        max_threads_per_block, num_regs: int, the threads that a block may have, and registers of a thread.
        shared_size_bytes, const_size_bytes, local_size_bytes: int, static shared, constant, and a thread's
            local memory.
        ptx_version, binary_version: int, 90 for 9.0.
        cache_mode_ca: int, 1 where it was compiled to cache global loads in L1, else 0.
        max_dynamic_shared_size_bytes: int, the dynamic shared memory that a launch may ask for.
    """

    __slots__ = ()

    max_threads_per_block: int
    shared_size_bytes: int
    const_size_bytes: int
    local_size_bytes: int
    num_regs: int
    ptx_version: int
    binary_version: int
    cache_mode_ca: int
    max_dynamic_shared_size_bytes: int
