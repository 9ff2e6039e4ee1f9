from collections.abc import Callable
from typing import Any

class FreeMemoryCallback:
    def remove(self) -> None: ...

def register_free_memory_callback(fn: Callable[[int, int], Any]) -> FreeMemoryCallback: ...
