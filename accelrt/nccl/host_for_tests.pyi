from threading import local

from accelrt.streams.stream import Stream

NAMES: tuple[str, ...]
JOIN_SECONDS: int
MARK: bytes
ID_BYTES: int
VERSION: int

class OpenGroup(local):
    depth: int
    operations: list[tuple[Rank, Stream, tuple[int, ...], bool]]
    joining: list[Rank]
    def __init__(self) -> None: ...

class Rank:
    rank: int
    size: int
    device: int
    trouble: tuple[int, str] | None

def version() -> int: ...
def unique_id() -> bytes: ...
def path_of(name: bytes) -> str: ...
def init_rank(size: int, name: bytes, number: int, device: int) -> Rank: ...
def init_all(devices: list[int]) -> list[Rank]: ...
def group_start() -> None: ...
def group_end() -> None: ...
def group_abandon() -> None: ...
def issue(
    rank: Rank,
    stream: Stream,
    call: str,
    source: int,
    target: int,
    count: int,
    itemsize: int,
    datatype: int,
    op: int,
    root: int,
    captured: bool,
) -> None: ...
def async_error(rank: Rank) -> tuple[int, str] | None: ...
def abort(rank: Rank) -> None: ...
def destroy(rank: Rank) -> None: ...
