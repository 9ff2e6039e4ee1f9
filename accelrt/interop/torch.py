"""accelrt as torch's allocator of device memory: install(), before torch's first use of CUDA.

From then on every tensor on a GPU lies in accelrt's pool.  record_stream, empty_cache, limits,
torch.cuda.graph, make_graphed_callables, MemPool and use_mem_pool work as with torch's own allocator, and
torch.cuda's statistics are accelrt's; a torch.cuda.MemPool also has sleep() and wake().  CUDA tensors go to
other processes as torch.multiprocessing sends them.
accelrt/allocator/external/DESIGN.md says how.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import time
import warnings
from types import ModuleType

import accelrt.memory as memory
from accelrt import env
from accelrt.allocator.external import torch_table
from accelrt.core import process
from accelrt.core.process import ForkSafeLock
from accelrt.driver import registry
from accelrt.errors import NotSupportedError, not_supported
from accelrt.interop import torch_build, torch_mempool, torch_settings, torch_sharing, torch_sleep
from accelrt.interop.torch_sleep import PoolMoved, SleepReport, Staying
from accelrt.memory import caching, mempool, torch_names
from accelrt.memory.history import recording, snapshots
from accelrt.runtime import init as runtime

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path
    from typing import Any

    from accelrt.memory.sleep_result import SleepResult

__all__ = ["PoolMoved", "SleepReport", "Staying", "install", "is_installed", "sleep", "uninstall", "wake"]

# The functions of torch_table.pyx, by the method of torch's allocator that takes each.
SETTERS = {
    "set_init_fn": "init",
    "set_reset_fn": "reset",
    "set_memory_fraction_fn": "memory_fraction",
    "set_record_stream_fn": "record_stream",
    "set_begin_allocate_to_pool": "begin_pool",
    "set_end_allocate_to_pool_fn": "end_pool",
    "set_release_pool": "release_pool",
}
TAG = "accelrt tag "  # before a tag's number in a text of torch's events (torch_history.h)
STAYS = (
    "accelrt stays torch's allocator until the process ends: torch takes another allocator only in place of "
    "one that is not initialised yet; for torch's own, start a process without install()"
)
_installed: Any = None  # what torch's allocator is made of; None: accelrt is not torch's
_native: Any = None  # the compiled library, once it was loaded
_replaced: list[tuple[Any, str, Any]] = []
_home: tuple[int, int] = torch_sleep.DEFAULT  # accelrt's id of the pool of torch's default memory, if any
_turn = ForkSafeLock()  # of install() and uninstall(); a signal's handler may come in between


def _around_fork(name: str) -> Callable[[], None]:
    """A function that has the compiled library, if there is one, do its part of a fork."""

    def around() -> None:
        if _native is not None:
            getattr(_native, name)()

    return around


process.call_at_fork(
    "interop.torch",
    "tools",
    _around_fork("accelrt_torch_before_fork"),
    _around_fork("accelrt_torch_after_fork"),
    _around_fork("accelrt_torch_forked"),
)


def install(name: str = "accelrt", *, pinned: bool = False, sleepable: bool = False) -> None:
    """Makes accelrt torch's allocator of device memory, for the whole process and every GPU.

    Arguments:
        name: str, what torch.cuda.get_allocator_backend() answers; "native" serves programs that go by it.
        pinned: bool, whether torch's page-locked memory (pin_memory(), DataLoader) comes from accelrt too,
            from its cache for copies and sleeping pools.  Also in a later call of install().
        sleepable: bool, whether sleep() reaches torch's default memory, that of no MemPool and no graph.
            What is allocated from now on then lies in a pool of its own; an allocation costs about a
            microsecond more.  Also in a later call of install().
    Raises:
        ModuleNotFoundError: torch is not installed.
        RuntimeError: torch has used CUDA in this process already, and there is no C++ compiler.
        NotSupportedError: accelrt's driver is not CUDA, or its backend not its own pool; or this torch is
            built without CUDA, or has other functions for allocators than accelrt knows (torch 2.8 to 2.15).

    It may come at any time: memory that torch has already stays its former allocator's until it is freed, and
    uninstall() goes back.  Before torch's first use of CUDA it allocates nothing and opens no device; called
    again it does nothing.  Out of memory is torch.OutOfMemoryError; the text says what accelrt holds.

    The allocator is an object of torch's own class: one that came with accelrt for this release of torch, if
    a check of torch agrees (torch_prebuilt.py); else compiled for this torch once, in a few seconds, and
    kept in the user's cache folder (torch_build.py).  Where both fail, a warning says why, and accelrt is
    plugged in by torch's CUDAPluggableAllocator: then it has to come before torch's first use of CUDA and
    there is no way back, torch.cuda.MemPool takes no allocator, and torch refuses the checkpoints of
    torch.compile's graph trees and observers, shows profilers no memory and sends no CUDA tensors to
    other processes.
    """
    with _turn:
        if _installed is None:
            choose_way(name, pinned, sleepable)
        elif _installed is _native:
            extend(_native, pinned, sleepable)


def choose_way(name: str, pinned: bool, sleepable: bool) -> None:
    """Takes the first of the ways to become torch's allocator that can be taken."""
    torch = importlib.import_module("torch")
    require_cuda(torch)
    memory.enable_peer_access()
    text, limits = torch_settings.text_in_force(torch), torch_settings.limits(torch)
    way = env.value("ACCELRT_TORCH_OBJECT")
    if way == "plugged":
        plug_in(torch, "ACCELRT_TORCH_OBJECT is plugged")
        torch_settings.begin(torch, text, limits)
        return
    try:
        library = load(torch, way)
    except torch_build.CannotCompile as error:
        plug_in(torch, str(error))
        warnings.warn(
            f"accelrt could not compile torch's allocator: {error}. It is plugged in instead, without "
            "torch.compile's graph trees, late installation, uninstall(), observers, the profiler's memory, "
            "MemPools with allocators, page-locked memory and the sleep of default memory",
            RuntimeWarning,
            stacklevel=3,
        )
    else:
        put_in(torch, library, name)
        extend(library, pinned, sleepable)
    torch_settings.begin(torch, text, limits)


def extend(library: Any, pinned: bool, sleepable: bool) -> None:
    """Does what install() was asked for beyond the allocator itself."""
    global _home
    if pinned:
        library.accelrt_torch_pin()
    if sleepable and _home == torch_sleep.DEFAULT:
        _home = importlib.import_module("accelrt").graph_pool_handle()
        torch_table.choose_home(_home[1])


def load(torch: ModuleType, way: str) -> Any:
    """The library of torch's allocator object, loaded: a prebuilt one, else the compiled one."""
    global _native
    if _native is None and way != "compiled":
        _native = load_prebuilt(torch, way)
    if _native is None:
        _native = open_library(torch_build.library(torch, importlib.import_module("accelrt").__version__))
    return _native


def load_prebuilt(torch: ModuleType, way: str) -> Any:
    """The library that was made for this release of torch, checked; None where there is none."""
    from accelrt.interop import torch_prebuilt

    try:
        path, row = torch_prebuilt.path_for(torch)
        library = open_library(path)
        torch_prebuilt.check(torch, library, row)
    except (torch_prebuilt.NoObject, torch_prebuilt.Unsuitable, torch_build.CannotCompile) as error:
        if way == "prebuilt":
            raise torch_build.CannotCompile(f"ACCELRT_TORCH_OBJECT is prebuilt, and {error}") from error
        if not isinstance(error, torch_prebuilt.NoObject):
            tell(
                "torch_compiled",
                f"torch's allocator is compiled, since the prebuilt one does not suit: {error}",
            )
            warnings.warn(
                f"accelrt does not use the object that was made for torch {torch.__version__}, and compiles "
                f"another: {error}",
                RuntimeWarning,
                stacklevel=5,
            )
        return None
    return library


def open_library(path: Path) -> Any:
    import ctypes

    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise torch_build.CannotCompile(f"{path} cannot be loaded: {error}") from error
    library.accelrt_torch_install.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p]
    library.accelrt_torch_former.restype = ctypes.c_int64
    return library


def put_in(torch: ModuleType, library: Any, name: str) -> None:
    """Makes the compiled object torch's allocator."""
    global _installed
    import ctypes

    count = 0
    if library.accelrt_torch_is_used():
        registry.active_device_count()
        count = torch.cuda.device_count()
    text = ctypes.create_string_buffer(1024)
    _installed = library  # before torch has it, so that an interruption does not take it away from torch
    try:
        replace_functions(
            torch,
            own_functions(torch),
            torch_mempool.own_class(torch, snapshot),
            torch_sharing.functions(torch) + torch_settings.functions(torch),
        )
        if library.accelrt_torch_install(torch_table.address(), name.encode(), count, text):
            raise refuse(text.value.decode(errors="replace"))
        torch_sharing.turn(True)
    except BaseException:
        library.accelrt_torch_uninstall()
        restore()
        _installed = None
        raise


def plug_in(torch: ModuleType, lacking: str) -> None:
    """Makes accelrt torch's allocator by torch's class for plugged ones."""
    global _installed
    if torch.cuda.is_initialized():
        raise too_late(lacking)
    allocator = plug(torch)
    _installed = allocator
    try:
        mempool = torch_mempool.class_of_its_own(torch, snapshot, torchs_id)
        replace_functions(torch, FUNCTIONS, mempool, torch_settings.functions(torch))
        torch.cuda.memory.change_current_allocator(allocator)
        torch_table.answer_cache_info(torch._C.__file__.encode())
    except RuntimeError as error:
        _installed = None
        restore()
        raise too_late(lacking) from error
    except BaseException:
        if torch.cuda.memory.get_allocator_backend() == "pluggable":
            torch_table.answer_cache_info(torch._C.__file__.encode())
        else:
            _installed = None
            restore()
        raise
    tell(
        "torch_plugged", f"torch's allocator is plugged in, without much of what its own class has: {lacking}"
    )


def tell(event: str, text: str) -> None:
    """Logs what accelrt fell back to under torch, which imports logging itself."""
    import logging

    runtime.later("accelrt.core.logs").tell("interop", logging.WARNING, event, text)


def is_installed() -> bool:
    """Tells whether accelrt is torch's allocator, by install(), in this process."""
    return _installed is not None


def uninstall() -> None:
    """Gives torch the allocator back that it had before install(); does nothing where accelrt is not torch's.

    Raises:
        NotSupportedError: accelrt is plugged in, since it could not be compiled: torch changes its allocator
            only as long as the present one is not initialised, and a plugged one is so at once.
        RuntimeError: another allocator took accelrt's place; or graphs or MemPools of torch's live that were
            made while accelrt was its allocator: torch would ask the other allocator for the end of pools
            that it never had, which ends the process.

    Tensors that lie in accelrt's memory stay there until they are freed, page-locked ones too.
    """
    with _turn:
        if _installed is None:
            return
        if _installed is not _native:
            raise not_supported(STAYS, "accelrt.interop.torch.uninstall")
        torch_table.settle_uses()
        if torch_pool_users():
            gc.collect()
        try:
            take_out()
        finally:
            try:
                finish_leaving()
            except BaseException:  # an interruption: it goes on where it was
                finish_leaving()
                raise


def take_out() -> None:
    """Gives torch its former allocator, to which pools go that are begun from here on until the end."""
    refuse_users(torch_pool_users())
    _native.accelrt_torch_leave(1)
    refuse_users(torch_pool_users())
    if _native.accelrt_torch_uninstall():
        raise RuntimeError("another allocator is torch's by now, in accelrt's place; it has to go first")


def finish_leaving() -> None:
    """Puts everything else back that install() changed, if torch has its former allocator."""
    global _installed
    _native.accelrt_torch_leave(0)
    if _native.accelrt_torch_is_gone():
        torch_sharing.turn(False)
        _native.accelrt_torch_unpin()
        restore()
        torch_settings.end()
        _installed = None


def refuse_users(users: list[str]) -> None:
    """Raises where torch has objects over accelrt's pools, whose ends it would tell the other allocator."""
    if users:
        counts = ", ".join(f"{users.count(kind)} {kind}" for kind in dict.fromkeys(users))
        raise RuntimeError(
            "torch still has objects over pools that were made while accelrt was its allocator, and could "
            f"not end them without it: {counts}; delete the graphs and MemPools, and leave torch.cuda.graph "
            "and use_mem_pool, before accelrt.interop.torch.uninstall(); torch.compiler.reset() lets go of "
            "what torch.compile captured"
        )


def torch_pool_users() -> list[str]:
    """Lists what of torch's uses a pool, by a word for each."""
    kinds = {"object": "MemPool", "thread": "use_mem_pool"}
    capture = {"open": "capture under way", "ended": "graph"}
    return [
        capture[state] if kind == "capture" else kinds[kind]
        for _, _, kind, state in torch_table.open_uses()
        if state != "lost"
    ]


def sleep(
    keep: str | Iterable[object] = "host", *, pools: Iterable[object] | None = None, exports: str = "refuse"
) -> SleepReport:
    """Gives the devices back what torch holds in accelrt's pools, until wake(): of MemPools, of graphs and
    graph trees, and with install(sleepable=True) torch's default memory.  Addresses stay, so that tensors and
    graphs are valid again afterwards.

    Arguments:
        keep: as accelrt.memory.sleep: "host" copies contents to page-locked memory, "discard" lets them go;
            or a list of those whose contents are kept, while all others' go: tags, as str
            (accelrt.memory.sleepable), torch.cuda.MemPools, and ids of pools, as MemPool.id and a graph's
            pool() give them; (0, 0) is torch's default memory.
        pools: what sleeps, likewise; None is every pool that is in use, also accelrt's own MemPools.  What
            sleeps already is left alone.
        exports: "refuse" or "ignore", as accelrt.memory.sleep.
    Returns:
        SleepReport: what went back, and what the devices still hold; print() it.
    Raises:
        RuntimeError: accelrt is not torch's allocator, or a capture is under way.
        NotSupportedError: torch's default memory is named, and cannot sleep.
        ValueError: keep or exports is neither; or a tag has no pool.
        as accelrt.memory.sleep, of the pool that failed.  What slept before it sleeps on: a note of the
            exception says so, and wake() wakes it.

    Before, idle memory goes back.  Pools that cannot sleep, since they have an allocator of their own or
    no_split, stay, and are in the report.  Until wake() nothing may touch the tensors but their deletion, and
    no graph over them be replayed: torch does not ask accelrt.  Allocations of no pool go on: they lie in
    accelrt's common memory meanwhile, which stays.
    """
    start = time.monotonic()
    held = torch_pools("sleep", empties=True)
    wanted = [each for each in held if not each.asleep and each.retained and each.id != torch_sleep.DEFAULT]
    chosen = {} if pools is None else choose(list(pools))
    kept = keep if isinstance(keep, str) else list(keep)
    keeps = {device: torch_sleep.keeps_of(kept, device, _home) for device in {each.device for each in held}}

    def put(each: torch_sleep.Held) -> SleepResult:
        return mempool.sleep(each.id, keeps[each.device](each), each.device, exports=exports)

    picked = [each for each in wanted if pools is None or each.id in chosen.get(each.device, ())]
    moved, staying = torch_sleep.move_all("sleep", picked, put)
    return report("sleep", start, moved, staying)


def wake(pools: Iterable[object] | None = None) -> SleepReport:
    """Takes memory from the devices for what sleeps, at the same addresses, and copies the contents back.

    Arguments:
        pools: as for sleep; None is everything that sleeps, whoever put it to sleep.
    Returns:
        SleepReport.  Once it returned, the contents are there for every stream, and graphs can be replayed.
    Raises:
        RuntimeError: accelrt is not torch's allocator.
        as accelrt.memory.wake, of the pool that failed.  It sleeps on, and nothing is lost; what woke before
            it is awake, as a note of the exception says, and wake() can be called again.
    """
    start = time.monotonic()
    held = torch_pools("wake", empties=False)
    chosen = {} if pools is None else choose(list(pools))
    picked = [
        each for each in held if each.asleep and (pools is None or each.id in chosen.get(each.device, ()))
    ]
    moved, staying = torch_sleep.move_all("wake", picked, lambda each: mempool.wake(each.id, each.device))
    return report("wake", start, moved, staying)


def torch_pools(call: str, *, empties: bool) -> list[torch_sleep.Held]:
    """Every pool that holds memory, once what is idle went back."""
    if _installed is None:
        raise RuntimeError(
            f"accelrt is not torch's allocator; accelrt.interop.torch.{call}() needs install()"
        )
    torch = importlib.import_module("torch")
    if empties and torch.cuda.is_initialized():
        torch.cuda.empty_cache()
    return torch_sleep.held_pools(_home, torchs_id)


def choose(pools: list[object]) -> dict[int, set[tuple[int, int]]]:
    """The ids of what names pools, by device."""
    devices = range(registry.active_device_count())
    return {device: torch_sleep.chosen(pools, device, _home) for device in devices}


def report(call: str, start: float, moved: list[PoolMoved], staying: list[Staying]) -> SleepReport:
    former = _native.accelrt_torch_former if _installed is _native else lambda device: 0
    left = torch_sleep.left_on(former, torch_sleep.held_pools(_home, torchs_id))
    known = {(each.device, each.what) for each in staying}
    left = [each for each in left if (each.device, each.what) not in known]
    return SleepReport(call, tuple(moved), time.monotonic() - start, (*staying, *left))


def too_late(lacking: str) -> RuntimeError:
    return RuntimeError(
        "torch has used CUDA in this process already, or has another allocator, and takes a new one only "
        "before; call accelrt.interop.torch.install() right after import torch, before the first tensor on a "
        f"GPU and before torch.cuda.init() (at any time it takes what could not be compiled: {lacking})"
    )


def refuse(reason: str) -> NotSupportedError:
    text = f"accelrt cannot be torch's allocator: {reason}"
    return not_supported(text, "accelrt.interop.torch.install")


def require_cuda(torch: ModuleType) -> None:
    """Raises unless torch and accelrt both serve CUDA."""
    if torch.version.cuda is None:
        raise refuse(f"torch {torch.__version__} is built without CUDA")
    driver = registry.driver_name()
    if driver == "sentinel":
        driver = runtime.chosen_driver()
    if driver != "cuda":
        raise refuse(
            f"accelrt runs on the driver {driver!r}, and torch's memory is a GPU's; leave ACCELRT_DRIVER "
            "unset, or set it to 'cuda', and pass no other driver to accelrt.init()"
        )
    backend = memory.get_allocator_backend()
    if backend != "native":
        raise refuse(f"accelrt's own memory comes from the backend {backend!r}; choose the backend 'native'")


def plug(torch: ModuleType) -> Any:
    """A torch.cuda.memory.CUDAPluggableAllocator with every hook."""
    lacking, raises = torch_table.prepare(torch._C.__file__.encode(), torch._C._cuda_getCurrentRawStream)
    if lacking is not None or not raises:
        raise refuse(
            f"torch {torch.__version__} lacks {lacking or 'the C++ exception for a lack of memory'}; torch "
            "2.8 to 2.15 for Linux are known to have it"
        )
    import ctypes

    path = torch_table.__file__
    symbols = ctypes.CDLL(path)
    allocator = torch.cuda.memory.CUDAPluggableAllocator(
        path, "accelrt_torch_hook_alloc", "accelrt_torch_hook_free"
    )
    for setter, hook in SETTERS.items():
        function = getattr(symbols, f"accelrt_torch_hook_{hook}")
        getattr(allocator.allocator(), setter)(ctypes.cast(function, ctypes.c_void_p).value)
    return allocator


# --- what torch.cuda reads ----------------------------------------------------------------------------------


def replace_functions(
    torch: ModuleType,
    functions: dict[str, Callable[..., Any]],
    mempool: type,
    others: list[tuple[Any, str, Any]],
) -> None:
    """Puts functions where torch.cuda looks them up, MemPool where users do, and others, until restore()."""
    wanted = [(torch._C, name, function) for name, function in functions.items()]
    wanted += [(torch.cuda.memory, "MemPool", mempool), (torch.cuda, "MemPool", mempool)]
    wanted.append((torch._C, "_cuda_init", initialize_before(torch._C._cuda_init)))
    wanted += others
    for module, name, new in wanted:
        if hasattr(module, name):
            _replaced.append((module, name, getattr(module, name)))
            setattr(module, name, new)


def restore() -> None:
    for module, name, old in reversed(_replaced):
        setattr(module, name, old)
    _replaced.clear()


def initialize_before(theirs: Callable[[], None]) -> Callable[[], None]:
    """torch's initialisation of CUDA, with accelrt's before it.

    Within torch's, other threads wait for its end with the GIL, which accelrt's needs.
    """

    def initialize() -> None:
        with contextlib.suppress(RuntimeError):  # torch tells first what it lacks; then hook_init tells this
            torch_settings.limit_devices(registry.active_device_count())
        theirs()

    return initialize


def is_used() -> bool:
    """Tells whether torch has initialised CUDA; torch.accelerator asks its own allocator, which never is."""
    return bool(importlib.import_module("torch").cuda.is_initialized())


def nested_stats(device: int) -> dict[str, Any]:
    """accelrt.memory_stats with a dict for each part of a key, and all waits, as torch keeps it."""
    answer: dict[str, Any] = {}
    for key, value in caching.memory_stats(device).items():
        *parts, last = key.split(".")
        place = answer
        for part in parts:
            place = place.setdefault(part, {})
        place[last] = value
    if answer:
        answer["num_sync_all_streams"] += torch_table.difference_of_waits(device)
    return answer


def reset_accumulated(device: int) -> None:
    caching.reset_accumulated_memory_stats(device)  # refuses a device that is not there
    torch_table.restart_accumulated_stats(device)


def torchs_id(pool: tuple[int, int]) -> tuple[int, int]:
    """The id by which torch knows a private pool: its own, or for accelrt's the one that MemPool.id gives."""
    first, second = pool
    if first & torch_table.TORCH_MARK:
        return first ^ torch_table.TORCH_MARK, second
    return (0, second | torch_table.TORCH_MARK) if second else (0, 0)


def snapshot(which: Any = None) -> dict[str, Any]:
    """As torch._C._cuda_memorySnapshot: of all pools, or of the one whose id `which` begins with."""
    state = {**snapshots.snapshot()}
    for segment in state["segments"]:
        segment["segment_pool_id"] = torchs_id(segment["segment_pool_id"])
    if which is not None and tuple(which[:2]) != (0, 0):
        wanted = tuple(which[:2])
        state["segments"] = [each for each in state["segments"] if each["segment_pool_id"] == wanted]
    for _ in range(registry.active_device_count() - len(state["device_traces"])):
        state["device_traces"].append([])
    return state


def record_history(*arguments: Any) -> None:
    """As torch._C._cuda_record_memory_history, and its older form: without the device, which comes fifth."""
    device = [None] if len(arguments) > 4 else []
    torch_names._record_memory_history(*arguments[:4], *device, *arguments[4:])


# By their names in torch._C: every function of torch.cuda and torch.accelerator looks them up there.
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "_cuda_memoryStats": nested_stats,
    "_cuda_resetPeakMemoryStats": lambda device: caching.reset_peak_memory_stats(device),
    "_cuda_resetAccumulatedMemoryStats": lambda device: reset_accumulated(device),
    "_cuda_memorySnapshot": snapshot,
    "_cuda_record_memory_history": record_history,
    "_cuda_record_memory_history_legacy": record_history,
    "_cuda_isHistoryEnabled": lambda: recording.is_recording(),
    "_cuda_getMemoryFraction": torch_table.limit_fraction,
    "_accelerator_isAllocatorInitialized": lambda: is_used(),
    "_accelerator_emptyCache": lambda: memory.empty_cache(),
    "_accelerator_getDeviceStats": nested_stats,
    "_accelerator_resetPeakStats": lambda device: caching.reset_peak_memory_stats(device),
    "_accelerator_resetAccumulatedStats": lambda device: reset_accumulated(device),
}


def own_functions(torch: ModuleType) -> dict[str, Callable[..., Any]]:
    """Functions of torch._C that tell what torch's structures have no room for: more figures, and tags."""
    theirs = torch._C._cuda_memorySnapshot

    def snapshot_with_tags(which: Any = None) -> dict[str, Any]:
        return add_to_snapshot(theirs(which))

    return {
        "_cuda_memoryStats": nested_stats,
        "_accelerator_getDeviceStats": nested_stats,
        "_cuda_memorySnapshot": snapshot_with_tags,
    }


def add_to_snapshot(found: dict[str, Any]) -> dict[str, Any]:
    """Adds tags to the blocks and events of a snapshot of torch's, and to segments whether they sleep."""
    devices = {segment["device"] for segment in found["segments"]}  # none in a forked child
    ours = {
        (segment["device"], segment["address"]): segment
        for device in devices
        for segment in caching.memory_snapshot(device)
    }
    for segment in found["segments"]:
        mine = ours.get((segment["device"], segment["address"]))
        segment["asleep"] = mine is not None and mine["asleep"]
        tags = {} if mine is None else {block["address"]: block["tag"] for block in mine["blocks"]}
        for block in segment["blocks"]:
            block["tag"] = tags.get(block["address"], "")
    for entry in (entry for trace in found["device_traces"] for entry in trace):
        entry["tag"] = ""
        for key in ("user_metadata", "compile_context"):  # the latter before torch 2.10
            text = entry.get(key, "")
            if text.startswith(TAG):
                entry["tag"] = recording.tag_name(int(text.removeprefix(TAG)))
                entry[key] = ""
    return found
