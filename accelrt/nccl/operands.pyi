from accelrt.arrays.array import Array
from accelrt.streams.stream import Stream

def stream_on(stream: object, ordinal: int) -> Stream: ...
def read(source: object, stream: Stream, name: str, writable: bool) -> Array: ...
def announce(stream: Stream, call: str, reads: tuple[Array, ...], writes: tuple[Array, ...]) -> None: ...
def begin(
    stream: Stream,
    call: str,
    reads: tuple[Array, ...],
    writes: tuple[Array, ...],
    source: Array | None,
    target: Array | None,
    token: object,
) -> tuple[bool, int, int]: ...
