from threading import local
from types import TracebackType

from accelrt.nccl.groups import Joining, Operation

class Groups(local):
    depth: int
    pending: list[Operation | Joining]
    def __init__(self) -> None: ...

groups: Groups

def group_start() -> None: ...
def group_end() -> None: ...

class group:
    def __enter__(self) -> None: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

def forget_in_child() -> None: ...
