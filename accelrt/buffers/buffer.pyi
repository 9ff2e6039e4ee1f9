from collections.abc import Callable
from types import TracebackType
from typing import Any, NoReturn, Self

from accelrt.annotations import DeviceArgument, Memory
from accelrt.devices.device import device as Device
from accelrt.streams.stream import Stream

class Buffer:
    ptr: int
    nbytes: int
    device_index: int
    stream: Stream
    def __init__(
        self, nbytes: int, device: DeviceArgument | None = None, stream: Stream | int | None = None
    ) -> None: ...
    def free(self) -> None: ...
    def record_stream(self, stream: Stream | int) -> None: ...
    def copy_from(
        self,
        src: Memory,
        nbytes: int | None = None,
        *,
        offset: int = 0,
        src_offset: int = 0,
        stream: Stream | int | None = None,
        blocking: bool = True,
    ) -> None: ...
    def copy_to(
        self,
        dst: Memory,
        nbytes: int | None = None,
        *,
        offset: int = 0,
        dst_offset: int = 0,
        stream: Stream | int | None = None,
        blocking: bool = True,
    ) -> None: ...
    def fill(
        self,
        value: int = 0,
        count: int | None = None,
        *,
        width: int = 1,
        offset: int = 0,
        stream: Stream | int | None = None,
        blocking: bool = False,
    ) -> None: ...
    @property
    def device(self) -> Device: ...
    @property
    def __cuda_array_interface__(self) -> dict[str, Any]: ...
    def __array__(self, dtype: object = None, copy: bool | None = None) -> NoReturn: ...
    def __len__(self) -> int: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

class PinnedBuffer:
    ptr: int
    nbytes: int
    def __init__(self, nbytes: int, device: DeviceArgument | None = None) -> None: ...
    def free(self) -> None: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def __len__(self) -> int: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

def provide_copies(copy_function: Callable[..., None], fill_function: Callable[..., None]) -> None: ...
