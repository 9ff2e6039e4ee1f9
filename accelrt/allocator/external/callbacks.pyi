from collections.abc import Callable

from accelrt.allocator.external.backend import Allocator

def report(error: BaseException, function: object) -> None: ...

class CallbackAllocator(Allocator):
    allocate: Callable[[int, int, int], int | None]
    free: Callable[[int, int, int, int], object]
    name: str
    def __init__(
        self,
        allocate: Callable[[int, int, int], int | None],
        free: Callable[[int, int, int, int], object],
        name: str = "callbacks",
    ) -> None: ...
