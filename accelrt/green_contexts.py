"""Green contexts: a part of a device's multiprocessors, and streams whose kernels run on that part alone.

    context = accelrt.green_contexts.GreenContext.create(num_sms=16)
    with context:                  # what is launched on the current stream stays on these multiprocessors
        kernel[blocks, threads](x)
    stream = context.Stream()      # or on a stream of it, wherever it is used
    small, other = accelrt.green_contexts.partition(16, 2)  # two that have none in common

They are NVIDIA's (CUDA driver API, section "Green Contexts"; driver 555 or later), by the names of
torch.cuda.green_contexts.  The driver's green contexts are made once for each part of a device and kept while
the process lives: two GreenContexts with the same number of multiprocessors are on the same ones, as in
torch, and memory that was used on their streams may be freed at any time.
"""

from __future__ import annotations

import importlib
import threading
from typing import TYPE_CHECKING, NamedTuple

from accelrt.core import process
from accelrt.devices.device import mem_get_info
from accelrt.errors import ArgumentError, ArgumentTypeError, not_supported
from accelrt.runtime import init
from accelrt.status import status_error
from accelrt.streams.stream import ExternalStream, Stream, StreamContext, current_stream

if TYPE_CHECKING:
    from typing import Any, NoReturn, Self

    from accelrt.annotations import DeviceArgument

__all__ = ["GreenContext", "partition"]

MOST_STREAMS = 32  # of one part of a device; more requests share them in turn


class Key(NamedTuple):
    """A part of a device, as it is asked for."""

    device: int
    num_sms: int
    parts: int  # of which it is one
    number: int


class Part:
    """The driver's green context of a part of a device, and its streams."""

    def __init__(self, handle: Any, context: Any, num_sms: int) -> None:
        self.handle = handle
        self.context = context  # the same as a CUcontext
        self.num_sms = num_sms
        self.streams: list[int] = []
        self.handed_out = 0


_parts: dict[Key, Part] = {}
_making = threading.Lock()


def forget_in_child() -> None:
    global _making
    _parts.clear()
    _making = threading.Lock()


process.call_at_fork("green_contexts", "tools", child=forget_in_child)


def driver() -> Any:
    """cuda.bindings.driver, where this process runs on a GPU.

    Raises:
        NotSupportedError: accelrt runs on the host device.
    """
    init.init()
    if init.chosen_driver() != "cuda":
        raise not_supported(
            "the host device has no green contexts: they are of NVIDIA's driver; set ACCELRT_DRIVER=cuda",
            "cuGreenCtxCreate",
        )
    return importlib.import_module("cuda.bindings.driver")


def ask(name: str, *given: Any, **told: Any) -> Any:
    """Returns what a function of the driver answers beside its status.

    Arguments:
        told: what an error says it was asked for.
    """
    module = driver()
    try:
        status, *answers = getattr(module, name)(*given)
    except (AttributeError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "not found" not in str(error):
            raise
        raise not_supported(
            f"the driver, or the installed cuda-bindings, has no {name}; green contexts need a driver of "
            "branch 555 or later",
            name,
        ) from error
    if int(status):
        raise status_error(int(status), name, tuple(part for pair in told.items() for part in pair))
    return answers[0] if len(answers) == 1 else answers


def split(device: int, num_sms: int, count: int) -> list[Any]:
    """The driver's resources of so many parts of a device, of so many multiprocessors each or a few more."""
    kind = driver().CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM
    mem_get_info(device)  # a green context stands on the device's primary context, which this makes
    whole = ask("cuDeviceGetDevResource", ask("cuDeviceGet", device), kind, device=device)
    total = whole.sm.smCount
    if num_sms > total or num_sms * count > total:
        raise ArgumentError(
            f"num_sms is {num_sms}, {count} times; device {device} has {total} multiprocessors, of which "
            "a green context takes some"
        )
    groups, made, _ = ask(
        *("cuDevSmResourceSplitByCount", count, whole, 0, num_sms),
        device=device,
        num_sms=num_sms,
        count=count,
    )
    if made < count:
        raise ArgumentError(
            f"the {total} multiprocessors of device {device} make {made} parts of {num_sms}, not {count}: "
            "the driver rounds up to what its hardware can separate; ask for fewer, or smaller ones"
        )
    return list(groups)


def part_of(key: Key) -> Part:
    """The part, made with those beside it when one of them is first asked for."""
    with _making:
        if key not in _parts:
            for number, resource in enumerate(split(key.device, key.num_sms, key.parts)):
                one = key._replace(number=number)
                if one not in _parts:  # a part that was made before another failed
                    _parts[one] = make_part(resource, key.device)
        return _parts[key]


def make_part(resource: Any, device: int) -> Part:
    total = int(resource.sm.smCount)
    description = ask("cuDevResourceGenerateDesc", [resource], 1, device=device)
    flag = driver().CUgreenCtxCreate_flags.CU_GREEN_CTX_DEFAULT_STREAM
    handle = ask(
        *("cuGreenCtxCreate", description, ask("cuDeviceGet", device), int(flag)),
        device=device,
        num_sms=total,
    )
    return Part(handle, ask("cuCtxFromGreenCtx", handle), total)


def stream_of(part: Part, device: int) -> int:
    """A stream of the part by its handle: a new one, or one that was handed out before."""
    with _making:
        number = part.handed_out % MOST_STREAMS
        if number == len(part.streams):
            flag = driver().CUstream_flags.CU_STREAM_NON_BLOCKING
            part.streams.append(int(ask("cuGreenCtxStreamCreate", part.handle, int(flag), 0, device=device)))
        part.handed_out += 1
        return part.streams[number]


def checked_count(value: Any, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ArgumentTypeError(f"{name} is {value!r} of type {type(value).__name__}; pass an int")
    if value < 1:
        raise ArgumentError(f"{name} is {value}; pass 1 or more")
    return value


def ordinal_of(device: DeviceArgument | None) -> int:
    """The ordinal that a device argument stands for, None being the current device."""
    return current_stream(device).device_index


class GreenContext:
    """A part of a device's multiprocessors; made by GreenContext.create or partition.

    Attributes:
        num_sms: int, how many multiprocessors it has: what was asked for, or a few more, as the hardware has
            them in groups (8 on compute capability 9.0).
        device_index: int, the ordinal of its device.
    """

    num_sms: int
    device_index: int

    def __init__(self, key: Key) -> None:
        if not isinstance(key, Key):
            raise ArgumentTypeError("make a green context by GreenContext.create(num_sms) or partition()")
        self._part = part_of(key)
        self.num_sms = self._part.num_sms
        self.device_index = key.device
        # Of each set_context that has no pop_context yet: thread, stream before, stream, its context.
        self._entered: list[tuple[int, Stream, Stream, StreamContext]] = []

    @staticmethod
    def create(num_sms: int, device_id: DeviceArgument | None = 0) -> GreenContext:
        """Makes a green context of the first multiprocessors of a device.

        Arguments:
            num_sms: int, how many at least.
            device_id: int, "cuda:1", ...; None is the current device.
        Raises:
            ValueError, TypeError: num_sms is no int from 1 to what the device has, or device_id names none.
            NotSupportedError: the driver is too old, or accelrt runs on the host device.
            CudaError: the driver refused.
        """
        wanted = checked_count(num_sms, "num_sms")
        driver()
        return GreenContext(Key(ordinal_of(device_id), wanted, 1, 0))

    def Stream(self) -> Stream:
        """Makes a stream of the context, whose kernels run on its multiprocessors in any current context.

        Raises:
            CudaError: the driver refused.

        There are 32 of each context; more requests are answered with those in turn.
        """
        return ExternalStream(stream_of(self._part, self.device_index), self.device_index, self._part)

    def set_context(self) -> None:
        """Makes the green context the calling thread's current context, for every user of CUDA on the thread,
        and one of its streams the current stream of its device, behind the work of the one before.

        Raises:
            CudaError: the driver refused; nothing is changed.

        torch makes the default stream current; accelrt's work on a default stream is in the primary context,
        whichever is current, so here it is a stream of the context.
        """
        before = current_stream(self.device_index)
        stream = self.Stream()
        stream.wait_stream(before)
        ask("cuCtxPushCurrent", self._part.context, device=self.device_index)
        context = StreamContext(stream)
        try:
            context.__enter__()
        except BaseException:
            ask("cuCtxPopCurrent")
            raise
        self._entered.append((threading.get_ident(), before, stream, context))

    def pop_context(self) -> None:
        """Makes current again what was so before set_context, the stream behind the work of the context's.

        Raises:
            RuntimeError: this green context is not the calling thread's current one; nothing is changed.
        """
        here = [entry for entry in self._entered if entry[0] == threading.get_ident()]
        if not here or int(ask("cuCtxGetCurrent")) != int(self._part.context):
            raise RuntimeError(
                f"{self!r} is not this thread's current context; pop those first that were set after "
                "it, each on the thread that set it"
            )
        entry = here[-1]
        self._entered.remove(entry)
        _, before, stream, context = entry
        before.wait_stream(stream)
        try:
            context.__exit__(None, None, None)
        finally:
            ask("cuCtxPopCurrent")

    def __enter__(self) -> Self:
        self.set_context()
        return self

    def __exit__(self, *error: object) -> None:
        self.pop_context()

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a GreenContext cannot be pickled or copied: it is of this process; create another there"
        )

    def __repr__(self) -> str:
        part = f"{self.num_sms} multiprocessors of device {self.device_index}"
        return f"<accelrt.green_contexts.GreenContext of {part}>"


def partition(num_sms: int, count: int, device: DeviceArgument | None = None) -> tuple[GreenContext, ...]:
    """Makes green contexts that have no multiprocessor in common.

    Arguments:
        num_sms: int, how many each has at least.
        count: int, how many contexts.
        device: int, "cuda:1", ...; None is the current device.
    Raises:
        ValueError, TypeError: the device does not have as many, or it names none.
        NotSupportedError, CudaError: as GreenContext.create.
    """
    wanted, parts = checked_count(num_sms, "num_sms"), checked_count(count, "count")
    driver()
    ordinal = ordinal_of(device)
    return tuple(GreenContext(Key(ordinal, wanted, parts, index)) for index in range(parts))
