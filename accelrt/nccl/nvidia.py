"""NCCL: nccl4py's bindings, and the library that they load.

Communicators are made non-blocking (ncclConfig_t.blocking = 0, which NCCL_COMM_BLOCKING overrides): no call
waits for other ranks, so that who ends a communicator beside an operation waits for microseconds only, and
ncclCommAbort is never called while another thread is inside of a call with the same handle (NCCL User Guide,
"Thread Safety" and "Fault Tolerance").  What goes on after a call returned is asked for by in_progress.

nccl4py looks for libnccl.so.2 where pip's nvidia-nccl packages put it and where the system's loader does;
what is loaded already, torch's say, it uses.  Where it finds none, the one beside torch is loaded for it.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import importlib.util
import os
from pathlib import Path
from typing import TYPE_CHECKING

from accelrt.errors import NotSupportedError
from accelrt.nccl.codes import BYTE, OPERATIONS, BackendError
from accelrt.nccl.config import fill

if TYPE_CHECKING:
    from typing import Any

    from accelrt.nccl.config import Config
    from accelrt.streams.stream import Stream

ID_BYTES = 128  # NCCL_UNIQUE_ID_BYTES
SUCCESS, IN_PROGRESS = 0, 7
WITH_SUSPEND = 22907  # the version that has ncclCommSuspend, ncclCommResume and ncclCommMemStats
SUSPEND_MEM = 1  # NCCL_SUSPEND_MEM
MEM_SUSPEND, MEM_SUSPENDED, MEM_TOTAL = 0, 1, 3  # ncclCommMemStat_t
ADVICE = (
    'pip install "accelrt[nccl]" brings nccl4py and NCCL for CUDA 13; for CUDA 12 install nccl4py and '
    "nvidia-nccl-cu12"
)
LIBRARY = "libnccl.so.2"
MAY_TAKE_LONG = True  # calls may go on after they returned

_bindings: Any = None


def bindings() -> Any:
    """nccl4py's low-level module, with a library loaded.

    Raises:
        NotSupportedError: nccl4py is not installed or too old, or there is no libnccl.so.2.
    """
    global _bindings
    if _bindings is None:
        try:
            module = importlib.import_module("nccl.bindings.nccl")
        except ImportError as error:
            raise missing(f"nccl4py cannot be imported ({error})") from error
        if not hasattr(module, "Comm"):
            raise missing("this nccl4py is older than 0.6")
        # NCCL would register the arrays of captured operations with the other ranks, and takes the first page
        # of memory that grows page by page for all of it.
        os.environ.setdefault("NCCL_GRAPH_REGISTER", "0")
        load_library(module)
        _bindings = module
    return _bindings


def missing(problem: str) -> NotSupportedError:
    return NotSupportedError(f"{problem}; {ADVICE}", 801, "NOT_SUPPORTED", "accelrt.nccl")


def load_library(module: Any) -> None:
    """Has the bindings load libnccl, which they do at the first call."""
    try:
        module.get_version()
        return
    except Exception as error:  # of several classes of cuda.pathfinder's and nccl4py's
        problem = error
    for path in candidates():
        try:
            ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
            module.get_version()
        except Exception:  # the first error tells more
            continue
        return
    raise missing(f"no {LIBRARY} can be loaded ({problem})") from problem


def candidates() -> list[Path]:
    """Tells where torch has the library: in pip's package of it beside torch, or in torch's own folder."""
    roots: list[str] = []
    for name in ("nvidia", "torch"):
        spec = importlib.util.find_spec(name)
        roots += spec.submodule_search_locations or () if spec is not None else ()
    parts = ("nccl/lib", "lib", "../nvidia/nccl/lib")
    paths = [Path(root, part, LIBRARY) for root in roots for part in parts]
    return [path for path in dict.fromkeys(paths) if path.is_file()]


def answer(function: Any, *arguments: Any, comm: Any = None) -> Any:
    """Calls a function of nccl4py's; its error as a BackendError."""
    try:
        return function(*arguments)
    except _bindings.NCCLError as error:
        raise BackendError(error.status, text_of(error, comm)) from error


def text_of(error: Exception, comm: Any) -> str:
    """Returns what NCCL says of an error, with its last warning."""
    last = ""
    if comm is not None:
        try:
            last = _bindings.get_last_error(comm).strip()
        except Exception:  # the error itself matters more
            last = ""
    return f"{error}; {last}" if last else str(error)


def memory_stat(comm: Any, stat: int) -> int:
    return int(answer(_bindings.comm_mem_stats, comm, stat, comm=comm))


def config_of(config: Config | None) -> Any:
    """NCCL's ncclConfig_t; it has to live until the call that takes it has returned."""
    settings = _bindings.Config()
    settings.blocking = 0
    fill(settings, config)
    return settings


def version() -> int:
    """NCCL's number of its version, such as 22809 for 2.28.9."""
    return int(bindings().get_version())


def unique_id() -> bytes:
    """128 bytes that name a communicator to be."""
    return bytes(memoryview(answer(bindings().get_unique_id)).cast("B"))


def init_rank(
    size: int, name: bytes, number: int, device: int, timeout: float, config: Config | None = None
) -> Any:
    """One rank, on the device that is current; it is there once it is no longer in progress, and in a group
    once that ended, too."""
    if not hasattr(bindings(), "comm_init_rank_config"):
        if config is not None:
            raise missing("this nccl4py has no ncclCommInitRankConfig, which a Config needs")
        return answer(_bindings.comm_init_rank, size, bytearray(name), number)
    settings = config_of(config)
    return answer(_bindings.comm_init_rank_config, size, bytearray(name), number, settings.ptr)


def name_of_split(name: bytes, number: int, color: int) -> bytes:
    """Nothing: NCCL finds the ranks of a split by itself."""
    return b""


def split(comm: Any, color: int, key: int, child: Any) -> Any:
    """The part of a communicator's ranks that name one colour, in the order of their keys; as init_rank.

    Arguments:
        child: the Communicator that it is for; None for a rank that is in none, which calls it too.
    """
    if not hasattr(bindings(), "comm_split"):
        raise missing("this nccl4py has no ncclCommSplit")
    settings = config_of(None if child is None else child.config)
    handle = answer(_bindings.comm_split, comm, color, key, settings.ptr, comm=comm)
    return None if child is None else handle


def shrink(comm: Any, left_out: tuple[int, ...], aborts: bool, child: Any) -> Any:
    """Those ranks of a communicator that are not left out, in their order; as init_rank.

    Arguments:
        aborts: bool, whether operations under way are ended first (NCCL_SHRINK_ABORT).
        child: the Communicator that it is for.
    """
    if not hasattr(bindings(), "comm_shrink"):
        raise missing("this nccl4py has no ncclCommShrink (NCCL 2.27)")
    settings = config_of(child.config)
    return answer(_bindings.comm_shrink, comm, left_out, len(left_out), settings.ptr, int(aborts), comm=comm)


def in_progress(comm: Any) -> bool:
    """Tells whether a call goes on that has returned.

    Raises:
        BackendError: it failed.
    """
    code = int(answer(bindings().comm_get_async_error, comm))
    if code not in (SUCCESS, IN_PROGRESS):
        raise BackendError(code, text_of(Exception(_bindings.get_error_string(code)), comm))
    return code == IN_PROGRESS


def awaited(comm: Any) -> str:
    """Tells nothing of the ranks that are waited for, for NCCL does not tell."""
    return ""


def group_start() -> None:
    """Begins a group: what follows is put into the streams by group_end, as one."""
    answer(bindings().group_start)


def group_end() -> None:
    """Ends it, and puts into the streams what was called since."""
    answer(bindings().group_end)


def group_abandon() -> None:
    """Ends a group in which a call failed, or that was interrupted; NCCL drops what it holds."""
    with contextlib.suppress(Exception):  # which fails, so that NCCL takes the group for failed
        bindings().all_reduce(0, 0, 0, BYTE, 0, _bindings.Comm(), 0)
    with contextlib.suppress(bindings().NCCLError):  # the failed call's own, or no group is open
        bindings().group_end()


def issue(
    comm: Any,
    stream: Stream,
    call: str,
    source: int,
    target: int,
    count: int,
    itemsize: int,
    datatype: int,
    op: int,
    root: int,
    captured: bool,
) -> None:
    """Puts an operation into a stream, or into the group that is open."""
    kind = OPERATIONS[call]
    sides = [address for address, part in ((source, kind.source), (target, kind.target)) if part]
    numbers = [count, datatype, *([op] if kind.reduces else ()), *([root] if kind.root else ())]
    answer(getattr(_bindings, call), *sides, *numbers, comm, stream.handle, comm=comm)


def async_error(comm: Any) -> tuple[int, str] | None:
    """(code, text) of what went wrong since a call returned, or None."""
    code = int(answer(bindings().comm_get_async_error, comm))
    if code in (SUCCESS, IN_PROGRESS):
        return None
    return code, text_of(Exception(_bindings.get_error_string(code)), comm)


def can_suspend() -> None:
    """Refuses where NCCL cannot give memory back.

    Raises:
        NotSupportedError: it is too old, or nccl4py is.
    """
    if not hasattr(bindings(), "comm_suspend"):
        raise missing("this nccl4py has no ncclCommSuspend")
    if version() < WITH_SUSPEND:
        raise missing(f"NCCL {version()} has no ncclCommSuspend, which 2.29.7 brought (NCCL_VERSION 22907)")


def suspend(comm: Any) -> None:
    """Gives the device back what NCCL has of its memory, at whose addresses nothing is until resume.

    Every rank has to call it, since the ranks have each other's memory mapped.
    """
    answer(_bindings.comm_suspend, comm, SUSPEND_MEM, comm=comm)


def resume(comm: Any) -> None:
    """Takes the memory again, at the same addresses; every rank has to call it."""
    answer(_bindings.comm_resume, comm, comm=comm)


def suspended(comm: Any) -> bool:
    """Tells whether the device has the memory back."""
    return memory_stat(comm, MEM_SUSPENDED) != 0


def memory_stats(comm: Any) -> tuple[int, int]:
    """(bytes of the device that the rank has, bytes of them that suspend gives back)."""
    can_suspend()
    return memory_stat(comm, MEM_TOTAL), memory_stat(comm, MEM_SUSPEND)


def revoke(comm: Any) -> None:
    """Ends what is under way, where NCCL can (ncclCommRevoke), and frees nothing."""
    if hasattr(bindings(), "comm_revoke"):
        with contextlib.suppress(Exception):  # the library may be older than the bindings
            _bindings.comm_revoke(comm, 0)


def abort(comm: Any) -> None:
    """Ends what is under way, and frees the rank.  No other thread may be inside of a call with it."""
    answer(bindings().comm_abort, comm)


def destroy(comm: Any) -> None:
    """Waits for what is under way, and frees the rank."""
    answer(bindings().comm_destroy, comm)
