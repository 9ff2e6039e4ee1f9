from collections.abc import Callable, Mapping

from accelrt.errors import OutOfMemoryError

def connect(
    classes: tuple[object, object, object],
    functions: tuple[Callable[[], int], Callable[[int], int]],
    translate: Callable[[OutOfMemoryError], Exception],
    device_api: Mapping[str, object],
    stream_api: Mapping[str, object],
) -> bool: ...
def allocate(size: int) -> object: ...
def allocate_pinned(size: int) -> object: ...

class DeviceBlock: ...

class HostBlock:
    @property
    def ptr(self) -> int: ...
    @property
    def size(self) -> int: ...
