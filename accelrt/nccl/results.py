"""What NCCL's calls answer (ncclResult_t), and the errors made of it."""

from __future__ import annotations

from accelrt.errors import NcclError

__all__ = ["BackendError", "error_of"]

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
