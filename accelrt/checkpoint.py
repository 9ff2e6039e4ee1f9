"""Checkpoints of whole processes by NVIDIA's driver: a process lets go of its GPUs and has them back later.

    accelrt.checkpoint.suspend(pid)               # locks it, and copies its GPU memory to the host
    accelrt.checkpoint.resume(pid)                # copies it back; the process goes on where it was
    accelrt.checkpoint.resume(pid, {0: 1})        # what it had on device 0 comes back on device 1

    accelrt.checkpoint.listen(discard=[activations])  # in the process itself: suspend has these sleep before
    with accelrt.checkpoint.prepared(discard=[activations], keep=[weights]):
        ...                                       # or it does so itself: less is left to copy meanwhile

They are of the CUDA driver API, section "CUDA Checkpointing": CUDA 12.8 or later, to another GPU 13.0.  While
it is locked, a process's calls of CUDA wait; while it is checkpointed, it holds no GPU, and a tool such as
CRIU can save it with all else.  The host device's memory is the process's own, so it needs nothing of this.
"""

from __future__ import annotations

import ctypes
import re
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING
from uuid import UUID

from accelrt import checkpoint_listener
from accelrt.core import procfs
from accelrt.devices.device import device_count, get_device_properties
from accelrt.errors import ArgumentError, ArgumentTypeError, CudaError, not_supported, refuse_copy
from accelrt.memory.caching import empty_cache
from accelrt.memory.mempool import host_empty_cache, sleep, wake
from accelrt.runtime import cuda_bindings

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from typing import Any, NoReturn

__all__ = [
    "checkpoint",
    "listen",
    "lock",
    "prepared",
    "restore",
    "resume",
    "state",
    "stop_listening",
    "suspend",
    "unlock",
]

STATES = ("running", "locked", "checkpointed", "failed", "checkpointing", "restoring")  # CUprocessState
LONGEST = (1 << 32) - 1  # milliseconds
PREPARATION = 60.0  # seconds that a process may take to prepare itself, and to wake
NEEDS = "process checkpoints need a driver and cuda-bindings of CUDA 12.8 or later"
GPU_UUID = re.compile("(?:GPU-)?([0-9a-f]{8}-?(?:[0-9a-f]{4}-?){3}[0-9a-f]{12})", re.IGNORECASE)
MEANINGS = {
    1: "no process with that number uses CUDA, or the devices do not name each of those that it had",
    3: "the process has not initialised CUDA, so that there is nothing to save",
    401: "the process is in another state, which state(pid) says; "
    "lock, checkpoint, restore, unlock follow each other",
    600: "it had work that did not come to rest in time, and runs on; pass a longer timeout",
    801: "this driver cannot checkpoint it: not on this platform, or not with memory that it shares",
}


def bindings(call: str) -> Any:
    return cuda_bindings.open_bindings(
        "the host device's memory is memory of the process, which a tool such as CRIU saves with the rest; "
        "what NVIDIA's driver checkpoints needs ACCELRT_DRIVER=cuda",
        call,
    )


def ask(name: str, pid: int, *arguments: Any) -> Any:
    return cuda_bindings.ask(bindings(name), NEEDS, name, (pid, *arguments), {"pid": pid}, MEANINGS)


def arguments_of(name: str) -> Any:
    """A struct of arguments of the driver's."""
    kind = getattr(bindings(name), name, None)
    if kind is None:
        raise not_supported(f"the installed cuda-bindings have no {name}; {NEEDS}", name)
    return kind()


def checked_pid(pid: int) -> int:
    if isinstance(pid, bool) or not isinstance(pid, int):
        raise ArgumentTypeError(
            f"pid is {pid!r} of type {type(pid).__name__}; pass a process's number as int"
        )
    if pid < 1 or procfs.started(pid) is None:
        raise ArgumentError(f"pid is {pid}; there is no such process, or it has ended")
    return pid


def state(pid: int) -> str:
    """Returns a process's state: "running", "locked", "checkpointed", "failed", "checkpointing" or
    "restoring".

    Arguments:
        pid: int, a process that uses CUDA.
    Raises:
        ValueError, TypeError: there is no such process.
        NotSupportedError: the driver is older than CUDA 12.8, or accelrt runs on the host device.
        CudaError: the process does not use CUDA, or the driver refused.
    """
    number = int(ask("cuCheckpointProcessGetState", checked_pid(pid)))
    return STATES[number] if number < len(STATES) else str(number)


def lock(pid: int, timeout: float | None = None) -> None:
    """Has a running process's further calls of CUDA wait, and waits until its work is done.

    Arguments:
        pid: int, a process that uses CUDA.
        timeout: float, seconds after which it gives up, and the process runs on; None is no limit.
    Raises:
        ValueError, TypeError: there is no such process, or timeout is no number above 0.
        NotSupportedError, CudaError: as state; the process is not running, or the time is over (NOT_READY).
    """
    arguments = None
    checked_pid(pid)
    if timeout is not None:
        if isinstance(timeout, bool) or not isinstance(timeout, (int, float)):
            raise ArgumentTypeError(f"timeout is {timeout!r} of type {type(timeout).__name__}; pass seconds")
        if not 0 < timeout <= LONGEST / 1000:
            raise ArgumentError(
                f"timeout is {timeout!r}; it is above 0, and at most {LONGEST // 1000} seconds"
            )
        arguments = arguments_of("CUcheckpointLockArgs")
        arguments.timeoutMs = max(1, round(timeout * 1000))
    ask("cuCheckpointProcessLock", pid, arguments)


def checkpoint(pid: int) -> None:
    """Copies a locked process's GPU memory to host memory, its own, and has it let go of its GPUs.

    Arguments:
        pid: int, the process.
    Raises:
        ValueError, TypeError, NotSupportedError, CudaError: as state; the process is not locked, the host's
            memory does not suffice, or what the process uses cannot be saved.
    """
    ask("cuCheckpointProcessCheckpoint", checked_pid(pid), None)


def restore(pid: int, devices: Mapping[int | str, int | str] | None = None) -> None:
    """Gives a checkpointed process GPUs and their contents back; it is locked then.

    Arguments:
        pid: int, the process.
        devices: dict, from each device that it had to the one that it gets: ordinals of this process, or
            UUIDs as "GPU-...".  The new one is of the same model and has as much room.  None is those that
            it had.
    Raises:
        ValueError, TypeError, NotSupportedError, CudaError: as state; the process is not checkpointed, or
            devices do not name each that it had; with devices the driver is older than CUDA 13.0.
    """
    checked_pid(pid)
    arguments = None if devices is None else restore_arguments(checked_devices(devices))
    ask("cuCheckpointProcessRestore", pid, arguments)


def unlock(pid: int) -> None:
    """Has a locked process's calls of CUDA go on.

    Arguments:
        pid: int, the process.
    Raises:
        ValueError, TypeError, NotSupportedError, CudaError: as state; the process is not locked.
    """
    ask("cuCheckpointProcessUnlock", checked_pid(pid), None)


def uuid_of(device: int | str, name: str) -> bytes:
    """The 16 bytes that tell a GPU apart, of an ordinal or of a text."""
    if isinstance(device, str):
        match = GPU_UUID.fullmatch(device)
        if match is None:
            raise ArgumentError(f"{name} is {device!r}; pass a GPU's UUID, as GPU-..., or an ordinal as int")
        return UUID(match[1]).bytes
    if isinstance(device, bool) or not isinstance(device, int):
        raise ArgumentTypeError(f"{name} is {device!r} of type {type(device).__name__}; pass an int or a str")
    if not 0 <= device < device_count():
        raise ArgumentError(f"{name} is {device}; this process has {device_count()} devices")
    return get_device_properties(device).uuid.bytes


def checked_devices(devices: Mapping[int | str, int | str]) -> list[tuple[bytes, bytes]]:
    try:
        items = list(devices.items())
    except AttributeError:
        raise ArgumentTypeError(
            f"devices is {devices!r} of type {type(devices).__name__}; pass a dict, from old to new"
        ) from None
    if not items:
        raise ArgumentError("devices is empty; name each device that the process had, or pass None")
    pairs = [(uuid_of(old, "an old device"), uuid_of(new, "a new device")) for old, new in items]
    for index, side in enumerate(("old", "new")):
        if len({pair[index] for pair in pairs}) < len(pairs):
            raise ArgumentError(f"devices names one {side} device twice: {dict(items)!r}")
    return pairs


def restore_arguments(pairs: list[tuple[bytes, bytes]]) -> Any:
    arguments = arguments_of("CUcheckpointRestoreArgs")
    if not hasattr(arguments, "gpuPairs"):
        raise not_supported(
            "the installed cuda-bindings restore to the same GPUs alone; other ones need CUDA 13.0 or later",
            "cuCheckpointProcessRestore",
        )
    listed = []
    for old, new in pairs:
        pair = arguments_of("CUcheckpointGpuPair")
        pair.oldUuid, pair.newUuid = made_uuid(old), made_uuid(new)
        listed.append(pair)
    arguments.gpuPairs = listed
    arguments.gpuPairsCount = len(listed)
    return arguments


def made_uuid(digits: bytes) -> Any:
    """A CUuuid; cuda.bindings has no other way to fill one."""
    uuid = arguments_of("CUuuid")
    ctypes.memmove(uuid.getPtr(), digits, len(digits))
    return uuid


def suspend(pid: int, timeout: float | None = None, *, prepare: bool = True) -> None:
    """Locks a running process and checkpoints it; where it cannot, the process runs on.

    Arguments:
        pid, timeout: as for lock.
        prepare: bool, whether a process that listens first lets pools sleep; it has 60 seconds for that.
    Raises:
        as lock and checkpoint; TimeoutError, RuntimeError: it listens, and does not answer or cannot prepare.
    """
    before = state(pid)
    prepares = prepare and before == "running"
    with checkpoint_listener.preparation(pid, PREPARATION) if prepares else nullcontext():
        try:
            suspend_alone(pid, timeout, before == "locked")
        except BaseException:
            with suppress(CudaError, ValueError, OSError, RuntimeError):
                if prepares and state(pid) == "running":
                    checkpoint_listener.tell(pid, "wake", PREPARATION)
            raise


def suspend_alone(pid: int, timeout: float | None, others: bool) -> None:
    # others: whether a lock that the process has is another caller's, which stays.
    try:
        if not others:
            try:
                lock(pid, timeout)
            except Exception:  # refused; behind Ctrl-C it may have been given
                others = True
                raise
        checkpoint(pid)
    except BaseException:
        if not others:
            try:
                unlock_again(pid)
            except KeyboardInterrupt:  # a process that stayed locked would stand still
                unlock_again(pid)
                raise
        raise


def unlock_again(pid: int) -> None:
    with suppress(CudaError, ValueError):
        if state(pid) == "locked":
            unlock(pid)


def resume(pid: int, devices: Mapping[int | str, int | str] | None = None) -> None:
    """Restores a checkpointed process and unlocks it; one that is locked is unlocked alone, and one that runs
    and listens only wakes.

    Arguments:
        pid, devices: as for restore.
    Raises:
        as restore and unlock.  A process that could not be restored stays checkpointed; try again.
        TimeoutError, RuntimeError: it runs, but pools that slept for the checkpoint did not wake; try again.
    """
    before = state(pid)
    if before == "running" and devices is None and checkpoint_listener.tell(pid, "wake", PREPARATION):
        return
    if before != "locked":
        restore(pid, devices)
    unlock(pid)
    checkpoint_listener.tell(pid, "wake", PREPARATION)


def listen(discard: Iterable[object] = (), keep: Iterable[object] = ()) -> None:
    """Has this process prepare itself when another one suspends it, and wake when it is resumed.

    Arguments:
        discard, keep: as of prepared, which a thread of accelrt's enters then.
    Raises:
        OSError: it cannot listen.

    Only processes of the same user, and root, are heard.  It replaces what an earlier call said.  Pools that
    cannot sleep at that moment, in a capture say, refuse: suspend() then raises, and the process runs on.
    """
    pools = list(discard), list(keep)
    checkpoint_listener.start(lambda: Preparation(*pools))


def stop_listening() -> None:
    """Ends what listen() began; pools that sleep because of it wake."""
    checkpoint_listener.stop()


@contextmanager
def prepared(discard: Iterable[object] = (), keep: Iterable[object] = ()) -> Iterator[None]:
    """Makes a context in which this process holds as little memory as it can, for a checkpoint to copy less.

    Arguments:
        discard: pools whose contents may go, as accelrt.memory.sleep takes them: MemPools, tags, ids.
        keep: pools whose contents are copied to page-locked memory, and back at the end.
    Raises:
        as accelrt.memory.sleep, with the pools before awake again; and as wake when it ends.

    Idle memory of all caches goes back too.  At its end every pool that it put to sleep is awake; where one
    cannot wake, the others do, and the error is raised.  It works on the host device as on a GPU.
    """
    with Preparation(list(discard), list(keep)):
        yield


class Preparation:
    """The context of prepared(); where its end raises, it ends again what is left: pools that did not wake.

    Arguments:
        discard, keep: lists, as of prepared.
    """

    def __init__(self, discard: list[object], keep: list[object]) -> None:
        self.pools = [(pool, "discard") for pool in discard] + [(pool, "host") for pool in keep]
        self.asleep: list[tuple[object, list[str]]] = []  # with what came of the sleep; or about to be so

    def __reduce__(self) -> NoReturn:
        refuse_copy(self, "pools of this process sleep because of it; make another one")

    def __enter__(self) -> None:
        try:
            for pool, kind in self.pools:
                outcome: list[str] = []
                self.asleep.append((pool, outcome))  # before the sleep, which Ctrl-C may come behind
                put_to_sleep(pool, kind, outcome)
            empty_cache()
            host_empty_cache()
        except BaseException:
            self.wake()
            raise

    def __exit__(self, *error: object) -> None:
        self.wake()

    def wake(self) -> None:
        """Wakes the pools, the last one first."""
        with ExitStack() as waking:
            for each in self.asleep:
                waking.callback(self.wake_one, *each)

    def wake_one(self, pool: object, outcome: list[str]) -> None:
        try:
            wake_again(pool, outcome)
        except CudaError:
            raise  # it sleeps on
        except Exception:  # it is awake, or gone
            self.forget(outcome)
            raise
        self.forget(outcome)

    def forget(self, outcome: list[str]) -> None:
        self.asleep = [each for each in self.asleep if each[1] is not outcome]


def put_to_sleep(pool: object, kind: str, outcome: list[str]) -> None:
    try:
        sleep(pool, kind)
    except Exception:
        outcome.append("refused")
        raise
    outcome.append("asleep")


def wake_again(pool: object, outcome: list[str]) -> None:
    if outcome == ["refused"]:
        return
    try:
        wake(pool)
    except RuntimeError as error:
        if outcome or isinstance(error, CudaError):  # else Ctrl-C came before it slept
            raise
