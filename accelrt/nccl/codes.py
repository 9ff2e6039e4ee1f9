"""NCCL's operations, and its numbers: ncclDataType_t, ncclRedOp_t and ncclResult_t."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from accelrt.core.dtypes import DTYPES
from accelrt.errors import NcclError

if TYPE_CHECKING:
    from typing import Any

SUM, PROD, MAX, MIN, AVG = range(5)
OPS = {"sum": SUM, "prod": PROD, "max": MAX, "min": MIN, "avg": AVG}
BYTE = 1
CODES = {dtype.name: dtype.nccl for dtype in DTYPES if dtype.nccl is not None}
PAIRS = {"complex64": ("float32", 4), "complex128": ("float64", 8)}
NONE, WHOLE, PARTS = range(3)


class Kind(NamedTuple):
    """An operation, from which follow its checks, its arguments of NCCL's, and what the host backend does.

    Attributes:
        source, target: int, of what a rank reads and writes: NONE, WHOLE, or PARTS, a part for each rank.
        reduces: bool, whether several ranks' elements become one.
        root: str, what its number of a rank means: the only one whose "source" is read, or whose "target" is
            written; the "peer" of a transfer; "" where it has none.
    """

    source: int
    target: int
    reduces: bool = False
    root: str = ""


OPERATIONS = {
    "all_reduce": Kind(WHOLE, WHOLE, reduces=True),
    "reduce": Kind(WHOLE, WHOLE, reduces=True, root="target"),
    "broadcast": Kind(WHOLE, WHOLE, root="source"),
    "all_gather": Kind(WHOLE, PARTS),
    "reduce_scatter": Kind(PARTS, WHOLE, reduces=True),
    "send": Kind(WHOLE, NONE, root="peer"),
    "recv": Kind(NONE, WHOLE, root="peer"),
}


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


def numbers_of(kind: Kind, dtype: Any, op: Any, count: int) -> tuple[int, int, int, int]:
    """Returns how an operation's elements go through NCCL.

    Arguments:
        dtype: numpy.dtype.
        op: as of read_op; looked at where the operation reduces.
        count: how many elements.
    Returns:
        (elements for NCCL, bytes of one, NCCL's data type, NCCL's reduction).  A complex number is two real
        ones for sums and means; of bools, the sum and the maximum are "or", the product and the minimum are
        "and".  What is not reduced and NCCL does not know goes as bytes.
    Raises:
        TypeError: NCCL has no such reduction of such elements.
        ValueError: as of read_op.
    """
    if kind.reduces and not isinstance(op, (int, str)):
        read_op(op)
    times, itemsize, datatype, number = _find_reduced(dtype, op) if kind.reduces else _find_moved(dtype)
    return times * count, itemsize, datatype, number


@lru_cache(maxsize=256, typed=True)  # the name of a dtype takes NumPy microseconds
def _find_reduced(dtype: Any, op: Any) -> tuple[int, int, int, int]:
    number, name = read_op(op), dtype.name
    if not dtype.isnative:
        raise TypeError(f"NCCL reduces no elements of another byte order, such as {dtype.str}")
    if name in CODES:
        return 1, dtype.itemsize, CODES[name], number
    if name == "bool" and number != AVG:
        return 1, 1, BYTE, MAX if number in (SUM, MAX) else MIN
    if name in PAIRS and number in (SUM, AVG):
        part, itemsize = PAIRS[name]
        return 2, itemsize, CODES[part], number
    word = next(word for word, code in OPS.items() if code == number)
    raise TypeError(
        f"NCCL has no {word!r} of {name}; it reduces {', '.join(CODES)}, bool but for 'avg', and complex64 "
        "and complex128 by 'sum' and 'avg'"
    )


@lru_cache(maxsize=256)
def _find_moved(dtype: Any) -> tuple[int, int, int, int]:
    if dtype.name in CODES:
        return 1, dtype.itemsize, CODES[dtype.name], SUM
    return dtype.itemsize, 1, BYTE, SUM


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
    """The answer of a backend's call.

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
