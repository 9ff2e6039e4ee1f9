"""NCCL's numbers: elements, reductions and answers (ncclDataType_t, ncclRedOp_t, ncclResult_t)."""

from __future__ import annotations

from functools import lru_cache

from accelrt.core.dtypes import DTYPES
from accelrt.errors import NcclError

TYPE_CHECKING = False  # typing's, which takes long to import
if TYPE_CHECKING:
    from typing import Any

__all__ = ["AVG", "MAX", "MIN", "PROD", "SUM", "BackendError", "error_of", "moved_as", "reduced_as"]

SUM, PROD, MAX, MIN, AVG = range(5)
OPS = {"sum": SUM, "prod": PROD, "max": MAX, "min": MIN, "avg": AVG}
BYTE = 1
CODES = {dtype.name: dtype.nccl for dtype in DTYPES if dtype.nccl is not None}
PAIRS = {"complex64": ("float32", 4), "complex128": ("float64", 8)}


def read_op(op: Any) -> int:
    """The number of a reduction: "sum", "prod", "max", "min" or "avg", or accelrt.nccl.SUM and so on.

    Raises:
        ValueError: there is none such.
    """
    if isinstance(op, str) and op.lower() in OPS:
        return OPS[op.lower()]
    if isinstance(op, int) and not isinstance(op, bool) and op in OPS.values():
        return op
    raise ValueError(
        f"op is {op!r}; it may be {', '.join(map(repr, OPS))}, or accelrt.nccl.SUM to AVG (0 to 4)"
    )


def reduced_as(dtype: Any, op: Any, count: int) -> tuple[int, int, int, int]:
    """How elements are reduced.

    Arguments:
        dtype: numpy.dtype.
        op: as of read_op.
        count: how many elements.
    Returns:
        (NCCL's data type, NCCL's reduction, elements for NCCL, bytes of one).  A complex number is two real
        ones for sums and means; of bools, the sum and the maximum are "or", the product and the minimum are
        "and".
    Raises:
        TypeError: NCCL has no such reduction of such elements.
        ValueError: as of read_op.
    """
    if not isinstance(op, (int, str)):
        read_op(op)
    datatype, number, times, itemsize = _find_reduced(dtype, op)
    return datatype, number, times * count, itemsize


@lru_cache(maxsize=256, typed=True)  # the name of a dtype takes NumPy microseconds
def _find_reduced(dtype: Any, op: Any) -> tuple[int, int, int, int]:
    number, name = read_op(op), dtype.name
    if not dtype.isnative:
        raise TypeError(f"NCCL reduces no elements of another byte order, such as {dtype.str}")
    if name in CODES:
        return CODES[name], number, 1, dtype.itemsize
    if name == "bool" and number != AVG:
        return BYTE, MAX if number in (SUM, MAX) else MIN, 1, 1
    if name in PAIRS and number in (SUM, AVG):
        part, itemsize = PAIRS[name]
        return CODES[part], number, 2, itemsize
    word = next(word for word, known in OPS.items() if known == number)
    raise TypeError(
        f"NCCL has no {word!r} of {name}; it reduces {', '.join(CODES)}, bool but for 'avg', and complex64 "
        "and complex128 by 'sum' and 'avg'"
    )


def moved_as(dtype: Any, count: int) -> tuple[int, int, int]:
    """How elements are moved: (NCCL's data type, elements for NCCL, bytes of one).  Those that NCCL does not
    know go as bytes."""
    datatype, times, itemsize = _find_moved(dtype)
    return datatype, times * count, itemsize


@lru_cache(maxsize=256)
def _find_moved(dtype: Any) -> tuple[int, int, int]:
    if dtype.name in CODES:
        return CODES[dtype.name], 1, dtype.itemsize
    return BYTE, dtype.itemsize, 1


# By the number: the name without its prefix, what it means, and what to do.
RESULTS = {
    1: (
        "UNHANDLED_CUDA_ERROR",
        "a call of CUDA's failed inside NCCL",
        "NCCL_DEBUG=WARN prints which; two ranks on one device are refused so too",
    ),
    2: (
        "SYSTEM_ERROR",
        "a call of the system's failed",
        "NCCL_DEBUG=WARN prints which; the network interface (NCCL_SOCKET_IFNAME) and /dev/shm are the "
        "usual causes",
    ),
    3: ("INTERNAL_ERROR", "a check inside NCCL failed", "NCCL_DEBUG=WARN prints which"),
    4: ("INVALID_ARGUMENT", "an argument is not allowed", "NCCL_DEBUG=WARN prints which"),
    5: ("INVALID_USAGE", "the call is not allowed now", "NCCL_DEBUG=WARN prints why"),
    6: (
        "REMOTE_ERROR",
        "another rank has failed or left",
        "abort() this communicator, and make another one with the ranks that are left",
    ),
    7: ("IN_PROGRESS", "the call is not complete", "call again later"),
    8: (
        "TIMEOUT",
        "a call took too long",
        "abort() this communicator, and make another one with the ranks that are left",
    ),
}


class BackendError(Exception):
    """What a backend's call answered.

    Attributes:
        code: int, a number of ncclResult_t.
        text: str, what else the backend says of it; may be empty.
    """

    def __init__(self, code: int, text: str = "") -> None:
        super().__init__(code, text)
        self.code = code
        self.text = text


def error_of(code: int, text: str, call: str) -> NcclError:
    """The error of a call, such as "all_reduce(rank=0, count=3)", that answered a number."""
    name, meaning, advice = RESULTS.get(
        code, ("UNKNOWN", "an answer that is not known", "NCCL_DEBUG=WARN tells more")
    )
    text = f"{call} answered {name} ({code}): {text or meaning}; {advice}"
    return NcclError(text, code, name, call.partition("(")[0])
