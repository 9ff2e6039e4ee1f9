"""Objects of torch's allocator that .ci/torch_objects made for released versions of torch, and their check.

They are in the folder "prebuilt" with a table, objects.json; a source tree has none until they are made.  An
object serves the releases whose headers it was compiled against, by their git_version, and only if torch, as
it runs, agrees: its table of functions has the object's order, and a forked child, in which the object with
known answers (torch_probe.h) is torch's allocator, is told them by torch's own functions in Python.  No
device is used.
"""

from __future__ import annotations

import ctypes
import faulthandler
import json
import os
import platform
import re
import resource
import select
import signal
import warnings
from pathlib import Path

from accelrt.interop import torch_sources

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

__all__ = ["NoObject", "Unsuitable", "check", "path_for"]

FOLDER = Path(__file__).parent / "prebuilt"
PLUGGABLE = "_ZTV" + "N5torch4cuda22CUDAPluggableAllocator22CUDAPluggableAllocatorE"
OF_PLUGGABLE = re.compile(r"_ZNK?5torch4cuda22CUDAPluggableAllocator22CUDAPluggableAllocator(\d+)(\w+)")
WORD = ctypes.sizeof(ctypes.c_void_p)
HEAD = 2  # words of a table before its functions
RTLD_DL_SYMENT = 1  # of dladdr1
LIMIT = 60  # seconds


class NoObject(Exception):
    """Says why none is meant for this torch."""


class Unsuitable(Exception):
    """Says where the object that is meant for this torch and torch disagree."""


def path_for(torch: ModuleType) -> tuple[Path, dict[str, Any]]:
    """The object for a torch, and its row of the table.

    Raises:
        NoObject: none was made for exactly this release, this machine and these sources.
    """
    try:
        table = json.loads((FOLDER / "objects.json").read_text())
    except (OSError, ValueError):
        raise NoObject("accelrt was built without prebuilt objects") from None
    if table["machine"] != platform.machine():
        raise NoObject(f"the prebuilt objects are for {table['machine']}")
    if table["sources"] != torch_sources.digest_of_all():
        raise NoObject("the prebuilt objects were made from other sources than accelrt's")
    major, minor = torch.__version__.split(".")[:2]
    row = table["objects"].get(minor) if major == "2" else None
    revision = str(getattr(torch.version, "git_version", None))
    if row is None or revision not in row["versions"] or not (FOLDER / row["file"]).is_file():
        raise NoObject(f"none was made for torch {torch.__version__} of revision {revision}")
    return FOLDER / row["file"], row


def check(torch: ModuleType, library: ctypes.CDLL, row: dict[str, Any]) -> None:
    """Returns if a loaded object and the torch that runs agree.

    Raises:
        Unsuitable: they do not.
    """
    if not getattr(torch._C, "_GLIBCXX_USE_CXX11_ABI", True):
        raise Unsuitable("this torch has std::string of before C++11")
    check_functions(functions_of(torch), row["slots"])
    differences = ask_child(torch, library)
    if differences:
        raise Unsuitable(f"torch reads its answers otherwise: {differences}")


def functions_of(torch: ModuleType) -> list[str | None]:
    """The names in torch's table of CUDAPluggableAllocator's functions; None for those without a symbol."""
    path = Path(str(torch.__file__)).parent / "lib" / "libtorch_cuda.so"
    try:
        library = ctypes.CDLL(str(path), os.RTLD_NOLOAD | os.RTLD_LAZY)
        table = ctypes.addressof(ctypes.c_char.in_dll(library, PLUGGABLE))
    except (OSError, ValueError) as error:
        raise Unsuitable(f"torch's table of functions was not found: {error}") from error
    linker = ctypes.CDLL(None)
    place = (ctypes.c_void_p * 4)()  # Dl_info: the file, its base, the symbol's name and address
    symbol = ctypes.POINTER(ctypes.c_uint64)()  # Elf64_Sym, whose third word is the size
    if not linker.dladdr1(ctypes.c_void_p(table), place, ctypes.byref(symbol), RTLD_DL_SYMENT) or not symbol:
        raise Unsuitable("torch's table of functions has no size")
    words = (ctypes.c_void_p * (symbol[2] // WORD)).from_address(table)
    names: list[str | None] = []
    for address in words[HEAD:]:
        known = linker.dladdr(ctypes.c_void_p(address), place) and place[2] and place[3] == address
        match = OF_PLUGGABLE.match(ctypes.string_at(place[2] or 0).decode()) if known else None
        names.append(match[2][: int(match[1])] if match else None)
    return names


def check_functions(names: list[str | None], slots: list[str]) -> None:
    """Raises Unsuitable unless each function that has a name stands where the object has it."""
    if len(names) != len(slots):
        raise Unsuitable(f"torch's table has {len(names)} functions, and the object's {len(slots)}")
    for number, (name, own) in enumerate(zip(names, slots, strict=True)):
        if name is not None and name != own:
            raise Unsuitable(f"torch has {name} as function {number}, and the object {own}")
    if not any(names):
        raise Unsuitable("no function of torch's table has a symbol")


def ask_child(torch: ModuleType, library: ctypes.CDLL) -> str:
    """Asks a forked child, in which the object has known answers, what it found otherwise than expected."""
    receiver, sender = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads: the child only asks
        child = os.fork()
    if child == 0:
        answer_and_end(torch, library, sender)
    os.close(sender)
    complaint, ended = b"", False
    waiting = select.poll()  # select() takes no descriptor above 1023
    try:
        waiting.register(receiver, select.POLLIN)
        while not ended and waiting.poll(1000 * LIMIT):
            part = os.read(receiver, 4096)
            complaint, ended = complaint + part, not part
    finally:
        os.close(receiver)
        if not ended:
            os.kill(child, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return complaint.decode(errors="replace") or (f"a process that asked ended with {code}" if code else "")


def answer_and_end(torch: ModuleType, library: ctypes.CDLL, sender: int) -> None:
    """The child: it may crash, which is nobody else's business."""
    status = 1
    try:
        faulthandler.disable()
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
        library.accelrt_torch_probe()
        os.write(sender, "; ".join(differences_of(torch)).encode()[:2000])
        status = 0
    except BaseException as error:
        os.write(sender, repr(error).encode()[:2000])
    finally:
        os._exit(status)


STATS = (  # as stats.pxd orders them
    *("allocation", "active", "inactive_split", "allocated_bytes", "active_bytes", "inactive_split_bytes"),
    *("requested_bytes", "segment", "reserved_bytes"),
)
NUMBERS = ("num_alloc_retries", "num_ooms", "num_sync_all_streams", "num_device_alloc", "num_device_free")
FIRST = 0x7000  # as torch_probe.h
POOL = (5, 6)


def expected_stats() -> dict[str, Any]:
    """Returns the figures that torch_probe.h gives TorchStats, numbered from 1000 on."""
    number = iter(range(1000, 2000))

    def stat() -> dict[str, int]:
        return {key: next(number) for key in ("current", "peak", "allocated", "freed")}

    answer: dict[str, Any] = {
        name: {kind: stat() for kind in ("all", "small_pool", "large_pool")} for name in STATS
    }
    answer |= {name: stat() for name in ("oversize_allocations", "oversize_segments")}
    return answer | {name: next(number) for name in (*NUMBERS, "max_split_size")}


def expected_snapshot(minor: int) -> dict[str, Any]:
    states = ("active_allocated", "inactive", "active_allocated")
    stats = expected_stats()
    blocks = [
        {"address": FIRST + 512 * index, "size": 512, "requested_size": 500 + index, "state": states[index]}
        for index in range(3)
    ]
    segment = {
        "device": 0,
        "address": FIRST,
        "total_size": 1536,
        "allocated_size": 1024,
        "active_size": 1024,
        "requested_size": 1002,
        "stream": 77,
        "segment_type": "small",
        "segment_pool_id": POOL,
        "is_expandable": True,
        "blocks": blocks,
    }
    more = {"compile_context": "a compile context"}
    if minor >= 10:
        more["user_metadata"] = "metadata longer than what std::string keeps within itself"
    traces = [
        {"action": action, "addr": FIRST + index, "size": 512 + index, "stream": 77, **more}
        for index, action in enumerate(("alloc", "free_completed", "snapshot"))
    ]
    return {
        "segments": [segment],
        "device_traces": [traces],
        "allocator_settings": {"expandable_segments": True, "max_split_size": stats["max_split_size"]},
        "external_annotations": [{"device": 0, "key": "value"}] * 2,
    }


def differences_of(torch: ModuleType) -> list[str]:
    """Lists what torch's functions answer otherwise than torch_probe.h, in the child."""
    ask, minor = torch._C, int(torch.__version__.split(".")[1])
    live = {FIRST, FIRST + 1024}
    rows = [
        ("name", ask._cuda_getAllocatorBackend(), "probe"),
        ("fraction", ask._cuda_getMemoryFraction(0), 0.625),
        ("history", ask._cuda_isHistoryEnabled(), True),
        ("statistics", ask._cuda_memoryStats(0), expected_stats()),
        ("snapshot", ask._cuda_memorySnapshot(None), expected_snapshot(minor)),
        ("a checkpoint", ask._cuda_getCheckpointState(0, POOL) is not None, True),
        ("live memory", ask._cuda_checkPoolLiveAllocations(0, POOL, live), True),
        ("dead memory", ask._cuda_checkPoolLiveAllocations(0, POOL, {*live, FIRST + 512}), False),
    ]
    return [text for name, answer, expected in rows for text in differ(name, answer, expected)]


def differ(name: str, answer: Any, expected: Any) -> list[str]:
    """Tells where an answer lacks what is expected; a dict may have more."""
    if isinstance(expected, dict) and isinstance(answer, dict):
        rows = [(f"{name}.{key}", answer.get(key), value) for key, value in expected.items()]
    elif isinstance(expected, list) and isinstance(answer, list) and len(answer) == len(expected):
        rows = [(f"{name}[{index}]", answer[index], value) for index, value in enumerate(expected)]
    else:
        same = answer == expected and isinstance(answer, type(expected))
        return [] if same else [f"{name} is {answer!r:.80}, not {expected!r:.80}"]
    return [text for row in rows for text in differ(*row)]
