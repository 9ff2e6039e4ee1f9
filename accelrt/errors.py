"""The exceptions that accelrt raises, and nothing else.

Bad arguments raise Python's own ValueError and TypeError; what a driver answers raises CudaError or
one of its kinds, which all are RuntimeErrors, as in torch.cuda.  Where torch raises another kind for the
same mistake the exception is of that kind too: programs written for torch catch what they caught.

Each keeps its text alone in args and the rest in attributes, which is what a pickle of it holds.
"""

TYPE_CHECKING = False  # typing's, which takes long to import
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn

# A code's name and sentence; accelrt.status sets it.
_describe: "Callable[[int], tuple[str, str]] | None" = None


def describe_codes(function: "Callable[[int], tuple[str, str]]") -> None:
    """Sets what answers a status code's name and a sentence for it."""
    global _describe
    _describe = function


class Plain(Exception):
    """One of a text alone, as inspect.signature tells."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)


class ArgumentError(Plain, ValueError, RuntimeError):
    """An argument has a value that the call does not take; torch raises a RuntimeError there."""


class ArgumentTypeError(Plain, TypeError, RuntimeError, AssertionError):
    """An argument has a type that the call does not take; torch raises one of the others there."""


class InvalidDeviceError(ArgumentError, AssertionError):
    """An argument names no device of this process.

    torch raises a RuntimeError, an AssertionError or a ValueError, by the call; this is all of them.
    """


class InvalidDeviceTypeError(InvalidDeviceError, TypeError):
    """An argument is of a type that names no device."""


class PeerTimeoutError(Plain, RuntimeError, TimeoutError):
    """Another process, on which this one depends, did not do its part in time; the text names it."""


class CudaError(RuntimeError):
    """A driver call failed.

    Arguments:
        message: str; or an int, a code of the CUDA driver or runtime, whose name and text by the runtime are
            taken, as in torch.cuda.CudaError.
        code, name, call: see the attributes.

    Attributes:
        code: int, the number of the CUresult (CUDA driver API, section "Data types used by CUDA driver").
        name: str, its name without the CUDA_ERROR_ prefix, such as "INVALID_VALUE".
        call: str, the row of the driver table that answered it.
    """

    def __init__(self, message: str | int, code: int = 999, name: str = "UNKNOWN", call: str = "") -> None:
        if not isinstance(message, str) and hasattr(message, "__index__"):
            code = message.__index__()
            name, text = _describe(code) if _describe is not None else (name, "an error")
            message = f"{text} ({code})"
        super().__init__(message)
        self.code = code
        self.name = name
        self.call = call

    @property
    def error_code(self) -> int:
        """The code, by the name that torch.AcceleratorError has for it."""
        return self.code


AcceleratorError = CudaError  # the name that torch has for it


class OutOfMemoryError(CudaError, MemoryError):
    """The device has no room, even after every idle cached byte went back to it.

    It is a RuntimeError, as in torch, and a MemoryError, as programs expect that know no devices.

    The first attributes are of the request, from capacity on of the device at that moment.  They are bytes
    where nothing else is said, and None where they do not apply, as where the failing call was not the
    allocator's.

    Attributes:
        device: int, the ordinal.
        requested, rounded: what was asked for, and what that takes of the pool.
        stream, pool: the handle that it was asked for on, and the id of the pool that serves it; (0, 0) is
            the common one.
        refused_by: str, "device", "limit" (of the process), "pool" (a MemPool's limit), "driver"
            (page-locked memory), or "resource" (of accelrt.resources).
        causes, advice: tuples of str: what kept it from being served, by name, and what the text advises.
        capacity, free: what the driver says.
        limit: the most that the process may reserve (set_per_process_memory_fraction); None without one.
        reserved, live, pending, idle: what accelrt holds; of it what is handed out, what is freed but in use
            on another stream, and the rest.
        largest_free: the largest free block.
        stitched: mapped a second time.
        sleeping: asleep, and so not on the device.
        managed: of the reserved bytes, those of managed memory, which the device holds as far as it has room.
        by_pool, by_stream: lists of dicts: id or stream, reserved, live, pending, idle, largest_free, ...
        by_tag: dict, name -> live bytes.
        stacks: list of (frames, bytes, blocks), while history is recorded.
        pending_events: list of dicts: what pending memory waits for: device, stream, events, bytes.
        used_by_others: what neither is free nor accelrt's.
        processes: list of dicts, of NVML: pid, memory, and this, whether it is this process.
        settings: str, the allocator's.
        state: dict, what else the causes were found by.
    """

    device: int | None = None
    requested: int | None = None
    rounded: int | None = None
    stream: int | None = None
    pool: tuple[int, int] | None = None
    refused_by: str | None = None
    causes: tuple[str, ...] = ()
    advice: tuple[str, ...] = ()
    capacity: int | None = None
    free: int | None = None
    limit: int | None = None
    reserved: int | None = None
    live: int | None = None
    pending: int | None = None
    idle: int | None = None
    largest_free: int | None = None
    stitched: int | None = None
    sleeping: int | None = None
    managed: int | None = None
    by_pool: "list[dict[str, Any]] | None" = None
    by_stream: "list[dict[str, Any]] | None" = None
    by_tag: dict[str, int] | None = None
    stacks: "list[tuple[list[dict[str, Any]], int, int]] | None" = None
    pending_events: "list[dict[str, Any]] | None" = None
    used_by_others: int | None = None
    processes: "list[dict[str, Any]] | None" = None
    settings: str | None = None
    state: "dict[str, Any] | None" = None


class CaptureError(CudaError):
    """The driver refused a call because of a stream capture, or broke the capture off.

    Attributes (None where no call of accelrt's is known to have broken the capture):
        broken_by: str, the row of the driver table whose call did.
        broken_at: str, "file:line" of the Python code that made it.
    The error of that call, with its place, is the __cause__.
    """

    broken_by: str | None = None
    broken_at: str | None = None


class NcclError(RuntimeError):
    """A call of NCCL's failed, or an operation that it had put into a stream.

    Attributes:
        code: int, the number of the ncclResult_t.
        name: str, its name without the prefix, in capitals, such as "REMOTE_ERROR".
        call: str, the operation that was asked for, such as "all_reduce".
    """

    def __init__(self, message: str, code: int = 3, name: str = "INTERNAL_ERROR", call: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.name = name
        self.call = call


class NotSupportedError(CudaError):
    """The device or its driver cannot do this."""


def refuse_copy(instance: object, why: str) -> "NoReturn":
    """Raises the TypeError of what can be neither pickled nor copied, as it owns something."""
    name = type(instance).__name__
    raise TypeError(f"{'an' if name[0] in 'AEIOU' else 'a'} {name} cannot be pickled or copied: {why}")


def not_supported(text: str, call: str = "") -> NotSupportedError:
    """The error of a text, with the driver's code for it."""
    return NotSupportedError(text, 801, "NOT_SUPPORTED", call)


class SleepingMemoryError(CudaError):
    """Memory of a pool that sleeps was used, or an allocation asked for more of it; wake the pool first."""


class CompileError(RuntimeError):
    """A compiler or linker refused a kernel's source; the text shows its messages with the source's lines.

    Attributes:
        log: str, all that the compiler wrote.
        source_name: str, what the compiler calls the source.
        compiler: str, such as "NVRTC 13.0" or "/usr/bin/cc".
    """

    def __init__(self, message: str, log: str = "", source_name: str = "", compiler: str = "") -> None:
        super().__init__(message)
        self.log = log
        self.source_name = source_name
        self.compiler = compiler


class CompilerNotFoundError(Plain, RuntimeError):
    """The compiler or linker that a kernel needs is not installed; the text says how to install it."""


class DriverNotFoundError(Plain, RuntimeError):
    """No driver, or no device, of the kind that was asked for."""


class ForkedError(Plain, RuntimeError):
    """A child forked after initialisation used the device."""


class DeferredCudaCallError(Plain, Exception):
    """A call queued by lazy_call failed at initialisation; the text ends with who queued it."""


class RaceError(RuntimeError):
    """Nothing orders two accesses to the same bytes, of which one is a write.

    Attributes:
        report: accelrt.sanitizer's Report, with both accesses; None in another process.
    """

    def __init__(self, message: str, report: "Any" = None) -> None:
        super().__init__(message)
        self.report = report

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self.args[0],))


class RaceWarning(Plain, UserWarning):
    """The same, where the race detector is told to warn."""


class SyncDebugError(Plain, RuntimeError):
    """A call would have waited for the device, which set_sync_debug_mode("error") forbids."""


class SyncDebugWarning(Plain, UserWarning):
    """A call waits for the device, which set_sync_debug_mode("warn") tells."""


class IdentityError(Plain, RuntimeError):
    """The driver says other things of a device than NVML; the text shows both."""


class InterfaceError(TypeError):
    """A class cannot be registered as a device interface; the text lists all that is wrong.

    Attributes:
        device: str, what it was to be registered for.
        missing: tuple of str, what it lacks, such as "set_device" and "Event.record".
        wrong: tuple of str, what is there but no good.
    """

    def __init__(
        self, message: str, device: str = "", missing: tuple[str, ...] = (), wrong: tuple[str, ...] = ()
    ) -> None:
        super().__init__(message)
        self.device = device
        self.missing = missing
        self.wrong = wrong


class ReadingError(RuntimeError):
    """A reading of a device's state failed.

    Attributes:
        code: int, what the vendor's library answered (nvmlReturn_t for an NVIDIA card).
        name: str, that code's name without its prefix, such as "GPU_IS_LOST".
        reading: str, the reading that was asked for, such as "temperature".
    """

    def __init__(self, message: str, code: int = 999, name: str = "UNKNOWN", reading: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.name = name
        self.reading = reading


class UnregisteredFileError(Plain, RuntimeError, AssertionError):
    """A GdsFile is closed, or not registered with cuFile, or is so already; torch asserts that."""


class RecordError(ValueError):
    """A record of a file is malformed.

    Attributes:
        row: int or None, the index of the offending record.
    """

    def __init__(self, message: str, row: int | None = None) -> None:
        super().__init__(message)
        self.row = row


class SnapshotError(ValueError):
    """A snapshot or trace file of the allocator's history is damaged, cut short, or none at all.

    Attributes:
        offset: int or None, the byte of the file where something else was expected.
    """

    def __init__(self, message: str, offset: int | None = None) -> None:
        super().__init__(message)
        self.offset = offset


class SettingsError(ArgumentError):
    """The allocator's settings string cannot be read, or asks for what cannot be had together.

    Attributes:
        keys: tuple of str, the keys that the complaint is about; empty where the text names none.
    """

    def __init__(self, message: str, keys: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.keys = keys


_classes = {name: kind for name, kind in globals().items() if isinstance(kind, type) and kind is not Plain}
__all__ = [name for name, kind in _classes.items() if issubclass(kind, Exception)]


class InterleavingError(Plain, AssertionError):
    """Two operations at once did what neither order of the two does (accelrt.testing)."""


class StuckError(Plain, AssertionError):
    """An operation does not end.  Its thread is lost, and so is what it holds (accelrt.testing)."""


class LeakError(AssertionError):
    """Says what a block that accelrt.testing.check_leaks() checked left behind.

    Attributes:
        blocks: list of dicts, the device memory that is new: device, address, size, stream, pool, kind
            (of the driver's pools, else ""), frames, tag, and holder, str.
        handles: dict, kind -> how many more there are: stream, event, graph, exec, pool, pinned.
        misuses: dict, what the host device counted that a GPU may die of, as of count_misuses().
    """

    def __init__(
        self,
        message: str,
        blocks: "list[dict[str, Any]] | None" = None,
        handles: dict[str, int] | None = None,
        misuses: dict[str, int] | None = None,
    ) -> None:
        super().__init__(message)
        self.blocks: list[dict[str, Any]] = blocks or []
        self.handles: dict[str, int] = handles or {}
        self.misuses: dict[str, int] = misuses or {}
