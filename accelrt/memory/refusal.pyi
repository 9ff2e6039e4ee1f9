from collections.abc import Callable

from accelrt.errors import OutOfMemoryError

def explained(
    ordinal: int, size: int, stream: int, code: int, cause: str, source: Callable[[int], object]
) -> OutOfMemoryError: ...
def explained_wake(
    ordinal: int,
    pool: tuple[int, int],
    size: int,
    code: int,
    call: str,
    waking: str,
    source: Callable[[int], object],
) -> OutOfMemoryError: ...
def explained_pinned(size: int, cause: str) -> OutOfMemoryError: ...
def tell(error: OutOfMemoryError, ordinal: int) -> None: ...

class OutOfMemoryObserver:
    def remove(self) -> None: ...

def attach_out_of_memory_observer(fn: Callable[[int, int, int, int], object]) -> OutOfMemoryObserver: ...
